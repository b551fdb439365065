package dev.tieline;

import dev.tieline.v1.ConverseRequest;
import dev.tieline.v1.ConverseResponse;
import dev.tieline.v1.CreateRequest;
import dev.tieline.v1.CreateResponse;
import dev.tieline.v1.Ending;
import dev.tieline.v1.Error;
import dev.tieline.v1.ErrorEvent;
import dev.tieline.v1.FunctionCall;
import dev.tieline.v1.Item;
import dev.tieline.v1.Message;
import dev.tieline.v1.OutputItemDone;
import dev.tieline.v1.OutputTextDelta;
import dev.tieline.v1.Response;
import dev.tieline.v1.ResponseCompleted;
import dev.tieline.v1.ResponseCreated;
import dev.tieline.v1.ResponseDone;
import dev.tieline.v1.ResponsesServiceGrpc.ResponsesServiceImplBase;
import dev.tieline.v1.ServerEvent;
import io.grpc.Grpc;
import io.grpc.InsecureServerCredentials;
import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;

/** A server whose connections follow a script, each in a thread of its own. */
final class Fake implements AutoCloseable {
    interface Script {
        void play(Stream stream) throws Exception;
    }

    /** What a script hears and says. It ends its connection when it returns, unless it has stayed. */
    record Stream(BlockingQueue<ConverseRequest> requests, StreamObserver<ConverseResponse> responses) {
        ConverseRequest hear() throws InterruptedException {
            var request = requests.poll(20, TimeUnit.SECONDS);
            if (request == null) {
                throw new IllegalStateException("the client says nothing");
            }
            return request;
        }

        void say(ServerEvent... events) {
            responses.onNext(ConverseResponse.newBuilder().addAllEvents(List.of(events)).build());
        }

        /** Until the client goes. */
        void stay() throws InterruptedException {
            while (requests.take() != GONE) {
                // It says nothing any more.
            }
        }
    }

    private static final ConverseRequest GONE = ConverseRequest.newBuilder().setEventId("gone").build();

    final List<String> keys = new CopyOnWriteArrayList<>();
    private final Server server;

    Fake(Script script) throws IOException {
        this(script, request -> CreateResponse.getDefaultInstance());
    }

    Fake(Script script, Function<CreateRequest, CreateResponse> create) throws IOException {
        var service = new ResponsesServiceImplBase() {
            @Override
            public StreamObserver<ConverseRequest> converse(StreamObserver<ConverseResponse> responses) {
                var stream = new Stream(new LinkedBlockingQueue<>(), responses);
                new Thread(() -> run(script, stream), "script").start();
                return new StreamObserver<>() {
                    @Override
                    public void onNext(ConverseRequest request) {
                        stream.requests().add(request);
                    }

                    @Override
                    public void onError(Throwable failure) {
                        stream.requests().add(GONE);
                    }

                    @Override
                    public void onCompleted() {
                        stream.requests().add(GONE);
                    }
                };
            }

            @Override
            public void create(CreateRequest request, StreamObserver<CreateResponse> responses) {
                try {
                    responses.onNext(create.apply(request));
                    responses.onCompleted();
                } catch (RuntimeException e) {
                    responses.onError(e);
                }
            }
        };
        var listening = new ServerInterceptor() {
            @Override
            public <Q, A> ServerCall.Listener<Q> interceptCall(
                    ServerCall<Q, A> call, Metadata headers, ServerCallHandler<Q, A> next) {
                var key = Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
                keys.add(String.valueOf(headers.get(key)));
                return next.startCall(call, headers);
            }
        };
        server = Grpc.newServerBuilderForPort(0, InsecureServerCredentials.create())
                .addService(service).intercept(listening).build().start();
    }

    private static void run(Script script, Stream stream) {
        try {
            script.play(stream);
            stream.responses().onCompleted();
        } catch (Exception e) {
            try {
                stream.responses().onError(e);
            } catch (IllegalStateException over) {
                // The client has gone.
            }
        }
    }

    String address() {
        return "127.0.0.1:" + server.getPort();
    }

    @Override
    public void close() throws InterruptedException {
        server.shutdownNow().awaitTermination();
    }

    static ServerEvent.Builder event(int number) {
        return ServerEvent.newBuilder().setSequenceNumber(number);
    }

    static ServerEvent created(int number) {
        return event(number).setResponse(Response.newBuilder().setId("resp_1"))
                .setResponseCreated(ResponseCreated.getDefaultInstance()).build();
    }

    static ServerEvent delta(int number, String text) {
        return event(number).setOutputTextDelta(OutputTextDelta.newBuilder().setDelta(text)).build();
    }

    static ServerEvent done(int number, Item.Builder item) {
        return event(number).setOutputItemDone(OutputItemDone.newBuilder().setItem(item)).build();
    }

    static ServerEvent called(int number, String callId) {
        return done(number, Item.newBuilder().setFunctionCall(
                FunctionCall.newBuilder().setCallId(callId).setName("look").setArguments("{}")));
    }

    static ServerEvent held(int number) {
        return event(number).setResponse(Response.newBuilder().setId("resp_1"))
                .setResponseDone(ResponseDone.getDefaultInstance()).setEnding(Ending.ENDING_HELD).build();
    }

    static Item.Builder spoken(String text) {
        return Item.newBuilder().setMessage(Message.newBuilder().setRole("assistant").setText(text));
    }

    static ServerEvent completed(int number, String text) {
        return event(number).setResponse(Response.newBuilder().setId("resp_1").addOutput(spoken(text)))
                .setResponseCompleted(ResponseCompleted.getDefaultInstance())
                .setEnding(Ending.ENDING_COMPLETED).build();
    }

    static ServerEvent failed(String code, Ending ending, String eventId) {
        var error = Error.newBuilder().setCode(code).setMessage("No.").setEventId(eventId);
        return event(0).setError(ErrorEvent.newBuilder().setError(error)).setEnding(ending).build();
    }
}
