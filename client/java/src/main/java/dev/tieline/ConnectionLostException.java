package dev.tieline;

/** The connection ended before the turn. A resumable response is not lost with it. */
public final class ConnectionLostException extends TielineException {
    private final String responseId;
    private final int after;

    ConnectionLostException(String responseId, int after, TielineException cause) {
        super(cause.code(), cause.getMessage(), "", cause.retryAfter().orElse(null), cause.status(), cause);
        this.responseId = responseId;
        this.after = after;
    }

    /** Empty where the response had not begun. */
    public String responseId() {
        return responseId;
    }

    /** The number of the last event that was handed over; -1 where none was. */
    public int after() {
        return after;
    }
}
