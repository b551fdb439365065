package tieline

import (
	"context"
	"io"
	"slices"
	"sync"

	"google.golang.org/grpc"

	v1 "tieline.dev/client/go/tielinev1"
)

// Connection is one Converse stream, and its own default lane.
type Connection struct {
	*Lane
	stream   grpc.BidiStreamingClient[v1.ConverseRequest, v1.ConverseResponse]
	ctx      context.Context // Done when the connection is over; its cause says why.
	end      context.CancelCauseFunc
	outgoing chan func()
	running  sync.WaitGroup
	mu       sync.Mutex
	lanes    map[string][]*Turn // The turns that have not ended, in the order of their creates.
}

// Lane is a queue of turns on a connection. Turns of several lanes run at once.
type Lane struct {
	connection *Connection
	name       string
}

// OnLane is the lane of this name: letters, digits, `_`, `.` and `-`; empty is the default lane.
func (c *Connection) OnLane(name string) *Lane { return &Lane{c, name} }

// Connect opens a connection. It lives until ctx is done, Close is called, or it is lost.
func (c *Client) Connect(ctx context.Context) (*Connection, error) {
	ctx, end := context.WithCancelCause(ctx)
	stream, err := c.Converse(ctx)
	if err == nil && c.receives > 0 {
		start := &v1.ConverseRequest_SessionStart{SessionStart: &v1.SessionStart{MaxReceiveBytes: &c.receives}}
		err = stream.Send(&v1.ConverseRequest{Message: start})
	}
	if err != nil {
		end(err)
		return nil, err
	}
	connection := &Connection{stream: stream, ctx: ctx, end: end, outgoing: make(chan func()), lanes: map[string][]*Turn{}}
	connection.Lane = connection.OnLane("")
	connection.running.Go(connection.read)
	connection.running.Go(connection.write)
	return connection, nil
}

// Close ends the connection, and what runs on it unless that is resumable.
func (c *Connection) Close() {
	c.end(context.Canceled)
	c.running.Wait()
}

func (c *Connection) read() {
	for {
		response, err := c.stream.Recv()
		if err != nil {
			c.end(err)
			return
		}
		c.mu.Lock()
		for _, event := range response.Events {
			c.deliver(event)
		}
		c.mu.Unlock()
	}
}

func (c *Connection) write() {
	for {
		select {
		case send := <-c.outgoing:
			send()
		case <-c.ctx.Done():
			return
		}
	}
}

// send hands a message to the writer, which does what comes before it in the order of the stream.
func (l *Lane) send(ctx context.Context, request *v1.ConverseRequest, before func()) error {
	if l.name != "" {
		request.StreamId = &l.name
	}
	// In the stream, what cannot be encoded would be the end of all turns.
	c, encoded := l.connection, &grpc.PreparedMsg{}
	if err := encoded.Encode(c.stream, request); err != nil {
		return typed(err)
	}
	send := func() {
		c.mu.Lock()
		before()
		c.mu.Unlock()
		if err := c.stream.SendMsg(encoded); err != nil && err != io.EOF { // The reader is told what EOF means.
			c.end(err)
		}
	}
	select {
	case c.outgoing <- send:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ctx.Done():
		return &LostError{After: -1, Cause: context.Cause(c.ctx)}
	}
}

func (c *Connection) deliver(event *v1.ServerEvent) {
	turn := c.owner(event)
	if turn == nil {
		return
	}
	if turn.ctx.Err() == nil { // Else no reader is left.
		turn.queue = append(turn.queue, event)
	}
	if ends(event) && event.Ending != v1.Ending_ENDING_HELD {
		turn.unwatch()
		lane := turn.lane.name
		c.lanes[lane] = slices.DeleteFunc(c.lanes[lane], func(other *Turn) bool { return other == turn })
	}
	select {
	case turn.wake <- struct{}{}:
	default:
	}
}

// owner is the turn that an event is for; nil where it is the connection's, or that of a turn that has ended.
func (c *Connection) owner(event *v1.ServerEvent) *Turn {
	failure, turns := event.GetError().GetError(), c.lanes[event.GetStreamId()]
	for _, lane := range c.lanes {
		for _, turn := range lane {
			if id := failure.GetEventId(); id != "" && (id == turn.createID || id == turn.appendID) {
				return turn
			}
		}
	}
	foreign := failure.GetEventId() != "" && event.Ending != v1.Ending_ENDING_READER_MOVED
	if len(turns) == 0 || foreign || failure == nil && event.SequenceNumber == nil && !ends(event) {
		return nil
	}
	return turns[0]
}

// ends says whether a turn ends here for now, for whatever reason: a newer one has no name yet.
func ends(event *v1.ServerEvent) bool { return event.GetEnding() != v1.Ending_ENDING_UNSPECIFIED }
