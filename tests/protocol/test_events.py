"""Events: what they are on the JSON wire, and to OpenAI's own client types."""

from typing import Any, get_args

import msgspec
import pytest
from msgspec import UNSET, Raw
from openai.types.responses import ResponsesServerEvent
from pydantic import TypeAdapter

from tests.support.event_samples import MESSAGE, NUMBERED, SAMPLES, response
from tieline import events
from tieline.codecs import json
from tieline.errors import ApiError
from tieline.events import Event


def _classes(kind: Any) -> list[type]:
    """The classes of a union, through its annotations."""
    if isinstance(kind, type):
        return [kind]
    return [found for inner in get_args(kind) for found in _classes(inner)]


OPENAI: dict[str, Any] = {
    get_args(kind.model_fields["type"].annotation)[0]: kind
    for kind in _classes(ResponsesServerEvent)
    if hasattr(kind, "model_fields")
}
OURS_ALONE = events.EXTENSIONS | {"response.done"}
TERMINAL = {"response.completed", "response.failed", "response.incomplete"}


def test_every_class_has_a_sample_and_a_type_of_its_own() -> None:
    assert tuple(type(event) for event in SAMPLES) == events.CLASSES
    assert len(events.BY_TYPE) == len(events.CLASSES)


@pytest.mark.parametrize("event", NUMBERED, ids=lambda event: event.type)
def test_openai_types_accept_what_we_make(event: Event) -> None:
    if event.type in OURS_ALONE:
        assert event.type not in OPENAI
        return
    read = TypeAdapter(OPENAI[event.type]).validate_json(json.encode(event), strict=True)
    assert read.type == event.type
    assert read.sequence_number == event.sequence_number


def test_openai_types_refuse_usage_without_cache_write_tokens() -> None:
    event = next(event for event in NUMBERED if event.type == "response.completed")
    said = msgspec.json.decode(json.encode(event))
    del said["response"]["usage"]["input_tokens_details"]["cache_write_tokens"]
    with pytest.raises(ValueError, match="cache_write_tokens"):
        TypeAdapter(OPENAI[event.type]).validate_json(msgspec.json.encode(said))


def test_the_extensions_are_the_classes_that_openai_does_not_know() -> None:
    assert {kind for kind in events.BY_TYPE if kind not in OPENAI} == OURS_ALONE


def test_three_events_are_terminal() -> None:
    assert {event.type for event in SAMPLES if event.TERMINAL} == TERMINAL


def test_an_opaque_event_has_its_own_type() -> None:
    assert events.Opaque(name="vendor:x", raw=Raw(b"{}")).type == "vendor:x"


def _delta(text: str, **members: Any) -> events.OutputTextDelta:
    where: dict[str, Any] = {
        "item_id": "m",
        "output_index": 0,
        "content_index": 0,
        "sequence_number": 4,
    }
    return events.OutputTextDelta(delta=text, **(where | members))


def test_deltas_of_one_part_merge_under_the_first_number() -> None:
    one = _delta("a", logprobs=(Raw(b"1"),))
    both = events.merged(one, _delta("b", sequence_number=5, logprobs=(Raw(b"2"),)))
    assert both == _delta("ab", logprobs=(Raw(b"1"), Raw(b"2")))


@pytest.mark.parametrize(
    "second",
    [
        _delta("b", item_id="other"),
        _delta("b", output_index=1),
        _delta("b", content_index=1),
        events.RefusalDelta(item_id="m", output_index=0, content_index=0, delta="b"),
    ],
)
def test_deltas_of_different_parts_do_not_merge(second: Event) -> None:
    assert events.merged(_delta("a"), second) is None


def test_only_deltas_merge() -> None:
    done = events.OutputItemDone(output_index=0, item=MESSAGE)
    assert events.merged(done, done) is None


def test_every_delta_class_merges_with_its_like() -> None:
    merged = {type(event) for event in SAMPLES if events.merged(event, event) is not None}
    assert merged == events.MERGEABLE


def test_a_default_lane_and_a_connection_s_event_have_no_such_member() -> None:
    event = events.ResponseQueued(response=response())
    assert event.stream_id is UNSET
    assert b"stream_id" not in json.encode(event)
    assert b"sequence_number" not in json.encode(events.Heartbeat(phase="idle"))


def test_an_error_is_the_same_in_band() -> None:
    error = ApiError.of("queue_full", "Full.", param="input", retry_after=2.0)
    assert events.ErrorDetail.of(error, "evt-1") == events.ErrorDetail(
        type="rate_limit_error",
        code="queue_full",
        message="Full.",
        param="input",
        event_id="evt-1",
        retry_after=2.0,
    )
    assert events.ErrorDetail.of(ApiError.of("queue_full", "Full.")).event_id is UNSET
