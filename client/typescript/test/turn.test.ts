import assert from "node:assert/strict";
import { createServer } from "node:net";
import { test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { connect, Ending, LostConnection, TielineError, Toolbox, text } from "../src/index.js";
import { ErrorInfoSchema } from "../src/stubs/google/rpc/error_details_pb.js";
import {
  type ConverseRequest,
  type HeartbeatPhase,
  type ServerEvent,
  ServerEventSchema,
} from "../src/v1.js";
import {
  completed,
  created,
  delta,
  type EventInit,
  held,
  refused,
  type Script,
  serve,
} from "./server.js";
import { listen } from "./tape.js";

const transports = ["connect", "grpc-js"] as const;
const within = { timeout: 20_000 };

/** A test on each transport, with a connection to a server that follows the script. */
function on(
  name: string,
  script: Script,
  body: (connection: Awaited<ReturnType<typeof connect>>, drop: () => void) => Promise<void>,
): void {
  for (const transport of transports)
    test(`${name}, over ${transport}`, within, async () => {
      await using server = await serve(script);
      using connection = await connect(server.address, { transport });
      await body(connection, server.drop);
    });
}

async function next(requests: AsyncIterator<ConverseRequest>): Promise<ConverseRequest> {
  const { value, done } = await requests.next();
  if (done) throw new Error("the client has left");
  return value;
}

/** The error of what must fail. */
async function failure(asked: Promise<unknown>): Promise<TielineError> {
  const error = await asked.then(
    () => undefined,
    (error) => error,
  );
  assert.ok(error instanceof TielineError, `${error}`);
  return error;
}

const forever = () => new Promise<never>(() => {});

async function* hello(requests: AsyncIterator<ConverseRequest>): AsyncGenerator<EventInit> {
  await next(requests);
  yield* [created(), delta(1, "Hel"), delta(2, "lo"), completed(3, "Hello")];
}

on(
  "a turn",
  async function* (requests) {
    for (;;) yield* hello(requests);
  },
  async (connection) => {
    assert.equal(text(await connection.ask("hi")), "Hello");
    const turn = connection.turn({ input: [], metadata: { a: "b" } });
    const kinds: unknown[] = [];
    for await (const { event } of turn) kinds.push(event.case);
    const deltas = ["outputTextDelta", "outputTextDelta"];
    assert.deepEqual(kinds, ["responseCreated", ...deltas, "responseCompleted"]);
    assert.equal(turn.ending, Ending.COMPLETED);
    assert.equal(text(await turn.result()), "Hello");
  },
);

on(
  "an iteration that is left early is taken up again",
  async function* (requests) {
    yield* hello(requests);
    await forever();
  },
  async (connection) => {
    const turn = connection.turn("hi");
    for await (const _ of turn) break;
    assert.equal(text(await turn.result()), "Hello");
  },
);

on(
  "a refusal is for its own turn and says all that is known",
  async function* (requests) {
    const first = await next(requests);
    const second = await next(requests);
    yield created();
    yield refused("lane_busy", second.eventId);
    yield completed(1, "first");
    await next(requests);
    yield refused("model_not_found");
    assert.notEqual(first.eventId, second.eventId);
  },
  async (connection) => {
    const first = connection.ask("one");
    const second = await failure(connection.ask("two"));
    assert.equal(second.code, "lane_busy");
    assert.equal(text(await first), "first");
    const { code, param, retryAfterMs, httpStatus, message } = await failure(
      connection.ask("three"),
    );
    assert.deepEqual(
      { code, param, retryAfterMs, httpStatus, message },
      {
        ...{ code: "model_not_found", param: "model", retryAfterMs: 2500, httpStatus: 400 },
        message: "No.",
      },
    );
  },
);

on(
  "a response that fails",
  async function* (requests) {
    await next(requests);
    const error = { code: "server_error", message: "Broken." };
    const event = { case: "responseFailed" as const, value: {} };
    yield { response: { id: "resp_1", error }, event, ending: Ending.FAILED };
  },
  async (connection) => {
    const error = await failure(connection.ask("hi"));
    assert.equal(error.code, "server_error");
    assert.equal(error.message, "Broken.");
    assert.equal(error.response?.id, "resp_1");
  },
);

on(
  "lanes run side by side, and the turns of one lane one after another",
  async function* (requests) {
    const asked = [await next(requests), await next(requests), await next(requests)];
    assert.deepEqual(
      asked.map(({ streamId }) => streamId),
      ["a", "b", "b"],
    );
    yield { ...completed(0, "b1"), streamId: "b" };
    yield { ...completed(0, "b2"), streamId: "b" };
    yield { ...completed(0, "nobody"), streamId: "c" };
    yield { ...completed(0, "a1"), streamId: "a" };
    await forever();
  },
  async (connection) => {
    const asked = ["a", "b", "b"].map((lane) => connection.ask("hi", { lane }));
    assert.deepEqual((await Promise.all(asked)).map(text), ["a1", "b1", "b2"]);
  },
);

on(
  "tools run side by side, once, and what they throw is told",
  async function* (requests) {
    const { message } = await next(requests);
    assert.equal(message.case, "responseCreate");
    assert.equal(message.case === "responseCreate" && message.value.append, true);
    yield* [created(), held(1, "one", "two")];
    yield completed(2, JSON.stringify(outputs(await next(requests))));
    await forever();
  },
  async (connection) => {
    let runs = 0;
    const look = () => {
      if (runs++ > 0) throw new Error("Twice.");
      return { seen: true };
    };
    const tools = new Toolbox([{ name: "look", run: look }]);
    const expected = [
      ["one", '{"seen":true}'],
      ["two", "Error: Twice."],
    ];
    assert.equal(text(await connection.ask("go", { tools })), JSON.stringify(expected));
    assert.equal(runs, 2);
  },
);

on(
  "a held turn waits for a client without tools; a refused append leaves it held",
  async function* (requests) {
    await next(requests);
    yield* [created(), held(1, "one")];
    const wrong = await next(requests);
    yield refused("tool_call_not_found", wrong.eventId, Ending.UNSPECIFIED);
    await next(requests);
    yield completed(2, "done");
    await forever();
  },
  async (connection) => {
    const turn = connection.turn({ input: "go", append: true });
    await turn.result();
    assert.equal(turn.ending, Ending.HELD);
    assert.deepEqual(
      turn.calls.map(({ callId }) => callId),
      ["one"],
    );
    turn.append([]);
    assert.equal((await failure(turn.result())).code, "tool_call_not_found");
    assert.equal(turn.ended, false);
    turn.append("never mind");
    assert.equal(text(await turn.result()), "done");
  },
);

for (const transport of transports)
  test(`a tool runs once though its turn is resumed, over ${transport}`, within, async () => {
    let runs = 0;
    const tools = new Toolbox([{ name: "look", run: () => `look ${++runs}` }]);
    await using first = await serve(async function* (requests) {
      await next(requests);
      yield* [created(), held(1, "one")];
      await next(requests);
      first.drop();
    });
    using cut = await connect(first.address, { transport });
    const lost = await failure(cut.ask({ input: "go", resumable: true }, { tools }));
    assert.ok(lost instanceof LostConnection);
    assert.deepEqual([lost.responseId, lost.after], ["resp_1", 0]);

    // The append got through, so that a second one is too late.
    await using second = await serve(async function* (requests) {
      const { message } = await next(requests);
      assert.equal(message.case === "responseResume" && message.value.after, 0);
      yield held(1, "one");
      const again = await next(requests);
      assert.deepEqual(outputs(again), [["one", "look 1"]]);
      yield delta(2, "on");
      yield refused("response_not_active", again.eventId, Ending.UNSPECIFIED);
      yield held(3, "one", "two");
      assert.deepEqual(outputs(await next(requests)), [["two", "look 2"]]);
      yield completed(4, "done");
      await forever();
    });
    using whole = await connect(second.address, { transport });
    assert.equal(text(await whole.resume(lost, { tools }).result()), "done");
    assert.equal(runs, 2);
  });

on(
  "cancel names the response",
  async function* (requests) {
    const { eventId } = await next(requests);
    yield created();
    const cancel = await next(requests);
    assert.equal(
      cancel.message.case === "responseCancel" && cancel.message.value.responseId,
      "resp_1",
    );
    assert.equal(cancel.eventId, eventId);
    const event = { case: "responseIncomplete" as const, value: {} };
    yield { response: { id: "resp_1" }, event, ending: Ending.INCOMPLETE };
  },
  async (connection) => {
    const turn = connection.turn("go");
    for await (const { event } of turn) if (event.case === "responseCreated") turn.cancel();
    assert.equal(turn.ending, Ending.INCOMPLETE);
  },
);

on(
  "what a newer server says is passed over or kept",
  async function* (requests) {
    await next(requests);
    const future = { no: 900, wireType: 2, data: new Uint8Array([2, 8, 7]) };
    const newer = (event: EventInit): ServerEvent => {
      const message = create(ServerEventSchema, event);
      message.$unknown = [future];
      return message;
    };
    yield newer(created());
    yield newer({ sequenceNumber: 1, event: { case: undefined } });
    yield newer({
      sequenceNumber: 2,
      event: { case: "heartbeat", value: { phase: 77 as HeartbeatPhase } },
    });
    const response = { id: "resp_1", status: 99 };
    yield newer({ sequenceNumber: 3, response, ending: 42 as Ending, event: { case: undefined } });
    await forever();
  },
  async (connection) => {
    const turn = connection.turn("go");
    const kinds: unknown[] = [];
    for await (const { event } of turn) kinds.push(event.case);
    assert.deepEqual(kinds, ["responseCreated", "heartbeat"]);
    assert.ok(turn.ended);
    assert.equal((await turn.result()).status, 99);
  },
);

const told: EventInit[] = [
  created(),
  delta(1, "Hel"),
  { event: { case: "heartbeat", value: {} } },
  { sequenceNumber: 2, event: { case: undefined } },
  held(3, "one"),
  refused("tool_call_not_found", undefined, Ending.UNSPECIFIED),
  { event: { case: "sessionGoingAway", value: { reason: "shutdown" } } },
];

for (const transport of transports)
  for (const [last, how] of told.flatMap(
    (_, i) =>
      [
        [i, "drop"],
        [i, "end"],
      ] as const,
  ))
    test(
      `the server is gone after event ${last} by ${how}, over ${transport}`,
      within,
      async () => {
        await using server = await serve(async function* (requests) {
          await next(requests);
          yield* told.slice(0, last + 1);
          if (how === "drop") setTimeout(server.drop, 5);
          if (how === "drop") await forever();
        });
        using connection = await connect(server.address, { transport });
        const turns = [connection.turn("one"), connection.turn("two", { lane: "b" })];
        const reads = turns.map(async (turn) => {
          for (;;)
            try {
              await turn.result();
            } catch (error) {
              if (error instanceof LostConnection) return error;
            }
        });
        const [first, second] = await Promise.all(reads);
        assert.equal(first?.responseId, "resp_1");
        assert.equal(second?.responseId, undefined);
        assert.ok((await failure(connection.ask("three"))) instanceof LostConnection);
      },
    );

on("a server that is gone after the turn", hello, async (connection, drop) => {
  assert.equal(text(await connection.ask("hi")), "Hello");
  drop();
  assert.ok((await failure(connection.ask("hi"))) instanceof LostConnection);
});

on(
  "a status with a reason",
  async function* (requests) {
    await next(requests);
    yield created();
    const detail = { reason: "SLOW_CONSUMER", domain: "tieline" };
    const details = [{ desc: ErrorInfoSchema, value: detail }];
    throw new ConnectError("Too slow.", Code.ResourceExhausted, undefined, details);
  },
  async (connection) => {
    const [begun, waiting] = [connection.ask("hi"), connection.ask("hi", { lane: "b" })].map(
      failure,
    );
    assert.ok((await begun) instanceof LostConnection);
    assert.equal((await begun)?.code, "slow_consumer");
    const error = await waiting;
    assert.equal(error?.name, "TielineError");
    assert.equal(error?.code, "slow_consumer");
    assert.equal(error?.grpcStatus, Code.ResourceExhausted);
  },
);

for (const transport of transports) {
  test(`no server, over ${transport}`, within, async () => {
    assert.ok((await failure(connect("127.0.0.1:1", { transport }))) instanceof LostConnection);
  });

  test(`a server that says nothing, over ${transport}`, within, async () => {
    const server = createServer((socket) => {
      socket.on("error", () => {}).resume();
      // grpc-js leaves a socket open when it is closed before the server has said anything.
      setTimeout(() => socket.destroy(), 1000);
    });
    const address = await listen(server);
    const error = await failure(connect(address, { transport, connectTimeoutMs: 300 }));
    assert.match(error.message, /in time/);
    server.close();
  });

  test(`a server that speaks something else, over ${transport}`, within, async () => {
    const server = createServer(
      (socket) =>
        void socket
          .on("error", () => {})
          .resume()
          .end("HTTP/1.1 400\r\n\r\n"),
    );
    assert.ok(
      (await failure(connect(await listen(server), { transport }))) instanceof LostConnection,
    );
    server.close();
  });
}

/** Call id and output of an append's items. */
function outputs({ message }: ConverseRequest): unknown[] {
  assert.equal(message.case, "responseAppend");
  const input = message.case === "responseAppend" ? message.value.input : undefined;
  const items = input?.case === "inputItems" ? input.value.items : [];
  return items.map(({ item }) =>
    item.case === "functionCallOutput" ? [item.value.callId, item.value.output.value] : [],
  );
}
