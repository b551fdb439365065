package tieline_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	tieline "tieline.dev/client/go"
	"tieline.dev/client/go/tielinev1"
)

// stream is the server's end of a connection.
type stream = grpc.BidiStreamingServer[tielinev1.ConverseRequest, tielinev1.ConverseResponse]

// server answers each connection by a function, and Create by another one.
type server struct {
	tielinev1.UnimplementedResponsesServiceServer
	converse func(stream) error
	create   func(context.Context, *tielinev1.CreateRequest) (*tielinev1.CreateResponse, error)
}

func (s *server) Converse(stream stream) error { return s.converse(stream) }

func (s *server) Create(ctx context.Context, request *tielinev1.CreateRequest) (*tielinev1.CreateResponse, error) {
	return s.create(ctx, request)
}

// start serves until the test ends, and returns a client of it.
func (s *server) start(t *testing.T, options tieline.Options) *tieline.Client {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serving := grpc.NewServer()
	tielinev1.RegisterResponsesServiceServer(serving, s)
	go serving.Serve(listener)
	t.Cleanup(serving.Stop)
	return dial(t, listener.Addr().String(), options)
}

func dial(t *testing.T, address string, options tieline.Options) *tieline.Client {
	t.Helper()
	client, err := tieline.Dial(address, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// connect opens a connection to a server that does this on each one.
func connect(t *testing.T, converse func(stream) error) *tieline.Connection {
	t.Helper()
	noLeaks(t)
	return open(t, (&server{converse: converse}).start(t, tieline.Options{}))
}

func open(t *testing.T, client *tieline.Client) *tieline.Connection {
	t.Helper()
	connection, err := client.Connect(within(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(connection.Close)
	return connection
}

// within is a context that a test which hangs runs into.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// noLeaks fails a test after whose end there are more goroutines than now. It comes first in a test.
func noLeaks(t *testing.T) {
	t.Helper()
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		for range 500 {
			if runtime.NumGoroutine() <= before {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		stacks := make([]byte, 1<<20)
		t.Errorf("goroutines are left:\n%s", stacks[:runtime.Stack(stacks, true)])
	})
}

// say sends events in one message.
func say(stream stream, events ...*tielinev1.ServerEvent) error {
	return stream.Send(&tielinev1.ConverseResponse{Events: events})
}

// hear is the next message of a client, which must have come.
func hear(stream stream) *tielinev1.ConverseRequest {
	request, err := stream.Recv()
	if err != nil {
		return &tielinev1.ConverseRequest{}
	}
	return request
}

// silent waits until the client has gone.
func silent(stream stream) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return nil
		}
	}
}

func created(number int32, id string) *tielinev1.ServerEvent {
	return &tielinev1.ServerEvent{
		SequenceNumber: &number, Response: &tielinev1.Response{Id: id},
		Event: &tielinev1.ServerEvent_ResponseCreated{ResponseCreated: &tielinev1.ResponseCreated{}},
	}
}

func delta(number int32, text string) *tielinev1.ServerEvent {
	return &tielinev1.ServerEvent{
		SequenceNumber: &number,
		Event:          &tielinev1.ServerEvent_OutputTextDelta{OutputTextDelta: &tielinev1.OutputTextDelta{Delta: text}},
	}
}

func called(number int32, id string) *tielinev1.ServerEvent {
	call := &tielinev1.FunctionCall{CallId: id, Name: "look", Arguments: "{}"}
	return done(number, &tielinev1.Item{Item: &tielinev1.Item_FunctionCall{FunctionCall: call}})
}

func done(number int32, item *tielinev1.Item) *tielinev1.ServerEvent {
	return &tielinev1.ServerEvent{
		SequenceNumber: &number,
		Event:          &tielinev1.ServerEvent_OutputItemDone{OutputItemDone: &tielinev1.OutputItemDone{Item: item}},
	}
}

func held(number int32, id string) *tielinev1.ServerEvent {
	return &tielinev1.ServerEvent{
		SequenceNumber: &number, Response: &tielinev1.Response{Id: id}, Ending: tielinev1.Ending_ENDING_HELD,
		Event: &tielinev1.ServerEvent_ResponseDone{ResponseDone: &tielinev1.ResponseDone{}},
	}
}

func completed(number int32, id, text string) *tielinev1.ServerEvent {
	return &tielinev1.ServerEvent{
		SequenceNumber: &number, Ending: tielinev1.Ending_ENDING_COMPLETED,
		Response: &tielinev1.Response{Id: id, Output: []*tielinev1.Item{spoken(text)}},
		Event:    &tielinev1.ServerEvent_ResponseCompleted{ResponseCompleted: &tielinev1.ResponseCompleted{}},
	}
}

func spoken(text string) *tielinev1.Item {
	part := &tielinev1.ContentPart{Part: &tielinev1.ContentPart_Text{Text: &tielinev1.TextPart{Type: "output_text", Text: text}}}
	message := &tielinev1.Message{
		Role:    "assistant",
		Content: &tielinev1.Message_Parts{Parts: &tielinev1.ContentList{Parts: []*tielinev1.ContentPart{part}}},
	}
	return &tielinev1.Item{Item: &tielinev1.Item_Message{Message: message}}
}

func failed(number int32, ending tielinev1.Ending, failure *tielinev1.Error) *tielinev1.ServerEvent {
	return &tielinev1.ServerEvent{
		SequenceNumber: &number, Ending: ending,
		Event: &tielinev1.ServerEvent_Error{Error: &tielinev1.ErrorEvent{Error: failure}},
	}
}

// on puts events on a lane.
func on(lane string, events ...*tielinev1.ServerEvent) []*tielinev1.ServerEvent {
	for _, event := range events {
		event.StreamId = proto.String(lane)
	}
	return events
}

func hello() *tielinev1.ResponseCreate { return tieline.NewCreate(tieline.UserText("hello")) }

// look is a tool that counts how often it runs.
func look(runs *int) tieline.Tool {
	return tieline.Tool{Name: "look", ParametersJSON: "{}", Call: func(context.Context, string) (string, error) {
		*runs++
		return "seen", nil
	}}
}

func mustSay(t *testing.T, lane *tieline.Lane, text string) {
	t.Helper()
	response, err := lane.Ask(within(t), hello())
	if err != nil || tieline.Text(response) != text {
		t.Fatalf("said %q with the error %v, not %q", tieline.Text(response), err, text)
	}
}

// lostAt asserts where a turn was when its connection went.
func lostAt(t *testing.T, err error, id string, after int) {
	t.Helper()
	var lost *tieline.LostError
	if !errors.As(err, &lost) || lost.ResponseID != id || lost.After != after {
		t.Fatalf("lost %+v (%v), not %q after %d", lost, err, id, after)
	}
}
