package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	reflection "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionalpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	tieline "tieline.dev/client/go"
	"tieline.dev/client/go/tielinev1"
)

var scenarios = map[string]func(context.Context, run) error{
	"turn": turn, "append": appended, "chain": chain, "lanes": lanes, "cancel": cancel, "error": refused,
	"resume": resume, "key": key, "wrong_key": wrongKey, "health": health, "reflection": reflected,
	"deadline": deadline, "keepalive": keepalive, "large": large, "unicode": unicode, "newer": newer,
	"goaway": goaway,
}

func ask(text string) *tielinev1.ResponseCreate { return tieline.NewCreate(tieline.UserText(text)) }

// says makes a turn, whose text is to be this one.
func says(ctx context.Context, lane *tieline.Lane, create *tielinev1.ResponseCreate, text string) (*tielinev1.Response, error) {
	response, err := lane.Ask(ctx, create)
	if err != nil {
		return nil, err
	}
	return response, errors.Join(
		same("the text", tieline.Text(response), text),
		same("the status", response.GetStatus(), tielinev1.ResponseStatus_RESPONSE_STATUS_COMPLETED),
	)
}

// simple is a turn on a connection of its own.
func simple(ctx context.Context, address string, options tieline.Options, r run) error {
	return connected(ctx, address, options, func(c *tieline.Connection) error {
		_, err := says(ctx, c.Lane, ask(r.Input), r.Text)
		return err
	})
}

func turn(ctx context.Context, r run) error {
	return connected(ctx, r.targets.Address, tieline.Options{}, func(c *tieline.Connection) error {
		turn, err := c.Start(ctx, ask(r.Input))
		if err != nil {
			return err
		}
		var last *tielinev1.ServerEvent
		for event, err := range turn.Events() {
			if err != nil {
				return err
			}
			last = event
		}
		if usage := last.Response.GetUsage(); usage.GetInputTokens() == 0 || usage.GetOutputTokens() == 0 {
			return fmt.Errorf("the usage is %v", usage)
		}
		return errors.Join(
			same("the text", tieline.Text(last.Response), r.Text),
			same("the ending", last.Ending, tielinev1.Ending_ENDING_COMPLETED),
		)
	})
}

func appended(ctx context.Context, r run) error {
	return connected(ctx, r.targets.Address, tieline.Options{}, func(c *tieline.Connection) error {
		var calls []string
		tool := tieline.Tool{
			Name: r.list.Tool.Name, Description: r.list.Tool.Description, ParametersJSON: string(r.list.Tool.Parameters),
			Call: func(_ context.Context, arguments string) (string, error) {
				calls = append(calls, arguments)
				return r.list.Tool.Output, nil
			},
		}
		turn, err := c.Start(ctx, ask(r.Input), tool)
		if err != nil {
			return err
		}
		holds := 0
		for event, err := range turn.Events() {
			if err != nil {
				return err
			}
			if event.Ending == tielinev1.Ending_ENDING_HELD {
				holds++
			}
		}
		response, err := turn.Result()
		return errors.Join(err,
			same("the text", tieline.Text(response), r.Text),
			same("the number of holds", holds, 1),
			same("the number of calls", len(calls), 1),
			same("the arguments", compact(strings.Join(calls, "")), compact(string(r.Arguments))),
		)
	})
}

func compact(text string) string {
	var into bytes.Buffer
	if err := json.Compact(&into, []byte(text)); err != nil {
		return text
	}
	return into.String()
}

func chain(ctx context.Context, r run) error {
	return connected(ctx, r.targets.Address, tieline.Options{}, func(c *tieline.Connection) error {
		first, err := c.Ask(ctx, ask(r.Input))
		if err != nil {
			return err
		}
		create := ask(r.Then)
		create.PreviousResponseId = &first.Id
		second, err := says(ctx, c.Lane, create, r.Text)
		return errors.Join(err, same("the previous response", second.GetPreviousResponseId(), first.Id))
	})
}

func lanes(ctx context.Context, r run) error {
	return connected(ctx, r.targets.Address, tieline.Options{}, func(c *tieline.Connection) error {
		names := []string{}
		for name := range r.Lanes {
			names = append(names, name)
		}
		// The one that is to end first is the last one that is asked.
		slices.SortFunc(names, func(a, _ string) int {
			if a == r.First {
				return 1
			}
			return -1
		})
		ended := make(chan string, len(names))
		failed := make(chan error, len(names))
		for _, name := range names {
			turn, err := c.OnLane(name).Start(ctx, ask(r.Lanes[name]))
			if err != nil {
				return err
			}
			go func() {
				response, err := turn.Result()
				ended <- name
				failed <- errors.Join(err, same("the text of "+name, tieline.Text(response), r.Texts[name]))
			}()
		}
		err := same("the lane that ended first", <-ended, r.First)
		for range names {
			err = errors.Join(err, <-failed)
		}
		return err
	})
}

func cancel(ctx context.Context, r run) error {
	return connected(ctx, r.targets.Address, tieline.Options{}, func(c *tieline.Connection) error {
		turn, err := c.Start(ctx, ask(r.Input))
		if err != nil {
			return err
		}
		var last *tielinev1.ServerEvent
		cancelled := false
		for event, err := range turn.Events() {
			if err != nil {
				return err
			}
			if event.GetOutputTextDelta() != nil && !cancelled {
				cancelled = true
				if err := turn.Cancel(); err != nil {
					return err
				}
			}
			last = event
		}
		_, err = says(ctx, c.Lane, ask(r.Then), r.Text)
		return errors.Join(err,
			same("the status", last.Response.GetStatus(), tielinev1.ResponseStatus_RESPONSE_STATUS_CANCELLED),
			same("the ending", last.Ending, tielinev1.Ending_ENDING_INCOMPLETE),
		)
	})
}

func refused(ctx context.Context, r run) error {
	return connected(ctx, r.targets.Address, tieline.Options{}, func(c *tieline.Connection) error {
		for _, refusal := range r.Refused {
			create := ask(refusal.Input)
			if refusal.Model != "" {
				create.Model = &refusal.Model
			}
			_, err := c.Ask(ctx, create)
			var failure *tieline.Error
			if !errors.As(err, &failure) {
				return fmt.Errorf("%q is answered with the error %v", refusal.Input, err)
			}
			if err := errors.Join(
				same("the code", failure.Code, refusal.Code),
				same("the param", failure.Param, refusal.Param),
			); err != nil {
				return err
			}
		}
		_, err := says(ctx, c.Lane, ask(r.Then), r.Text)
		return err
	})
}

func resume(ctx context.Context, r run) error {
	var numbers []int
	var text strings.Builder
	hear := func(turn *tieline.Turn) error {
		for event, err := range turn.Events() {
			if err != nil {
				return err
			}
			if event.SequenceNumber != nil {
				numbers = append(numbers, int(*event.SequenceNumber))
			}
			text.WriteString(event.GetOutputTextDelta().GetDelta())
		}
		return nil
	}
	var lost *tieline.LostError
	var turn *tieline.Turn
	err := connected(ctx, r.targets.Cut, tieline.Options{}, func(c *tieline.Connection) (err error) {
		create := ask(r.Input)
		create.Resumable = proto.Bool(true)
		if turn, err = c.Start(ctx, create); err != nil {
			return err
		}
		return hear(turn)
	})
	if !errors.As(err, &lost) {
		return fmt.Errorf("instead of a cut connection there is the error %v", err)
	}
	return connected(ctx, r.targets.Address, tieline.Options{}, func(c *tieline.Connection) error {
		turn, err := c.Resume(ctx, lost.ResponseID, lost.After)
		if err != nil {
			return err
		}
		if err := hear(turn); err != nil {
			return err
		}
		for i, number := range numbers {
			if i != number {
				return fmt.Errorf("the numbers are %v", numbers)
			}
		}
		response, err := turn.Result()
		return errors.Join(err,
			same("the text of the response", tieline.Text(response), r.Text),
			same("the text of the deltas", text.String(), r.Text),
		)
	})
}

func key(ctx context.Context, r run) error {
	return simple(ctx, r.targets.Keyed, tieline.Options{Key: r.targets.Key}, r)
}

func wrongKey(ctx context.Context, r run) error {
	err := simple(ctx, r.targets.Keyed, tieline.Options{Key: r.Key}, run{scenario: scenario{Input: "hello"}})
	var failure *tieline.Error
	if !errors.As(err, &failure) {
		return fmt.Errorf("the error is %v", err)
	}
	return errors.Join(
		same("the status", strings.ToUpper(failure.Status.String()), r.Status),
		same("the code", failure.Code, r.Code),
	)
}

func health(ctx context.Context, r run) error {
	return dialled(r.targets.Address, tieline.Options{}, func(client *tieline.Client) error {
		stub := grpc_health_v1.NewHealthClient(client)
		for _, service := range r.Services {
			request := &grpc_health_v1.HealthCheckRequest{Service: service}
			checked, err := stub.Check(ctx, request)
			if err != nil {
				return err
			}
			watch, err := stub.Watch(ctx, request)
			if err != nil {
				return err
			}
			watched, err := watch.Recv()
			if err := errors.Join(err,
				same("the check of "+service, checked.Status, grpc_health_v1.HealthCheckResponse_SERVING),
				same("the watch of "+service, watched.GetStatus(), grpc_health_v1.HealthCheckResponse_SERVING),
			); err != nil {
				return err
			}
		}
		_, err := stub.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "no.such.Service"})
		return same("the status of an unknown service", status.Code(err), codes.NotFound)
	})
}

func reflected(ctx context.Context, r run) error {
	return dialled(r.targets.Address, tieline.Options{}, func(client *tieline.Client) error {
		var named, alpha []string
		stream, err := reflection.NewServerReflectionClient(client).ServerReflectionInfo(ctx)
		if err != nil {
			return err
		}
		if err := stream.Send(&reflection.ServerReflectionRequest{
			MessageRequest: &reflection.ServerReflectionRequest_ListServices{}}); err != nil {
			return err
		}
		answer, err := stream.Recv()
		for _, service := range answer.GetListServicesResponse().GetService() {
			named = append(named, service.Name)
		}
		older, olderErr := reflectionalpha.NewServerReflectionClient(client).ServerReflectionInfo(ctx)
		if err := errors.Join(err, olderErr); err != nil {
			return err
		}
		if err := older.Send(&reflectionalpha.ServerReflectionRequest{
			MessageRequest: &reflectionalpha.ServerReflectionRequest_ListServices{}}); err != nil {
			return err
		}
		olderAnswer, err := older.Recv()
		for _, service := range olderAnswer.GetListServicesResponse().GetService() {
			alpha = append(alpha, service.Name)
		}
		for _, service := range r.Services {
			if !slices.Contains(named, service) || !slices.Contains(alpha, service) {
				return fmt.Errorf("%s is not in %v, %v (%v)", service, named, alpha, err)
			}
		}
		return err
	})
}

func deadline(ctx context.Context, r run) error {
	limit := time.Duration(r.Milliseconds) * time.Millisecond
	return connected(ctx, r.targets.Address, tieline.Options{}, func(c *tieline.Connection) error {
		err := dialled(r.targets.Address, tieline.Options{}, func(client *tieline.Client) error {
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			_, err := client.Create(ctx, &tielinev1.CreateRequest{ResponseCreate: ask(r.Input)})
			return same("the status", status.Code(err), codes.DeadlineExceeded)
		})
		if err != nil {
			return err
		}
		create := ask(r.Input)
		create.Timeout = durationpb.New(limit)
		cut, err := c.Ask(ctx, create)
		if err != nil {
			return err
		}
		_, err = says(ctx, c.Lane, ask(r.Then), r.Text)
		return errors.Join(err,
			same("the status", cut.GetStatus(), tielinev1.ResponseStatus_RESPONSE_STATUS_INCOMPLETE),
			same("the reason", cut.GetIncompleteDetails().GetReason(), r.Reason),
		)
	})
}

func keepalive(ctx context.Context, r run) error {
	return connected(ctx, r.targets.Address, tieline.Options{}, func(c *tieline.Connection) error {
		select {
		case <-time.After(time.Duration(r.Seconds) * time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
		_, err := says(ctx, c.Lane, ask(r.Input), r.Text)
		return err
	})
}

func large(ctx context.Context, r run) error {
	create := func(client *tieline.Client) (*tielinev1.CreateResponse, error) {
		return client.Create(ctx, &tielinev1.CreateRequest{ResponseCreate: ask(r.Input)})
	}
	limits := tieline.Options{MaxReceiveBytes: r.Limit}
	return errors.Join(
		connected(ctx, r.targets.Address, limits, func(c *tieline.Connection) error {
			response, err := c.Ask(ctx, ask(r.Input))
			return errors.Join(err, same("the length on a connection", len(tieline.Text(response)), r.Bytes))
		}),
		dialled(r.targets.Address, limits, func(client *tieline.Client) error {
			answer, err := create(client)
			return errors.Join(err, same("the length by Create", len(tieline.Text(answer.GetResponse())), r.Bytes))
		}),
		dialled(r.targets.Address, tieline.Options{}, func(client *tieline.Client) error {
			answer, err := create(client)
			return errors.Join(err, same("output_omitted", answer.GetOutputOmitted(), true))
		}),
	)
}

func unicode(ctx context.Context, r run) error {
	return connected(ctx, r.targets.Address, tieline.Options{}, func(c *tieline.Connection) error {
		turn, err := c.Start(ctx, ask(r.Input))
		if err != nil {
			return err
		}
		var text strings.Builder
		for event, err := range turn.Events() {
			if err != nil {
				return err
			}
			text.WriteString(event.GetOutputTextDelta().GetDelta())
		}
		response, err := turn.Result()
		return errors.Join(err,
			same("the text of the deltas", text.String(), r.Text),
			same("the text of the response", tieline.Text(response), r.Text),
		)
	})
}

// newer does not look at the status of the response, which is one that these stubs do not know.
func newer(ctx context.Context, r run) error {
	return connected(ctx, r.targets.Newer, tieline.Options{}, func(c *tieline.Connection) error {
		response, err := c.Ask(ctx, ask(r.Input))
		return errors.Join(err, same("the text", tieline.Text(response), r.Text))
	})
}

func goaway(ctx context.Context, r run) error {
	return connected(ctx, r.targets.Drains, tieline.Options{}, func(c *tieline.Connection) error {
		if _, err := says(ctx, c.Lane, ask(r.Input), r.Text); err != nil {
			return err
		}
		_, err := c.Ask(ctx, ask(r.Input))
		var lost *tieline.LostError
		var failure *tieline.Error
		if !errors.As(err, &lost) && !(errors.As(err, &failure) && failure.Code == r.Code) {
			return fmt.Errorf("the error of a later create is %v", err)
		}
		return nil
	})
}
