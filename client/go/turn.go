package tieline

import (
	"context"
	"crypto/rand"
	"iter"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	v1 "tieline.dev/client/go/tielinev1"
)

// Tool is a function that the model may call. The model is told what Call returns, be it an error.
type Tool struct {
	Name, Description, ParametersJSON string
	Call                              func(ctx context.Context, argumentsJSON string) (string, error)
}

// Turn is a response on its way. It is for one goroutine at a time; Cancel is for any.
type Turn struct {
	progress
	lane               *Lane
	ctx                context.Context
	unwatch            func() bool
	resumes            *string           // The response that had begun before this Turn.
	createID, appendID string            // The event_ids by which errors find their turn.
	queue              []*v1.ServerEvent // Guarded by the connection's mutex, as is appendID.
	wake               chan struct{}
	repeated           string // The event_id of an append that an earlier connection may have brought.
}

// progress is what a turn takes along to another connection.
type progress struct {
	tools    []Tool
	id       string
	after    int
	response *v1.Response
	items    []*v1.Item
	calls    []*v1.FunctionCall  // Since the last hold.
	outputs  map[string]*v1.Item // By call id: what has run does not run again.
	held     bool                // From a hold to the first event behind it.
	answered bool                // The hold was answered; no event has said yet that it was taken.
	again    bool                // An earlier connection may have brought the answer of the hold.
	end      *v1.ServerEvent
}

// Ask makes a turn and waits for its response. The tools answer its calls.
func (l *Lane) Ask(ctx context.Context, create *v1.ResponseCreate, tools ...Tool) (*v1.Response, error) {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	turn, err := l.Start(ctx, create, tools...)
	if err != nil {
		return nil, err
	}
	return turn.Result()
}

// Start begins a turn, which is cancelled when ctx is done. With tools it has the append shape: one
// response, held at calls until their outputs are there.
func (l *Lane) Start(ctx context.Context, create *v1.ResponseCreate, tools ...Tool) (*Turn, error) {
	create = proto.CloneOf(create)
	for _, tool := range tools {
		create.Append = proto.Bool(true)
		create.Tools = append(create.Tools, FunctionTool(tool.Name, tool.Description, tool.ParametersJSON))
	}
	turn := &Turn{progress: progress{tools: tools, after: -1, outputs: map[string]*v1.Item{}}}
	return l.begin(ctx, turn, &v1.ConverseRequest{Message: &v1.ConverseRequest_ResponseCreate{ResponseCreate: create}})
}

// Resume goes on with a resumable response behind an event, as a LostError names them; -1 is before
// the first. It does not know which calls have been answered: Turn.Resume does.
func (l *Lane) Resume(ctx context.Context, responseID string, after int, tools ...Tool) (*Turn, error) {
	turn := Turn{progress: progress{tools: tools, id: responseID, after: after, outputs: map[string]*v1.Item{}}}
	return turn.Resume(ctx, l)
}

// Resume goes on with a lost turn on a lane of another connection. No tool runs again.
func (t *Turn) Resume(ctx context.Context, lane *Lane) (*Turn, error) {
	turn := &Turn{progress: t.progress, resumes: proto.String(t.id)}
	turn.again, turn.answered = t.again || t.answered, false
	resume := &v1.ResponseResume{ResponseId: turn.resumes}
	if t.after >= 0 {
		resume.After = proto.Int32(int32(t.after))
	}
	return lane.begin(ctx, turn, &v1.ConverseRequest{Message: &v1.ConverseRequest_ResponseResume{ResponseResume: resume}})
}

func (l *Lane) begin(ctx context.Context, turn *Turn, request *v1.ConverseRequest) (*Turn, error) {
	turn.lane, turn.ctx, turn.wake = l, ctx, make(chan struct{}, 1)
	turn.createID = rand.Text() // A replay repeats old names: none is used twice.
	request.EventId = &turn.createID
	turn.unwatch = context.AfterFunc(ctx, func() { turn.Cancel() })
	err := l.send(ctx, request, func() { l.connection.lanes[l.name] = append(l.connection.lanes[l.name], turn) })
	if err != nil {
		turn.unwatch()
		return nil, turn.located(err)
	}
	return turn, nil
}

// Cancel asks for the end of the turn. The end comes as an event, with what there is.
func (t *Turn) Cancel() error {
	cancel := &v1.ConverseRequest_ResponseCancel{ResponseCancel: &v1.ResponseCancel{ResponseId: t.resumes}}
	request := &v1.ConverseRequest{Message: cancel, EventId: &t.createID}
	return t.lane.send(context.Background(), request, func() {})
}

// Append answers a hold by hand. Events then goes on.
func (t *Turn) Append(items ...*v1.Item) error {
	input := &v1.ResponseAppend_InputItems{InputItems: &v1.ItemList{Items: items}}
	message := &v1.ConverseRequest_ResponseAppend{ResponseAppend: &v1.ResponseAppend{ResponseId: &t.id, Input: input}}
	id := rand.Text()
	t.answered = true
	if t.again {
		t.repeated, t.again = id, false
	}
	err := t.lane.send(t.ctx, &v1.ConverseRequest{Message: message, EventId: &id}, func() { t.appendID = id })
	return t.located(err)
}

// Result reads to the end of the turn, or to a hold that no tool answers. A response that is
// incomplete or cancelled is a result; a failed one comes with its error.
func (t *Turn) Result() (*v1.Response, error) {
	for _, err := range t.Events() {
		if err != nil {
			return t.response, err
		}
	}
	return t.response, told(t.end)
}

// Events come to the end of the turn, or to a hold that no tool answers. A refusal or a failure is an
// *Error beside its event; a lost connection is a *LostError.
func (t *Turn) Events() iter.Seq2[*v1.ServerEvent, error] {
	return func(yield func(*v1.ServerEvent, error) bool) {
		for t.end == nil {
			event, err := t.next()
			if err == nil {
				if !t.note(event) {
					continue
				}
				err = told(event)
			}
			if !yield(event, err) || err != nil || t.held && !t.answered && !t.answerable() {
				return
			}
		}
	}
}

func (t *Turn) answerable() bool { return len(t.tools) > 0 && len(t.calls) > 0 }

func (t *Turn) next() (*v1.ServerEvent, error) {
	if t.held && !t.answered && t.answerable() {
		if err := t.answer(); err != nil {
			return nil, err
		}
	}
	connection := t.lane.connection
	for {
		lost := connection.ctx.Err() != nil // Looked at before the queue, which then is all there is.
		connection.mu.Lock()
		queue := t.queue
		t.queue = queue[min(1, len(queue)):]
		connection.mu.Unlock()
		switch {
		case t.ctx.Err() != nil:
			return nil, t.ctx.Err()
		case len(queue) > 0:
			return queue[0], nil
		case lost:
			return nil, t.located(&LostError{Cause: context.Cause(connection.ctx)})
		}
		select {
		case <-t.wake:
		case <-t.ctx.Done():
		case <-connection.ctx.Done():
		}
	}
}

// takenCodes are how an append is refused that says again what was taken.
var takenCodes = []string{"response_not_active", "duplicate_item", "tool_call_not_found", "tool_output_missing"}

// note keeps what an event says of its turn, and says whether it is handed over.
func (t *Turn) note(event *v1.ServerEvent) bool {
	if event.SequenceNumber != nil {
		t.after = max(t.after, int(*event.SequenceNumber))
	}
	if failure := event.GetError(); failure != nil && !ends(event) {
		taken := failure.GetError().GetEventId() == t.repeated && slices.Contains(takenCodes, failure.GetError().GetCode())
		t.answered = t.answered && taken
		return !taken
	}
	if t.held {
		t.held, t.answered, t.again, t.calls = false, false, false, nil
	}
	if item := event.GetOutputItemDone().GetItem(); item != nil {
		t.items = append(t.items, item)
		if call := item.GetFunctionCall(); call != nil {
			t.calls = append(t.calls, call)
		}
	}
	if response := event.Response; response != nil {
		t.response, t.id = response, response.Id
		if ends(event) && len(response.Output) == 0 { // Left out where it is too large.
			response.Output = t.items
		}
	}
	t.held = event.Ending == v1.Ending_ENDING_HELD
	if ends(event) && !t.held {
		t.end = event
	}
	return event.Event != nil || ends(event)
}

// answer runs the tools for the calls of a hold, one after another.
func (t *Turn) answer() error {
	var outputs []*v1.Item
	for _, call := range t.calls {
		for _, tool := range t.tools {
			if tool.Name == call.Name && t.outputs[call.CallId] == nil {
				output, err := tool.Call(t.ctx, call.Arguments)
				if err != nil {
					output = "error: " + err.Error()
				}
				t.outputs[call.CallId] = FunctionOutput(call.CallId, output)
			}
		}
		if t.outputs[call.CallId] == nil {
			t.outputs[call.CallId] = FunctionOutput(call.CallId, "error: there is no such tool")
		}
		outputs = append(outputs, t.outputs[call.CallId])
	}
	return t.Append(outputs...)
}

// located says of a lost connection where the turn was.
func (t *Turn) located(err error) error {
	if lost, ok := err.(*LostError); ok {
		lost.ResponseID, lost.After = t.id, t.after
	}
	return err
}

// NewCreate asks for one response to these items.
func NewCreate(items ...*v1.Item) *v1.ResponseCreate {
	return &v1.ResponseCreate{Input: &v1.ResponseCreate_InputItems{InputItems: &v1.ItemList{Items: items}}}
}

// UserText is a message of the user.
func UserText(text string) *v1.Item {
	message := &v1.Message{Role: "user", Content: &v1.Message_Text{Text: text}}
	return &v1.Item{Item: &v1.Item_Message{Message: message}}
}

// FunctionOutput is what the function of a call returned.
func FunctionOutput(callID, text string) *v1.Item {
	output := &v1.FunctionCallOutput{CallId: callID, Output: &v1.FunctionCallOutput_Text{Text: text}}
	return &v1.Item{Item: &v1.Item_FunctionCallOutput{FunctionCallOutput: output}}
}

// FunctionTool offers a function whose parameters are a JSON schema.
func FunctionTool(name, description, parametersJSON string) *v1.Tool {
	function := &v1.FunctionTool{Name: name, Description: &description, ParametersJson: &parametersJSON}
	return &v1.Tool{Tool: &v1.Tool_Function{Function: function}}
}

// Text is what the model said in a response, joined.
func Text(response *v1.Response) string {
	var text strings.Builder
	for _, item := range response.GetOutput() {
		text.WriteString(item.GetMessage().GetText())
		for _, part := range item.GetMessage().GetParts().GetParts() {
			text.WriteString(part.GetText().GetText())
		}
	}
	return text.String()
}
