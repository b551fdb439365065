package tieline

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "tieline.dev/client/go/tielinev1"
)

// Error is a server's no: to a request on a connection, to a call, or as the end of a response.
type Error struct {
	Code, Message, Param string        // As OpenAI's; empty where it was not said.
	RetryAfter           time.Duration // How long to wait until a retry can help; 0 where the server does not say.
	Status               codes.Code    // Of a call, or of a connection that ended; OK for an event.
	cause                error
}

func (e *Error) Error() string {
	return fmt.Sprintf("tieline: %s (%s): %s", e.Code, e.Status, e.Message)
}

// Unwrap is the gRPC status, where there is one.
func (e *Error) Unwrap() error { return e.cause }

// LostError says that the connection ended before the turn. A resumable response is not lost with it.
type LostError struct {
	ResponseID string // Empty where the response had not begun.
	After      int    // The number of the last event that was handed over; -1 where none was.
	Cause      error  // An *Error with the status, a context's error, or io.EOF.
}

func (e *LostError) Error() string {
	return fmt.Sprintf("tieline: connection lost (response %q, event %d): %v", e.ResponseID, e.After, e.Cause)
}

// Unwrap is the cause.
func (e *LostError) Unwrap() error { return e.Cause }

// told is the error of an error event, or of a turn that ended badly; else nil.
func told(event *v1.ServerEvent) error {
	if event.GetError() != nil {
		said := event.GetError().GetError()
		return &Error{Code: said.GetCode(), Message: said.GetMessage(), Param: said.GetParam(),
			RetryAfter: said.GetRetryAfter().AsDuration()}
	}
	if event.GetEnding() == v1.Ending_ENDING_FAILED {
		why := event.GetResponse().GetError()
		return &Error{Code: why.GetCode(), Message: why.GetMessage()}
	}
	return nil
}

// typed is a status as an *Error; any other error stays what it is.
func typed(err error) error {
	said, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	failure := &Error{Message: said.Message(), Status: said.Code(), cause: err}
	for _, detail := range said.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			failure.Code = strings.ToLower(detail.Reason)
		case *errdetails.RetryInfo:
			failure.RetryAfter = detail.RetryDelay.AsDuration()
		}
	}
	return failure
}
