"""From deltas to events: the order of wire.md 3.2, and what stays in the chain."""

import itertools
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from tieline import events
from tieline.items import decode
from tieline_server.core.deltas import (
    Annotation,
    CallDelta,
    CallStart,
    Delta,
    ItemEnd,
    Phase,
    ReasoningDelta,
    RefusalDelta,
    SummaryDelta,
    TextDelta,
    WholeItem,
)
from tieline_server.core.stream.outbox import Outbox, Outgoing
from tieline_server.core.stream.output import Output


class Written:
    """An output and the events it has made."""

    def __init__(self, *step: Delta) -> None:
        numbers = itertools.count()
        self._outgoing = Outgoing(merge_from=None, wake=lambda: None)
        self._taken: list[events.Event] = []
        self.output = Output(
            Outbox(self._outgoing, None), lambda prefix: f"{prefix}{next(numbers)}"
        )
        self.output.feed(step)

    def end(self, status: str = "completed") -> "Written":
        self.output.close(status)
        return self

    @property
    def types(self) -> list[str]:
        return [event.type.removeprefix("response.") for event in self.events]

    def only(self, kind: type[events.Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def items(self) -> list[dict[str, Any]]:
        """The whole items, as a client reads them."""
        return [msgspec.json.decode(raw) for raw in self.output.raws]

    @property
    def events(self) -> list[Any]:
        self._taken += self._outgoing.take(1000)
        return self._taken


FUNCTION = CallStart(kind="function_call", name="look")
CUSTOM = CallStart(kind="custom_tool_call", name="sh")


SEARCH = decode(b'{"type":"web_search_call","id":"ws_1","action":{"query":"q"}}')
NOTE = Raw(b'{"type":"url_citation","url":"http://a/"}')


def test_an_item_that_comes_whole_has_its_place_and_goes_into_the_chain_as_it_is() -> None:
    written = Written(TextDelta("a"), WholeItem(SEARCH), TextDelta("b")).end()
    added = [event.output_index for event in written.only(events.OutputItemAdded)]
    done = [event.output_index for event in written.only(events.OutputItemDone)]
    assert added == done == [0, 1, 2]
    assert [item["type"] for item in written.items] == ["message", "web_search_call", "message"]
    assert bytes(written.output.raws[1]) == SEARCH.raw
    assert written.output.take_kept()[1] is SEARCH


def test_where_the_union_of_items_is_closed_one_that_comes_whole_is_left_out() -> None:
    written = Written(TextDelta("a"))
    written.output.foreign = False
    written.output.feed([WholeItem(SEARCH), TextDelta("b")])
    assert [item["type"] for item in written.end().items] == ["message", "message"]
    assert len(written.output.take_kept()) == 2


SEARCHING = CallStart(kind="tool_search_call", name="tool_search")


@pytest.mark.parametrize(
    ("pieces", "arguments"),
    [
        (['{"query":', '"a"}'], {"query": "a"}),
        ([r'{"query":"a\ud83d"}'], {"query": "a\ufffd"}),
        (["[1]"], {}),
        (["{"], {}),
        ([], {}),
    ],
)
def test_up_07_a_search_for_tools_is_told_whole_at_its_end_with_an_object(
    pieces: list[str], arguments: dict[str, Any]
) -> None:
    written = Written(SEARCHING, *map(CallDelta, pieces), ItemEnd()).end()
    (added,), (done,) = written.only(events.OutputItemAdded), written.only(events.OutputItemDone)
    first, last = (msgspec.json.decode(each.item) for each in (added, done))
    assert first == {**last, "status": "in_progress", "arguments": {}}
    assert last.pop("id").startswith("tsc_")
    assert last == {
        "type": "tool_search_call",
        "status": "completed",
        "call_id": written.output.kept[0].opens,
        "execution": "client",
        "arguments": arguments,
    }
    assert written.output.has_open_calls


def test_up_01_a_message_has_the_phase_that_was_told_before_its_text_or_with_its_end() -> None:
    deltas = (Phase("commentary"), TextDelta("a"), ItemEnd(), TextDelta("b"))
    written = Written(*deltas, Phase("final_answer"), ItemEnd(), TextDelta("c")).end()
    added = [msgspec.json.decode(each.item) for each in written.only(events.OutputItemAdded)]
    assert [each.get("phase") for each in added] == ["commentary", None, None]
    phases = [each.get("phase") for each in written.items]
    assert phases == ["commentary", "final_answer", None]


def test_an_item_that_comes_whole_begins_one_of_its_own() -> None:
    assert Written(TextDelta("a")).output.begins_an_item(WholeItem(SEARCH))


def test_annotations_are_told_where_they_stand_and_are_part_of_the_text() -> None:
    written = Written(TextDelta("a"), Annotation(NOTE), Annotation(NOTE), ItemEnd(), TextDelta("b"))
    notes = written.end().only(events.OutputTextAnnotationAdded)
    assert [(note.output_index, note.content_index, note.annotation_index) for note in notes] == [
        (0, 0, 0),
        (0, 0, 1),
    ]
    assert [bytes(note.annotation) for note in notes] == [bytes(NOTE)] * 2
    first, second = (item["content"][0]["annotations"] for item in written.items)
    assert first == [msgspec.json.decode(NOTE)] * 2
    assert second == []


@pytest.mark.parametrize(
    ("first", "more"),
    [
        (TextDelta("a"), TextDelta("b")),
        (RefusalDelta("a"), RefusalDelta("b")),
        (ReasoningDelta("a"), ReasoningDelta("b")),
        (SummaryDelta("a"), SummaryDelta("b")),
        (FUNCTION, CallDelta("b")),
        (CUSTOM, CallDelta("b")),
    ],
)
def test_to_grow_by_one_piece_is_to_feed_it(first: Delta, more: Delta) -> None:
    grown = Written(first)
    assert grown.output.grow(more)
    fed = Written(first, more)
    assert grown.end().events == fed.end().events
    assert grown.items == fed.items


@pytest.mark.parametrize(
    ("before", "other"),
    [
        ((), TextDelta("a")),
        ((TextDelta("a"),), TextDelta("")),
        ((TextDelta("a"),), TextDelta("b", 1, (Raw(b"{}"),))),
        ((TextDelta("a"),), RefusalDelta("b")),
        ((TextDelta("a"),), ReasoningDelta("b")),
        ((SummaryDelta("a"),), ReasoningDelta("b")),
        ((TextDelta("a"),), FUNCTION),
        ((TextDelta("a"), ItemEnd()), TextDelta("b")),
        ((FUNCTION, CallDelta("a")), TextDelta("b")),
    ],
)
def test_what_begins_or_says_anything_else_does_not_grow(
    before: tuple[Delta, ...], other: Delta
) -> None:
    written = Written(*before)
    made = len(written.events)
    assert not written.output.grow(other)
    assert len(written.events) == made


CUSTOM = CallStart(kind="custom_tool_call", name="patch", namespace="n")


class TestOrder:
    def test_text(self) -> None:
        assert Written(TextDelta("a"), TextDelta("b")).end().types == [
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
        ]

    def test_refusal_after_text_is_a_second_part_of_the_same_message(self) -> None:
        written = Written(TextDelta("a"), RefusalDelta("no")).end()
        assert written.types == [
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "content_part.added",
            "refusal.delta",
            "refusal.done",
            "content_part.done",
            "output_item.done",
        ]
        assert [event.content_index for event in written.only(events.ContentPartAdded)] == [0, 1]
        assert [part["type"] for part in written.items[0]["content"]] == ["output_text", "refusal"]

    def test_reasoning_with_raw_text(self) -> None:
        assert Written(ReasoningDelta("hm")).end().types == [
            "output_item.added",
            "content_part.added",
            "reasoning_text.delta",
            "reasoning_text.done",
            "content_part.done",
            "output_item.done",
        ]

    def test_reasoning_with_a_summary(self) -> None:
        written = Written(SummaryDelta("in "), SummaryDelta("short")).end()
        assert written.types == [
            "output_item.added",
            "reasoning_summary_part.added",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.done",
            "reasoning_summary_part.done",
            "output_item.done",
        ]
        assert written.items[0]["summary"] == [{"type": "summary_text", "text": "in short"}]

    def test_thought_and_summary_are_one_item(self) -> None:
        written = Written(ReasoningDelta("hm"), SummaryDelta("s"), ReasoningDelta("ah")).end()
        (item,) = written.items
        assert [part["text"] for part in item["content"]] == ["hm", "ah"]
        assert [part["text"] for part in item["summary"]] == ["s"]
        deltas = written.only(events.ReasoningTextDelta)
        assert [event.content_index for event in deltas] == [0, 1]

    def test_function_call(self) -> None:
        written = Written(FUNCTION, CallDelta('{"a"'), CallDelta(":1}")).end()
        assert written.types == [
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
        ]
        (item,) = written.items
        assert item["arguments"] == '{"a":1}'
        assert (item["name"], item["status"]) == ("look", "completed")
        assert item["id"].startswith("fc_")
        assert item["call_id"].startswith("call_")

    def test_custom_tool_call(self) -> None:
        written = Written(CUSTOM, CallDelta("*** begin")).end()
        assert written.types == [
            "output_item.added",
            "custom_tool_call_input.delta",
            "custom_tool_call_input.done",
            "output_item.done",
        ]
        (item,) = written.items
        assert (item["input"], item["namespace"]) == ("*** begin", "n")
        assert item["id"].startswith("ctc_")

    def test_a_call_without_arguments_still_has_its_done(self) -> None:
        assert Written(FUNCTION).end().types == [
            "output_item.added",
            "function_call_arguments.done",
            "output_item.done",
        ]

    def test_a_change_of_kind_closes_the_item_before_it(self) -> None:
        written = Written(ReasoningDelta("hm"), TextDelta("a"), FUNCTION, FUNCTION).end()
        done = written.only(events.OutputItemDone)
        assert [event.output_index for event in done] == [0, 1, 2, 3]
        kinds = ["reasoning", "message", "function_call", "function_call"]
        assert [item["type"] for item in written.items] == kinds
        added = [index for index, name in enumerate(written.types) if name == "output_item.added"]
        ended = [index for index, name in enumerate(written.types) if name == "output_item.done"]
        assert all(end < begin for end, begin in zip(ended, added[1:], strict=False))

    @pytest.mark.parametrize("first", [FUNCTION, CUSTOM, TextDelta("a")])
    def test_sc_16_an_item_that_ends_incomplete_says_so_and_stays_in_the_chain(
        self, first: Delta
    ) -> None:
        more = [CallDelta("{}")] if isinstance(first, CallStart) else []
        written = Written(first, *more, ItemEnd(incomplete=True), TextDelta("b")).end()
        assert [item["status"] for item in written.items] == ["incomplete", "completed"]
        kept = written.output.take_kept()
        assert len(kept) == 2
        assert (kept[0].opens is not None) is isinstance(first, CallStart)

    def test_sc_16_a_call_that_ends_incomplete_is_not_in_the_chain_of_a_cut_response(self) -> None:
        """Its client sees two incomplete calls there, and cannot tell them apart."""
        call: list[Delta] = [FUNCTION, CallDelta("{}")]
        said: list[Delta] = [TextDelta("a"), ItemEnd(incomplete=True), *call, ItemEnd(), *call]
        output = Written(*said, ItemEnd(incomplete=True), *call).output
        output.cut()
        states = [msgspec.json.decode(raw)["status"] for raw in output.raws]
        assert states == ["incomplete", "completed", "incomplete", "incomplete"]
        assert [item.id for item in output.take_kept()] == [each.id for each in output.done[:2]]

    def test_an_item_end_parts_two_messages(self) -> None:
        written = Written(TextDelta("a"), ItemEnd(), TextDelta("b")).end()
        assert [item["content"][0]["text"] for item in written.items] == ["a", "b"]

    def test_empty_text_says_nothing(self) -> None:
        nothing: list[Delta] = [
            TextDelta(""),
            RefusalDelta(""),
            ReasoningDelta(""),
            SummaryDelta(""),
            ItemEnd(),
        ]
        assert Written(*nothing).end().events == []


class TestBytes:
    def test_an_item_starts_empty_and_in_progress(self) -> None:
        written = Written(TextDelta("a"), FUNCTION)
        starts = [msgspec.json.decode(event.item) for event in written.only(events.OutputItemAdded)]
        assert [start["status"] for start in starts] == ["in_progress", "in_progress"]
        assert (starts[0]["content"], starts[1]["arguments"]) == ([], "")

    def test_a_text_part_has_annotations_and_logprobs(self) -> None:
        token = Raw(b'{"token":"a","logprob":-0.5}')
        written = Written(TextDelta("a", logprobs=(token,))).end()
        (start,) = written.only(events.ContentPartAdded)
        assert msgspec.json.decode(start.part) == {
            "type": "output_text",
            "text": "",
            "annotations": [],
            "logprobs": [],
        }
        (part,) = written.items[0]["content"]
        assert part["logprobs"] == [msgspec.json.decode(token)]
        (done,) = written.only(events.OutputTextDone)
        assert done.logprobs == (token,)

    def test_the_event_the_snapshot_and_the_chain_share_the_very_bytes(self) -> None:
        written = Written(TextDelta("a"), FUNCTION, CallDelta("{}")).end()
        events_of_end = written.only(events.OutputItemDone)
        kept = written.output.take_kept()
        for event, raw, item in zip(events_of_end, written.output.raws, kept, strict=True):
            assert bytes(event.item) == bytes(raw) == item.raw

    def test_ids_are_the_same_from_the_first_to_the_last_event_of_an_item(self) -> None:
        written = Written(TextDelta("a"), FUNCTION, CallDelta("{}")).end()
        for index, item in enumerate(written.items):
            own = [event for event in written.events if getattr(event, "output_index", 0) == index]
            named = {event.item_id for event in own if hasattr(event, "item_id")}
            assert named == {item["id"]}


class TestSealed:
    def written(self, status: str = "completed") -> "Written":
        written = Written()
        written.output.seal = lambda content: f"sealed {len(content)}"
        written.output.feed([ReasoningDelta("deep")])
        return written.end(status)

    def test_a_whole_thought_is_sealed_in_its_done_and_not_before(self) -> None:
        written = self.written()
        added, done = written.events[0], written.events[-1]
        assert isinstance(added, events.OutputItemAdded)
        assert isinstance(done, events.OutputItemDone)
        assert msgspec.json.decode(added.item)["encrypted_content"] is None
        assert msgspec.json.decode(done.item)["encrypted_content"].startswith("sealed ")
        assert written.output.raws == [done.item]

    def test_the_chain_has_it_open(self) -> None:
        (kept,) = self.written().output.kept
        assert kept.opened is not None
        assert [b"deep" in item.raw for item in kept.opened.items] == [True]

    def test_half_a_thought_is_not_sealed(self) -> None:
        done = self.written("incomplete").events[-1]
        assert isinstance(done, events.OutputItemDone)
        assert msgspec.json.decode(done.item)["encrypted_content"] is None

    def test_an_item_from_elsewhere_is_added_and_done_at_once(self) -> None:
        written = Written(TextDelta("a")).end()
        item = decode(b'{"type":"compaction","id":"cmp_1","encrypted_content":"x"}')
        written.output.add(item)
        added, done = written.events[-2:]
        assert isinstance(added, events.OutputItemAdded)
        assert isinstance(done, events.OutputItemDone)
        assert added.output_index == done.output_index == 1
        assert bytes(added.item) == bytes(done.item) == item.raw
        assert len(written.output.kept) == 1, "its link is made elsewhere"


class TestChain:
    def test_of_a_cut_response_the_message_stays(self) -> None:
        written = Written(TextDelta("half")).end("incomplete")
        (kept,) = written.output.take_kept()
        assert msgspec.json.decode(kept.raw)["status"] == "incomplete"

    @pytest.mark.parametrize(
        "step", [[FUNCTION, CallDelta('{"a')], [CUSTOM], [ReasoningDelta("h")]]
    )
    def test_of_a_cut_response_half_a_call_or_thought_does_not(self, step: list[Delta]) -> None:
        written = Written(*step).end("incomplete")
        assert written.output.take_kept() == ()
        assert written.items[0]["status"] == "incomplete", "the client sees it all the same"
        assert written.types[-1] == "output_item.done"

    def test_what_was_whole_before_the_cut_stays(self) -> None:
        written = Written(FUNCTION, CallDelta("{}"), FUNCTION, CallDelta("{")).end("incomplete")
        assert [item.type for item in written.output.take_kept()] == ["function_call"]
        assert len(written.items) == 2

    def test_kept_items_are_taken_once(self) -> None:
        written = Written(TextDelta("a"), ItemEnd(), TextDelta("b")).end()
        assert len(written.output.take_kept()) == 2
        assert written.output.take_kept() == ()
        assert len(written.output.done) == 2

    def test_open_calls_are_seen_before_and_after_they_are_whole(self) -> None:
        written = Written(TextDelta("a"))
        assert not written.output.has_open_calls
        written.output.feed([FUNCTION])
        assert written.output.has_open_calls
        written.end()
        assert written.output.has_open_calls
        written.output.take_kept()
        assert not written.output.has_open_calls

    def test_closing_nothing_says_nothing(self) -> None:
        assert Written().end().events == []


class TestBeginsAnItem:
    @pytest.mark.parametrize(
        ("first", "delta", "expected"),
        [
            (TextDelta("a"), TextDelta("b"), False),
            (TextDelta("a"), RefusalDelta("b"), False),
            (TextDelta("a"), ReasoningDelta("b"), True),
            (TextDelta("a"), ReasoningDelta(""), False),
            (TextDelta("a"), FUNCTION, True),
            (TextDelta("a"), ItemEnd(), False),
            (ReasoningDelta("a"), SummaryDelta("b"), False),
            (FUNCTION, CallDelta("b"), False),
            (FUNCTION, FUNCTION, True),
            (FUNCTION, TextDelta("b"), True),
        ],
    )
    def test_it_tells_beforehand_what_would_begin_another_item(
        self, first: Delta, delta: Delta, expected: bool
    ) -> None:
        written = Written(first)
        assert written.output.begins_an_item(delta) is expected

    def test_between_items_only_what_has_an_item_begins_one(self) -> None:
        written = Written(TextDelta("a"), ItemEnd())
        assert written.output.begins_an_item(TextDelta("b"))
        assert not written.output.begins_an_item(ItemEnd())

    def test_the_first_delta_of_a_response_begins_one(self) -> None:
        assert Written().output.begins_an_item(TextDelta("a"))
        assert not Written().output.begins_an_item(TextDelta(""))
