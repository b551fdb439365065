import type { MessageInitShape } from "@bufbuild/protobuf";
import { fromEvent, lost, TielineError } from "./errors.js";
import { Queue } from "./queue.js";
import { Ending, type ErrorEvent, type ServerEvent } from "./stubs/tieline/v1/events_pb.js";
import type { FunctionCall } from "./stubs/tieline/v1/items_pb.js";
import type { Response } from "./stubs/tieline/v1/responses_pb.js";
import type { ConverseRequestSchema } from "./stubs/tieline/v1/service_pb.js";
import { type Input, Toolbox, toInput } from "./tools.js";

export type ClientMessage = NonNullable<MessageInitShape<typeof ConverseRequestSchema>["message"]>;

/** Sends a message on the turn's lane and returns its event_id, which is made up unless given. */
export type Send = (message: ClientMessage, eventId?: string) => string;

/**
 * One turn. Its events are iterated until it ends or, without tools, until it is held; then
 * `append` goes on, and it is iterated again. An event `error` is thrown.
 */
export class Turn implements AsyncIterable<ServerEvent> {
  /** The response as the latest event that carried one had it. */
  response?: Response;
  /** The number after which a resume would go on; a hold comes again, so that it is answered. */
  after?: number;
  /** Why the latest stretch of events ended. */
  ending = Ending.UNSPECIFIED;
  /** The calls that a held turn waits for. */
  calls: FunctionCall[] = [];
  readonly #events = new Queue<ServerEvent>();
  readonly #eventIds: string[];
  /** The append that the server has not answered yet. */
  #awaiting?: string;

  /** Made by `connection.turn` and `connection.resume`. */
  constructor(
    private readonly send: Send,
    first: ClientMessage,
    readonly lane: string | undefined,
    private readonly tools = new Toolbox(),
  ) {
    this.#eventIds = [send(first)];
  }

  get ended(): boolean {
    return this.ending !== Ending.UNSPECIFIED && this.ending !== Ending.HELD;
  }

  /** Goes on, in a held turn by the outputs of its calls. `toolChoice` replaces the create's. */
  append(input: Input, toolChoice?: "auto" | "none" | "required"): void {
    const choice = toolChoice && { case: "toolChoice" as const, value: toolChoice };
    const value = { responseId: this.response?.id, input: toInput(input), choice };
    this.#awaiting = this.send({ case: "responseAppend", value });
    this.#eventIds.push(this.#awaiting);
  }

  /** Ends the turn: its response comes as far as it is, with the status cancelled. */
  cancel(): void {
    const value = { responseId: this.response?.id };
    this.send({ case: "responseCancel", value }, this.#eventIds[0]);
  }

  /** The response at the end or, without tools, at the hold. One that has failed is thrown. */
  async result(): Promise<Response> {
    for await (const _ of this);
    const { response } = this;
    if (response === undefined) throw new TielineError("The turn has ended without a response.");
    if (this.ending !== Ending.FAILED) return response;
    throw new TielineError(response.error?.message ?? "", { code: response.error?.code, response });
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<ServerEvent, void, undefined> {
    for await (const event of this.#events) {
      if (event.event.case === "error") this.#fail(event.event.value);
      // Only what has a number tells: a heartbeat may come from before the append.
      else if (event.sequenceNumber !== undefined) this.#goOn();
      if (event.event.case !== undefined && event.event.case !== "error") yield event;
      if (event.ending !== Ending.HELD) continue;
      this.calls = event.response ? this.tools.open(event.response) : [];
      if (this.tools.tools.length === 0) return;
      // A hold that is read again may have been answered long since. What had to be called has been.
      const outputs = await this.tools.answer(this.calls);
      if (outputs.length > 0 && !this.ended) this.append(outputs, "auto");
    }
  }

  /** The server has taken what was appended. */
  #goOn(): void {
    if (this.#awaiting !== undefined) this.tools.settle(this.calls.splice(0));
    this.#awaiting = undefined;
  }

  #fail(event: ErrorEvent): void {
    const error = fromEvent(event);
    const late = event.error?.eventId !== this.#awaiting || error.code === "response_not_active";
    // The outputs had come by the connection before this one: the server has them.
    if (late && this.#eventIds.indexOf(event.error?.eventId ?? "") > 0) return;
    throw error;
  }

  /** Whether an error answers a message of this turn. */
  sent(eventId: string): boolean {
    return this.#eventIds.includes(eventId);
  }

  /** Takes an event from the connection. */
  take(event: ServerEvent): void {
    this.response = event.response ?? this.response;
    const answered = event.ending !== Ending.HELD && event.event.case !== "error";
    if (answered) this.after = event.sequenceNumber ?? this.after;
    this.ending = event.ending;
    this.#events.push(event);
    if (this.ended) this.#events.end();
  }

  /** The connection has ended. */
  lose(reason: unknown): void {
    this.#events.end(lost(reason, this.response?.id, this.after));
  }
}
