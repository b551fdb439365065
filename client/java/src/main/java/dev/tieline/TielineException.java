package dev.tieline;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import dev.tieline.v1.Ending;
import dev.tieline.v1.ServerEvent;
import io.grpc.Status;
import io.grpc.protobuf.StatusProto;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Optional;

/** A server's no: to a request on a connection, to a call, or as the end of a response. */
public class TielineException extends RuntimeException {
    private final String code;
    private final String param;
    private final Duration retryAfter;
    private final Status status;

    TielineException(String code, String message, String param, Duration retryAfter, Status status, Throwable cause) {
        super(message, cause);
        this.code = code;
        this.param = param;
        this.retryAfter = retryAfter;
        this.status = status;
    }

    /** The word for machines, as {@code model_not_found}; empty where none was said. */
    public String code() {
        return code;
    }

    /** The path of the member at fault; empty where none was said. */
    public String param() {
        return param;
    }

    /** How long to wait until a retry can help. */
    public Optional<Duration> retryAfter() {
        return Optional.ofNullable(retryAfter);
    }

    /** Of a call, or of a connection that ended; {@code OK} for an event. */
    public Status status() {
        return status;
    }

    @Override
    public String toString() {
        return getClass().getName() + ": " + code + " (" + status.getCode() + "): " + getMessage();
    }

    /** A status with the code and the wait that its details name. */
    public static TielineException of(Throwable failure) {
        var status = Status.fromThrowable(failure);
        var code = "";
        Duration wait = null;
        var details = StatusProto.fromThrowable(failure);
        try {
            for (Any detail : details == null ? List.<Any>of() : details.getDetailsList()) {
                if (detail.is(ErrorInfo.class)) {
                    code = detail.unpack(ErrorInfo.class).getReason().toLowerCase(Locale.ROOT);
                } else if (detail.is(RetryInfo.class)) {
                    wait = duration(detail.unpack(RetryInfo.class).getRetryDelay());
                }
            }
        } catch (InvalidProtocolBufferException e) {
            failure.addSuppressed(e); // The status alone has to do.
        }
        return new TielineException(code, status.getDescription(), "", wait, status, failure);
    }

    /** The error of an error event, or of a turn that failed; else null. */
    static TielineException told(ServerEvent event) {
        if (event.hasError()) {
            var error = event.getError().getError();
            var wait = error.hasRetryAfter() ? duration(error.getRetryAfter()) : null;
            return new TielineException(error.getCode(), error.getMessage(), error.getParam(), wait, Status.OK, null);
        }
        if (event.getEnding() == Ending.ENDING_FAILED) {
            var error = event.getResponse().getError();
            return new TielineException(error.getCode(), error.getMessage(), "", null, Status.OK, null);
        }
        return null;
    }

    private static Duration duration(com.google.protobuf.Duration said) {
        return Duration.ofSeconds(said.getSeconds(), said.getNanos());
    }
}
