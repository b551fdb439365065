package tieline_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	tieline "tieline.dev/client/go"
	"tieline.dev/client/go/tielinev1"
)

func TestATurnIsItsEventsAndItsResponse(t *testing.T) {
	c := connect(t, func(s stream) error {
		hear(s)
		say(s, created(0, "resp_1"), delta(1, "Hel"), delta(2, "lo"))
		say(s, completed(3, "resp_1", "Hello"))
		return silent(s)
	})
	turn, err := c.Start(within(t), hello())
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for event, err := range turn.Events() {
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString(event.GetOutputTextDelta().GetDelta())
	}
	response, err := turn.Result()
	if err != nil || text.String() != "Hello" || tieline.Text(response) != "Hello" {
		t.Fatalf("%q, %v, %v", text.String(), response, err)
	}
}

func TestALoopThatIsLeftGoesOnLater(t *testing.T) {
	c := connect(t, func(s stream) error {
		hear(s)
		say(s, created(0, "resp_1"), delta(1, "a"), completed(2, "resp_1", "a"))
		return silent(s)
	})
	turn, _ := c.Start(within(t), hello())
	for range turn.Events() {
		break
	}
	rest := 0
	for range turn.Events() {
		rest++
	}
	if rest != 2 {
		t.Fatalf("%d events came", rest)
	}
}

func TestLanesRunSideBySide(t *testing.T) {
	c := connect(t, func(s stream) error {
		for range 2 {
			hear(s)
		}
		say(s, on("slow", created(0, "resp_s"))...)
		say(s, on("quick", created(0, "resp_q"), completed(1, "resp_q", "quick"))...)
		say(s, on("slow", completed(1, "resp_s", "slow"))...)
		return silent(s)
	})
	slow, _ := c.OnLane("slow").Start(within(t), hello())
	quick, _ := c.OnLane("quick").Start(within(t), hello())
	first, _ := quick.Result()
	second, _ := slow.Result()
	if tieline.Text(first) != "quick" || tieline.Text(second) != "slow" {
		t.Fatalf("%v, %v", first, second)
	}
}

func TestARefusalIsAnErrorAndTheConnectionLivesOn(t *testing.T) {
	c := connect(t, func(s stream) error {
		id := hear(s).GetEventId()
		say(s, failed(0, tielinev1.Ending_ENDING_REFUSED, &tielinev1.Error{
			Code: proto.String("rate_limit_exceeded"), Message: "Later.", Param: proto.String("model"),
			EventId: &id, RetryAfter: durationpb.New(3 * time.Second),
		}))
		hear(s)
		say(s, created(0, "resp_1"), completed(1, "resp_1", "yes"))
		return silent(s)
	})
	turn, _ := c.Start(within(t), hello())
	for range 2 { // A turn that has ended says the same again.
		_, err := turn.Result()
		var failure *tieline.Error
		if !errors.As(err, &failure) || failure.Code != "rate_limit_exceeded" || failure.Param != "model" ||
			failure.RetryAfter != 3*time.Second || failure.Status != codes.OK {
			t.Fatalf("%+v", err)
		}
	}
	mustSay(t, c.Lane, "yes")
}

func TestARefusalFindsItsTurnWithoutALane(t *testing.T) {
	c := connect(t, func(s stream) error {
		id := hear(s).GetEventId()
		say(s, failed(0, tielinev1.Ending_ENDING_REFUSED, &tielinev1.Error{Code: proto.String("invalid_stream_id"), EventId: &id}))
		return silent(s)
	})
	_, err := c.OnLane("no lane").Ask(within(t), hello())
	var failure *tieline.Error
	if !errors.As(err, &failure) || failure.Code != "invalid_stream_id" {
		t.Fatal(err)
	}
}

func TestAFailedResponseComesWithItsError(t *testing.T) {
	c := connect(t, func(s stream) error {
		hear(s)
		end := completed(1, "resp_1", "so far")
		end.Ending = tielinev1.Ending_ENDING_FAILED
		end.Response.Error = &tielinev1.ResponseError{Code: "server_error", Message: "It broke."}
		say(s, created(0, "resp_1"), end)
		return silent(s)
	})
	response, err := c.Ask(within(t), hello())
	var failure *tieline.Error
	if !errors.As(err, &failure) || failure.Code != "server_error" || tieline.Text(response) != "so far" {
		t.Fatalf("%v, %v", response, err)
	}
}

func TestAStatusIsAnErrorWithItsCode(t *testing.T) {
	noLeaks(t)
	refusal, _ := status.New(codes.Unavailable, "Busy.").WithDetails(
		&errdetails.ErrorInfo{Reason: "SERVER_DRAINING", Domain: "tieline"},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)},
	)
	client := (&server{
		converse: func(stream) error { return refusal.Err() },
		create: func(context.Context, *tielinev1.CreateRequest) (*tielinev1.CreateResponse, error) {
			return nil, refusal.Err()
		},
	}).start(t, tieline.Options{})
	_, byCall := client.Create(within(t), &tielinev1.CreateRequest{})
	_, byTurn := open(t, client).Ask(within(t), hello())
	for _, err := range []error{byCall, byTurn} {
		var failure *tieline.Error
		if !errors.As(err, &failure) || failure.Code != "server_draining" || failure.RetryAfter != time.Second ||
			status.Code(err) != codes.Unavailable {
			t.Fatalf("%+v", err)
		}
	}
	lostAt(t, byTurn, "", -1)
}

func TestKeyAndLimitsAreTold(t *testing.T) {
	noLeaks(t)
	var key []string
	var limits []uint64
	client := (&server{
		converse: func(s stream) error {
			values, _ := metadata.FromIncomingContext(s.Context())
			key = append(key, values.Get("authorization")...)
			limits = append(limits, hear(s).GetSessionStart().GetMaxReceiveBytes())
			hear(s)
			say(s, created(0, "resp_1"), completed(1, "resp_1", strings.Repeat("x", 5<<20)))
			return silent(s)
		},
		create: func(ctx context.Context, request *tielinev1.CreateRequest) (*tielinev1.CreateResponse, error) {
			values, _ := metadata.FromIncomingContext(ctx)
			key = append(key, values.Get("authorization")...)
			limits = append(limits, request.GetMaxReceiveBytes())
			return &tielinev1.CreateResponse{}, nil
		},
	}).start(t, tieline.Options{Key: "sk-1", MaxReceiveBytes: 8 << 20})
	mustSay(t, open(t, client).Lane, strings.Repeat("x", 5<<20))
	request := &tielinev1.CreateRequest{}
	if _, err := client.Create(within(t), request); err != nil || request.MaxReceiveBytes != nil {
		t.Fatal(err, request)
	}
	if len(key) != 2 || key[0] != "Bearer sk-1" || key[1] != "Bearer sk-1" || limits[0] != 8<<20 || limits[1] != 8<<20 {
		t.Fatal(key, limits)
	}
}

func TestAContextCancelsItsTurnAlone(t *testing.T) {
	c := connect(t, func(s stream) error {
		hear(s)
		say(s, created(0, "resp_1"))
		// The cancel and the next create come in whichever order.
		if first, second := hear(s), hear(s); (first.GetResponseCancel() == nil) == (second.GetResponseCancel() == nil) {
			return errors.New("no cancel")
		}
		end := completed(1, "resp_1", "")
		end.Ending = tielinev1.Ending_ENDING_INCOMPLETE
		say(s, end, created(0, "resp_2"), completed(1, "resp_2", "next"))
		return silent(s)
	})
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	turn, _ := c.Start(ctx, hello())
	for _, err := range turn.Events() {
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		cancel()
	}
	mustSay(t, c.Lane, "next")
}

func TestAToolRunsOnceForEachCall(t *testing.T) {
	var outputs []string
	c := connect(t, func(s stream) error {
		hear(s)
		say(s, created(0, "resp_1"), called(1, "call_1"), called(2, "call_2"), held(3, "resp_1"))
		for _, item := range hear(s).GetResponseAppend().GetInputItems().GetItems() {
			outputs = append(outputs, item.GetFunctionCallOutput().GetCallId())
		}
		// A server that asks again for what it has been told.
		say(s, called(4, "call_2"), held(5, "resp_1"))
		hear(s)
		say(s, completed(6, "resp_1", "done"))
		return silent(s)
	})
	runs := 0
	response, err := c.Ask(within(t), hello(), look(&runs))
	if err != nil || tieline.Text(response) != "done" || runs != 2 || strings.Join(outputs, " ") != "call_1 call_2" {
		t.Fatal(response, err, runs, outputs)
	}
}

func TestATurnIsHeldForAnAnswerByHand(t *testing.T) {
	c := connect(t, func(s stream) error {
		hear(s)
		say(s, created(0, "resp_1"), called(1, "call_1"), held(2, "resp_1"))
		id := hear(s).GetEventId()
		say(s, failed(3, tielinev1.Ending_ENDING_UNSPECIFIED, &tielinev1.Error{Code: proto.String("tool_output_missing"), EventId: &id}))
		hear(s)
		say(s, completed(4, "resp_1", "done"))
		return silent(s)
	})
	create := hello()
	create.Append = proto.Bool(true)
	turn, _ := c.Start(within(t), create)
	if _, err := turn.Result(); err != nil {
		t.Fatal(err)
	}
	turn.Append()
	var failure *tieline.Error
	if _, err := turn.Result(); !errors.As(err, &failure) || failure.Code != "tool_output_missing" {
		t.Fatal(err)
	}
	turn.Append(tieline.FunctionOutput("call_1", "seen"))
	if response, err := turn.Result(); err != nil || tieline.Text(response) != "done" {
		t.Fatal(response, err)
	}
}

// A turn is lost while it is held: the server may or may not have had the answer.
func TestALostTurnIsResumedAndNoToolRunsAgain(t *testing.T) {
	for name, code := range map[string]string{
		"the answer was lost": "", "it was taken": "response_not_active", "the next hold is there": "duplicate_item",
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			client := (&server{converse: func(s stream) error {
				first := hear(s)
				if first.GetResponseResume() == nil {
					say(s, created(0, "resp_1"), called(1, "call_1"), held(2, "resp_1"))
					hear(s)
					return nil
				}
				if first.GetResponseResume().GetAfter() != 2 || first.GetResponseResume().GetResponseId() != "resp_1" {
					return errors.New("another resume")
				}
				id := hear(s).GetEventId()
				if code == "duplicate_item" {
					say(s, delta(3, "x"), called(4, "call_2"), held(5, "resp_1"))
				}
				if code != "" {
					say(s, failed(0, tielinev1.Ending_ENDING_UNSPECIFIED, &tielinev1.Error{Code: &code, EventId: &id}))
				}
				if code == "duplicate_item" {
					hear(s)
				}
				say(s, completed(6, "resp_1", "done"))
				return silent(s)
			}}).start(t, tieline.Options{})
			runs, calls := 0, 1
			if code == "duplicate_item" {
				calls = 2
			}
			turn, _ := open(t, client).Start(within(t), hello(), look(&runs))
			_, err := turn.Result()
			lostAt(t, err, "resp_1", 2)
			resumed, err := turn.Resume(within(t), open(t, client).Lane)
			if err != nil {
				t.Fatal(err)
			}
			if response, err := resumed.Result(); err != nil || tieline.Text(response) != "done" || runs != calls {
				t.Fatal(response, err, runs)
			}
		})
	}
}

func TestTheServerGoesAfterEachEvent(t *testing.T) {
	events := []*tielinev1.ServerEvent{
		created(0, "resp_1"), delta(1, "a"), called(2, "call_1"), held(3, "resp_1"), delta(4, "b"), completed(5, "resp_1", "ab"),
	}
	for gone := range len(events) + 1 {
		c := connect(t, func(s stream) error {
			hear(s)
			for i, event := range events[:gone] {
				if i == 4 {
					hear(s)
				}
				say(s, event)
			}
			return nil
		})
		runs := 0
		response, err := c.Ask(within(t), hello(), look(&runs))
		switch {
		case gone == len(events):
			if err != nil || tieline.Text(response) != "ab" {
				t.Fatal(response, err)
			}
		case gone == 0:
			lostAt(t, err, "", -1)
		default:
			lostAt(t, err, "resp_1", gone-1)
		}
		if _, err := c.Ask(within(t), hello()); !errors.Is(err, io.EOF) {
			t.Fatal("a later turn: ", err)
		}
		if wanted := min(1, max(0, gone-3)); runs != wanted {
			t.Fatalf("after %d events the tool ran %d times", gone, runs)
		}
	}
}

func TestNoServerIsAnError(t *testing.T) {
	noLeaks(t)
	listener, _ := net.Listen("tcp", "127.0.0.1:0")
	listener.Close()
	var failure *tieline.Error
	if _, err := dial(t, listener.Addr().String(), tieline.Options{}).Connect(within(t)); !errors.As(err, &failure) ||
		failure.Status != codes.Unavailable {
		t.Fatal(err)
	}
}

func TestCloseEndsWhatIsPending(t *testing.T) {
	c := connect(t, silent)
	turn, _ := c.Start(within(t), hello())
	c.Close()
	_, err := turn.Result()
	lostAt(t, err, "", -1)
	_, err = c.Ask(within(t), hello())
	lostAt(t, err, "", -1)
}

func TestWhatCannotBeEncodedIsAnErrorOfItsTurn(t *testing.T) {
	c := connect(t, func(s stream) error {
		hear(s)
		say(s, created(0, "resp_1"), completed(1, "resp_1", "yes"))
		return silent(s)
	})
	if _, err := c.Ask(within(t), tieline.NewCreate(tieline.UserText("\xff"))); err == nil {
		t.Fatal("no error")
	}
	mustSay(t, c.Lane, "yes")
}

func TestWhatCannotBeReadEndsTheConnection(t *testing.T) {
	c := connect(t, func(s stream) error {
		hear(s)
		garbage := &tielinev1.ConverseResponse{}
		garbage.ProtoReflect().SetUnknown([]byte{0x0a, 0xff, 0x01, 0x07})
		s.Send(garbage)
		return silent(s)
	})
	_, err := c.Ask(within(t), hello())
	lostAt(t, err, "", -1)
}

func TestANewerServerIsUnderstood(t *testing.T) {
	unknown := protowire.AppendString(protowire.AppendTag(nil, 4000, protowire.BytesType), "new")
	c := connect(t, func(s stream) error {
		hear(s)
		newer := &tielinev1.ServerEvent{SequenceNumber: proto.Int32(1)}
		newer.ProtoReflect().SetUnknown(unknown)
		end := completed(2, "resp_1", "future")
		end.Response.Status = tielinev1.ResponseStatus(77).Enum()
		end.Response.ProtoReflect().SetUnknown(unknown)
		end.ProtoReflect().SetUnknown(unknown)
		end.Event, end.Ending = nil, tielinev1.Ending(77)
		say(s, created(0, "resp_1"), newer, end)
		return silent(s)
	})
	turn, _ := c.Start(within(t), hello())
	handed := 0
	for _, err := range turn.Events() {
		if err != nil {
			t.Fatal(err)
		}
		handed++
	}
	if response, err := turn.Result(); err != nil || tieline.Text(response) != "future" || handed != 2 {
		t.Fatal(response, err, handed)
	}
}

func TestAnOutputThatIsLeftOutIsThatOfTheEvents(t *testing.T) {
	c := connect(t, func(s stream) error {
		hear(s)
		end := completed(2, "resp_1", "")
		end.Response.Output = nil
		end.GetResponseCompleted().OutputOmitted = true
		say(s, created(0, "resp_1"), done(1, spoken("large")), end)
		return silent(s)
	})
	mustSay(t, c.Lane, "large")
}

func TestWhatBelongsToNoTurnIsPassedOver(t *testing.T) {
	c := connect(t, func(s stream) error {
		beat := &tielinev1.ServerEvent{Event: &tielinev1.ServerEvent_Heartbeat{Heartbeat: &tielinev1.Heartbeat{}}}
		say(s, beat, delta(7, "foreign"))
		say(s, on("never used", completed(8, "resp_0", ""))...)
		hear(s)
		say(s, beat, failed(9, tielinev1.Ending_ENDING_UNSPECIFIED, &tielinev1.Error{EventId: proto.String("old")}))
		say(s, created(0, "resp_1"), beat, completed(1, "resp_1", "yes"))
		say(s, delta(2, "late"))
		return silent(s)
	})
	mustSay(t, c.Lane, "yes")
}

func TestManyTurnsAtOnce(t *testing.T) {
	c := connect(t, func(s stream) error {
		for {
			request, err := s.Recv()
			if err != nil {
				return nil
			}
			say(s, on(request.GetStreamId(), created(0, "resp"), completed(1, "resp", request.GetStreamId()))...)
		}
	})
	failures := make(chan error, 32)
	for i := range 32 {
		lane := string(rune('a'+i%16)) + "lane"
		go func() {
			var err error
			for range 20 {
				response, asked := c.OnLane(lane).Ask(within(t), hello())
				if asked != nil || tieline.Text(response) != lane {
					err = errors.Join(err, asked, errors.New(tieline.Text(response)))
				}
			}
			failures <- err
		}()
	}
	for range 32 {
		if err := <-failures; err != nil {
			t.Error(err)
		}
	}
}
