"""The events of one connection as bytes: those of ``encode_event``, and what is built only once."""

from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from tests.support.event_samples import CALL, MESSAGE, NUMBERED, PART, TOOLS, USAGE, response
from tests.support.json_values import dumps
from tieline import events
from tieline.codecs import proto
from tieline.codecs.proto.encoder import _OWN_NAMES, _settings_of
from tieline.codecs.proto.frames import repeated
from tieline.codecs.proto.schema import EVENTS
from tieline.events import Event, LifecycleEvent
from tieline.responses import InputTokensDetails, Response, Usage
from tieline.v1.service_pb2 import ConverseResponse

OPAQUE: Final = events.Opaque(name="vendor:x", raw=Raw(b'{"type":"vendor:x"}'))


def same_events(encoded: bytes, given: list[Any]) -> None:
    """One message of these events, each as ``same_bytes`` has it."""
    cut = repeated(encoded)
    assert b"".join(cut) == encoded
    for raw, event in zip(cut, given, strict=True):
        same_bytes(raw, event)


def same_bytes(encoded: bytes, event: Event) -> None:
    """The bytes of ``encode_event`` up to the order of fields: as many, and one message."""
    whole = proto.encode_event(event)
    assert ConverseResponse.FromString(encoded) == ConverseResponse.FromString(whole)
    assert len(encoded) == len(whole)


def test_events_of_every_class_are_those_that_the_tables_make() -> None:
    encoder = proto.EventEncoder()
    for _ in range(2):
        for event in (*NUMBERED, OPAQUE):
            same_bytes(encoder.encode(event), event)


TEXTS: Final = st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.sampled_from(
    ["x" * 127, "\u00e9" * 64, "x" * 5000]
)
MEMBERS: Final[dict[str, st.SearchStrategy[Any]]] = {
    "sequence_number": st.sampled_from([UNSET, 0, 1, 127, 128, 4095, 4096, 2**31 - 1]),
    "stream_id": st.sampled_from([UNSET, UNSET, "", "lane.2"]),
    "event_id": st.sampled_from([UNSET, "", "evt-1"]),
    "warnings": st.sampled_from([UNSET, (), (events.RequestWarning(code="c", param="p"),)]),
    "response": st.builds(
        response,
        id=st.sampled_from(["", "resp_1"]),
        created_at=st.sampled_from([0, 1.5]),
        status=st.sampled_from([None, "completed"]),
        previous_response_id=st.sampled_from([None, "", "resp_0"]),
        usage=st.sampled_from([None, USAGE, Usage(), Usage(total_tokens=2**64)]),
        output=st.lists(st.sampled_from([MESSAGE, CALL]), max_size=2),
        temperature=st.sampled_from([None, 0.5]),
    ),
    "item_id": st.sampled_from(["m", "", "m" * 200]),
    "output_index": st.sampled_from([0, 1, 4096]),
    "content_index": st.sampled_from([0, 1]),
    "summary_index": st.sampled_from([0, 1]),
    "delta": TEXTS,
    "text": TEXTS,
    "refusal": TEXTS,
    "arguments": TEXTS,
    "input": TEXTS,
    "logprobs": st.sampled_from([(), (), (Raw(b'{"token":"a"}'),)]),
    "part": TEXTS.map(lambda text: Raw(dumps({**msgspec.json.decode(PART), "text": text}))),
    "item": TEXTS.map(lambda text: Raw(dumps({**msgspec.json.decode(CALL), "arguments": text}))),
}


@st.composite
def streams(draw: st.DrawFn) -> list[Event]:
    """Events as a connection sends them: of any class, mostly several of a class in a row."""
    given: list[Event] = []
    for event in draw(st.lists(st.sampled_from(NUMBERED), max_size=4)):
        for _ in range(draw(st.integers(1, 4))):
            fit = [name for name in event.__struct_fields__ if name in MEMBERS]
            names = draw(st.sets(st.sampled_from(fit), max_size=3))
            event = msgspec.structs.replace(event, **{name: draw(MEMBERS[name]) for name in names})
            given.append(event)
    return given


@given(streams())
def test_any_events_encoded_together_are_those_that_the_tables_make(given: list[Event]) -> None:
    encoder = proto.EventEncoder()
    for _ in range(2):
        same_events(encoder.encode_all(given), given)


DELTAS: Final = [event for event in NUMBERED if type(event) in events.MERGEABLE]
PLACE: Final = ("stream_id", "item_id", "output_index", "content_index", "summary_index")


@st.composite
def runs(draw: st.DrawFn) -> list[Event]:
    """Deltas that follow each other as an engine says them, other events and lanes in between."""
    given: list[Event] = []
    number = draw(st.sampled_from([0, 125, 4093, 16_381, 2**31 - 40]))
    for _ in range(draw(st.integers(1, 5))):
        event = draw(st.sampled_from(DELTAS))
        said = {name: draw(MEMBERS[name]) for name in PLACE if name in event.__struct_fields__}
        if draw(st.booleans()):
            # One that is equal to the last one's, and another object.
            said["item_id"] = said["item_id"].encode().decode()
        for text in draw(st.lists(TEXTS, min_size=1, max_size=6)):
            given.append(msgspec.structs.replace(event, sequence_number=number, delta=text, **said))
            number += 1
        given += draw(st.lists(st.sampled_from(NUMBERED), max_size=1))
    return given


@given(runs(), st.integers(1, 9))
def test_runs_of_deltas_cut_anywhere_are_those_that_the_tables_make(
    given: list[Event], size: int
) -> None:
    encoder = proto.EventEncoder()
    whole = proto.EventEncoder().encode_all(given)
    cut = [given[start : start + size] for start in range(0, len(given), size)]
    for _ in range(2):
        encoded = b"".join(encoder.encode_all(some) for some in cut)
        same_events(encoded, given)
        assert encoded == whole


def test_parts_that_differ_in_one_index_alone_are_told_apart() -> None:
    content = events.ReasoningTextDelta(item_id="m", output_index=0, content_index=0, delta="a")
    summary = events.ReasoningSummaryTextDelta(
        item_id="m", output_index=0, summary_index=0, delta="a"
    )
    call = events.FunctionCallArgumentsDelta(item_id="m", output_index=0, delta="a")
    for event, name in [
        (content, "content_index"),
        (content, "output_index"),
        (summary, "summary_index"),
        (summary, "output_index"),
        (call, "output_index"),
    ]:
        other = msgspec.structs.replace(event, **{name: 1})
        given = [event, event, other, other, event, msgspec.structs.replace(event, stream_id="b")]
        same_events(proto.EventEncoder().encode_all(given), given)


def test_text_that_is_no_unicode_is_refused_and_what_comes_after_it_is_not() -> None:
    encoder = proto.EventEncoder()
    event = _delta(1, "a", item_id="m")
    with pytest.raises(UnicodeEncodeError):
        encoder.encode_all([event, _delta(2, "\ud800", item_id="m")])
    same_events(encoder.encode_all([event, event]), [event, event])


def test_events_that_say_where_they_belong_agree_on_its_fields() -> None:
    numbers = {"item_id": 1, "output_index": 2, "content_index": 3, "summary_index": 3}
    for arm in EVENTS.values():
        fields = arm.spec.descriptor.fields_by_name
        if "item_id" in fields:
            said = {name: fields[name].number for name in numbers if name in fields}
            assert said.items() <= numbers.items()


@pytest.mark.parametrize(
    "usage",
    [
        USAGE,
        Usage(),
        Usage(input_tokens=2**64 - 1, output_tokens=4096, total_tokens=128),
        Usage(input_tokens=2**64, total_tokens=5),
        Usage(input_tokens_details=InputTokensDetails(cache_write_tokens=-1)),
    ],
)
def test_a_usage_is_written_as_the_tables_write_it(usage: Usage) -> None:
    done = response(status="completed", completed_at=0.5, usage=usage)
    for event in (
        events.ResponseCompleted(response=done, sequence_number=2),
        events.ResponseDone(response=msgspec.structs.replace(done, status=None, id="")),
    ):
        same_bytes(proto.EventEncoder().encode(event), event)


@pytest.mark.parametrize("wrong", [-1, 2**64])
def test_a_number_that_protobuf_cannot_say_is_not_sent_as_another(wrong: int) -> None:
    with pytest.raises(ValueError, match="varint"):
        proto.EventEncoder().encode(_delta(wrong, "a", item_id="m"))


def test_a_run_of_deltas_is_counted_as_the_same_deltas_one_by_one() -> None:
    run = [_delta(number, "four", item_id="msg_1") for number in range(20)]
    together, single = proto.EventEncoder(), proto.EventEncoder()
    assert together.encode_all(run) == b"".join(single.encode(event) for event in run)
    assert together.work == single.work
    assert 80 <= together.work <= 100


def test_what_is_remembered_of_parts_is_bounded() -> None:
    encoder = proto.EventEncoder()
    for number in range(3000):
        part = Raw(dumps({"type": "output_text", "text": "x" * (number % 7 * 100) + str(number)}))
        encoder.encode_all(
            [
                _delta(number, "x" * number, item_id="m"),
                _delta(number, "x", item_id=str(number), stream_id=f"lane{number}"),
                events.ContentPartDone(item_id="m", output_index=0, content_index=0, part=part),
            ]
        )
    assert len(encoder._contents) <= 64
    assert max(map(len, encoder._contents)) <= 256
    assert len(encoder._parts) <= 64 * len(events.MERGEABLE)
    assert len(encoder._fronts) <= 64
    kept = [*encoder._fronts.values(), *(part.fronts for part in encoder._parts.values())]
    assert max(map(len, kept)) <= 256


def test_whether_settings_are_the_same_is_told_by_every_member_but_a_responses_own() -> None:
    said = Response()
    marks = {name: object() for name in Response.__struct_fields__}
    for name, mark in marks.items():
        msgspec.structs.force_setattr(said, name, mark)
    own = {*_OWN_NAMES, "object", "output"}
    told = _settings_of(said)
    assert {id(mark) for mark in told} == {id(marks[name]) for name in marks.keys() - own}


def _turn(number: int, tools: Raw, lane: str) -> list[LifecycleEvent]:
    whole = response(id=f"resp_{number}", tools=tools)
    done = msgspec.structs.replace(whole, status="completed", output=[MESSAGE, CALL], usage=USAGE)
    return [
        events.ResponseCreated(response=whole, sequence_number=0, stream_id=lane),
        events.ResponseInProgress(response=whole, sequence_number=1, stream_id=lane),
        events.ResponseCompleted(response=done, sequence_number=2, stream_id=lane),
    ]


def _delta(number: int, text: str, **members: Any) -> events.OutputTextDelta:
    return events.OutputTextDelta(
        sequence_number=number, output_index=0, content_index=0, delta=text, **members
    )


def test_deltas_of_all_sizes_numbers_parts_and_lanes_are_framed_rightly() -> None:
    encoder = proto.EventEncoder()
    for number in (0, 1, 127, 128, 4095, 4096, 16384, 2**31 - 1):
        for size in (0, 1, 100, 127, 128, 5000, 70_000):
            for item_id, lane in (("m", UNSET), ("m" * 200, UNSET), ("m", "lane.2")):
                event = _delta(number, "é" * size, item_id=item_id, stream_id=lane)
                (message,) = ConverseResponse.FromString(encoder.encode(event)).events
                assert proto.decode_event(message) == event


def test_a_delta_with_logprobs_or_without_a_number_keeps_them() -> None:
    encoder = proto.EventEncoder()
    event = _delta(1, "a", item_id="m")
    for odd in (
        msgspec.structs.replace(event, logprobs=[Raw(b'{"token":"a"}')]),
        msgspec.structs.replace(event, sequence_number=UNSET),
    ):
        same_events(encoder.encode_all([event, odd, event]), [event, odd, event])


def test_the_logprobs_of_a_whole_text_are_kept() -> None:
    event = events.OutputTextDone(
        item_id="m", output_index=0, content_index=0, text="a", logprobs=(Raw(b'{"token":"a"}'),)
    )
    same_bytes(proto.EventEncoder().encode(event), event)


def test_settings_that_are_echoed_again_are_built_once_for_all_lanes() -> None:
    encoder = proto.EventEncoder()
    tools = Raw(b"[" + b",".join([bytes(TOOLS)[1:-1]] * 100) + b"]")
    works = []
    for number in range(40):
        before = encoder.work
        for event in _turn(number, Raw(bytes(tools)), f"lane{number % 4}"):
            assert len(encoder.encode(event)) > 10_000
        works.append(encoder.work - before)
    assert works[0] > 10_000
    assert max(works[1:]) < 1_500
    assert works[39] == works[10]


def test_an_output_item_is_built_once_for_its_event_and_the_terminal_one() -> None:
    encoder = proto.EventEncoder()
    item = Raw(dumps({"type": "message", "role": "assistant", "id": "m", "content": "x" * 5000}))
    encoder.encode(events.OutputItemDone(output_index=0, item=item, sequence_number=1))
    before = encoder.work
    done = response(output=[item], status="completed", tools=Raw(b"[]"))
    encoder.encode(events.ResponseCompleted(response=done, sequence_number=2))
    assert encoder.work - before < 1_000


def test_output_items_are_forgotten_when_their_turn_ends_and_in_a_flood() -> None:
    encoder = proto.EventEncoder()
    for event in _turn(1, TOOLS, "a"):
        encoder.encode(event)
    assert not encoder._items
    for number in range(3000):
        item = Raw(dumps({"type": "item_reference", "id": str(number)}))
        encoder.encode(events.OutputItemDone(output_index=0, item=item, sequence_number=1))
    assert len(encoder._items) <= 1024
