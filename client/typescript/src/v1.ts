// The messages of tieline.v1 and their schemas.
export * from "./stubs/tieline/v1/events_pb.js";
export * from "./stubs/tieline/v1/items_pb.js";
export * from "./stubs/tieline/v1/models_pb.js";
export * from "./stubs/tieline/v1/requests_pb.js";
export * from "./stubs/tieline/v1/responses_pb.js";
export * from "./stubs/tieline/v1/service_pb.js";
