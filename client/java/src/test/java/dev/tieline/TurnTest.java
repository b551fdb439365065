package dev.tieline;

import static dev.tieline.Fake.called;
import static dev.tieline.Fake.completed;
import static dev.tieline.Fake.created;
import static dev.tieline.Fake.delta;
import static dev.tieline.Fake.done;
import static dev.tieline.Fake.event;
import static dev.tieline.Fake.failed;
import static dev.tieline.Fake.held;
import static dev.tieline.Fake.spoken;
import static dev.tieline.Tieline.create;
import static dev.tieline.Tieline.functionOutput;
import static dev.tieline.Tieline.text;
import static dev.tieline.Tieline.userText;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.Any;
import com.google.protobuf.ByteString;
import com.google.protobuf.Duration;
import com.google.protobuf.UnknownFieldSet;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import dev.tieline.v1.CreateRequest;
import dev.tieline.v1.CreateResponse;
import dev.tieline.v1.Ending;
import dev.tieline.v1.Heartbeat;
import dev.tieline.v1.Response;
import dev.tieline.v1.ResponseCompleted;
import dev.tieline.v1.ResponseCreate;
import dev.tieline.v1.ResponseError;
import dev.tieline.v1.ResponseFailed;
import dev.tieline.v1.ServerEvent;
import io.grpc.Status;
import io.grpc.protobuf.StatusProto;
import java.net.ServerSocket;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

@Timeout(value = 60, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
class TurnTest {
    private static final ResponseCreate HELLO = create(userText("hello")).build();

    private final AtomicInteger runs = new AtomicInteger();
    private final LocalTool look = new LocalTool("look", "Looks.", "{}", arguments -> "seen " + runs.incrementAndGet());
    private final List<AutoCloseable> opened = new ArrayList<>();

    @AfterEach
    void close() throws Exception {
        for (int at = opened.size() - 1; at >= 0; at--) {
            opened.get(at).close();
        }
    }

    private <T extends AutoCloseable> T open(T it) {
        opened.add(it);
        return it;
    }

    private Client client(Fake.Script script) throws Exception {
        return open(Client.builder(open(new Fake(script)).address()).build());
    }

    private Connection connect(Fake.Script script) throws Exception {
        return open(client(script).connect());
    }

    private static ServerEvent on(String lane, ServerEvent event) {
        return event.toBuilder().setStreamId(lane).build();
    }

    private static ConnectionLostException lost(String id, int after, org.junit.jupiter.api.function.Executable of) {
        var lost = assertThrows(ConnectionLostException.class, of);
        assertEquals(id, lost.responseId());
        assertEquals(after, lost.after());
        return lost;
    }

    @Test
    void aTurnIsItsEventsAndItsResponse() throws Exception {
        var turn = connect(s -> {
            s.hear();
            s.say(created(0), delta(1, "Hel"), delta(2, "lo"));
            s.say(completed(3, "Hello"));
            s.stay();
        }).start(HELLO);
        assertEquals("Hello", turn.stream().map(e -> e.getOutputTextDelta().getDelta()).collect(Collectors.joining()));
        assertEquals("Hello", text(turn.result()));
    }

    @Test
    void aLoopThatIsLeftGoesOn() throws Exception {
        var turn = connect(s -> {
            s.hear();
            s.say(created(0), delta(1, "a"), completed(2, "a"));
            s.stay();
        }).start(HELLO);
        assertTrue(turn.iterator().hasNext());
        assertEquals(0, turn.iterator().next().getSequenceNumber());
        assertEquals(2, turn.stream().count());
    }

    @Test
    void lanesRunSideBySide() throws Exception {
        var connection = connect(s -> {
            s.hear();
            s.hear();
            s.say(on("slow", created(0)), on("quick", created(0)), on("quick", completed(1, "quick")));
            s.say(on("slow", completed(1, "slow")));
            s.stay();
        });
        var slow = connection.lane("slow").start(HELLO);
        assertEquals("quick", text(connection.lane("quick").ask("hello")));
        assertEquals("slow", text(slow.result()));
    }

    @Test
    void aRefusalIsAnErrorAndTheConnectionLivesOn() throws Exception {
        var connection = connect(s -> {
            var refusal = failed("rate_limit_exceeded", Ending.ENDING_REFUSED, s.hear().getEventId()).toBuilder();
            refusal.getErrorBuilder().getErrorBuilder().setParam("model")
                    .setRetryAfter(Duration.newBuilder().setSeconds(3));
            s.say(refusal.build());
            s.hear();
            s.say(created(0), completed(1, "yes"));
            s.stay();
        });
        var turn = connection.start(HELLO);
        for (int time = 0; time < 2; time++) { // A turn that has ended says the same again.
            var error = assertThrows(TielineException.class, turn::result);
            assertFalse(error instanceof ConnectionLostException);
            assertEquals("rate_limit_exceeded", error.code());
            assertEquals("model", error.param());
            assertEquals(3, error.retryAfter().orElseThrow().toSeconds());
        }
        assertEquals("yes", text(connection.ask("hello")));
    }

    @Test
    void aRefusalFindsItsTurnWithoutALane() throws Exception {
        var lane = connect(s -> {
            s.say(failed("invalid_stream_id", Ending.ENDING_REFUSED, s.hear().getEventId()));
            s.stay();
        }).lane("no lane");
        assertEquals("invalid_stream_id", assertThrows(TielineException.class, () -> lane.ask("hello")).code());
    }

    @Test
    void aFailedResponseIsAnErrorBesideWhatThereIs() throws Exception {
        var turn = connect(s -> {
            s.hear();
            var end = completed(1, "so far").toBuilder().setEnding(Ending.ENDING_FAILED)
                    .setResponseFailed(ResponseFailed.getDefaultInstance());
            end.getResponseBuilder().setError(
                    ResponseError.newBuilder().setCode("server_error").setMessage("It broke."));
            s.say(created(0), end.build());
            s.stay();
        }).start(HELLO);
        assertEquals("server_error", assertThrows(TielineException.class, turn::result).code());
        assertEquals("so far", text(turn.response()));
    }

    @Test
    void aStatusIsAnErrorWithItsCode() throws Exception {
        var status = com.google.rpc.Status.newBuilder().setCode(Status.Code.UNAVAILABLE.value()).setMessage("Busy.")
                .addDetails(Any.pack(ErrorInfo.newBuilder().setReason("SERVER_DRAINING").setDomain("tieline").build()))
                .addDetails(Any.pack(
                        RetryInfo.newBuilder().setRetryDelay(Duration.newBuilder().setSeconds(1)).build()));
        var fake = open(new Fake(s -> {
            throw StatusProto.toStatusRuntimeException(status.build());
        }, request -> {
            throw StatusProto.toStatusRuntimeException(status.build());
        }));
        var client = open(Client.builder(fake.address()).build());
        var call = assertThrows(TielineException.class,
                () -> client.call(stub -> stub.create(CreateRequest.getDefaultInstance())));
        var turn = lost("", -1, () -> client.connect().ask("hello"));
        for (var error : List.of(call, turn)) {
            assertEquals("server_draining", error.code());
            assertEquals(Status.Code.UNAVAILABLE, error.status().getCode());
            assertEquals(1, error.retryAfter().orElseThrow().toSeconds());
        }
    }

    @Test
    void keyAndLimitsAreTold() throws Exception {
        var told = new AtomicLong();
        var large = "x".repeat(5 << 20);
        var fake = open(new Fake(s -> {
            told.addAndGet(s.hear().getSessionStart().getMaxReceiveBytes());
            s.hear();
            s.say(created(0), completed(1, large));
            s.stay();
        }, request -> {
            told.addAndGet(request.getMaxReceiveBytes());
            return CreateResponse.getDefaultInstance();
        }));
        var client = open(Client.builder(fake.address()).key("sk-1").maxReceiveBytes(8 << 20).build());
        assertEquals(large, text(open(client.connect()).ask("hello")));
        client.call(stub -> stub.create(CreateRequest.getDefaultInstance()));
        assertEquals(2L * (8 << 20), told.get());
        assertEquals(List.of("Bearer sk-1", "Bearer sk-1"), fake.keys);
    }

    @Test
    void aClosedTurnIsCancelledAlone() throws Exception {
        var connection = connect(s -> {
            var id = s.hear().getEventId();
            s.say(created(0));
            var cancel = s.hear();
            assertTrue(cancel.hasResponseCancel() && cancel.getEventId().equals(id));
            s.say(delta(1, "late"), completed(2, "").toBuilder().setEnding(Ending.ENDING_INCOMPLETE).build());
            s.hear();
            s.say(created(0), completed(1, "next"));
            s.stay();
        });
        try (var turn = connection.start(HELLO)) {
            turn.iterator().next();
        }
        assertEquals("next", text(connection.ask("hello")));
    }

    @Test
    void aToolRunsOnceForEachCall() throws Exception {
        var outputs = new ArrayList<String>();
        var connection = connect(s -> {
            s.hear();
            s.say(created(0), called(1, "call_1"), called(2, "call_2"), held(3));
            s.hear().getResponseAppend().getInputItems().getItemsList()
                    .forEach(item -> outputs.add(item.getFunctionCallOutput().getCallId()));
            s.say(called(4, "call_2"), held(5)); // It asks again for what it has been told.
            s.hear();
            s.say(completed(6, "done"));
            s.stay();
        });
        assertEquals("done", text(connection.ask("hello", look)));
        assertEquals(2, runs.get());
        assertEquals(List.of("call_1", "call_2"), outputs);
    }

    @Test
    void aCallIsRequiredOnceOnly() throws Exception {
        var choices = new ArrayList<String>();
        var connection = connect(s -> {
            s.hear();
            var hold = held(2).toBuilder();
            hold.getResponseBuilder().setToolChoice("required");
            s.say(created(0), called(1, "call_1"), hold.build());
            choices.add(s.hear().getResponseAppend().getToolChoice());
            s.say(completed(3, "done"));
            s.stay();
        });
        connection.ask(HELLO.toBuilder().setToolChoice("required").build(), look);
        assertEquals(List.of("auto"), choices);
    }

    @Test
    void aToolThatThrowsIsToldToTheModel() throws Exception {
        var told = new ArrayList<String>();
        var connection = connect(s -> {
            s.hear();
            s.say(created(0), called(1, "call_1"), held(2));
            told.add(s.hear().getResponseAppend().getInputItems().getItems(0).getFunctionCallOutput().getText());
            s.say(completed(3, "done"));
            s.stay();
        });
        connection.ask("hello", new LocalTool("look", "", "{}", arguments -> {
            throw new java.io.IOException("no light");
        }));
        assertEquals(List.of("error: java.io.IOException: no light"), told);
    }

    @Test
    void aHoldIsAnsweredByHand() throws Exception {
        var turn = connect(s -> {
            s.hear();
            s.say(created(0), called(1, "call_1"), held(2));
            s.say(failed("tool_output_missing", Ending.ENDING_UNSPECIFIED, s.hear().getEventId()));
            s.hear();
            s.say(completed(4, "done"));
            s.stay();
        }).start(HELLO.toBuilder().setAppend(true).build());
        assertEquals("", text(turn.result()));
        turn.append();
        assertEquals("tool_output_missing", assertThrows(TielineException.class, turn::result).code());
        turn.append(functionOutput("call_1", "seen"));
        assertEquals("done", text(turn.result()));
    }

    /** The server may or may not have had the answer of the hold. */
    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void aLostTurnIsResumedAndNoToolRunsAgain(boolean taken) throws Exception {
        var client = client(s -> {
            var first = s.hear();
            if (!first.hasResponseResume()) {
                s.say(created(0), called(1, "call_1"), held(2));
                s.hear();
                return;
            }
            assertEquals(2, first.getResponseResume().getAfter());
            var id = s.hear().getEventId();
            if (taken) {
                s.say(failed("response_not_active", Ending.ENDING_UNSPECIFIED, id));
            }
            s.say(completed(3, "done"));
            s.stay();
        });
        var turn = open(client.connect()).start(HELLO, look);
        lost("resp_1", 2, turn::result);
        turn.close();
        assertEquals("done", text(turn.resume(open(client.connect())).result()));
        assertEquals(1, runs.get());
    }

    @ParameterizedTest
    @ValueSource(ints = {0, 1, 2, 3, 4, 5, 6})
    void theServerGoesAfterEachEvent(int gone) throws Exception {
        var events = List.of(
                created(0), delta(1, "a"), called(2, "call_1"), held(3), delta(4, "b"), completed(5, "ab"));
        var connection = connect(s -> {
            s.hear();
            for (int at = 0; at < gone; at++) {
                if (at == 4) {
                    s.hear();
                }
                s.say(events.get(at));
            }
        });
        if (gone == events.size()) {
            assertEquals("ab", text(connection.ask(HELLO, look)));
        } else {
            lost(gone == 0 ? "" : "resp_1", gone - 1, () -> connection.ask(HELLO, look));
        }
        lost("", -1, () -> connection.ask("a later turn"));
        assertEquals(gone > 3 ? 1 : 0, runs.get());
    }

    @Test
    void noServerIsAnError() throws Exception {
        int port;
        try (var socket = new ServerSocket(0)) {
            port = socket.getLocalPort();
        }
        var client = open(Client.builder("127.0.0.1:" + port).build());
        assertEquals(Status.Code.UNAVAILABLE, lost("", -1, () -> client.connect().ask("hello")).status().getCode());
    }

    @Test
    void closeEndsWhatIsPending() throws Exception {
        var connection = connect(Fake.Stream::stay);
        var turn = connection.start(HELLO);
        connection.close();
        lost("", -1, turn::result);
        lost("", -1, () -> connection.ask("hello"));
    }

    @Test
    void anInterruptEndsTheWaitAndTheConnectionLivesOn() throws Exception {
        var connection = connect(s -> {
            s.hear();
            assertTrue(s.hear().hasResponseCancel());
            s.say(completed(0, "").toBuilder().setEnding(Ending.ENDING_INCOMPLETE).build());
            s.hear();
            s.say(created(0), completed(1, "yes"));
            s.stay();
        });
        Thread.currentThread().interrupt();
        assertThrows(TielineException.class, () -> connection.ask("hello"));
        assertTrue(Thread.interrupted());
        assertEquals("yes", text(connection.ask("hello")));
    }

    @Test
    void aNewerServerIsUnderstood() throws Exception {
        var unknown = UnknownFieldSet.newBuilder().addField(4000, UnknownFieldSet.Field.newBuilder()
                .addLengthDelimited(ByteString.copyFromUtf8("new")).build()).build();
        var turn = connect(s -> {
            s.hear();
            var end = completed(2, "future").toBuilder().clearEvent().setEndingValue(77).setUnknownFields(unknown);
            end.getResponseBuilder().setStatusValue(77).setUnknownFields(unknown);
            s.say(created(0), event(1).setUnknownFields(unknown).build(), end.build());
            s.stay();
        }).start(HELLO);
        assertEquals(2, turn.stream().count());
        assertEquals("future", text(turn.result()));
    }

    @Test
    void anOutputThatIsLeftOutIsThatOfTheEvents() throws Exception {
        var connection = connect(s -> {
            s.hear();
            s.say(created(0), done(1, spoken("large")), event(2).setResponse(Response.newBuilder().setId("resp_1"))
                    .setResponseCompleted(ResponseCompleted.newBuilder().setOutputOmitted(true))
                    .setEnding(Ending.ENDING_COMPLETED).build());
            s.stay();
        });
        assertEquals("large", text(connection.ask("hello")));
    }

    @Test
    void whatBelongsToNoTurnIsPassedOver() throws Exception {
        var beat = ServerEvent.newBuilder().setHeartbeat(Heartbeat.getDefaultInstance()).build();
        var connection = connect(s -> {
            s.say(beat, delta(7, "nobody's"), on("never used", completed(8, "")));
            s.hear();
            s.say(beat, failed("late", Ending.ENDING_UNSPECIFIED, "of an earlier one"));
            s.say(created(0), beat, completed(1, "yes"), delta(2, "late"));
            s.stay();
        });
        assertEquals("yes", text(connection.ask("hello")));
    }

    @Test
    void manyTurnsAtOnce() throws Exception {
        var connection = connect(s -> {
            for (int turn = 0; turn < 320; turn++) {
                var lane = s.hear().getStreamId();
                s.say(on(lane, created(0)), on(lane, completed(1, lane)));
            }
            s.stay();
        });
        var right = new AtomicInteger();
        var threads = new ArrayList<Thread>();
        for (int at = 0; at < 32; at++) {
            var name = "lane" + at % 16;
            threads.add(new Thread(() -> {
                for (int turn = 0; turn < 10; turn++) {
                    right.addAndGet(text(connection.lane(name).ask("hello")).equals(name) ? 1 : 0);
                }
            }));
        }
        threads.forEach(Thread::start);
        for (var thread : threads) {
            thread.join();
        }
        assertEquals(320, right.get());
    }

    @Test
    void noThreadIsLeft() throws Exception {
        var connection = connect(s -> {
            s.hear();
            s.say(created(0), completed(1, "yes"));
            s.stay();
        });
        connection.ask("hello");
        close();
        opened.clear();
        var until = System.nanoTime() + TimeUnit.SECONDS.toNanos(20); // gRPC keeps idle threads for a second.
        List<String> left;
        do {
            TimeUnit.MILLISECONDS.sleep(100);
            left = Thread.getAllStackTraces().keySet().stream().map(Thread::getName)
                    .filter(name -> name.startsWith("grpc") || name.startsWith("script")).toList();
        } while (!left.isEmpty() && System.nanoTime() < until);
        assertEquals(List.of(), left);
    }
}
