import { durationMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import * as rpc from "./stubs/google/rpc/error_details_pb.js";
import type { ErrorEvent } from "./stubs/tieline/v1/events_pb.js";
import type { Response } from "./stubs/tieline/v1/responses_pb.js";

/** What the server says went wrong. */
export class TielineError extends Error {
  override name = "TielineError";
  /** A word for machines, like `model_not_found`. */
  code = "server_error";
  /** The path of the member at fault. */
  declare param?: string;
  /** How long to wait until a retry can help. */
  declare retryAfterMs?: number;
  /** The HTTP status of the error, of one that came as an event. */
  declare httpStatus?: number;
  /** The gRPC status, of one that ended a call or the connection. */
  declare grpcStatus?: Code;
  /** The response that failed after it had begun. */
  declare response?: Response;

  constructor(message: string, details: Partial<LostConnection> = {}) {
    super(message, { cause: details.cause });
    for (const [name, value] of Object.entries(details))
      if (value !== undefined) Object.assign(this, { [name]: value });
  }

  /** Tells what a failed call of `connection.calls` says; what is no status is `unknown`. */
  static from(reason: unknown): TielineError {
    if (reason instanceof TielineError) return reason;
    const status = ConnectError.from(reason);
    const info = status.findDetails(rpc.ErrorInfoSchema)[0];
    const delay = status.findDetails(rpc.RetryInfoSchema)[0]?.retryDelay;
    return new TielineError(status.rawMessage, {
      code: info?.reason.toLowerCase() ?? snake(Code[status.code]),
      param: status.findDetails(rpc.BadRequestSchema)[0]?.fieldViolations[0]?.field,
      retryAfterMs: delay && durationMs(delay),
      grpcStatus: status.code,
      cause: status,
    });
  }
}

/** The connection is over before the turn is: `connection.resume` goes on where that is kept. */
export class LostConnection extends TielineError {
  override name = "LostConnection";
  /** Unset: nothing of the response has come, and whether it was made is unknown. */
  declare responseId?: string;
  /** The number after which to resume. */
  declare after?: number;
}

/** The error that an event tells. */
export function fromEvent({ error, status }: ErrorEvent): TielineError {
  return new TielineError(error?.message ?? "", {
    code: error?.code ?? error?.type,
    param: error?.param,
    retryAfterMs: error?.retryAfter && durationMs(error.retryAfter),
    httpStatus: status,
  });
}

/** The error of a turn whose connection has ended; where no response had begun, the message says so. */
export function lost(reason: unknown, responseId?: string, after?: number): TielineError {
  const status = TielineError.from(reason);
  const told = ConnectError.from(reason).findDetails(rpc.ErrorInfoSchema).length > 0;
  if (told && responseId === undefined) return status;
  const code = told ? status.code : "connection_lost";
  const message = `The connection is lost: ${status.message}`;
  return new LostConnection(message, { code, responseId, after, cause: reason });
}

function snake(name = "unknown"): string {
  return name.replace(/\B[A-Z]/g, (letter) => `_${letter}`).toLowerCase();
}
