// Does the scenarios of tests/interop against the targets; prints a line of JSON for each.
import { deepEqual, equal, fail, ok, rejects } from "node:assert/strict";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { type CallOptions, createClient } from "@connectrpc/connect";
import {
  Code,
  type ConnectOptions,
  connect,
  Ending,
  LostConnection,
  TielineError,
  Toolbox,
  type Turn,
  text,
} from "../src/index.js";
import { toInput } from "../src/tools.js";
import { openChannel } from "../src/transport.js";
import { ResponseStatus } from "../src/v1.js";
import { Health, HealthCheckResponse_ServingStatus as Serving } from "./stubs/health_pb.js";
import { ServerReflection } from "./stubs/reflection_v1_pb.js";
import { ServerReflection as ServerReflectionAlpha } from "./stubs/reflection_v1alpha_pb.js";

const [scenariosPath = "", targetsPath = "", only] = process.argv.slice(2);
const { tool, scenarios } = JSON.parse(readFileSync(scenariosPath, "utf8"));
const targets = JSON.parse(readFileSync(targetsPath, "utf8"));
const transport = process.env.TRANSPORT === "grpc-js" ? "grpc-js" : "connect";

// biome-ignore lint/suspicious/noExplicitAny: Each scenario has members of its own.
type Scenario = any;

const does: Record<string, (scenario: Scenario) => Promise<void>> = {
  async turn(s) {
    using connection = await open();
    const turn = connection.turn(s.input);
    const response = await turn.result();
    equal(text(response), s.text);
    equal(turn.ending, Ending.COMPLETED);
    ok(response.usage && response.usage.inputTokens > 0 && response.usage.outputTokens > 0);
    equal(response.usage.totalTokens, response.usage.inputTokens + response.usage.outputTokens);
  },

  async append(s) {
    using connection = await open();
    const calls: unknown[] = [];
    const run = (args: unknown) => {
      calls.push(args);
      return tool.output;
    };
    const turn = connection.turn(s.input, { tools: new Toolbox([{ ...tool, run }]) });
    let holds = 0;
    for await (const event of turn) if (event.ending === Ending.HELD) holds++;
    equal(text(await turn.result()), s.text);
    deepEqual(calls, [s.arguments]);
    equal(holds, 1);
  },

  async chain(s) {
    using connection = await open();
    const { id } = await connection.ask(s.input);
    equal(text(await connection.ask({ input: s.then, previousResponseId: id })), s.text);
  },

  async lanes(s) {
    using connection = await open();
    const ended: string[] = [];
    const ask = async ([lane, input]: [string, unknown]) => {
      const response = await connection.ask(input as string, { lane });
      ended.push(lane);
      equal(text(response), s.texts[lane]);
    };
    await Promise.all(Object.entries(s.lanes).map(ask));
    equal(ended[0], s.first);
  },

  async cancel(s) {
    using connection = await open();
    const turn = connection.turn(s.input);
    for await (const event of turn) if (event.event.case === "outputTextDelta") turn.cancel();
    equal(turn.ending, Ending.INCOMPLETE);
    equal(turn.response?.status, ResponseStatus.CANCELLED);
    equal(text(await connection.ask(s.then)), s.text);
  },

  async error(s) {
    using connection = await open();
    for (const { model, input, code, param, retry_after } of s.refused) {
      const error = await failure(connection.ask({ model, input }));
      equal(error.code, code);
      if (param !== undefined) equal(error.param, param);
      if (retry_after !== undefined) equal(error.retryAfterMs, retry_after * 1000);
    }
    equal(text(await connection.ask(s.then)), s.text);
  },

  async resume(s) {
    using first = await open({}, targets.cut);
    const heard: number[] = [];
    const lost = await failure(collect(first.turn({ input: s.input, resumable: true }), heard));
    ok(lost instanceof LostConnection && lost.responseId, `${lost}`);
    ok(heard.length > 0, "nothing was heard before the cut");
    using second = await open();
    const turn = second.resume(lost);
    const rest = await collect(turn, heard);
    deepEqual(heard, [...heard.keys()]);
    ok(rest.length > 0 && s.text.endsWith(rest));
    equal(text(await turn.result()), s.text);
  },

  async key(s) {
    using connection = await open({ key: targets.key }, targets.keyed);
    equal(text(await connection.ask(s.input)), s.text);
  },

  async wrong_key(s) {
    const error = await failure(open({ key: s.key }, targets.keyed));
    equal(error.grpcStatus, statusOf(s.status));
    equal(error.code, s.code);
  },

  async health(s) {
    const channel = openChannel(targets.address, { transport });
    const client = createClient(Health, channel.transport);
    for (const service of s.services) {
      equal((await client.check({ service })).status, Serving.SERVING);
      for await (const { status } of client.watch({ service }, stoppable())) {
        equal(status, Serving.SERVING);
        break;
      }
    }
    await rejects(client.check({ service: "no.such.Service" }), { code: Code.NotFound });
    channel.close();
  },

  async reflection(s) {
    const channel = openChannel(targets.address, { transport });
    for (const service of [ServerReflection, ServerReflectionAlpha]) {
      const client = createClient(service, channel.transport);
      const listed = await listing(client.serverReflectionInfo(listServices()));
      for (const name of s.services) ok(listed.includes(name), `${service.typeName}: ${listed}`);
    }
    channel.close();
  },

  async deadline(s) {
    using connection = await open();
    const responseCreate = { input: toInput(s.input) };
    const late = connection.calls.create({ responseCreate }, { timeoutMs: s.milliseconds });
    equal((await failure(late)).grpcStatus, Code.DeadlineExceeded);
    const turn = connection.turn({ input: s.input, timeout: durationFromMs(s.milliseconds) });
    equal((await turn.result()).incompleteDetails?.reason, s.reason);
    equal(turn.ending, Ending.INCOMPLETE);
    equal(text(await connection.ask(s.then)), s.text);
  },

  async keepalive(s) {
    using connection = await open();
    await sleep(s.seconds * 1000);
    equal(text(await connection.ask(s.input)), s.text);
  },

  async large(s) {
    const responseCreate = { input: toInput(s.input) };
    using connection = await open({ maxReceiveBytes: s.limit });
    using plain = await open();
    // Side by side, since each takes long to be made.
    const [response, whole, cut] = await Promise.all([
      connection.ask(s.input),
      connection.calls.create({ responseCreate }),
      plain.calls.create({ responseCreate }),
    ]);
    equal(text(response).length, s.bytes);
    ok(whole.response && !whole.outputOmitted);
    equal(text(whole.response).length, s.bytes);
    ok(cut.outputOmitted);
    equal(cut.response?.output.length, 0);
  },

  async unicode(s) {
    using connection = await open();
    const turn = connection.turn(s.input);
    equal(await collect(turn), s.text);
    equal(text(await turn.result()), s.text);
  },

  async newer(s) {
    using connection = await open({}, targets.newer);
    equal(text(await connection.ask(s.input)), s.text);
  },

  async goaway(s) {
    using connection = await open({}, targets.drains);
    equal(text(await connection.ask(s.input)), s.text);
    ok(connection.goingAway, "the server has not said that it goes away");
    const error = await failure(connection.ask(s.input));
    ok(error instanceof LostConnection || error.code === s.code, `${error}`);
  },
};

function open(options: ConnectOptions = {}, address: string = targets.address) {
  return connect(address, { transport, ...options });
}

/** The error of what must fail. */
async function failure(asked: Promise<unknown>): Promise<TielineError> {
  try {
    await asked;
  } catch (error) {
    return TielineError.from(error);
  }
  return fail("no error came");
}

/** The text of a turn's deltas; the numbers of its events go to `heard`. */
async function collect(turn: Turn, heard: number[] = []): Promise<string> {
  let deltas = "";
  for await (const { event, sequenceNumber } of turn) {
    if (sequenceNumber !== undefined) heard.push(sequenceNumber);
    if (event.case === "outputTextDelta") deltas += event.value.delta;
  }
  return deltas;
}

async function* listServices() {
  yield { messageRequest: { case: "listServices" as const, value: "" } };
}

async function listing(
  answers: AsyncIterable<{ messageResponse: { value?: { service: { name: string }[] } } }>,
): Promise<string[]> {
  const names: string[] = [];
  for await (const { messageResponse } of answers)
    names.push(...(messageResponse.value?.service ?? []).map(({ name }) => name));
  return names;
}

/** A call that ends with the scenario, since a watch has no end of its own. */
function stoppable(): CallOptions {
  return { timeoutMs: 10_000 };
}

/** UNAUTHENTICATED is Code.Unauthenticated. */
function statusOf(word: string): Code {
  const names = Object.keys(Code).filter((name) => Number.isNaN(Number(name)));
  const name = names.find((name) => name.toUpperCase() === word.replaceAll("_", ""));
  return Code[name as keyof typeof Code];
}

async function outcome(scenario: Scenario): Promise<object> {
  const run = does[scenario.name];
  if (run === undefined) return { ok: null, why: "this runner does not know it" };
  // A busy machine takes its time; this only bounds a hang.
  const seconds = 180;
  const stop = new AbortController();
  const late = sleep(seconds * 1000, undefined, { signal: stop.signal }).then(() =>
    fail(`it did not end within ${seconds} s`),
  );
  try {
    await Promise.race([run(scenario), late]);
    return { ok: true };
  } catch (error) {
    return { ok: false, why: error instanceof Error ? error.message : `${error}` };
  } finally {
    late.catch(() => {});
    stop.abort();
  }
}

const chosen = scenarios.filter(({ name }: Scenario) => only === undefined || name === only);
await Promise.all(
  chosen.map(async (scenario: Scenario) => {
    const line = { scenario: scenario.name, ...(await outcome(scenario)) };
    process.stdout.write(`${JSON.stringify(line)}\n`);
  }),
);
// The process ends in spite of what a scenario that ran out of time has left open.
setTimeout(() => process.exit(0), 1000).unref();
