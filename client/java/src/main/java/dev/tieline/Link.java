package dev.tieline;

import dev.tieline.v1.ConverseRequest;
import dev.tieline.v1.ConverseResponse;
import dev.tieline.v1.Ending;
import dev.tieline.v1.ResponsesServiceGrpc.ResponsesServiceStub;
import dev.tieline.v1.ServerEvent;
import dev.tieline.v1.SessionStart;
import io.grpc.Status;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.StreamObserver;
import java.util.ArrayDeque;
import java.util.Collection;
import java.util.HashMap;
import java.util.Map;
import java.util.Queue;

/** The stream of a connection, which hands events to turns by their lane. Its monitor guards all that both share. */
final class Link implements StreamObserver<ConverseResponse> {
    private final ClientCallStreamObserver<ConverseRequest> requests;
    private final Map<String, Queue<Turn>> lanes = new HashMap<>(); // The turns that have not ended, as they were sent.
    private TielineException ended;

    Link(ResponsesServiceStub stub, long receives) {
        requests = (ClientCallStreamObserver<ConverseRequest>) stub.converse(this);
        if (receives > 0) {
            send(ConverseRequest.newBuilder().setSessionStart(SessionStart.newBuilder().setMaxReceiveBytes(receives)));
        }
    }

    /** Sends nothing, and says so, where the connection is over. */
    synchronized boolean send(ConverseRequest.Builder request) {
        if (ended == null) {
            requests.onNext(request.build());
        }
        return ended == null;
    }

    synchronized void add(Turn turn, String lane) {
        lanes.computeIfAbsent(lane, name -> new ArrayDeque<>()).add(turn);
    }

    synchronized void remove(Turn turn) {
        lanes.values().forEach(lane -> lane.remove(turn));
    }

    /** Why the connection is over; null while it is not. */
    synchronized TielineException ended() {
        return ended;
    }

    void close() {
        end(TielineException.of(Status.CANCELLED.withDescription("the connection was closed").asException()));
        requests.cancel("closed", null);
    }

    private synchronized void end(TielineException why) {
        ended = ended == null ? why : ended;
        lanes.clear();
        notifyAll();
    }

    @Override
    public synchronized void onNext(ConverseResponse response) {
        for (ServerEvent event : response.getEventsList()) {
            var turn = owner(event);
            if (turn != null) {
                turn.receive(event);
                if (ends(event) && event.getEnding() != Ending.ENDING_HELD) {
                    remove(turn);
                }
            }
        }
        notifyAll();
    }

    @Override
    public void onError(Throwable failure) {
        end(TielineException.of(failure));
    }

    @Override
    public void onCompleted() {
        end(TielineException.of(Status.UNAVAILABLE.withDescription("the server ended the connection").asException()));
    }

    /** The turn that an event is for; null where it is the connection's, or that of a turn that has ended. */
    private Turn owner(ServerEvent event) {
        var eventId = event.getError().getError().getEventId();
        var named = lanes.values().stream().flatMap(Collection::stream).filter(turn -> turn.sent(eventId)).findFirst();
        var foreign = event.hasError() ? !eventId.isEmpty() : !event.hasSequenceNumber();
        return named.orElseGet(() -> foreign && !ends(event) ? null
                : lanes.getOrDefault(event.getStreamId(), new ArrayDeque<>()).peek());
    }

    /** Whether a turn ends here for now, for whatever reason: a newer one has no name yet. */
    static boolean ends(ServerEvent event) {
        return event.getEnding() != Ending.ENDING_UNSPECIFIED;
    }
}
