package dev.tieline.interop;

import static dev.tieline.Tieline.create;
import static dev.tieline.Tieline.text;
import static dev.tieline.Tieline.userText;

import com.google.gson.JsonParser;
import com.google.protobuf.Duration;
import dev.tieline.Client;
import dev.tieline.Connection;
import dev.tieline.ConnectionLostException;
import dev.tieline.Lane;
import dev.tieline.LocalTool;
import dev.tieline.TielineException;
import dev.tieline.Turn;
import dev.tieline.interop.Runner.Scenario;
import dev.tieline.interop.Runner.Targets;
import dev.tieline.v1.CreateRequest;
import dev.tieline.v1.CreateResponse;
import dev.tieline.v1.Ending;
import dev.tieline.v1.Response;
import dev.tieline.v1.ResponseCreate;
import dev.tieline.v1.ResponseStatus;
import dev.tieline.v1.ServerEvent;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.health.v1.HealthCheckRequest;
import io.grpc.health.v1.HealthCheckResponse.ServingStatus;
import io.grpc.health.v1.HealthGrpc;
import io.grpc.reflection.v1.ServerReflectionGrpc;
import io.grpc.reflection.v1.ServerReflectionRequest;
import io.grpc.reflection.v1.ServerReflectionResponse;
import io.grpc.reflection.v1.ServiceResponse;
import io.grpc.stub.StreamObserver;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.stream.IntStream;

/** One scenario, with what it needs. */
record Scenarios(Runner.Tool tool, Targets targets, Scenario scenario) {
    private interface Use<T> {
        void with(T it) throws Exception;
    }

    void run() throws Exception {
        switch (scenario.name()) {
            case "turn" -> connected(targets.address(), this::turn);
            case "append" -> connected(targets.address(), this::append);
            case "chain" -> connected(targets.address(), this::chain);
            case "lanes" -> connected(targets.address(), this::lanes);
            case "cancel" -> connected(targets.address(), this::cancel);
            case "error" -> connected(targets.address(), this::error);
            case "resume" -> resume();
            case "key" -> connected(Client.builder(targets.keyed()).key(targets.key()), this::turn);
            case "wrong_key" -> connected(Client.builder(targets.keyed()).key(scenario.key()), this::wrongKey);
            case "health" -> dialled(Client.builder(targets.address()), this::health);
            case "reflection" -> dialled(Client.builder(targets.address()), this::reflection);
            case "deadline" -> deadline();
            case "keepalive" -> connected(targets.address(), this::keepalive);
            case "large" -> large();
            case "unicode" -> connected(targets.address(), this::unicode);
            case "newer" -> connected(targets.newer(), connection ->
                    same("the text", text(connection.ask(scenario.input())), scenario.text()));
            case "goaway" -> connected(targets.drains(), this::goaway);
            default -> throw new UnsupportedOperationException("this runner does not know it");
        }
    }

    private static void dialled(Client.Builder builder, Use<Client> use) throws Exception {
        try (var client = builder.build()) {
            use.with(client);
        }
    }

    private static void connected(Client.Builder builder, Use<Connection> use) throws Exception {
        dialled(builder, client -> {
            try (var connection = client.connect()) {
                use.with(connection);
            }
        });
    }

    private static void connected(String address, Use<Connection> use) throws Exception {
        connected(Client.builder(address), use);
    }

    private static void same(String what, Object got, Object expected) {
        if (!Objects.equals(got, expected)) {
            throw new AssertionError("%s is %.200s, not %.200s".formatted(what, got, expected));
        }
    }

    private static ResponseCreate input(String text) {
        return create(userText(text)).build();
    }

    private static Response says(Lane lane, ResponseCreate create, String text) {
        var response = lane.ask(create);
        same("the text", text(response), text);
        same("the status", response.getStatus(), ResponseStatus.RESPONSE_STATUS_COMPLETED);
        return response;
    }

    private void turn(Connection connection) {
        try (var turn = connection.start(input(scenario.input()))) {
            var last = turn.stream().reduce((before, event) -> event).orElseThrow();
            same("the text", text(last.getResponse()), scenario.text());
            same("the ending", last.getEnding(), Ending.ENDING_COMPLETED);
            var usage = last.getResponse().getUsage();
            same("whether there is usage", usage.getInputTokens() > 0 && usage.getOutputTokens() > 0, true);
        }
    }

    private void append(Connection connection) {
        var calls = new ArrayList<String>();
        var local = new LocalTool(tool.name(), tool.description(), tool.parameters().toString(), arguments -> {
            calls.add(arguments);
            return tool.output();
        });
        try (var turn = connection.start(input(scenario.input()), local)) {
            var holds = turn.stream().filter(event -> event.getEnding() == Ending.ENDING_HELD).count();
            same("the number of holds", holds, 1L);
            same("the text", text(turn.result()), scenario.text());
        }
        same("the calls", calls.stream().map(JsonParser::parseString).toList(), List.of(scenario.arguments()));
    }

    private void chain(Connection connection) {
        var first = connection.ask(scenario.input());
        var next = input(scenario.then()).toBuilder().setPreviousResponseId(first.getId()).build();
        same("the previous response", says(connection, next, scenario.text()).getPreviousResponseId(), first.getId());
    }

    private void lanes(Connection connection) throws Exception {
        // The one that is to end first is the last one that is asked.
        var names = new ArrayList<>(scenario.lanes().keySet());
        names.remove(scenario.first());
        names.add(scenario.first());
        var ended = new ConcurrentLinkedQueue<String>();
        var turns = names.stream().map(name -> connection.lane(name).start(input(scenario.lanes().get(name)))).toList();
        var reading = IntStream.range(0, names.size()).mapToObj(at -> CompletableFuture.runAsync(() -> {
            var response = turns.get(at).result();
            ended.add(names.get(at));
            same("the text of a lane", text(response), scenario.texts().get(names.get(at)));
        }, task -> new Thread(task).start())).toList();
        for (var each : reading) {
            each.get();
        }
        same("the lane that ended first", ended.peek(), scenario.first());
    }

    private void cancel(Connection connection) {
        ServerEvent last = null;
        try (var turn = connection.start(input(scenario.input()))) {
            for (var event : turn) {
                if (event.hasOutputTextDelta() && (last == null || !last.hasOutputTextDelta())) {
                    turn.cancel();
                }
                last = event;
            }
        }
        same("the status", last.getResponse().getStatus(), ResponseStatus.RESPONSE_STATUS_CANCELLED);
        same("the ending", last.getEnding(), Ending.ENDING_INCOMPLETE);
        says(connection, input(scenario.then()), scenario.text());
    }

    /** The error that this has to end with. */
    private static TielineException refusal(Supplier<?> of) {
        try {
            throw new AssertionError("there is no error, but " + of.get());
        } catch (TielineException e) {
            return e;
        }
    }

    private void error(Connection connection) {
        for (var refused : scenario.refused()) {
            var create = input(refused.input()).toBuilder();
            if (refused.model() != null) {
                create.setModel(refused.model());
            }
            var error = refusal(() -> connection.ask(create.build()));
            same("the code", error.code(), refused.code());
            same("the param", error.param(), Objects.requireNonNullElse(refused.param(), ""));
        }
        says(connection, input(scenario.then()), scenario.text());
    }

    private void resume() throws Exception {
        var numbers = new ArrayList<Integer>();
        var heard = new StringBuilder();
        Function<Turn, Response> hear = turn -> {
            turn.forEach(event -> {
                numbers.add(event.getSequenceNumber());
                heard.append(event.getOutputTextDelta().getDelta());
            });
            return turn.result();
        };
        var lost = new CompletableFuture<TielineException>();
        connected(targets.cut(), connection -> {
            var create = input(scenario.input()).toBuilder().setResumable(true).build();
            lost.complete(refusal(() -> hear.apply(connection.start(create))));
        });
        if (!(lost.get() instanceof ConnectionLostException cut)) {
            throw lost.get();
        }
        connected(targets.address(), connection -> {
            var response = hear.apply(connection.resume(cut.responseId(), cut.after()));
            same("the text of the response", text(response), scenario.text());
        });
        same("the text of the deltas", heard.toString(), scenario.text());
        same("the numbers", numbers, IntStream.range(0, numbers.size()).boxed().toList());
    }

    private void wrongKey(Connection connection) {
        var error = refusal(() -> connection.ask("hello"));
        same("the status", error.status().getCode().name(), scenario.status());
        same("the code", error.code(), scenario.code());
    }

    private void health(Client client) {
        var stub = HealthGrpc.newBlockingStub(client.channel()).withDeadlineAfter(20, TimeUnit.SECONDS);
        for (var service : scenario.services()) {
            var request = HealthCheckRequest.newBuilder().setService(service).build();
            same("the check of " + service, stub.check(request).getStatus(), ServingStatus.SERVING);
            same("the watch of " + service, stub.watch(request).next().getStatus(), ServingStatus.SERVING);
        }
        try {
            stub.check(HealthCheckRequest.newBuilder().setService("no.such.Service").build());
            throw new AssertionError("an unknown service is known");
        } catch (StatusRuntimeException e) {
            same("the status of an unknown service", e.getStatus().getCode(), Status.Code.NOT_FOUND);
        }
    }

    private void reflection(Client client) throws Exception {
        var list = ServerReflectionRequest.newBuilder().setListServices("").build();
        var answer = new Answer<ServerReflectionResponse>();
        ServerReflectionGrpc.newStub(client.channel()).serverReflectionInfo(answer).onNext(list);
        listed(answer.get(20, TimeUnit.SECONDS).getListServicesResponse().getServiceList().stream()
                .map(ServiceResponse::getName).toList());
        var older = new Answer<io.grpc.reflection.v1alpha.ServerReflectionResponse>();
        io.grpc.reflection.v1alpha.ServerReflectionGrpc.newStub(client.channel()).serverReflectionInfo(older).onNext(
                io.grpc.reflection.v1alpha.ServerReflectionRequest.newBuilder().setListServices("").build());
        listed(older.get(20, TimeUnit.SECONDS).getListServicesResponse().getServiceList().stream()
                .map(io.grpc.reflection.v1alpha.ServiceResponse::getName).toList());
    }

    private void listed(List<String> names) {
        same("whether all are in " + names, names.containsAll(scenario.services()), true);
    }

    /** The first message of a stream. */
    private static final class Answer<T> extends CompletableFuture<T> implements StreamObserver<T> {
        @Override
        public void onNext(T message) {
            complete(message);
        }

        @Override
        public void onError(Throwable failure) {
            completeExceptionally(failure);
        }

        @Override
        public void onCompleted() {
            completeExceptionally(new IllegalStateException("no message"));
        }
    }

    private void deadline() throws Exception {
        connected(targets.address(), connection -> {
            dialled(Client.builder(targets.address()), client -> {
                var request = CreateRequest.newBuilder().setResponseCreate(input(scenario.input())).build();
                var error = refusal(() -> client.call(stub ->
                        stub.withDeadlineAfter(scenario.milliseconds(), TimeUnit.MILLISECONDS).create(request)));
                same("the status", error.status().getCode(), Status.Code.DEADLINE_EXCEEDED);
            });
            var timeout = Duration.newBuilder().setNanos(scenario.milliseconds() * 1_000_000);
            var cut = connection.ask(input(scenario.input()).toBuilder().setTimeout(timeout).build());
            same("the status", cut.getStatus(), ResponseStatus.RESPONSE_STATUS_INCOMPLETE);
            same("the reason", cut.getIncompleteDetails().getReason(), scenario.reason());
            says(connection, input(scenario.then()), scenario.text());
        });
    }

    private void keepalive(Connection connection) throws InterruptedException {
        TimeUnit.SECONDS.sleep(scenario.seconds());
        says(connection, input(scenario.input()), scenario.text());
    }

    private void large() throws Exception {
        var request = CreateRequest.newBuilder().setResponseCreate(input(scenario.input())).build();
        Function<Client, CreateResponse> created = client -> client.call(stub -> stub.create(request));
        dialled(Client.builder(targets.address()).maxReceiveBytes(scenario.limit()), client -> {
            try (var connection = client.connect()) {
                same("the length on a connection", text(connection.ask(scenario.input())).length(), scenario.bytes());
            }
            same("the length by Create", text(created.apply(client).getResponse()).length(), scenario.bytes());
        });
        dialled(Client.builder(targets.address()), client ->
                same("output_omitted", created.apply(client).getOutputOmitted(), true));
    }

    private void unicode(Connection connection) {
        var heard = new StringBuilder();
        try (var turn = connection.start(input(scenario.input()))) {
            turn.forEach(event -> heard.append(event.getOutputTextDelta().getDelta()));
            same("the text of the response", text(turn.result()), scenario.text());
        }
        same("the text of the deltas", heard.toString(), scenario.text());
    }

    private void goaway(Connection connection) {
        says(connection, input(scenario.input()), scenario.text());
        var error = refusal(() -> connection.ask(scenario.input()));
        same("whether the later create is refused",
                error instanceof ConnectionLostException || error.code().equals(scenario.code()), true);
    }
}
