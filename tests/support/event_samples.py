"""One event of every class, as the server makes them."""

from typing import Any, Final

import msgspec
from msgspec import Raw

from tieline import events
from tieline.events import ErrorDetail, Event, SteerRef
from tieline.responses import IncompleteDetails, Response, ResponseError, Usage

TOOLS: Final = Raw(
    b'[{"type":"function","name":"count_lines","description":"Counts.","strict":true,'
    b'"parameters":{"type":"object","properties":{"path":{"type":"string"}}}},'
    b'{"type":"custom","name":"patch","description":"Patches."}]'
)
MESSAGE: Final = Raw(
    b'{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":'
    b'[{"type":"output_text","text":"Hi there","annotations":[],"logprobs":[]}]}'
)
CALL: Final = Raw(
    b'{"type":"function_call","id":"fc_1","status":"completed","call_id":"call_1",'
    b'"name":"count_lines","arguments":"{}"}'
)
PART: Final = Raw(b'{"type":"output_text","text":"","annotations":[],"logprobs":[]}')
SUMMARY: Final = Raw(b'{"type":"summary_text","text":""}')


def response(**members: Any) -> Response:
    """A response as the server makes it."""
    blank = Response(
        id="resp_1",
        created_at=1790000000,
        status="in_progress",
        model="larch-2",
        tools=TOOLS,
        instructions=Raw(b'"Be brief."'),
        metadata=Raw(b'{"run":"7"}'),
        previous_response_id="resp_0",
    )
    return msgspec.structs.replace(blank, **members)


USAGE: Final = Usage.of(input=31, cached=20, output=9, reasoning=4)
_TEXT: Final[dict[str, Any]] = {"item_id": "msg_1", "output_index": 1, "content_index": 2}
_CALL: Final[dict[str, Any]] = {"item_id": "fc_1", "output_index": 1}
_SUMMARY: Final[dict[str, Any]] = {"item_id": "rs_1", "output_index": 0, "summary_index": 1}
_STEER: Final = SteerRef(previous_response_id="resp_1", id="steer_1")
_ERROR: Final = ErrorDetail(code="model_not_found", message="No model 'x'.", param="model")
_REFUSED_STEER: Final = SteerRef(previous_response_id="resp_1", input=Raw(b'"Only one file."'))
_REFUSED: Final = ErrorDetail(code="response_not_active", message="No such turn.")
_COMPLETED: Final = response(
    status="completed", completed_at=1790000003, output=[MESSAGE, CALL], usage=USAGE
)
_FAILED: Final = ResponseError(code="server_error", message="The engine stopped.")
_CUT: Final = IncompleteDetails(reason="max_output_tokens")
_NEEDED: Final = Raw(b'{"type":"function_call_output","call_id":"call_1","name":"count_lines"}')

SAMPLES: Final[tuple[Event, ...]] = (
    events.ResponseCreated(response=response(), event_id="evt-1"),
    events.ResponseQueued(response=response(status="queued")),
    events.ResponseInProgress(response=response(), stream_id="lane.2"),
    events.ResponseDone(response=response(output=[CALL], usage=USAGE)),
    events.ResponseCompleted(response=_COMPLETED),
    events.ResponseFailed(response=response(status="failed", error=_FAILED)),
    events.ResponseIncomplete(response=response(status="incomplete", incomplete_details=_CUT)),
    events.OutputItemAdded(output_index=0, item=MESSAGE),
    events.OutputItemDone(output_index=1, item=CALL),
    events.ContentPartAdded(**_TEXT, part=PART),
    events.ContentPartDone(**_TEXT, part=PART),
    events.OutputTextDelta(**_TEXT, delta="Hi \U0001f33f"),
    events.OutputTextDone(**_TEXT, text="Hi there"),
    events.OutputTextAnnotationAdded(
        **_TEXT, annotation_index=0, annotation=Raw(b'{"type":"file_path","file_id":"f","index":3}')
    ),
    events.RefusalDelta(**_TEXT, delta="No"),
    events.RefusalDone(**_TEXT, refusal="No."),
    events.FunctionCallArgumentsDelta(**_CALL, delta='{"a'),
    events.FunctionCallArgumentsDone(**_CALL, arguments='{"a":1}'),
    events.CustomToolCallInputDelta(**_CALL, delta="***"),
    events.CustomToolCallInputDone(**_CALL, input="*** Begin"),
    events.ReasoningSummaryPartAdded(**_SUMMARY, part=SUMMARY),
    events.ReasoningSummaryPartDone(**_SUMMARY, part=SUMMARY, status="incomplete"),
    events.ReasoningSummaryTextDelta(**_SUMMARY, delta="Count"),
    events.ReasoningSummaryTextDone(**_SUMMARY, text="Counting."),
    events.ReasoningTextDelta(**_TEXT, delta="Open"),
    events.ReasoningTextDone(**_TEXT, text="Open it."),
    events.ErrorEvent(status=404, error=_ERROR),
    events.SteerAccepted(steer=_STEER),
    events.SteerPending(
        reason="waiting_for_required_input", required_input=[_NEEDED], steer=_STEER
    ),
    events.SteerFailed(error=_REFUSED, steer=_REFUSED_STEER),
    events.Heartbeat(phase="prefill"),
    events.Timing(response_id="resp_1", phases={"queue": 120, "decode": 90_000}),
    events.SessionStarted(
        session_id="line_1", revision="1", extensions=["append"], limits={"lanes": 32}
    ),
    events.SessionGoingAway(reason="draining", seconds=30.5),
)
"""Every class of ``events.CLASSES`` once, in its order."""

NUMBERED: Final[tuple[Event, ...]] = tuple(
    event
    if event.type in events.EXTENSIONS
    else msgspec.structs.replace(event, sequence_number=number)
    for number, event in enumerate(SAMPLES)
)
"""The same with sequence numbers, where events of that class have one."""
