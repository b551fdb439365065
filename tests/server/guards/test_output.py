"""What leaves the gate of an answer, when, and with which tokens."""

from collections.abc import Sequence

import pytest
from msgspec import Raw

from tieline.items import decode
from tieline_server.core.create.tools import Tool
from tieline_server.core.deltas import (
    Accepted,
    Annotation,
    CallDelta,
    CallStart,
    Delta,
    Finish,
    ItemEnd,
    Phase,
    ReasoningDelta,
    RefusalDelta,
    SummaryDelta,
    TextDelta,
    UsageCounter,
    WholeItem,
)
from tieline_server.guards.base import Counts, Spent
from tieline_server.guards.held import Asked
from tieline_server.guards.output import Gate, Watcher
from tieline_server.guards.pattern import PatternGuard

CALL = CallStart(kind="function_call", name="f")
CUSTOM = CallStart(kind="custom_tool_call", name="c")
ASKED = Asked(tools=(Tool(type="function", name="f"), Tool(type="custom", name="c")))


def gate(*patterns: str, counts: Counts | None = None, asked: Asked = ASKED) -> Gate:
    """One guard for each pattern."""
    guards = [PatternGuard(f"g{at}", [each]) for at, each in enumerate(patterns)]
    watchers = [Watcher(guard, guard.name) for guard in guards]
    return Gate(watchers, counts or Counts(), Spent(), asked=asked)


def through(some: Gate, *steps: Sequence[Delta]) -> list[Delta]:
    """All that leaves, up to a hit."""
    out: list[Delta] = []
    for step in steps:
        if not some.hit:
            out += some.take(step)
    return out


def seen(out: Sequence[Delta]) -> list[Delta]:
    """What leaves, less what stands for tokens alone."""
    return [delta for delta in out if getattr(delta, "text", " ")]


def used(out: Sequence[Delta]) -> tuple[int, int]:
    """Output and reasoning tokens, as a turn counts them."""
    tally = UsageCounter()
    tally.count([delta for delta in out if not isinstance(delta, Accepted | Finish)])
    usage = tally.usage(None)
    return usage.output_tokens, usage.output_tokens_details.reasoning_tokens


def test_text_streams_as_far_as_no_match_can_reach_and_ends_whole() -> None:
    some = gate("abc")
    assert seen(some.take([TextDelta("one ")])) == []
    assert seen(some.take([TextDelta("two ")])) == [TextDelta("one ", 1)]
    assert seen(some.take([TextDelta("x"), TextDelta("y")])) == [TextDelta("two ", 0)]
    assert seen(some.take([Finish()])) == [TextDelta("x", 0), TextDelta("y", 0), Finish()]


def test_tokens_are_counted_when_they_come_whether_their_text_leaves_or_not() -> None:
    some = gate("abc")
    assert used(some.take([Accepted(input_tokens=9), TextDelta("a", 3)])) == (3, 0)
    out = some.take([ReasoningDelta("hm", 2), CALL, CallDelta("{}", 4), ItemEnd(tokens=1)])
    assert used(out) == (7, 2)
    assert used(some.take([Finish()])) == (0, 0)


def test_a_hit_ends_the_answer_before_it_and_says_so_with_all_that_was_sampled() -> None:
    counts = Counts()
    some = gate("bad", counts=counts)
    out = through(
        some,
        [Accepted(), TextDelta("so ")],
        [TextDelta("b", 1)],
        [TextDelta("a", 2), TextDelta("d it", 3), ReasoningDelta("later", 4), Finish()],
    )
    assert [delta.text for delta in seen(out) if isinstance(delta, TextDelta)] == ["so "]
    assert out[-1] == Finish(reason="content_filter")
    assert used(out) == (11, 4)
    assert some.hit
    assert counts.hits == {("g0", "output"): 1}


def test_a_hit_in_the_last_step_keeps_what_the_engine_states() -> None:
    stated = Finish(input_tokens=3, output_tokens=50, phases={"decode": 7})
    out = through(gate("bad"), [Accepted(), TextDelta("bad")], [stated])
    assert out[-1] == Finish(reason="content_filter")
    out = through(gate(r"\bbad\b"), [Accepted(), TextDelta("bad")], [stated])
    assert out[-1] == Finish(
        reason="content_filter", input_tokens=3, output_tokens=50, phases={"decode": 7}
    )


@pytest.mark.parametrize("kind", [TextDelta, RefusalDelta, ReasoningDelta, SummaryDelta])
def test_each_kind_of_text_is_read(kind: type[TextDelta]) -> None:
    out = through(gate("bad"), [Accepted()], [kind("b"), kind("a")], [kind("d")], [Finish()])
    assert seen(out) == [Accepted(), Finish(reason="content_filter")]


@pytest.mark.parametrize("start", [CALL, CUSTOM])
def test_the_arguments_and_the_input_of_a_call_are_read(start: CallStart) -> None:
    pieces = [CallDelta(each) for each in ('{"q":"', "b", "a", "d", '"}')]
    out = through(gate("bad"), [start], *([each] for each in pieces), [Finish()])
    assert seen(out) == [start, CallDelta('{"q":"'), Finish(reason="content_filter")]


def test_escapes_count_in_the_arguments_of_a_function_alone() -> None:
    text = CallDelta(r'{"q":"b\u0061d"}')
    out = through(gate("bad"), [CALL, text, Finish()])
    assert seen(out) == [CALL, CallDelta('{"q":"', 0), Finish(reason="content_filter")]
    out = through(gate("bad"), [CUSTOM, text, Finish()])
    assert seen(out) == [CUSTOM, CallDelta(text.text, 0), Finish()]


def test_a_match_is_of_one_part_and_what_is_held_leaves_where_the_part_ends() -> None:
    some = gate("bad")
    assert seen(some.take([TextDelta("ba")])) == []
    assert seen(some.take([ItemEnd()])) == [TextDelta("ba", 0), ItemEnd()]
    assert seen(some.take([TextDelta("d"), RefusalDelta("ba")])) == [TextDelta("d", 0)]
    out = some.take([CUSTOM, CallDelta("d"), ReasoningDelta("b"), SummaryDelta("ad"), Finish()])
    assert seen(out) == [
        RefusalDelta("ba", 0),
        CUSTOM,
        CallDelta("d", 0),
        ReasoningDelta("b", 0),
        SummaryDelta("ad"),
        Finish(),
    ]


def test_logprobs_leave_with_their_text_and_never_with_half_of_it() -> None:
    logprob = (Raw(b'{"token":"x"}'),)
    out = through(gate("bad"), [TextDelta("one", 1, logprob), TextDelta("tbad", 1, logprob)])
    assert seen(out) == [
        TextDelta("one", 0, logprob),
        TextDelta("t", 0),
        Finish(reason="content_filter"),
    ]


def test_of_several_guards_the_slowest_says_what_leaves_and_the_first_hit_where_it_ends() -> None:
    some = gate("abc", "a.{8}z")
    assert seen(some.take([TextDelta("12345")])) == []
    assert seen(some.take([TextDelta("67890")])) == []
    assert seen(some.take([TextDelta("1234", 2)])) == [TextDelta("12345", 2)]
    out = through(gate("later", "bad"), [TextDelta("so bad later")])
    assert seen(out) == [TextDelta("so ", 0), Finish(reason="content_filter")]


def test_a_part_counts_as_one_piece_however_many_tokens_it_has() -> None:
    counts = Counts()
    some = gate("abc", counts=counts)
    through(some, *([TextDelta("word ")] for _ in range(50)), [ItemEnd(), TextDelta("a"), Finish()])
    assert counts.checks == {("g0", "output"): 2}
    assert counts.seconds["g0", "output"] > 0


def test_the_name_of_a_call_is_read_where_it_is_not_one_that_the_client_offered() -> None:
    foreign = CallStart(kind="function_call", name="f", namespace="so bad")
    out = through(gate("bad"), [TextDelta("a"), foreign, CallDelta("{}"), Finish()])
    assert seen(out) == [TextDelta("a", 0), Finish(reason="content_filter")]
    own = CallStart(kind="function_call", name="bad")
    offered = Asked(tools=(Tool(type="function", name="bad"),))
    out = through(gate("bad", asked=offered), [own, CallDelta("{}"), Finish()])
    assert seen(out) == [own, CallDelta("{}", 0), Finish()]


@pytest.mark.parametrize("text", ["so bad", r"so b\u0061d"])
def test_items_and_annotations_that_come_whole_are_read_too(text: str) -> None:
    whole = WholeItem(decode(b'{"type":"web_search_call","query":"%b"}' % text.encode()))
    note = Annotation(Raw(b'{"type":"url_citation","title":"%b"}' % text.encode()))
    for mark in (whole, note):
        out = through(gate("bad"), [TextDelta("a"), mark, Finish()])
        assert seen(out) == [TextDelta("a", 0), Finish(reason="content_filter")]
        assert seen(through(gate("other"), [mark, Finish()])) == [mark, Finish()]


def test_so_is_the_phase_of_a_message_which_is_a_word_of_an_upstreams() -> None:
    said: list[Delta] = [Phase("bad"), TextDelta("a"), Finish()]
    assert seen(through(gate("bad"), said)) == [Finish(reason="content_filter")]
    assert Phase("bad") in seen(through(gate("other"), said))


def test_escapes_count_in_text_that_is_to_be_json() -> None:
    text = TextDelta(r'{"q":"b\u0061d"}')
    out = through(gate("bad", asked=Asked(json=True)), [text], [Finish()])
    assert seen(out) == [TextDelta('{"q":"', 0), Finish(reason="content_filter")]
    assert seen(through(gate("bad"), [text], [Finish()]))[-1] == Finish()
