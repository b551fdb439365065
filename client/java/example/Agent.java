import static dev.tieline.Tieline.create;
import static dev.tieline.Tieline.text;
import static dev.tieline.Tieline.userText;

import com.google.gson.JsonParser;
import dev.tieline.Client;
import dev.tieline.LocalTool;
import java.nio.file.Files;
import java.nio.file.Path;

/** An agent that counts the words of a file: {@code make example ARGS="README.md"}. */
public final class Agent {
    private static String countWords(String arguments) throws Exception {
        var path = JsonParser.parseString(arguments).getAsJsonObject().get("path").getAsString();
        System.err.println("counting the words of " + path);
        return Files.readString(Path.of(path)).trim().split("\\s+").length + " words";
    }

    public static void main(String[] arguments) {
        var file = arguments.length > 0 ? arguments[0] : "README.md";
        var address = arguments.length > 1 ? arguments[1] : "127.0.0.1:50051";
        var tool = new LocalTool("count_words", "Counts the words of a file.", """
                {"type": "object", "properties": {"path": {"type": "string", "enum": ["%s"]}}, "required": ["path"]}
                """.formatted(file), Agent::countWords);
        var create = create(userText("How many words has the file " + file + "?")).setMaxOutputTokens(200).build();
        try (var client = Client.builder(address).build();
                var connection = client.connect();
                var turn = connection.start(create, tool)) {
            for (var event : turn) {
                System.out.print(event.getOutputTextDelta().getDelta());
            }
            System.out.println();
            System.err.println(text(turn.response()).length() + " characters, " + turn.response().getStatus());
        }
    }
}
