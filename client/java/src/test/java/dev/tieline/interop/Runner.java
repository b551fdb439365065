package dev.tieline.interop;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Does the scenarios that clients in all languages do, and prints a line for each. */
public final class Runner {
    record Targets(String address, String keyed, String key, String cut, String newer, String drains) {}

    record Tool(String name, String description, String output, JsonObject parameters) {}

    record Refusal(String model, String input, String code, String param) {}

    record Scenario(String name, String input, String then, String text, String first, String key, String status,
            String code, String reason, JsonElement arguments, Map<String, String> lanes, Map<String, String> texts,
            List<Refusal> refused, List<String> services, int milliseconds, int seconds, int bytes, int limit) {}

    record Catalogue(Tool tool, List<Scenario> scenarios) {}

    record Line(String scenario, Boolean ok, String why) {}

    private static final Gson GSON = new Gson();
    private static final Gson WITH_NULLS = new GsonBuilder().serializeNulls().create();

    private Runner() {}

    public static void main(String[] arguments) throws Exception {
        var catalogue = read(arguments[0], Catalogue.class);
        var targets = read(arguments[1], Targets.class);
        var threads = Executors.newCachedThreadPool();
        for (var scenario : catalogue.scenarios()) {
            if (arguments.length < 3 || arguments[2].equals(scenario.name())) {
                var run = threads.submit(() -> {
                    new Scenarios(catalogue.tool(), targets, scenario).run();
                    return null;
                });
                threads.execute(() -> print(outcome(scenario, run)));
            }
        }
        threads.shutdown();
        threads.awaitTermination(90, TimeUnit.SECONDS);
        System.exit(0);
    }

    private static <T> T read(String path, Class<T> type) throws IOException {
        return GSON.fromJson(Files.readString(Path.of(path)), type);
    }

    private static Line outcome(Scenario scenario, Future<?> run) {
        try {
            // A busy machine takes its time; this only bounds a hang.
            run.get(180, TimeUnit.SECONDS);
            return new Line(scenario.name(), true, "");
        } catch (ExecutionException e) {
            var unknown = e.getCause() instanceof UnsupportedOperationException;
            return new Line(scenario.name(), unknown ? null : false, e.getCause().toString());
        } catch (TimeoutException e) {
            run.cancel(true);
            return new Line(scenario.name(), false, "it hangs");
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    private static synchronized void print(Line line) {
        var text = (line.why().isEmpty() ? GSON.toJson(Map.of("scenario", line.scenario(), "ok", true))
                : WITH_NULLS.toJson(line)) + "\n";
        System.out.writeBytes(text.getBytes(StandardCharsets.UTF_8));
        System.out.flush();
    }
}
