"""Events folded into the response as it stands."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from tests.support.event_samples import CALL, MESSAGE, USAGE, response
from tieline import events
from tieline.events import Event
from tieline.fold import Fold, FoldError

ADDED = Raw(
    b'{"type":"message","id":"msg_1","role":"assistant","status":"in_progress","content":[]}'
)
PART = Raw(b'{"type":"output_text","text":"","annotations":[],"logprobs":[]}')
WHERE: dict[str, Any] = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
CALL_ADDED = Raw(
    b'{"type":"function_call","id":"fc_1","status":"in_progress","call_id":"call_1","name":"f",'
    b'"arguments":""}'
)


def folded(*pushed: Event) -> Fold:
    fold = Fold()
    for number, event in enumerate(pushed):
        fold.push(msgspec.structs.replace(event, sequence_number=number))
    return fold


def output(fold: Fold) -> list[Any]:
    return [msgspec.json.decode(raw) for raw in fold.response.output]


START = (
    events.ResponseCreated(response=response()),
    events.ResponseInProgress(response=response()),
)
TEXT = (
    events.OutputItemAdded(output_index=0, item=ADDED),
    events.ContentPartAdded(**WHERE, part=PART),
    events.OutputTextDelta(**WHERE, delta="Hi "),
    events.OutputTextDelta(**WHERE, delta="there"),
)
TEXT_DONE = (
    events.OutputTextDone(**WHERE, text="Hi there"),
    events.ContentPartDone(**WHERE, part=PART),
    events.OutputItemDone(output_index=0, item=MESSAGE),
)


def test_a_blank_fold_is_a_blank_response() -> None:
    fold = Fold()
    assert (fold.text, fold.response.id, fold.ended, fold.error) == ("", "", False, None)


def test_text_grows_while_it_is_sampled() -> None:
    fold = folded(*START, *TEXT)
    assert fold.text == "Hi there"
    (item,) = output(fold)
    assert item["status"] == "in_progress"
    assert item["content"] == [
        {"type": "output_text", "text": "Hi there", "annotations": [], "logprobs": []}
    ]
    fold.push(events.OutputTextDelta(**WHERE, delta="!"))
    assert fold.text == "Hi there!"
    assert output(fold)[0]["content"][0]["text"] == "Hi there!"
    assert (fold.response.status, fold.ended, fold.last_sequence_number) == (
        "in_progress",
        False,
        5,
    )


def test_a_done_item_is_its_own_bytes() -> None:
    fold = folded(*START, *TEXT, *TEXT_DONE)
    assert fold.response.output == [MESSAGE]
    assert fold.text == "Hi there"


def test_the_terminal_response_has_the_last_word() -> None:
    done = response(status="completed", output=[MESSAGE, CALL], usage=USAGE)
    fold = folded(*START, *TEXT, events.ResponseCompleted(response=done))
    assert fold.response == done
    assert fold.ended


def test_a_terminal_response_whose_output_was_left_out_is_rebuilt() -> None:
    call = events.OutputItemDone(output_index=1, item=CALL)
    done = response(status="completed", usage=USAGE)
    fold = folded(*START, *TEXT, *TEXT_DONE, call, events.ResponseCompleted(response=done))
    assert fold.response.output == [MESSAGE, CALL]
    assert (fold.response.status, fold.response.usage) == ("completed", USAGE)


def test_a_cut_turn_keeps_its_partial_text() -> None:
    cut = response(status="cancelled", usage=USAGE)
    fold = folded(*START, *TEXT, events.ResponseIncomplete(response=cut))
    assert fold.text == "Hi there"
    assert fold.response.status == "cancelled"
    assert output(fold)[0]["content"][0]["text"] == "Hi there"


def test_call_arguments_and_custom_input_grow() -> None:
    where = {"item_id": "fc_1", "output_index": 0}
    custom = {"item_id": "ctc_1", "output_index": 1}
    fold = folded(
        *START,
        events.OutputItemAdded(output_index=0, item=CALL_ADDED),
        events.FunctionCallArgumentsDelta(**where, delta='{"a"'),  # type: ignore[arg-type]
        events.FunctionCallArgumentsDelta(**where, delta=":1}"),  # type: ignore[arg-type]
        events.CustomToolCallInputDelta(**custom, delta="*** "),  # type: ignore[arg-type]
        events.CustomToolCallInputDone(**custom, input="*** Begin"),  # type: ignore[arg-type]
    )
    call, patch = output(fold)
    assert (call["name"], call["arguments"]) == ("f", '{"a":1}')
    assert patch == {"type": "custom_tool_call", "id": "ctc_1", "input": "*** Begin"}
    assert fold.text == ""


def test_reasoning_and_refusals_grow_and_are_no_text() -> None:
    summary: dict[str, Any] = {"item_id": "rs_1", "output_index": 0, "summary_index": 0}
    raw: dict[str, Any] = {"item_id": "rs_1", "output_index": 0, "content_index": 0}
    refused: dict[str, Any] = {"item_id": "msg_1", "output_index": 1, "content_index": 1}
    fold = folded(
        *START,
        events.ReasoningSummaryPartAdded(**summary, part=Raw(b'{"type":"summary_text","text":""}')),
        events.ReasoningSummaryTextDelta(**summary, delta="Counting"),
        events.ReasoningTextDelta(**raw, delta="Open"),
        events.ReasoningTextDone(**raw, text="Open it."),
        events.RefusalDelta(**refused, delta="No"),
        events.OutputTextDelta(item_id="msg_1", output_index=1, content_index=0, delta="Yes"),
    )
    reasoning, message = output(fold)
    assert reasoning["summary"] == [{"type": "summary_text", "text": "Counting"}]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Open it."}]
    assert message["content"] == [
        {"type": "output_text", "text": "Yes"},
        {"type": "refusal", "refusal": "No"},
    ]
    assert fold.text == "Yes"


def test_a_reader_that_joins_in_the_middle_gets_what_it_saw() -> None:
    fold = folded(*TEXT[2:], events.OutputItemDone(output_index=3, item=CALL))
    assert fold.text == "Hi there"
    assert [item["type"] for item in output(fold)] == ["message", "function_call"]


def test_a_held_turn_goes_on_where_it_was() -> None:
    held = response(output=[CALL], usage=USAGE)
    fold = folded(*START, events.ResponseDone(response=held))
    assert not fold.ended
    assert fold.response == held
    fold.push(events.OutputItemAdded(output_index=1, item=ADDED))
    fold.push(events.OutputTextDelta(item_id="msg_1", output_index=1, content_index=0, delta="So."))
    assert [item["type"] for item in output(fold)] == ["function_call", "message"]
    assert fold.text == "So."


def test_an_error_before_the_response_ends_the_turn() -> None:
    error = events.ErrorEvent(status=400, error=events.ErrorDetail(code="invalid_input"))
    fold = folded(error)
    assert fold.ended
    assert fold.error is not None
    assert fold.error.error.code == "invalid_input"


def test_an_error_after_the_start_waits_for_response_failed() -> None:
    fold = folded(*START, events.ErrorEvent(error=events.ErrorDetail(code="server_error")))
    assert not fold.ended
    fold.push(events.ResponseFailed(response=response(status="failed")))
    assert fold.ended
    assert fold.error is not None


def test_unknown_line_and_late_events_change_nothing() -> None:
    fold = folded(*START, *TEXT, *TEXT_DONE)
    before = fold.response
    for event in (
        events.Opaque(name="codex.keepalive", raw=Raw(b'{"type":"codex.keepalive"}')),
        events.Heartbeat(phase="held"),
        events.OutputTextDelta(**WHERE, delta="late"),
        events.ContentPartAdded(**WHERE, part=PART),
    ):
        fold.push(event)
    assert fold.response == before


def test_an_event_of_another_response_is_refused() -> None:
    fold = folded(*START)
    with pytest.raises(FoldError):
        fold.push(events.ResponseCompleted(response=response(id="resp_2")))


@pytest.mark.parametrize("raw", [b"null", b"[]", b'{"type":"message","content":[1,{"text":5}]}'])
def test_odd_items_and_parts_break_nothing(raw: bytes) -> None:
    fold = folded(*START, events.OutputItemAdded(output_index=0, item=Raw(raw)))
    fold.push(events.ContentPartAdded(**WHERE, part=Raw(raw)))
    fold.push(events.OutputTextDelta(**WHERE, delta="x"))
    assert len(fold.response.output) == 1
    assert isinstance(fold.text, str)
    fold.push(events.OutputItemDone(output_index=0, item=Raw(raw)))
    assert fold.response.output == [Raw(raw)]
    assert fold.text == ""
