import type { MessageShape } from "@bufbuild/protobuf";
import { type DescMessage, type DescMethod, fromBinary, toBinary } from "@bufbuild/protobuf";
import type { ContextValues, Interceptor, Transport } from "@connectrpc/connect";
import { Code, ConnectError, createContextValues } from "@connectrpc/connect";
import { createAsyncIterable, runStreamingCall, runUnaryCall } from "@connectrpc/connect/protocol";
import { findTrailerError } from "@connectrpc/connect/protocol-grpc";
import * as grpc from "@grpc/grpc-js";

/** connect's transport over grpc-js, so that both have the same stubs, errors and interceptors. */
export class GrpcJsTransport implements Transport {
  constructor(
    private readonly client: grpc.Client,
    private readonly interceptors: Interceptor[],
  ) {}

  unary: Transport["unary"] = (method, signal, timeoutMs, header, message, values) => {
    const req = { stream: false as const, ...about(method, header, values), message };
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
    const req = { stream: true as const, ...about(method, header, values), message };
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
    call.on("error", () => {}); // One that comes behind the last message is of no use to anybody.
    pump(requests, call).catch(() => call.cancel());
    try {
      yield* call;
    } catch (error) {
      throw toConnectError(error as grpc.ServiceError);
    }
  }
}

type Header = ConstructorParameters<typeof Headers>[0];

/** What connect wants to know of a request beside its message. */
function about<M extends DescMethod>(method: M, header: Header, values?: ContextValues) {
  const contextValues = values ?? createContextValues();
  const call = { service: method.parent, method, requestMethod: "POST", url: "http://grpc-js" };
  return { ...call, header: new Headers(header), contextValues };
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
