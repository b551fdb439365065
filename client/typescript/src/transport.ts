import * as http2 from "node:http2";
import type { MessageShape } from "@bufbuild/protobuf";
import { type DescMessage, type DescMethod, fromBinary, toBinary } from "@bufbuild/protobuf";
import type { Interceptor, Transport } from "@connectrpc/connect";
import { Code, ConnectError, createContextValues } from "@connectrpc/connect";
import { createAsyncIterable, runStreamingCall, runUnaryCall } from "@connectrpc/connect/protocol";
import { findTrailerError } from "@connectrpc/connect/protocol-grpc";
import { createGrpcTransport } from "@connectrpc/connect-node";
import * as grpc from "@grpc/grpc-js";

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

/** connect's transport over grpc-js, so that both have the same stubs, errors and interceptors. */
class GrpcJsTransport implements Transport {
  constructor(
    private readonly client: grpc.Client,
    private readonly interceptors: Interceptor[],
  ) {}

  unary: Transport["unary"] = (method, signal, timeoutMs, header, message, values) => {
    const req = {
      ...call(header, values),
      stream: false as const,
      method,
      service: method.parent,
      message,
    };
    return runUnaryCall({
      ...{ signal, timeoutMs, interceptors: this.interceptors, req },
      next: async (request) => {
        let answer: MessageShape<typeof method.output> | undefined;
        const requests = createAsyncIterable([request.message]);
        for await (const message of this.#call(method, request, requests, timeoutMs))
          answer = message;
        if (answer === undefined) throw new ConnectError("no answer came", Code.Internal);
        return { ...request, trailer: new Headers(), message: answer };
      },
    });
  };

  stream: Transport["stream"] = (method, signal, timeoutMs, header, message, values) => {
    const req = {
      ...call(header, values),
      stream: true as const,
      method,
      service: method.parent,
      message,
    };
    return runStreamingCall({
      ...{ signal, timeoutMs, interceptors: this.interceptors, req },
      next: async (request) => {
        const message = this.#call(method, request, request.message, timeoutMs);
        return { ...request, trailer: new Headers(), message };
      },
    });
  };

  /** Any call, since on the wire a single message is a stream of one. */
  async *#call<I extends DescMessage, O extends DescMessage>(
    method: DescMethod & { input: I; output: O },
    { header, signal }: { header: Headers; signal: AbortSignal },
    requests: AsyncIterable<MessageShape<I>>,
    timeoutMs: number | undefined,
  ): AsyncGenerator<MessageShape<O>> {
    const metadata = new grpc.Metadata();
    header.forEach((value, key) => void metadata.set(key, value));
    const call = this.client.makeBidiStreamRequest(
      `/${method.parent.typeName}/${method.name}`,
      (message: MessageShape<I>) => Buffer.from(toBinary(method.input, message)),
      (bytes) => fromBinary(method.output, bytes),
      metadata,
      timeoutMs === undefined ? {} : { deadline: Date.now() + timeoutMs },
    );
    signal.addEventListener("abort", () => call.cancel(), { once: true });
    if (signal.aborted) call.cancel();
    void pump(requests, call);
    try {
      yield* call;
    } catch (error) {
      throw toConnectError(error as grpc.ServiceError);
    }
  }
}

/** What connect wants to know of a request beside its method and message. */
function call(
  header: ConstructorParameters<typeof Headers>[0],
  contextValues = createContextValues(),
) {
  return {
    requestMethod: "POST",
    url: "http://grpc-js",
    header: new Headers(header),
    contextValues,
  };
}

async function pump<T>(requests: AsyncIterable<T>, call: grpc.ClientDuplexStream<T, unknown>) {
  for await (const request of requests)
    if (!call.write(request)) await new Promise((resolve) => call.once("drain", resolve));
  call.end();
}

function toConnectError({ code, details, metadata }: grpc.ServiceError): ConnectError {
  const trailer = new Headers({
    "grpc-status": `${code}`,
    "grpc-message": encodeURIComponent(details),
  });
  const [status] = metadata?.get("grpc-status-details-bin") ?? [];
  if (status) trailer.set("grpc-status-details-bin", Buffer.from(status).toString("base64"));
  return findTrailerError(trailer) ?? new ConnectError(details, Code.Unknown);
}
