package dev.tieline;

import dev.tieline.v1.ConverseRequest;
import dev.tieline.v1.Ending;
import dev.tieline.v1.FunctionCall;
import dev.tieline.v1.Item;
import dev.tieline.v1.ItemList;
import dev.tieline.v1.Response;
import dev.tieline.v1.ResponseAppend;
import dev.tieline.v1.ResponseCancel;
import dev.tieline.v1.ResponseResume;
import dev.tieline.v1.ServerEvent;
import dev.tieline.v1.ServerEvent.EventCase;
import io.grpc.Status;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Queue;
import java.util.UUID;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;

/**
 * A response on its way, as its events up to its end, or to a hold that no tool answers. A refusal or a failure is a
 * {@link TielineException}, a lost connection a {@link ConnectionLostException}. It is for one thread at a time, but
 * any may cancel it.
 */
public final class Turn implements Iterable<ServerEvent>, AutoCloseable {
    private enum Hold { NONE, HELD, ANSWERED } // Answered: until an event says that the answer was taken.

    private Queue<ServerEvent> received = new ArrayDeque<>(); // Guarded by the link, as are appendId and closed.
    private final List<LocalTool> tools;
    private final Map<String, Item> outputs = new HashMap<>(); // By call id: what has run does not run again.
    private final List<Item> items = new ArrayList<>();
    private final List<FunctionCall> calls = new ArrayList<>(); // Since the last hold.
    private volatile Lane lane;
    private volatile String createId; // By it, and by appendId, errors find their turn.
    private String appendId = "";
    private boolean closed;
    private volatile boolean resumed;
    private String id;
    private int after;
    private Response response = Response.getDefaultInstance();
    private Hold hold = Hold.NONE;
    private boolean again; // An earlier connection may have brought the answer of the hold.
    private ServerEvent ahead;
    private volatile ServerEvent end;

    Turn(List<LocalTool> tools) {
        this(tools, "", -1);
    }

    Turn(List<LocalTool> tools, String id, int after) {
        this.tools = tools;
        this.id = id;
        this.after = after;
    }

    /** Goes on with a lost turn on a lane of another connection. No tool runs again. */
    public Turn resume(Lane lane) {
        if (this.lane != null) {
            this.lane.link.remove(this);
            received = new ArrayDeque<>(); // It comes again.
            closed = false;
        }
        if (hold == Hold.ANSWERED) {
            hold = Hold.HELD;
            again = true;
        }
        resumed = true;
        var resume = ResponseResume.newBuilder().setResponseId(id);
        if (after >= 0) {
            resume.setAfter(after);
        }
        return begin(lane, ConverseRequest.newBuilder().setResponseResume(resume));
    }

    Turn begin(Lane lane, ConverseRequest.Builder request) {
        this.lane = lane;
        createId = UUID.randomUUID().toString(); // A replay repeats old names: none is used twice.
        synchronized (lane.link) {
            if (send(request.setEventId(createId))) {
                lane.link.add(this, lane.name);
            }
        }
        return this;
    }

    private boolean send(ConverseRequest.Builder request) {
        if (!lane.name.isEmpty()) {
            request.setStreamId(lane.name);
        }
        return lane.link.send(request);
    }

    void receive(ServerEvent event) {
        if (!closed) {
            received.add(event);
        }
    }

    boolean sent(String eventId) {
        return eventId.equals(createId) || !eventId.isEmpty() && eventId.equals(appendId);
    }

    /** Asks for the end of the turn. The end comes as an event, with what there is. */
    public void cancel() {
        var cancel = ResponseCancel.newBuilder();
        if (resumed) {
            cancel.setResponseId(id);
        }
        send(ConverseRequest.newBuilder().setResponseCancel(cancel).setEventId(createId));
    }

    /** Cancels the turn unless it has ended. */
    @Override
    public void close() {
        if (end == null) {
            cancel();
            synchronized (lane.link) {
                closed = true;
                received.clear();
            }
        }
    }

    /** Answers a hold by hand. The events then go on. */
    public void append(Item... items) {
        append(ResponseAppend.newBuilder(), List.of(items));
    }

    private void append(ResponseAppend.Builder append, List<Item> items) {
        append.setResponseId(id).setInputItems(ItemList.newBuilder().addAllItems(items));
        var request = ConverseRequest.newBuilder().setEventId(UUID.randomUUID().toString()).setResponseAppend(append);
        hold = Hold.ANSWERED;
        synchronized (lane.link) {
            appendId = request.getEventId();
            send(request);
        }
    }

    /** The response as the latest event that carried it has it. */
    public Response response() {
        return response;
    }

    /** Reads to the end, or to a hold that no tool answers. A response that is incomplete or cancelled is a result. */
    public Response result() {
        forEach(event -> {});
        if (end != null && TielineException.told(end) != null) {
            throw TielineException.told(end);
        }
        return response;
    }

    /** The events that have not been handed over. */
    public Stream<ServerEvent> stream() {
        return StreamSupport.stream(spliterator(), false);
    }

    /** The events that have not been handed over: a loop that was left goes on. */
    @Override
    public Iterator<ServerEvent> iterator() {
        return new Iterator<>() {
            @Override
            public boolean hasNext() {
                while (ahead == null && end == null && !(hold == Hold.HELD && !answers())) {
                    ahead = read();
                }
                return ahead != null;
            }

            @Override
            public ServerEvent next() {
                if (!hasNext()) {
                    throw new NoSuchElementException();
                }
                var event = ahead;
                ahead = null;
                return event;
            }
        };
    }

    private boolean answers() {
        return !tools.isEmpty() && !calls.isEmpty();
    }

    /** The next event; null where it is not to be handed over. */
    private ServerEvent read() {
        if (hold == Hold.HELD && answers()) {
            var append = ResponseAppend.newBuilder();
            if (response.getToolChoice().equals("required")) {
                append.setToolChoice("auto"); // It would never end.
            }
            append(append, calls.stream().map(this::answer).toList());
        }
        var event = await();
        if (!note(event)) {
            return null;
        }
        var error = TielineException.told(event);
        if (error != null) {
            throw error;
        }
        return event;
    }

    private ServerEvent await() {
        synchronized (lane.link) {
            try {
                while (received.isEmpty() && lane.link.ended() == null) {
                    lane.link.wait();
                }
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw TielineException.of(Status.CANCELLED.withDescription("interrupted").withCause(e).asException());
            }
            if (received.isEmpty()) {
                throw new ConnectionLostException(id, after, lane.link.ended());
            }
            return received.remove();
        }
    }

    /** Keeps what an event says of the turn, and says whether it is handed over. */
    private boolean note(ServerEvent event) {
        after = event.hasSequenceNumber() ? Math.max(after, event.getSequenceNumber()) : after;
        if (event.hasError() && !Link.ends(event)) {
            return noteError(event.getError().getError());
        }
        if (hold != Hold.NONE) {
            hold = Hold.NONE;
            again = false;
            calls.clear();
        }
        if (event.hasOutputItemDone()) {
            var item = event.getOutputItemDone().getItem();
            items.add(item);
            if (item.hasFunctionCall()) {
                calls.add(item.getFunctionCall());
            }
        }
        if (event.hasResponse()) {
            response = event.getResponse();
            id = response.getId();
        }
        if (Link.ends(event) && response.getOutputCount() == 0) { // It is left out where it is too large.
            response = response.toBuilder().addAllOutput(items).build();
        }
        if (event.getEnding() == Ending.ENDING_HELD) {
            hold = Hold.HELD;
        } else if (Link.ends(event)) {
            end = event;
        }
        return event.getEventCase() != EventCase.EVENT_NOT_SET || Link.ends(event);
    }

    private boolean noteError(dev.tieline.v1.Error error) {
        if (error.hasEventId() && !sent(error.getEventId())) {
            return false; // It is that of an earlier append, which a resume has sent once more.
        }
        if (again && error.getCode().equals("response_not_active")) {
            return false;
        }
        hold = hold == Hold.ANSWERED ? Hold.HELD : hold;
        return true;
    }

    private Item answer(FunctionCall call) {
        var callId = call.getCallId();
        if (!outputs.containsKey(callId)) {
            outputs.put(callId, Tieline.functionOutput(callId, "error: the tool did not return"));
            outputs.put(callId, Tieline.functionOutput(callId, run(call)));
        }
        return outputs.get(callId);
    }

    private String run(FunctionCall call) {
        return tools.stream().filter(tool -> tool.name().equals(call.getName())).findFirst()
                .map(tool -> tool.run(call.getArguments())).orElse("error: there is no tool " + call.getName());
    }
}
