// Records what a server says on the wire, and plays it. A tape is a list of stretches of bytes:
// the server says the first one unasked, and each further one after a further DATA frame of the
// client, which is one message. `node dist/test/tape.js HOST:PORT` records tape.json anew.
import { readFileSync, writeFileSync } from "node:fs";
import { type AddressInfo, createServer, connect as dial, type Socket } from "node:net";
import { connect, Toolbox, text } from "../src/index.js";

export const question = "What is the weather in Oslo?";
export const answer = "It is 4 degrees and rain.";
const path = new URL("../../test/tape.json", import.meta.url);

export function readTape(): Buffer[] {
  return JSON.parse(readFileSync(path, "utf8")).map((part: string) => Buffer.from(part, "base64"));
}

export function toolbox(run: () => void): Toolbox {
  const weather = () => {
    run();
    return "4 degrees and rain";
  };
  return new Toolbox([{ name: "get_weather", run: weather }]);
}

/** Plays a tape up to so many bytes to whoever connects, then closes. */
export async function play(tape: Buffer[], upTo: number) {
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    let left = upTo;
    const say = (part: Buffer = Buffer.alloc(0)) => {
      const piece = part.subarray(0, left);
      left -= piece.length;
      if (piece.length > 0) socket.write(piece);
      if (left === 0) socket.end();
    };
    // Behind the preface, since grpc-js does not see the end of what ends before.
    socket.once("data", () => say(tape[0]));
    socket.on(
      "data",
      onMessages((count) => say(tape[count])),
    );
    socket.on("error", () => {});
  });
  const address = await listen(server);
  const stop = () => {
    for (const socket of sockets) socket.destroy();
    server.close();
  };
  return { address, stop };
}

export async function listen(server: ReturnType<typeof createServer>): Promise<string> {
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  return `127.0.0.1:${(server.address() as AddressInfo).port}`;
}

/** Calls back with their number so far for each DATA frame that is not empty. */
function onMessages(callback: (count: number) => void): (data: Buffer) => void {
  let rest = Buffer.alloc(0);
  let next = 24; // Behind the preface.
  let count = 0;
  return (data) => {
    rest = Buffer.concat([rest, data]);
    while (rest.length >= next + 9) {
      const length = rest.readUIntBE(next, 3);
      if (rest.length < next + 9 + length) return;
      if (rest[next + 3] === 0 && length > 0) callback(++count);
      rest = rest.subarray(next + 9 + length);
      next = 0;
    }
  };
}

async function record(target: string): Promise<void> {
  const tape: Buffer[] = [Buffer.alloc(0)];
  const [host = "", port = ""] = target.split(":");
  const server = createServer((socket) => {
    const upstream = dial(Number(port), host);
    upstream.pipe(socket);
    // The server's settings are what it says unasked.
    upstream.once("data", () => {
      socket.on(
        "data",
        onMessages(() => tape.push(Buffer.alloc(0))),
      );
      socket.pipe(upstream);
    });
    upstream.on("data", (data: Buffer) => {
      const last = tape.length - 1;
      tape[last] = Buffer.concat([tape[last] as Buffer, data]);
    });
  });
  const connection = await connect(await listen(server));
  console.log(text(await connection.ask(question, { tools: toolbox(() => {}) })));
  connection.close();
  server.close();
  console.log(tape.map((part) => part.length));
  writeFileSync(
    path,
    `${JSON.stringify(
      tape.map((part) => part.toString("base64")),
      null,
      1,
    )}\n`,
  );
}

const [script, target] = process.argv.slice(1);
if (target !== undefined && script === new URL(import.meta.url).pathname) await record(target);
