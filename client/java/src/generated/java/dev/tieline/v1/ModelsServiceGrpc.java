package dev.tieline.v1;

import static io.grpc.MethodDescriptor.generateFullMethodName;

/**
 * <pre>
 * The models of a server.
 * </pre>
 */
@io.grpc.stub.annotations.GrpcGenerated
public final class ModelsServiceGrpc {

  private ModelsServiceGrpc() {}

  public static final java.lang.String SERVICE_NAME = "tieline.v1.ModelsService";

  // Static method descriptors that strictly reflect the proto.
  private static volatile io.grpc.MethodDescriptor<dev.tieline.v1.ListModelsRequest,
      dev.tieline.v1.ListModelsResponse> getListModelsMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "ListModels",
      requestType = dev.tieline.v1.ListModelsRequest.class,
      responseType = dev.tieline.v1.ListModelsResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<dev.tieline.v1.ListModelsRequest,
      dev.tieline.v1.ListModelsResponse> getListModelsMethod() {
    io.grpc.MethodDescriptor<dev.tieline.v1.ListModelsRequest, dev.tieline.v1.ListModelsResponse> getListModelsMethod;
    if ((getListModelsMethod = ModelsServiceGrpc.getListModelsMethod) == null) {
      synchronized (ModelsServiceGrpc.class) {
        if ((getListModelsMethod = ModelsServiceGrpc.getListModelsMethod) == null) {
          ModelsServiceGrpc.getListModelsMethod = getListModelsMethod =
              io.grpc.MethodDescriptor.<dev.tieline.v1.ListModelsRequest, dev.tieline.v1.ListModelsResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "ListModels"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.tieline.v1.ListModelsRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.tieline.v1.ListModelsResponse.getDefaultInstance()))
              .setSchemaDescriptor(new ModelsServiceMethodDescriptorSupplier("ListModels"))
              .build();
        }
      }
    }
    return getListModelsMethod;
  }

  /**
   * Creates a new async stub that supports all call types for the service
   */
  public static ModelsServiceStub newStub(io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<ModelsServiceStub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<ModelsServiceStub>() {
        @java.lang.Override
        public ModelsServiceStub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new ModelsServiceStub(channel, callOptions);
        }
      };
    return ModelsServiceStub.newStub(factory, channel);
  }

  /**
   * Creates a new blocking-style stub that supports all types of calls on the service
   */
  public static ModelsServiceBlockingV2Stub newBlockingV2Stub(
      io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<ModelsServiceBlockingV2Stub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<ModelsServiceBlockingV2Stub>() {
        @java.lang.Override
        public ModelsServiceBlockingV2Stub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new ModelsServiceBlockingV2Stub(channel, callOptions);
        }
      };
    return ModelsServiceBlockingV2Stub.newStub(factory, channel);
  }

  /**
   * Creates a new blocking-style stub that supports unary and streaming output calls on the service
   */
  public static ModelsServiceBlockingStub newBlockingStub(
      io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<ModelsServiceBlockingStub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<ModelsServiceBlockingStub>() {
        @java.lang.Override
        public ModelsServiceBlockingStub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new ModelsServiceBlockingStub(channel, callOptions);
        }
      };
    return ModelsServiceBlockingStub.newStub(factory, channel);
  }

  /**
   * Creates a new ListenableFuture-style stub that supports unary calls on the service
   */
  public static ModelsServiceFutureStub newFutureStub(
      io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<ModelsServiceFutureStub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<ModelsServiceFutureStub>() {
        @java.lang.Override
        public ModelsServiceFutureStub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new ModelsServiceFutureStub(channel, callOptions);
        }
      };
    return ModelsServiceFutureStub.newStub(factory, channel);
  }

  /**
   * <pre>
   * The models of a server.
   * </pre>
   */
  public interface AsyncService {

    /**
     * <pre>
     * All models that the caller may use.
     * </pre>
     */
    default void listModels(dev.tieline.v1.ListModelsRequest request,
        io.grpc.stub.StreamObserver<dev.tieline.v1.ListModelsResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getListModelsMethod(), responseObserver);
    }
  }

  /**
   * Base class for the server implementation of the service ModelsService.
   * <pre>
   * The models of a server.
   * </pre>
   */
  public static abstract class ModelsServiceImplBase
      implements io.grpc.BindableService, AsyncService {

    @java.lang.Override public final io.grpc.ServerServiceDefinition bindService() {
      return ModelsServiceGrpc.bindService(this);
    }
  }

  /**
   * A stub to allow clients to do asynchronous rpc calls to service ModelsService.
   * <pre>
   * The models of a server.
   * </pre>
   */
  public static final class ModelsServiceStub
      extends io.grpc.stub.AbstractAsyncStub<ModelsServiceStub> {
    private ModelsServiceStub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected ModelsServiceStub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new ModelsServiceStub(channel, callOptions);
    }

    /**
     * <pre>
     * All models that the caller may use.
     * </pre>
     */
    public void listModels(dev.tieline.v1.ListModelsRequest request,
        io.grpc.stub.StreamObserver<dev.tieline.v1.ListModelsResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getListModelsMethod(), getCallOptions()), request, responseObserver);
    }
  }

  /**
   * A stub to allow clients to do synchronous rpc calls to service ModelsService.
   * <pre>
   * The models of a server.
   * </pre>
   */
  public static final class ModelsServiceBlockingV2Stub
      extends io.grpc.stub.AbstractBlockingStub<ModelsServiceBlockingV2Stub> {
    private ModelsServiceBlockingV2Stub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected ModelsServiceBlockingV2Stub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new ModelsServiceBlockingV2Stub(channel, callOptions);
    }

    /**
     * <pre>
     * All models that the caller may use.
     * </pre>
     */
    public dev.tieline.v1.ListModelsResponse listModels(dev.tieline.v1.ListModelsRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getListModelsMethod(), getCallOptions(), request);
    }
  }

  /**
   * A stub to allow clients to do limited synchronous rpc calls to service ModelsService.
   * <pre>
   * The models of a server.
   * </pre>
   */
  public static final class ModelsServiceBlockingStub
      extends io.grpc.stub.AbstractBlockingStub<ModelsServiceBlockingStub> {
    private ModelsServiceBlockingStub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected ModelsServiceBlockingStub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new ModelsServiceBlockingStub(channel, callOptions);
    }

    /**
     * <pre>
     * All models that the caller may use.
     * </pre>
     */
    public dev.tieline.v1.ListModelsResponse listModels(dev.tieline.v1.ListModelsRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getListModelsMethod(), getCallOptions(), request);
    }
  }

  /**
   * A stub to allow clients to do ListenableFuture-style rpc calls to service ModelsService.
   * <pre>
   * The models of a server.
   * </pre>
   */
  public static final class ModelsServiceFutureStub
      extends io.grpc.stub.AbstractFutureStub<ModelsServiceFutureStub> {
    private ModelsServiceFutureStub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected ModelsServiceFutureStub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new ModelsServiceFutureStub(channel, callOptions);
    }

    /**
     * <pre>
     * All models that the caller may use.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<dev.tieline.v1.ListModelsResponse> listModels(
        dev.tieline.v1.ListModelsRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getListModelsMethod(), getCallOptions()), request);
    }
  }

  private static final int METHODID_LIST_MODELS = 0;

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
        case METHODID_LIST_MODELS:
          serviceImpl.listModels((dev.tieline.v1.ListModelsRequest) request,
              (io.grpc.stub.StreamObserver<dev.tieline.v1.ListModelsResponse>) responseObserver);
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
        default:
          throw new AssertionError();
      }
    }
  }

  public static final io.grpc.ServerServiceDefinition bindService(AsyncService service) {
    return io.grpc.ServerServiceDefinition.builder(getServiceDescriptor())
        .addMethod(
          getListModelsMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              dev.tieline.v1.ListModelsRequest,
              dev.tieline.v1.ListModelsResponse>(
                service, METHODID_LIST_MODELS)))
        .build();
  }

  private static abstract class ModelsServiceBaseDescriptorSupplier
      implements io.grpc.protobuf.ProtoFileDescriptorSupplier, io.grpc.protobuf.ProtoServiceDescriptorSupplier {
    ModelsServiceBaseDescriptorSupplier() {}

    @java.lang.Override
    public com.google.protobuf.Descriptors.FileDescriptor getFileDescriptor() {
      return dev.tieline.v1.Models.getDescriptor();
    }

    @java.lang.Override
    public com.google.protobuf.Descriptors.ServiceDescriptor getServiceDescriptor() {
      return getFileDescriptor().findServiceByName("ModelsService");
    }
  }

  private static final class ModelsServiceFileDescriptorSupplier
      extends ModelsServiceBaseDescriptorSupplier {
    ModelsServiceFileDescriptorSupplier() {}
  }

  private static final class ModelsServiceMethodDescriptorSupplier
      extends ModelsServiceBaseDescriptorSupplier
      implements io.grpc.protobuf.ProtoMethodDescriptorSupplier {
    private final java.lang.String methodName;

    ModelsServiceMethodDescriptorSupplier(java.lang.String methodName) {
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
      synchronized (ModelsServiceGrpc.class) {
        result = serviceDescriptor;
        if (result == null) {
          serviceDescriptor = result = io.grpc.ServiceDescriptor.newBuilder(SERVICE_NAME)
              .setSchemaDescriptor(new ModelsServiceFileDescriptorSupplier())
              .addMethod(getListModelsMethod())
              .build();
        }
      }
    }
    return result;
  }
}
