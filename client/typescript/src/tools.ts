import { create, type MessageInitShape } from "@bufbuild/protobuf";
import type { FunctionCall, Item, Message } from "./stubs/tieline/v1/items_pb.js";
import { ItemSchema, type Tool as ToolMessage, ToolSchema } from "./stubs/tieline/v1/items_pb.js";
import type { Response } from "./stubs/tieline/v1/responses_pb.js";

/** A function that the model may call; its arguments follow the JSON schema `parameters`. */
export interface Tool {
  name: string;
  description?: string;
  parameters?: object;
  strict?: boolean;
  // biome-ignore lint/suspicious/noExplicitAny: The schema says what the arguments are.
  run(args: any): unknown;
}

/** Tools that run once for each call id, also where a turn is resumed with the same toolbox. */
export class Toolbox {
  /** By call id; undefined where the server has it. */
  readonly #outputs = new Map<string, Promise<string> | undefined>();

  constructor(readonly tools: readonly Tool[] = []) {}

  /** The calls of a held response that the server still wants answered. */
  open({ output }: Response): FunctionCall[] {
    const calls = output.flatMap(({ item }) => (item.case === "functionCall" ? [item.value] : []));
    return calls.filter(({ callId }) => !this.#outputs.has(callId) || this.#outputs.get(callId));
  }

  /** The outputs of calls, which run side by side. A tool that throws tells the model so. */
  async answer(calls: FunctionCall[]): Promise<Item[]> {
    for (const call of calls)
      if (!this.#outputs.has(call.callId)) this.#outputs.set(call.callId, this.#run(call));
    const output = async (id: string) => functionOutput(id, (await this.#outputs.get(id)) ?? "");
    return Promise.all(calls.map(({ callId }) => output(callId)));
  }

  /** The server has gone on with the outputs of these calls. */
  settle(calls: FunctionCall[]): void {
    for (const { callId } of calls) this.#outputs.set(callId, undefined);
  }

  async #run(call: FunctionCall): Promise<string> {
    try {
      const tool = this.tools.find(({ name }) => name === call.name);
      if (tool === undefined) throw new Error(`There is no tool ${call.name}.`);
      const output = await tool.run(JSON.parse(call.arguments || "{}"));
      return typeof output === "string" ? output : (JSON.stringify(output) ?? "");
    } catch (error) {
      return `Error: ${error instanceof Error ? error.message : error}`;
    }
  }
}

/** A message of the user. */
export function userText(text: string): Item {
  const value = { role: "user", content: { case: "text" as const, value: text } };
  return create(ItemSchema, { item: { case: "message", value } });
}

/** What a function returned for a call. */
export function functionOutput(callId: string, text: string): Item {
  const value = { callId, output: { case: "text" as const, value: text } };
  return create(ItemSchema, { item: { case: "functionCallOutput", value } });
}

/** A function as a create offers it. */
export function functionTool(tool: Omit<Tool, "run">): ToolMessage {
  const { name, description, parameters, strict } = tool;
  const parametersJson = parameters && JSON.stringify(parameters);
  const value = { name, description, parametersJson, strict };
  return create(ToolSchema, { tool: { case: "function", value } });
}

/** What is new: one user message, or items. */
export type Input = string | MessageInitShape<typeof ItemSchema>[];

/** The `input` of a create or an append. */
export function toInput(input: Input) {
  return typeof input === "string"
    ? { case: "inputText" as const, value: input }
    : { case: "inputItems" as const, value: { items: input } };
}

/** The text of a response: that of its messages, joined. */
export function text({ output }: Response): string {
  return output.map(({ item }) => (item.case === "message" ? said(item.value) : "")).join("");
}

function said({ content }: Message): string {
  if (content.case !== "parts") return content.value ?? "";
  return content.value.parts
    .map(({ part }) => (part.case === "text" ? part.value.text : ""))
    .join("");
}
