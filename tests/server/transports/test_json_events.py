"""Events as JSON clients get them: what is withheld, renamed, and completed."""

import json
from typing import Any, get_args

import pytest
from msgspec import UNSET
from openai.types.responses.response import IncompleteDetails as OpenAIDetails
from openai.types.responses.response_error import ResponseError as OpenAIError

from tests.support.event_samples import SAMPLES
from tieline import events
from tieline.codecs.json import encode
from tieline.errors import ApiError
from tieline.responses import IncompleteDetails, Response, ResponseError
from tieline_server.core.create.profile import OPENAI, PROFILES
from tieline_server.transports.json_events import (
    FAILURES,
    NAMES,
    REASONS,
    EventJson,
    asked_for,
    told,
)

OPEN_RESPONSES = PROFILES["open-responses"]
TIMING = events.Timing(
    response_id="resp_1", phases={"prefill": 4000, "decode": 6500, "overhead": 250, "total": 11000}
)


def read(encoder: EventJson, event: events.Event) -> dict[str, Any]:
    text = encoder.encode(event)
    assert text is not None
    found: dict[str, Any] = json.loads(text)
    return found


def error(**members: Any) -> events.ErrorEvent:
    detail = events.ErrorDetail.of(ApiError.of("model_not_found", "No.", param="model"))
    return events.ErrorEvent(**{"status": 404, "sequence_number": 0, "error": detail, **members})


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: str(event.type))
def test_an_event_of_openais_is_written_as_the_codec_writes_it(event: events.Event) -> None:
    if event.type in events.EXTENSIONS or isinstance(
        event, events.ErrorEvent | events.ResponseFailed
    ):
        return
    assert EventJson(OPENAI).encode(event) == encode(event)


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("heartbeat", events.Heartbeat(phase="prefill")),
        ("session", events.SessionGoingAway(reason="server_draining", seconds=3.0)),
        ("timing", TIMING),
    ],
    ids=["heartbeat", "goodbye", "timing"],
)
def test_an_event_of_ours_goes_only_to_who_asked_for_it(name: str, event: events.Event) -> None:
    others = NAMES - {name}
    assert EventJson(OPENAI).encode(event) is None
    assert EventJson(OPENAI, others).encode(event) is None
    assert EventJson(OPENAI, frozenset({name})).encode(event) is not None


def test_who_asks_later_gets_it_from_then_on() -> None:
    encoder = EventJson(OPENAI)
    beat = events.Heartbeat(phase="held")
    assert encoder.encode(beat) is None
    encoder.allow(frozenset({"heartbeat", "what is this"}))
    assert encoder.extensions == {"heartbeat"}
    assert read(encoder, beat) == {"type": "tieline.heartbeat", "phase": "held"}


def test_a_profile_without_extensions_has_none_whoever_asks() -> None:
    encoder = EventJson(OPEN_RESPONSES, NAMES)
    encoder.allow(NAMES)
    assert encoder.extensions == frozenset()
    assert encoder.encode(TIMING) is None
    assert encoder.encode(events.Heartbeat(phase="held")) is None


def test_a_profile_renames_the_type_and_nothing_else() -> None:
    event = events.ReasoningTextDelta(
        sequence_number=3,
        item_id="rs_1",
        output_index=0,
        content_index=0,
        delta='{"type":"response.reasoning_text.delta"',
    )
    theirs = read(EventJson(OPEN_RESPONSES), event)
    assert theirs["type"] == "response.reasoning.delta"
    assert {**theirs, "type": event.type} == read(EventJson(OPENAI), event)


def test_er_02_an_error_has_exactly_the_members_that_clients_look_for() -> None:
    assert read(EventJson(OPENAI), error()) == {
        "type": "error",
        "status": 404,
        "error": {
            "type": "invalid_request_error",
            "code": "model_not_found",
            "message": "No.",
            "param": "model",
        },
        "sequence_number": 0,
    }


def test_an_error_of_a_named_lane_says_which_and_echoes_the_event_id() -> None:
    detail = events.ErrorDetail.of(ApiError.of("model_not_found", "No."), "mine")
    found = read(EventJson(OPENAI), error(stream_id="a", error=detail, sequence_number=7))
    assert (found["stream_id"], found["sequence_number"]) == ("a", 7)
    assert found["error"]["event_id"] == "mine"


def test_an_error_without_status_code_or_number_gets_them() -> None:
    bare = events.ErrorDetail(type="server_error", message="Oh.")
    found = read(EventJson(OPENAI), error(status=UNSET, sequence_number=UNSET, error=bare))
    assert (found["status"], found["sequence_number"]) == (500, 0)
    assert found["error"]["code"] == "server_error"


def test_when_to_retry_is_a_header_in_the_frame_as_well() -> None:
    full = ApiError.of("queue_full", "Later.", retry_after=1.5)
    found = read(EventJson(OPENAI), error(status=429, error=events.ErrorDetail.of(full)))
    assert found["headers"] == {"retry-after": "1.5"}
    assert found["error"]["retry_after"] == 1.5


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("engine_unavailable", "server_error"),
        ("content_filter", "server_error"),
        *((code, code) for code in sorted(FAILURES)),
    ],
)
def test_a_failed_response_says_why_by_a_code_that_clients_know(code: str, seen: str) -> None:
    response = Response(id="resp_1", error=ResponseError(code=code, message="Because."))
    found = read(EventJson(OPENAI), events.ResponseFailed(sequence_number=4, response=response))
    assert found["response"]["error"] == {"code": seen, "message": "Because."}
    assert (found["type"], found["sequence_number"]) == ("response.failed", 4)


@pytest.mark.parametrize(
    ("reason", "seen"),
    [
        ("server_draining", None),
        ("max_tool_calls", None),
        *((reason, {"reason": reason}) for reason in sorted(REASONS)),
    ],
)
def test_an_incomplete_response_says_why_by_a_reason_that_clients_know(
    reason: str, seen: dict[str, str] | None
) -> None:
    cut = Response(id="resp_1", incomplete_details=IncompleteDetails(reason=reason))
    event = events.ResponseIncomplete(sequence_number=4, response=cut)
    found = read(EventJson(OPENAI), event)
    assert found["response"]["incomplete_details"] == seen
    assert (found["type"], found["sequence_number"]) == ("response.incomplete", 4)


def test_the_closed_lists_are_openais_and_what_is_said_beside_them() -> None:
    (reasons, _) = get_args(OpenAIDetails.model_fields["reason"].annotation)
    assert REASONS - set(get_args(reasons)) == {"superseded", "held_timeout", "deadline"}
    assert set(get_args(reasons)) <= REASONS
    codes = set(get_args(OpenAIError.model_fields["code"].annotation))
    assert codes <= FAILURES
    assert FAILURES - codes == {
        "context_length_exceeded",
        "cyber_policy",
        "insufficient_quota",
        "server_is_overloaded",
    }


def test_a_response_that_says_nothing_new_is_told_as_it_is() -> None:
    response = Response(id="resp_1")
    assert told(response) is response


def test_timing_has_the_name_and_members_that_codex_reads() -> None:
    found = read(EventJson(OPENAI, frozenset({"timing"})), TIMING)
    assert found["type"] == "responsesapi.websocket_timing"
    metrics = found["timing_metrics"]
    assert metrics["responses_duration_excl_engine_and_client_tool_time_ms"] == 0.25
    assert metrics["engine_service_total_ms"] == 10.5
    assert metrics["engine_service_ttft_total_ms"] == 4.0
    assert metrics["total_us"] == 11000
    assert found["response_id"] == "resp_1"


def test_extensions_are_asked_for_by_lists_of_names() -> None:
    assert asked_for([]) == frozenset()
    assert asked_for([None, " Heartbeat ,limits", "session,nonsense,"]) == {
        "heartbeat",
        "limits",
        "session",
    }
    assert asked_for([], timing="true") == {"timing"}
    assert asked_for([], timing="false") == frozenset()
