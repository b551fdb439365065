export { Code } from "@connectrpc/connect";
export type { TurnOptions } from "./connection.js";
export { type Connection, type ConnectOptions, type Create, connect } from "./connection.js";
export { LostConnection, TielineError } from "./errors.js";
export { Ending } from "./stubs/tieline/v1/events_pb.js";
export {
  functionOutput,
  functionTool,
  type Input,
  type Tool,
  Toolbox,
  text,
  userText,
} from "./tools.js";
export type { Turn } from "./turn.js";
