import { randomUUID } from "node:crypto";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { type Client, Code, ConnectError, createClient } from "@connectrpc/connect";
import { lost } from "./errors.js";
import { Queue } from "./queue.js";
import type { ServerEvent, SessionStarted } from "./stubs/tieline/v1/events_pb.js";
import { ModelsService } from "./stubs/tieline/v1/models_pb.js";
import type { ResponseCreateSchema } from "./stubs/tieline/v1/requests_pb.js";
import type { Response } from "./stubs/tieline/v1/responses_pb.js";
import { type ConverseRequestSchema, ResponsesService } from "./stubs/tieline/v1/service_pb.js";
import { functionTool, type Input, type Toolbox, toInput } from "./tools.js";
import { type Channel, type ChannelOptions, openChannel } from "./transport.js";
import { type ClientMessage, Turn } from "./turn.js";

export interface ConnectOptions extends ChannelOptions {
  /** How long the connection may take to come up. Unset: 20 s. */
  connectTimeoutMs?: number;
}

export interface TurnOptions {
  /** Turns of one lane run one after another, those of several side by side. */
  lane?: string;
  /** They are offered and run, and the turn is held and goes on until it needs none. */
  tools?: Toolbox;
}

/** A question, or all that a create can say; `input` may be a text or a list of items. */
export type Create =
  | string
  | (Omit<MessageInitShape<typeof ResponseCreateSchema>, "input" | "$typeName"> & {
      input?: Input;
    });

/** Connects to a server at `host:port`. */
export async function connect(address: string, options: ConnectOptions = {}): Promise<Connection> {
  const connection = new Connection(openChannel(address, options), options.maxReceiveBytes);
  const late = () => connection.close("the server did not answer in time");
  const timer = setTimeout(late, options.connectTimeoutMs ?? 20_000);
  await connection.started.finally(() => clearTimeout(timer));
  return connection;
}

/** One `Converse` stream, which remembers its turns; and the calls beside it. */
export class Connection implements Disposable {
  /** The calls that need no connection, as connect-es has them. */
  readonly calls: Client<typeof ResponsesService>;
  readonly models: Client<typeof ModelsService>;
  /** What the server speaks and allows. */
  readonly started: Promise<SessionStarted>;
  /** The server is about to close: new work belongs on another connection. */
  goingAway = false;
  readonly #requests = new Queue<MessageInitShape<typeof ConverseRequestSchema>>();
  readonly #turns: Turn[] = [];
  readonly #stop = new AbortController();
  readonly #name = randomUUID();
  #sent = 0;
  #over: unknown;

  /** Made by `connect`. */
  constructor(
    private readonly channel: Channel,
    maxReceiveBytes?: number,
  ) {
    this.calls = createClient(ResponsesService, channel.transport);
    this.models = createClient(ModelsService, channel.transport);
    const value = maxReceiveBytes === undefined ? {} : { maxReceiveBytes: BigInt(maxReceiveBytes) };
    this.#send({ case: "sessionStart", value });
    this.started = new Promise((resolve, reject) => void this.#read(resolve).catch(reject));
  }

  /** One turn, whole; with tools all that it takes. */
  ask(create: Create, options?: TurnOptions): Promise<Response> {
    return this.turn(create, options).result();
  }

  /** One turn, event by event. */
  turn(create: Create, options: TurnOptions = {}): Turn {
    const { input, ...rest } = typeof create === "string" ? { input: create } : create;
    const value = { ...rest, ...(input !== undefined && { input: toInput(input) }) };
    if (options.tools) {
      value.tools = [...(value.tools ?? []), ...options.tools.tools.map(functionTool)];
      value.append = true;
    }
    return this.#begin({ case: "responseCreate", value }, options);
  }

  /** The rest of a response whose connection was lost: give it the error, and the same tools. */
  resume(from: { responseId?: string; after?: number }, options: TurnOptions = {}): Turn {
    const value = { responseId: from.responseId, after: from.after };
    return this.#begin({ case: "responseResume", value }, options);
  }

  /** Ends the connection and what runs on it; what is resumable waits for another one. */
  close(why = "closed by the client"): void {
    this.#stop.abort(new ConnectError(why, Code.Canceled));
  }

  [Symbol.dispose](): void {
    this.close();
  }

  #begin(first: ClientMessage, { lane, tools }: TurnOptions): Turn {
    const turn = new Turn((message, id) => this.#send(message, lane, id), first, lane, tools);
    if (this.#over) turn.lose(this.#over);
    else this.#turns.push(turn);
    return turn;
  }

  #send(message: ClientMessage, streamId?: string, eventId = `${this.#name}.${this.#sent++}`) {
    this.#requests.push({ message, streamId, eventId });
    return eventId;
  }

  async #read(started: (session: SessionStarted) => void): Promise<never> {
    try {
      const stream = this.calls.converse(this.#requests, { signal: this.#stop.signal });
      for await (const { events } of stream)
        for (const event of events)
          if (event.event.case === "sessionStarted") started(event.event.value);
          else this.#dispatch(event);
      this.#over = new ConnectError("the server ended the connection", Code.Unavailable);
    } catch (error) {
      this.#over = error;
    }
    this.#requests.end();
    for (const turn of this.#turns.splice(0)) turn.lose(this.#over);
    this.channel.close();
    throw lost(this.#over);
  }

  #dispatch(event: ServerEvent): void {
    if (event.event.case === "sessionGoingAway") this.goingAway = true;
    const turn = this.#turnOf(event);
    turn?.take(event);
    if (turn?.ended) this.#turns.splice(this.#turns.indexOf(turn), 1);
  }

  /** An error names its message, all else only its lane, where the first turn is the running one. */
  #turnOf({ event, streamId }: ServerEvent): Turn | undefined {
    const asked = event.case === "error" ? (event.value.error?.eventId ?? "") : "";
    if (asked.startsWith(this.#name)) return this.#turns.find((turn) => turn.sent(asked));
    return this.#turns.find((turn) => turn.lane === streamId);
  }
}
