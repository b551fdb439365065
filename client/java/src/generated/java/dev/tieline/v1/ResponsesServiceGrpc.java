package dev.tieline.v1;

import static io.grpc.MethodDescriptor.generateFullMethodName;

/**
 * <pre>
 * Responses: on a connection that remembers, and one by one.
 * </pre>
 */
@io.grpc.stub.annotations.GrpcGenerated
public final class ResponsesServiceGrpc {

  private ResponsesServiceGrpc() {}

  public static final java.lang.String SERVICE_NAME = "tieline.v1.ResponsesService";

  // Static method descriptors that strictly reflect the proto.
  private static volatile io.grpc.MethodDescriptor<dev.tieline.v1.ConverseRequest,
      dev.tieline.v1.ConverseResponse> getConverseMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "Converse",
      requestType = dev.tieline.v1.ConverseRequest.class,
      responseType = dev.tieline.v1.ConverseResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.BIDI_STREAMING)
  public static io.grpc.MethodDescriptor<dev.tieline.v1.ConverseRequest,
      dev.tieline.v1.ConverseResponse> getConverseMethod() {
    io.grpc.MethodDescriptor<dev.tieline.v1.ConverseRequest, dev.tieline.v1.ConverseResponse> getConverseMethod;
    if ((getConverseMethod = ResponsesServiceGrpc.getConverseMethod) == null) {
      synchronized (ResponsesServiceGrpc.class) {
        if ((getConverseMethod = ResponsesServiceGrpc.getConverseMethod) == null) {
          ResponsesServiceGrpc.getConverseMethod = getConverseMethod =
              io.grpc.MethodDescriptor.<dev.tieline.v1.ConverseRequest, dev.tieline.v1.ConverseResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.BIDI_STREAMING)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "Converse"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.tieline.v1.ConverseRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.tieline.v1.ConverseResponse.getDefaultInstance()))
              .setSchemaDescriptor(new ResponsesServiceMethodDescriptorSupplier("Converse"))
              .build();
        }
      }
    }
    return getConverseMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.tieline.v1.CreateRequest,
      dev.tieline.v1.CreateResponse> getCreateMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "Create",
      requestType = dev.tieline.v1.CreateRequest.class,
      responseType = dev.tieline.v1.CreateResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<dev.tieline.v1.CreateRequest,
      dev.tieline.v1.CreateResponse> getCreateMethod() {
    io.grpc.MethodDescriptor<dev.tieline.v1.CreateRequest, dev.tieline.v1.CreateResponse> getCreateMethod;
    if ((getCreateMethod = ResponsesServiceGrpc.getCreateMethod) == null) {
      synchronized (ResponsesServiceGrpc.class) {
        if ((getCreateMethod = ResponsesServiceGrpc.getCreateMethod) == null) {
          ResponsesServiceGrpc.getCreateMethod = getCreateMethod =
              io.grpc.MethodDescriptor.<dev.tieline.v1.CreateRequest, dev.tieline.v1.CreateResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "Create"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.tieline.v1.CreateRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.tieline.v1.CreateResponse.getDefaultInstance()))
              .setSchemaDescriptor(new ResponsesServiceMethodDescriptorSupplier("Create"))
              .build();
        }
      }
    }
    return getCreateMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.tieline.v1.StreamRequest,
      dev.tieline.v1.StreamResponse> getStreamMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "Stream",
      requestType = dev.tieline.v1.StreamRequest.class,
      responseType = dev.tieline.v1.StreamResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.SERVER_STREAMING)
  public static io.grpc.MethodDescriptor<dev.tieline.v1.StreamRequest,
      dev.tieline.v1.StreamResponse> getStreamMethod() {
    io.grpc.MethodDescriptor<dev.tieline.v1.StreamRequest, dev.tieline.v1.StreamResponse> getStreamMethod;
    if ((getStreamMethod = ResponsesServiceGrpc.getStreamMethod) == null) {
      synchronized (ResponsesServiceGrpc.class) {
        if ((getStreamMethod = ResponsesServiceGrpc.getStreamMethod) == null) {
          ResponsesServiceGrpc.getStreamMethod = getStreamMethod =
              io.grpc.MethodDescriptor.<dev.tieline.v1.StreamRequest, dev.tieline.v1.StreamResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.SERVER_STREAMING)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "Stream"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.tieline.v1.StreamRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.tieline.v1.StreamResponse.getDefaultInstance()))
              .setSchemaDescriptor(new ResponsesServiceMethodDescriptorSupplier("Stream"))
              .build();
        }
      }
    }
    return getStreamMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.tieline.v1.ResumeRequest,
      dev.tieline.v1.ResumeResponse> getResumeMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "Resume",
      requestType = dev.tieline.v1.ResumeRequest.class,
      responseType = dev.tieline.v1.ResumeResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.SERVER_STREAMING)
  public static io.grpc.MethodDescriptor<dev.tieline.v1.ResumeRequest,
      dev.tieline.v1.ResumeResponse> getResumeMethod() {
    io.grpc.MethodDescriptor<dev.tieline.v1.ResumeRequest, dev.tieline.v1.ResumeResponse> getResumeMethod;
    if ((getResumeMethod = ResponsesServiceGrpc.getResumeMethod) == null) {
      synchronized (ResponsesServiceGrpc.class) {
        if ((getResumeMethod = ResponsesServiceGrpc.getResumeMethod) == null) {
          ResponsesServiceGrpc.getResumeMethod = getResumeMethod =
              io.grpc.MethodDescriptor.<dev.tieline.v1.ResumeRequest, dev.tieline.v1.ResumeResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.SERVER_STREAMING)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "Resume"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.tieline.v1.ResumeRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.tieline.v1.ResumeResponse.getDefaultInstance()))
              .setSchemaDescriptor(new ResponsesServiceMethodDescriptorSupplier("Resume"))
              .build();
        }
      }
    }
    return getResumeMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.tieline.v1.GetRequest,
      dev.tieline.v1.GetResponse> getGetMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "Get",
      requestType = dev.tieline.v1.GetRequest.class,
      responseType = dev.tieline.v1.GetResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<dev.tieline.v1.GetRequest,
      dev.tieline.v1.GetResponse> getGetMethod() {
    io.grpc.MethodDescriptor<dev.tieline.v1.GetRequest, dev.tieline.v1.GetResponse> getGetMethod;
    if ((getGetMethod = ResponsesServiceGrpc.getGetMethod) == null) {
      synchronized (ResponsesServiceGrpc.class) {
        if ((getGetMethod = ResponsesServiceGrpc.getGetMethod) == null) {
          ResponsesServiceGrpc.getGetMethod = getGetMethod =
              io.grpc.MethodDescriptor.<dev.tieline.v1.GetRequest, dev.tieline.v1.GetResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "Get"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.tieline.v1.GetRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.tieline.v1.GetResponse.getDefaultInstance()))
              .setSchemaDescriptor(new ResponsesServiceMethodDescriptorSupplier("Get"))
              .build();
        }
      }
    }
    return getGetMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.tieline.v1.DeleteRequest,
      dev.tieline.v1.DeleteResponse> getDeleteMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "Delete",
      requestType = dev.tieline.v1.DeleteRequest.class,
      responseType = dev.tieline.v1.DeleteResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<dev.tieline.v1.DeleteRequest,
      dev.tieline.v1.DeleteResponse> getDeleteMethod() {
    io.grpc.MethodDescriptor<dev.tieline.v1.DeleteRequest, dev.tieline.v1.DeleteResponse> getDeleteMethod;
    if ((getDeleteMethod = ResponsesServiceGrpc.getDeleteMethod) == null) {
      synchronized (ResponsesServiceGrpc.class) {
        if ((getDeleteMethod = ResponsesServiceGrpc.getDeleteMethod) == null) {
          ResponsesServiceGrpc.getDeleteMethod = getDeleteMethod =
              io.grpc.MethodDescriptor.<dev.tieline.v1.DeleteRequest, dev.tieline.v1.DeleteResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "Delete"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.tieline.v1.DeleteRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.tieline.v1.DeleteResponse.getDefaultInstance()))
              .setSchemaDescriptor(new ResponsesServiceMethodDescriptorSupplier("Delete"))
              .build();
        }
      }
    }
    return getDeleteMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.tieline.v1.CancelRequest,
      dev.tieline.v1.CancelResponse> getCancelMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "Cancel",
      requestType = dev.tieline.v1.CancelRequest.class,
      responseType = dev.tieline.v1.CancelResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<dev.tieline.v1.CancelRequest,
      dev.tieline.v1.CancelResponse> getCancelMethod() {
    io.grpc.MethodDescriptor<dev.tieline.v1.CancelRequest, dev.tieline.v1.CancelResponse> getCancelMethod;
    if ((getCancelMethod = ResponsesServiceGrpc.getCancelMethod) == null) {
      synchronized (ResponsesServiceGrpc.class) {
        if ((getCancelMethod = ResponsesServiceGrpc.getCancelMethod) == null) {
          ResponsesServiceGrpc.getCancelMethod = getCancelMethod =
              io.grpc.MethodDescriptor.<dev.tieline.v1.CancelRequest, dev.tieline.v1.CancelResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "Cancel"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.tieline.v1.CancelRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.tieline.v1.CancelResponse.getDefaultInstance()))
              .setSchemaDescriptor(new ResponsesServiceMethodDescriptorSupplier("Cancel"))
              .build();
        }
      }
    }
    return getCancelMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.tieline.v1.ListInputItemsRequest,
      dev.tieline.v1.ListInputItemsResponse> getListInputItemsMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "ListInputItems",
      requestType = dev.tieline.v1.ListInputItemsRequest.class,
      responseType = dev.tieline.v1.ListInputItemsResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<dev.tieline.v1.ListInputItemsRequest,
      dev.tieline.v1.ListInputItemsResponse> getListInputItemsMethod() {
    io.grpc.MethodDescriptor<dev.tieline.v1.ListInputItemsRequest, dev.tieline.v1.ListInputItemsResponse> getListInputItemsMethod;
    if ((getListInputItemsMethod = ResponsesServiceGrpc.getListInputItemsMethod) == null) {
      synchronized (ResponsesServiceGrpc.class) {
        if ((getListInputItemsMethod = ResponsesServiceGrpc.getListInputItemsMethod) == null) {
          ResponsesServiceGrpc.getListInputItemsMethod = getListInputItemsMethod =
              io.grpc.MethodDescriptor.<dev.tieline.v1.ListInputItemsRequest, dev.tieline.v1.ListInputItemsResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "ListInputItems"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.tieline.v1.ListInputItemsRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.tieline.v1.ListInputItemsResponse.getDefaultInstance()))
              .setSchemaDescriptor(new ResponsesServiceMethodDescriptorSupplier("ListInputItems"))
              .build();
        }
      }
    }
    return getListInputItemsMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.tieline.v1.CountInputTokensRequest,
      dev.tieline.v1.CountInputTokensResponse> getCountInputTokensMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "CountInputTokens",
      requestType = dev.tieline.v1.CountInputTokensRequest.class,
      responseType = dev.tieline.v1.CountInputTokensResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<dev.tieline.v1.CountInputTokensRequest,
      dev.tieline.v1.CountInputTokensResponse> getCountInputTokensMethod() {
    io.grpc.MethodDescriptor<dev.tieline.v1.CountInputTokensRequest, dev.tieline.v1.CountInputTokensResponse> getCountInputTokensMethod;
    if ((getCountInputTokensMethod = ResponsesServiceGrpc.getCountInputTokensMethod) == null) {
      synchronized (ResponsesServiceGrpc.class) {
        if ((getCountInputTokensMethod = ResponsesServiceGrpc.getCountInputTokensMethod) == null) {
          ResponsesServiceGrpc.getCountInputTokensMethod = getCountInputTokensMethod =
              io.grpc.MethodDescriptor.<dev.tieline.v1.CountInputTokensRequest, dev.tieline.v1.CountInputTokensResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "CountInputTokens"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.tieline.v1.CountInputTokensRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.tieline.v1.CountInputTokensResponse.getDefaultInstance()))
              .setSchemaDescriptor(new ResponsesServiceMethodDescriptorSupplier("CountInputTokens"))
              .build();
        }
      }
    }
    return getCountInputTokensMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.tieline.v1.CompactRequest,
      dev.tieline.v1.CompactResponse> getCompactMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "Compact",
      requestType = dev.tieline.v1.CompactRequest.class,
      responseType = dev.tieline.v1.CompactResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<dev.tieline.v1.CompactRequest,
      dev.tieline.v1.CompactResponse> getCompactMethod() {
    io.grpc.MethodDescriptor<dev.tieline.v1.CompactRequest, dev.tieline.v1.CompactResponse> getCompactMethod;
    if ((getCompactMethod = ResponsesServiceGrpc.getCompactMethod) == null) {
      synchronized (ResponsesServiceGrpc.class) {
        if ((getCompactMethod = ResponsesServiceGrpc.getCompactMethod) == null) {
          ResponsesServiceGrpc.getCompactMethod = getCompactMethod =
              io.grpc.MethodDescriptor.<dev.tieline.v1.CompactRequest, dev.tieline.v1.CompactResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "Compact"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.tieline.v1.CompactRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.tieline.v1.CompactResponse.getDefaultInstance()))
              .setSchemaDescriptor(new ResponsesServiceMethodDescriptorSupplier("Compact"))
              .build();
        }
      }
    }
    return getCompactMethod;
  }

  /**
   * Creates a new async stub that supports all call types for the service
   */
  public static ResponsesServiceStub newStub(io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<ResponsesServiceStub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<ResponsesServiceStub>() {
        @java.lang.Override
        public ResponsesServiceStub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new ResponsesServiceStub(channel, callOptions);
        }
      };
    return ResponsesServiceStub.newStub(factory, channel);
  }

  /**
   * Creates a new blocking-style stub that supports all types of calls on the service
   */
  public static ResponsesServiceBlockingV2Stub newBlockingV2Stub(
      io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<ResponsesServiceBlockingV2Stub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<ResponsesServiceBlockingV2Stub>() {
        @java.lang.Override
        public ResponsesServiceBlockingV2Stub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new ResponsesServiceBlockingV2Stub(channel, callOptions);
        }
      };
    return ResponsesServiceBlockingV2Stub.newStub(factory, channel);
  }

  /**
   * Creates a new blocking-style stub that supports unary and streaming output calls on the service
   */
  public static ResponsesServiceBlockingStub newBlockingStub(
      io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<ResponsesServiceBlockingStub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<ResponsesServiceBlockingStub>() {
        @java.lang.Override
        public ResponsesServiceBlockingStub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new ResponsesServiceBlockingStub(channel, callOptions);
        }
      };
    return ResponsesServiceBlockingStub.newStub(factory, channel);
  }

  /**
   * Creates a new ListenableFuture-style stub that supports unary calls on the service
   */
  public static ResponsesServiceFutureStub newFutureStub(
      io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<ResponsesServiceFutureStub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<ResponsesServiceFutureStub>() {
        @java.lang.Override
        public ResponsesServiceFutureStub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new ResponsesServiceFutureStub(channel, callOptions);
        }
      };
    return ResponsesServiceFutureStub.newStub(factory, channel);
  }

  /**
   * <pre>
   * Responses: on a connection that remembers, and one by one.
   * </pre>
   */
  public interface AsyncService {

    /**
     * <pre>
     * One connection: many turns, side by side on named lanes, each after what the connection
     * remembers.
     * Errors that concern one request come as events; the stream lives on.
     * </pre>
     */
    default io.grpc.stub.StreamObserver<dev.tieline.v1.ConverseRequest> converse(
        io.grpc.stub.StreamObserver<dev.tieline.v1.ConverseResponse> responseObserver) {
      return io.grpc.stub.ServerCalls.asyncUnimplementedStreamingCall(getConverseMethod(), responseObserver);
    }

    /**
     * <pre>
     * One turn, answered whole. Safe to retry with an idempotency_key.
     * </pre>
     */
    default void create(dev.tieline.v1.CreateRequest request,
        io.grpc.stub.StreamObserver<dev.tieline.v1.CreateResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getCreateMethod(), responseObserver);
    }

    /**
     * <pre>
     * One turn as events. A refused request is a status, not an event.
     * </pre>
     */
    default void stream(dev.tieline.v1.StreamRequest request,
        io.grpc.stub.StreamObserver<dev.tieline.v1.StreamResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getStreamMethod(), responseObserver);
    }

    /**
     * <pre>
     * The events of a background or resumable response after one of them, to its end. A further
     * reader: nothing moves, and leaving ends nothing.
     * </pre>
     */
    default void resume(dev.tieline.v1.ResumeRequest request,
        io.grpc.stub.StreamObserver<dev.tieline.v1.ResumeResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getResumeMethod(), responseObserver);
    }

    /**
     * <pre>
     * A stored response, or one that runs and has an id that can be read.
     * </pre>
     */
    default void get(dev.tieline.v1.GetRequest request,
        io.grpc.stub.StreamObserver<dev.tieline.v1.GetResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getGetMethod(), responseObserver);
    }

    /**
     * <pre>
     * Deletes a stored response; one that runs is cancelled first.
     * </pre>
     */
    default void delete(dev.tieline.v1.DeleteRequest request,
        io.grpc.stub.StreamObserver<dev.tieline.v1.DeleteResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getDeleteMethod(), responseObserver);
    }

    /**
     * <pre>
     * Ends a turn of the caller, on whichever connection it runs.
     * </pre>
     */
    default void cancel(dev.tieline.v1.CancelRequest request,
        io.grpc.stub.StreamObserver<dev.tieline.v1.CancelResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getCancelMethod(), responseObserver);
    }

    /**
     * <pre>
     * The input items of a stored response, page by page.
     * </pre>
     */
    default void listInputItems(dev.tieline.v1.ListInputItemsRequest request,
        io.grpc.stub.StreamObserver<dev.tieline.v1.ListInputItemsResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getListInputItemsMethod(), responseObserver);
    }

    /**
     * <pre>
     * How many tokens the prompt of a create has. Nothing is sampled.
     * </pre>
     */
    default void countInputTokens(dev.tieline.v1.CountInputTokensRequest request,
        io.grpc.stub.StreamObserver<dev.tieline.v1.CountInputTokensResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getCountInputTokensMethod(), responseObserver);
    }

    /**
     * <pre>
     * A shorter input that stands for a longer history.
     * </pre>
     */
    default void compact(dev.tieline.v1.CompactRequest request,
        io.grpc.stub.StreamObserver<dev.tieline.v1.CompactResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getCompactMethod(), responseObserver);
    }
  }

  /**
   * Base class for the server implementation of the service ResponsesService.
   * <pre>
   * Responses: on a connection that remembers, and one by one.
   * </pre>
   */
  public static abstract class ResponsesServiceImplBase
      implements io.grpc.BindableService, AsyncService {

    @java.lang.Override public final io.grpc.ServerServiceDefinition bindService() {
      return ResponsesServiceGrpc.bindService(this);
    }
  }

  /**
   * A stub to allow clients to do asynchronous rpc calls to service ResponsesService.
   * <pre>
   * Responses: on a connection that remembers, and one by one.
   * </pre>
   */
  public static final class ResponsesServiceStub
      extends io.grpc.stub.AbstractAsyncStub<ResponsesServiceStub> {
    private ResponsesServiceStub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected ResponsesServiceStub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new ResponsesServiceStub(channel, callOptions);
    }

    /**
     * <pre>
     * One connection: many turns, side by side on named lanes, each after what the connection
     * remembers.
     * Errors that concern one request come as events; the stream lives on.
     * </pre>
     */
    public io.grpc.stub.StreamObserver<dev.tieline.v1.ConverseRequest> converse(
        io.grpc.stub.StreamObserver<dev.tieline.v1.ConverseResponse> responseObserver) {
      return io.grpc.stub.ClientCalls.asyncBidiStreamingCall(
          getChannel().newCall(getConverseMethod(), getCallOptions()), responseObserver);
    }

    /**
     * <pre>
     * One turn, answered whole. Safe to retry with an idempotency_key.
     * </pre>
     */
    public void create(dev.tieline.v1.CreateRequest request,
        io.grpc.stub.StreamObserver<dev.tieline.v1.CreateResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getCreateMethod(), getCallOptions()), request, responseObserver);
    }

    /**
     * <pre>
     * One turn as events. A refused request is a status, not an event.
     * </pre>
     */
    public void stream(dev.tieline.v1.StreamRequest request,
        io.grpc.stub.StreamObserver<dev.tieline.v1.StreamResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncServerStreamingCall(
          getChannel().newCall(getStreamMethod(), getCallOptions()), request, responseObserver);
    }

    /**
     * <pre>
     * The events of a background or resumable response after one of them, to its end. A further
     * reader: nothing moves, and leaving ends nothing.
     * </pre>
     */
    public void resume(dev.tieline.v1.ResumeRequest request,
        io.grpc.stub.StreamObserver<dev.tieline.v1.ResumeResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncServerStreamingCall(
          getChannel().newCall(getResumeMethod(), getCallOptions()), request, responseObserver);
    }

    /**
     * <pre>
     * A stored response, or one that runs and has an id that can be read.
     * </pre>
     */
    public void get(dev.tieline.v1.GetRequest request,
        io.grpc.stub.StreamObserver<dev.tieline.v1.GetResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getGetMethod(), getCallOptions()), request, responseObserver);
    }

    /**
     * <pre>
     * Deletes a stored response; one that runs is cancelled first.
     * </pre>
     */
    public void delete(dev.tieline.v1.DeleteRequest request,
        io.grpc.stub.StreamObserver<dev.tieline.v1.DeleteResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getDeleteMethod(), getCallOptions()), request, responseObserver);
    }

    /**
     * <pre>
     * Ends a turn of the caller, on whichever connection it runs.
     * </pre>
     */
    public void cancel(dev.tieline.v1.CancelRequest request,
        io.grpc.stub.StreamObserver<dev.tieline.v1.CancelResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getCancelMethod(), getCallOptions()), request, responseObserver);
    }

    /**
     * <pre>
     * The input items of a stored response, page by page.
     * </pre>
     */
    public void listInputItems(dev.tieline.v1.ListInputItemsRequest request,
        io.grpc.stub.StreamObserver<dev.tieline.v1.ListInputItemsResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getListInputItemsMethod(), getCallOptions()), request, responseObserver);
    }

    /**
     * <pre>
     * How many tokens the prompt of a create has. Nothing is sampled.
     * </pre>
     */
    public void countInputTokens(dev.tieline.v1.CountInputTokensRequest request,
        io.grpc.stub.StreamObserver<dev.tieline.v1.CountInputTokensResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getCountInputTokensMethod(), getCallOptions()), request, responseObserver);
    }

    /**
     * <pre>
     * A shorter input that stands for a longer history.
     * </pre>
     */
    public void compact(dev.tieline.v1.CompactRequest request,
        io.grpc.stub.StreamObserver<dev.tieline.v1.CompactResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getCompactMethod(), getCallOptions()), request, responseObserver);
    }
  }

  /**
   * A stub to allow clients to do synchronous rpc calls to service ResponsesService.
   * <pre>
   * Responses: on a connection that remembers, and one by one.
   * </pre>
   */
  public static final class ResponsesServiceBlockingV2Stub
      extends io.grpc.stub.AbstractBlockingStub<ResponsesServiceBlockingV2Stub> {
    private ResponsesServiceBlockingV2Stub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected ResponsesServiceBlockingV2Stub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new ResponsesServiceBlockingV2Stub(channel, callOptions);
    }

    /**
     * <pre>
     * One connection: many turns, side by side on named lanes, each after what the connection
     * remembers.
     * Errors that concern one request come as events; the stream lives on.
     * </pre>
     */
    @io.grpc.ExperimentalApi("https://github.com/grpc/grpc-java/issues/10918")
    public io.grpc.stub.BlockingClientCall<dev.tieline.v1.ConverseRequest, dev.tieline.v1.ConverseResponse>
        converse() {
      return io.grpc.stub.ClientCalls.blockingBidiStreamingCall(
          getChannel(), getConverseMethod(), getCallOptions());
    }

    /**
     * <pre>
     * One turn, answered whole. Safe to retry with an idempotency_key.
     * </pre>
     */
    public dev.tieline.v1.CreateResponse create(dev.tieline.v1.CreateRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getCreateMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * One turn as events. A refused request is a status, not an event.
     * </pre>
     */
    @io.grpc.ExperimentalApi("https://github.com/grpc/grpc-java/issues/10918")
    public io.grpc.stub.BlockingClientCall<?, dev.tieline.v1.StreamResponse>
        stream(dev.tieline.v1.StreamRequest request) {
      return io.grpc.stub.ClientCalls.blockingV2ServerStreamingCall(
          getChannel(), getStreamMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * The events of a background or resumable response after one of them, to its end. A further
     * reader: nothing moves, and leaving ends nothing.
     * </pre>
     */
    @io.grpc.ExperimentalApi("https://github.com/grpc/grpc-java/issues/10918")
    public io.grpc.stub.BlockingClientCall<?, dev.tieline.v1.ResumeResponse>
        resume(dev.tieline.v1.ResumeRequest request) {
      return io.grpc.stub.ClientCalls.blockingV2ServerStreamingCall(
          getChannel(), getResumeMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * A stored response, or one that runs and has an id that can be read.
     * </pre>
     */
    public dev.tieline.v1.GetResponse get(dev.tieline.v1.GetRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getGetMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Deletes a stored response; one that runs is cancelled first.
     * </pre>
     */
    public dev.tieline.v1.DeleteResponse delete(dev.tieline.v1.DeleteRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getDeleteMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Ends a turn of the caller, on whichever connection it runs.
     * </pre>
     */
    public dev.tieline.v1.CancelResponse cancel(dev.tieline.v1.CancelRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getCancelMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * The input items of a stored response, page by page.
     * </pre>
     */
    public dev.tieline.v1.ListInputItemsResponse listInputItems(dev.tieline.v1.ListInputItemsRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getListInputItemsMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * How many tokens the prompt of a create has. Nothing is sampled.
     * </pre>
     */
    public dev.tieline.v1.CountInputTokensResponse countInputTokens(dev.tieline.v1.CountInputTokensRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getCountInputTokensMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * A shorter input that stands for a longer history.
     * </pre>
     */
    public dev.tieline.v1.CompactResponse compact(dev.tieline.v1.CompactRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getCompactMethod(), getCallOptions(), request);
    }
  }

  /**
   * A stub to allow clients to do limited synchronous rpc calls to service ResponsesService.
   * <pre>
   * Responses: on a connection that remembers, and one by one.
   * </pre>
   */
  public static final class ResponsesServiceBlockingStub
      extends io.grpc.stub.AbstractBlockingStub<ResponsesServiceBlockingStub> {
    private ResponsesServiceBlockingStub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected ResponsesServiceBlockingStub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new ResponsesServiceBlockingStub(channel, callOptions);
    }

    /**
     * <pre>
     * One turn, answered whole. Safe to retry with an idempotency_key.
     * </pre>
     */
    public dev.tieline.v1.CreateResponse create(dev.tieline.v1.CreateRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getCreateMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * One turn as events. A refused request is a status, not an event.
     * </pre>
     */
    public java.util.Iterator<dev.tieline.v1.StreamResponse> stream(
        dev.tieline.v1.StreamRequest request) {
      return io.grpc.stub.ClientCalls.blockingServerStreamingCall(
          getChannel(), getStreamMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * The events of a background or resumable response after one of them, to its end. A further
     * reader: nothing moves, and leaving ends nothing.
     * </pre>
     */
    public java.util.Iterator<dev.tieline.v1.ResumeResponse> resume(
        dev.tieline.v1.ResumeRequest request) {
      return io.grpc.stub.ClientCalls.blockingServerStreamingCall(
          getChannel(), getResumeMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * A stored response, or one that runs and has an id that can be read.
     * </pre>
     */
    public dev.tieline.v1.GetResponse get(dev.tieline.v1.GetRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getGetMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Deletes a stored response; one that runs is cancelled first.
     * </pre>
     */
    public dev.tieline.v1.DeleteResponse delete(dev.tieline.v1.DeleteRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getDeleteMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Ends a turn of the caller, on whichever connection it runs.
     * </pre>
     */
    public dev.tieline.v1.CancelResponse cancel(dev.tieline.v1.CancelRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getCancelMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * The input items of a stored response, page by page.
     * </pre>
     */
    public dev.tieline.v1.ListInputItemsResponse listInputItems(dev.tieline.v1.ListInputItemsRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getListInputItemsMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * How many tokens the prompt of a create has. Nothing is sampled.
     * </pre>
     */
    public dev.tieline.v1.CountInputTokensResponse countInputTokens(dev.tieline.v1.CountInputTokensRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getCountInputTokensMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * A shorter input that stands for a longer history.
     * </pre>
     */
    public dev.tieline.v1.CompactResponse compact(dev.tieline.v1.CompactRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getCompactMethod(), getCallOptions(), request);
    }
  }

  /**
   * A stub to allow clients to do ListenableFuture-style rpc calls to service ResponsesService.
   * <pre>
   * Responses: on a connection that remembers, and one by one.
   * </pre>
   */
  public static final class ResponsesServiceFutureStub
      extends io.grpc.stub.AbstractFutureStub<ResponsesServiceFutureStub> {
    private ResponsesServiceFutureStub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected ResponsesServiceFutureStub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new ResponsesServiceFutureStub(channel, callOptions);
    }

    /**
     * <pre>
     * One turn, answered whole. Safe to retry with an idempotency_key.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<dev.tieline.v1.CreateResponse> create(
        dev.tieline.v1.CreateRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getCreateMethod(), getCallOptions()), request);
    }

    /**
     * <pre>
     * A stored response, or one that runs and has an id that can be read.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<dev.tieline.v1.GetResponse> get(
        dev.tieline.v1.GetRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getGetMethod(), getCallOptions()), request);
    }

    /**
     * <pre>
     * Deletes a stored response; one that runs is cancelled first.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<dev.tieline.v1.DeleteResponse> delete(
        dev.tieline.v1.DeleteRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getDeleteMethod(), getCallOptions()), request);
    }

    /**
     * <pre>
     * Ends a turn of the caller, on whichever connection it runs.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<dev.tieline.v1.CancelResponse> cancel(
        dev.tieline.v1.CancelRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getCancelMethod(), getCallOptions()), request);
    }

    /**
     * <pre>
     * The input items of a stored response, page by page.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<dev.tieline.v1.ListInputItemsResponse> listInputItems(
        dev.tieline.v1.ListInputItemsRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getListInputItemsMethod(), getCallOptions()), request);
    }

    /**
     * <pre>
     * How many tokens the prompt of a create has. Nothing is sampled.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<dev.tieline.v1.CountInputTokensResponse> countInputTokens(
        dev.tieline.v1.CountInputTokensRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getCountInputTokensMethod(), getCallOptions()), request);
    }

    /**
     * <pre>
     * A shorter input that stands for a longer history.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<dev.tieline.v1.CompactResponse> compact(
        dev.tieline.v1.CompactRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getCompactMethod(), getCallOptions()), request);
    }
  }

  private static final int METHODID_CREATE = 0;
  private static final int METHODID_STREAM = 1;
  private static final int METHODID_RESUME = 2;
  private static final int METHODID_GET = 3;
  private static final int METHODID_DELETE = 4;
  private static final int METHODID_CANCEL = 5;
  private static final int METHODID_LIST_INPUT_ITEMS = 6;
  private static final int METHODID_COUNT_INPUT_TOKENS = 7;
  private static final int METHODID_COMPACT = 8;
  private static final int METHODID_CONVERSE = 9;

  private static final class MethodHandlers<Req, Resp> implements
      io.grpc.stub.ServerCalls.UnaryMethod<Req, Resp>,
      io.grpc.stub.ServerCalls.ServerStreamingMethod<Req, Resp>,
      io.grpc.stub.ServerCalls.ClientStreamingMethod<Req, Resp>,
      io.grpc.stub.ServerCalls.BidiStreamingMethod<Req, Resp> {
    private final AsyncService serviceImpl;
    private final int methodId;

    MethodHandlers(AsyncService serviceImpl, int methodId) {
      this.serviceImpl = serviceImpl;
      this.methodId = methodId;
    }

    @java.lang.Override
    @java.lang.SuppressWarnings("unchecked")
    public void invoke(Req request, io.grpc.stub.StreamObserver<Resp> responseObserver) {
      switch (methodId) {
        case METHODID_CREATE:
          serviceImpl.create((dev.tieline.v1.CreateRequest) request,
              (io.grpc.stub.StreamObserver<dev.tieline.v1.CreateResponse>) responseObserver);
          break;
        case METHODID_STREAM:
          serviceImpl.stream((dev.tieline.v1.StreamRequest) request,
              (io.grpc.stub.StreamObserver<dev.tieline.v1.StreamResponse>) responseObserver);
          break;
        case METHODID_RESUME:
          serviceImpl.resume((dev.tieline.v1.ResumeRequest) request,
              (io.grpc.stub.StreamObserver<dev.tieline.v1.ResumeResponse>) responseObserver);
          break;
        case METHODID_GET:
          serviceImpl.get((dev.tieline.v1.GetRequest) request,
              (io.grpc.stub.StreamObserver<dev.tieline.v1.GetResponse>) responseObserver);
          break;
        case METHODID_DELETE:
          serviceImpl.delete((dev.tieline.v1.DeleteRequest) request,
              (io.grpc.stub.StreamObserver<dev.tieline.v1.DeleteResponse>) responseObserver);
          break;
        case METHODID_CANCEL:
          serviceImpl.cancel((dev.tieline.v1.CancelRequest) request,
              (io.grpc.stub.StreamObserver<dev.tieline.v1.CancelResponse>) responseObserver);
          break;
        case METHODID_LIST_INPUT_ITEMS:
          serviceImpl.listInputItems((dev.tieline.v1.ListInputItemsRequest) request,
              (io.grpc.stub.StreamObserver<dev.tieline.v1.ListInputItemsResponse>) responseObserver);
          break;
        case METHODID_COUNT_INPUT_TOKENS:
          serviceImpl.countInputTokens((dev.tieline.v1.CountInputTokensRequest) request,
              (io.grpc.stub.StreamObserver<dev.tieline.v1.CountInputTokensResponse>) responseObserver);
          break;
        case METHODID_COMPACT:
          serviceImpl.compact((dev.tieline.v1.CompactRequest) request,
              (io.grpc.stub.StreamObserver<dev.tieline.v1.CompactResponse>) responseObserver);
          break;
        default:
          throw new AssertionError();
      }
    }

    @java.lang.Override
    @java.lang.SuppressWarnings("unchecked")
    public io.grpc.stub.StreamObserver<Req> invoke(
        io.grpc.stub.StreamObserver<Resp> responseObserver) {
      switch (methodId) {
        case METHODID_CONVERSE:
          return (io.grpc.stub.StreamObserver<Req>) serviceImpl.converse(
              (io.grpc.stub.StreamObserver<dev.tieline.v1.ConverseResponse>) responseObserver);
        default:
          throw new AssertionError();
      }
    }
  }

  public static final io.grpc.ServerServiceDefinition bindService(AsyncService service) {
    return io.grpc.ServerServiceDefinition.builder(getServiceDescriptor())
        .addMethod(
          getConverseMethod(),
          io.grpc.stub.ServerCalls.asyncBidiStreamingCall(
            new MethodHandlers<
              dev.tieline.v1.ConverseRequest,
              dev.tieline.v1.ConverseResponse>(
                service, METHODID_CONVERSE)))
        .addMethod(
          getCreateMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              dev.tieline.v1.CreateRequest,
              dev.tieline.v1.CreateResponse>(
                service, METHODID_CREATE)))
        .addMethod(
          getStreamMethod(),
          io.grpc.stub.ServerCalls.asyncServerStreamingCall(
            new MethodHandlers<
              dev.tieline.v1.StreamRequest,
              dev.tieline.v1.StreamResponse>(
                service, METHODID_STREAM)))
        .addMethod(
          getResumeMethod(),
          io.grpc.stub.ServerCalls.asyncServerStreamingCall(
            new MethodHandlers<
              dev.tieline.v1.ResumeRequest,
              dev.tieline.v1.ResumeResponse>(
                service, METHODID_RESUME)))
        .addMethod(
          getGetMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              dev.tieline.v1.GetRequest,
              dev.tieline.v1.GetResponse>(
                service, METHODID_GET)))
        .addMethod(
          getDeleteMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              dev.tieline.v1.DeleteRequest,
              dev.tieline.v1.DeleteResponse>(
                service, METHODID_DELETE)))
        .addMethod(
          getCancelMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              dev.tieline.v1.CancelRequest,
              dev.tieline.v1.CancelResponse>(
                service, METHODID_CANCEL)))
        .addMethod(
          getListInputItemsMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              dev.tieline.v1.ListInputItemsRequest,
              dev.tieline.v1.ListInputItemsResponse>(
                service, METHODID_LIST_INPUT_ITEMS)))
        .addMethod(
          getCountInputTokensMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              dev.tieline.v1.CountInputTokensRequest,
              dev.tieline.v1.CountInputTokensResponse>(
                service, METHODID_COUNT_INPUT_TOKENS)))
        .addMethod(
          getCompactMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              dev.tieline.v1.CompactRequest,
              dev.tieline.v1.CompactResponse>(
                service, METHODID_COMPACT)))
        .build();
  }

  private static abstract class ResponsesServiceBaseDescriptorSupplier
      implements io.grpc.protobuf.ProtoFileDescriptorSupplier, io.grpc.protobuf.ProtoServiceDescriptorSupplier {
    ResponsesServiceBaseDescriptorSupplier() {}

    @java.lang.Override
    public com.google.protobuf.Descriptors.FileDescriptor getFileDescriptor() {
      return dev.tieline.v1.Service.getDescriptor();
    }

    @java.lang.Override
    public com.google.protobuf.Descriptors.ServiceDescriptor getServiceDescriptor() {
      return getFileDescriptor().findServiceByName("ResponsesService");
    }
  }

  private static final class ResponsesServiceFileDescriptorSupplier
      extends ResponsesServiceBaseDescriptorSupplier {
    ResponsesServiceFileDescriptorSupplier() {}
  }

  private static final class ResponsesServiceMethodDescriptorSupplier
      extends ResponsesServiceBaseDescriptorSupplier
      implements io.grpc.protobuf.ProtoMethodDescriptorSupplier {
    private final java.lang.String methodName;

    ResponsesServiceMethodDescriptorSupplier(java.lang.String methodName) {
      this.methodName = methodName;
    }

    @java.lang.Override
    public com.google.protobuf.Descriptors.MethodDescriptor getMethodDescriptor() {
      return getServiceDescriptor().findMethodByName(methodName);
    }
  }

  private static volatile io.grpc.ServiceDescriptor serviceDescriptor;

  public static io.grpc.ServiceDescriptor getServiceDescriptor() {
    io.grpc.ServiceDescriptor result = serviceDescriptor;
    if (result == null) {
      synchronized (ResponsesServiceGrpc.class) {
        result = serviceDescriptor;
        if (result == null) {
          serviceDescriptor = result = io.grpc.ServiceDescriptor.newBuilder(SERVICE_NAME)
              .setSchemaDescriptor(new ResponsesServiceFileDescriptorSupplier())
              .addMethod(getConverseMethod())
              .addMethod(getCreateMethod())
              .addMethod(getStreamMethod())
              .addMethod(getResumeMethod())
              .addMethod(getGetMethod())
              .addMethod(getDeleteMethod())
              .addMethod(getCancelMethod())
              .addMethod(getListInputItemsMethod())
              .addMethod(getCountInputTokensMethod())
              .addMethod(getCompactMethod())
              .build();
        }
      }
    }
    return result;
  }
}
