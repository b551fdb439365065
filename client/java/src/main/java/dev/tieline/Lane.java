package dev.tieline;

import dev.tieline.v1.ConverseRequest;
import dev.tieline.v1.Response;
import dev.tieline.v1.ResponseCreate;
import java.util.List;

/** A queue of turns on a connection. Turns of several lanes run at once. */
public class Lane {
    final Link link;
    final String name;

    Lane(Link link, String name) {
        this.link = link;
        this.name = name;
    }

    /** Makes a turn of one text of the user and waits for its response. */
    public Response ask(String text, LocalTool... tools) {
        return ask(Tieline.create(Tieline.userText(text)).build(), tools);
    }

    /** Makes a turn and waits for its response. The tools answer its calls. */
    public Response ask(ResponseCreate create, LocalTool... tools) {
        try (var turn = start(create, tools)) {
            return turn.result();
        }
    }

    /** Begins a turn. With tools it has the append shape: one response, held at calls until it has their outputs. */
    public Turn start(ResponseCreate create, LocalTool... tools) {
        var message = create.toBuilder();
        for (LocalTool tool : tools) {
            message.setAppend(true)
                    .addTools(Tieline.functionTool(tool.name(), tool.description(), tool.parametersJson()));
        }
        return new Turn(List.of(tools)).begin(this, ConverseRequest.newBuilder().setResponseCreate(message));
    }

    /**
     * Goes on with a resumable response behind an event, as a {@link ConnectionLostException} names them; -1 is before
     * the first. It does not know which calls have been answered: {@link Turn#resume} does.
     */
    public Turn resume(String responseId, int after, LocalTool... tools) {
        return new Turn(List.of(tools), responseId, after).resume(this);
    }
}
