import * as http2 from "node:http2";
import type { Interceptor, Transport } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import * as grpc from "@grpc/grpc-js";
import { GrpcJsTransport } from "./grpc-js.js";

export interface ChannelOptions {
  /** Which library speaks gRPC. Unset: connect. */
  transport?: "connect" | "grpc-js";
  /** The API key. */
  key?: string;
  /** True trusts the system's authorities, an object these PEM files. Unset: no TLS. */
  tls?: boolean | { ca?: Buffer; cert?: Buffer; key?: Buffer };
  /** The largest message that is taken, which the server is told. Unset: 4 MiB. */
  maxReceiveBytes?: number;
}

export interface Channel {
  transport: Transport;
  close(): void;
}

const PING_MS = 30_000;
const PING_TIMEOUT_MS = 20_000;
const DEFAULT_BYTES = 4 * 2 ** 20;

export function openChannel(address: string, options: ChannelOptions): Channel {
  return (options.transport === "grpc-js" ? overGrpcJs : overConnect)(address, options);
}

function overConnect(address: string, options: ChannelOptions): Channel {
  const { tls, maxReceiveBytes: readMaxBytes = DEFAULT_BYTES } = options;
  const baseUrl = `${tls ? "https" : "http"}://${address}`;
  const session = http2.connect(baseUrl, typeof tls === "object" ? tls : {});
  // The streams tell their errors. connect's own session manager takes its listener away at a
  // close, and an error that comes later ends the process; so it is done without.
  session.on("error", () => {});
  const pings = setInterval(() => ping(session), PING_MS).unref();
  session.on("close", () => clearInterval(pings));
  const sessionManager = {
    authority: baseUrl,
    request: async (method: string, path: string, headers: object, options: object) =>
      session.request({ ...headers, ":method": method, ":path": path }, options),
    notifyResponseByteRead: () => {},
  };
  const interceptors = [say(options)];
  return {
    transport: createGrpcTransport({ baseUrl, sessionManager, readMaxBytes, interceptors }),
    close: () => session.destroy(),
  };
}

function ping(session: http2.ClientHttp2Session): void {
  const late = () => session.destroy(new Error("a ping was not answered"));
  const timer = setTimeout(late, PING_TIMEOUT_MS).unref();
  if (!session.closed) session.ping(() => clearTimeout(timer));
}

function overGrpcJs(address: string, options: ChannelOptions): Channel {
  const { ca, key, cert } = typeof options.tls === "object" ? options.tls : {};
  const credentials = options.tls
    ? grpc.credentials.createSsl(ca, key, cert)
    : grpc.credentials.createInsecure();
  const client = new grpc.Client(address, credentials, {
    "grpc.keepalive_time_ms": PING_MS,
    "grpc.keepalive_timeout_ms": PING_TIMEOUT_MS,
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.use_local_subchannel_pool": 1,
    "grpc.max_receive_message_length": options.maxReceiveBytes ?? DEFAULT_BYTES,
  });
  return { transport: new GrpcJsTransport(client, [say(options)]), close: () => client.close() };
}

/** Says the key and, in each request that has a field for it, the receive limit. */
function say({ key, maxReceiveBytes }: ChannelOptions): Interceptor {
  const limit = maxReceiveBytes === undefined ? {} : { maxReceiveBytes: BigInt(maxReceiveBytes) };
  const limited = <T extends object>(message: T) => ({ ...limit, ...message });
  return (next) => (request) => {
    if (key !== undefined) request.header.set("authorization", `Bearer ${key}`);
    if (!("maxReceiveBytes" in request.method.input.field)) return next(request);
    if (!request.stream) return next({ ...request, message: limited(request.message) });
    return next({ ...request, message: mapped(request.message, limited) });
  };
}

async function* mapped<T>(values: AsyncIterable<T>, change: (value: T) => T) {
  for await (const value of values) yield change(value);
}
