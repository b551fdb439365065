// A server that says what a test tells it to.
import { createServer, type ServerHttp2Session } from "node:http2";
import type { AddressInfo } from "node:net";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import {
  type ConverseRequest,
  type ConverseResponseSchema,
  Ending,
  ResponsesService,
  type ServerEventSchema,
} from "../src/v1.js";

export type EventInit = MessageInitShape<typeof ServerEventSchema>;
type Answer = AsyncIterable<MessageInitShape<typeof ConverseResponseSchema>>;

/** Plays the server's side of one connection: what it yields is sent, event by event. */
export type Script = (requests: AsyncIterator<ConverseRequest>) => AsyncIterable<EventInit>;

export async function serve(script: Script) {
  async function* converse(requests: AsyncIterable<ConverseRequest>): Answer {
    const incoming = requests[Symbol.asyncIterator]();
    await incoming.next();
    yield { events: [{ event: { case: "sessionStarted", value: { revision: "2026-12-01" } } }] };
    for await (const event of script(incoming)) yield { events: [event] };
  }
  const sessions = new Set<ServerHttp2Session>();
  const server = createServer(
    connectNodeAdapter({ routes: (router) => router.service(ResponsesService, { converse }) }),
  );
  server.on("session", (session) => sessions.add(session));
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  const drop = () => {
    for (const session of sessions) session.destroy();
  };
  return {
    address: `127.0.0.1:${(server.address() as AddressInfo).port}`,
    drop,
    async [Symbol.asyncDispose]() {
      drop();
      server.close();
    },
  };
}

const id = "resp_1";

export function created(sequenceNumber = 0): EventInit {
  return { sequenceNumber, response: { id }, event: { case: "responseCreated", value: {} } };
}

export function delta(sequenceNumber: number, delta: string): EventInit {
  return { sequenceNumber, event: { case: "outputTextDelta", value: { delta } } };
}

function message(text: string) {
  const parts = [{ part: { case: "text" as const, value: { type: "output_text", text } } }];
  const content = { case: "parts" as const, value: { parts } };
  return { item: { case: "message" as const, value: { role: "assistant", content } } };
}

export function completed(sequenceNumber: number, text: string): EventInit {
  const event = { case: "responseCompleted" as const, value: {} };
  const response = { id, output: [message(text)] };
  return { sequenceNumber, response, event, ending: Ending.COMPLETED };
}

export function held(sequenceNumber: number, ...callIds: string[]): EventInit {
  const call = (callId: string) => ({
    item: { case: "functionCall" as const, value: { callId, name: "look", arguments: "{}" } },
  });
  const event = { case: "responseDone" as const, value: {} };
  return {
    sequenceNumber,
    response: { id, output: callIds.map(call) },
    event,
    ending: Ending.HELD,
  };
}

export function refused(code: string, eventId?: string, ending = Ending.REFUSED): EventInit {
  const error = { type: "invalid_request_error", code, message: "No.", param: "model", eventId };
  const retryAfter = { seconds: 2n, nanos: 500_000_000 };
  const value = { error: { ...error, retryAfter }, status: 400 };
  return { sequenceNumber: 0, event: { case: "error", value }, ending };
}
