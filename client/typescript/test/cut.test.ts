import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { connect, LostConnection, text } from "../src/index.js";
import { answer, play, question, readTape, toolbox } from "./tape.js";

const tape = readTape();
const whole = tape.reduce((sum, part) => sum + part.length, 0);

for (const transport of ["connect", "grpc-js"] as const)
  test(`over ${transport} a turn that is cut anywhere is lost or whole`, async () => {
    const seen = { whole: 0, lost: 0, resumable: 0 };
    let next = 0;
    const worker = async () => {
      for (let k = next++; k <= whole; k = next++) await cut(transport, k, seen);
    };
    await Promise.all(Array.from({ length: 24 }, worker));
    assert.equal(seen.whole + seen.lost, whole + 1);
    assert.ok(seen.whole > 0 && seen.resumable > 0);
  });

async function cut(
  transport: "connect" | "grpc-js",
  upTo: number,
  seen: { whole: number; lost: number; resumable: number },
): Promise<void> {
  let runs = 0;
  const server = await play(tape, upTo);
  const turn = async () => {
    const connection = await connect(server.address, { transport });
    const tools = toolbox(() => runs++);
    const response = await connection.ask(question, { tools }).finally(() => connection.close());
    return text(response);
  };
  const outcome = await Promise.race([
    turn().catch((error) => error),
    sleep(10_000, "hangs", { ref: false }),
  ]);
  server.stop();
  assert.notEqual(outcome, "hangs", `cut after ${upTo} bytes`);
  assert.ok(runs <= 1, `the tool ran ${runs} times, cut after ${upTo} bytes`);
  if (outcome === answer) seen.whole++;
  else if (outcome instanceof LostConnection) {
    seen.lost++;
    if (outcome.responseId !== undefined) {
      assert.ok(outcome.after !== undefined);
      seen.resumable++;
    }
  } else throw outcome;
}
