"""What is held of a part, and what leaves of it."""

from msgspec import Raw

from tieline_server.core.deltas import (
    Accepted,
    CallDelta,
    CallStart,
    Delta,
    Finish,
    ItemEnd,
    ReasoningDelta,
    TextDelta,
)
from tieline_server.guards.held import Held, bare, bare_mark, counts_of

LOGPROB = Raw(b'{"token":"two"}')


def held() -> Held:
    made = Held()
    for delta in (TextDelta("one"), TextDelta("two", 1, (LOGPROB,)), TextDelta("three")):
        made.add(delta)
    return made


def test_deltas_leave_whole_and_with_their_logprobs() -> None:
    out: list[Delta] = []
    some = held()
    some.release(2, out)
    assert out == []
    some.release(7, out)
    assert out == [TextDelta("one", 0), TextDelta("two", 0, (LOGPROB,))]
    some.release(11, out)
    assert out[2:] == [TextDelta("three", 0)]


def test_a_cut_lets_go_what_stands_before_it_and_nothing_later() -> None:
    out: list[Delta] = []
    some = held()
    some.cut(5, out)
    assert out == [TextDelta("one", 0), TextDelta("tw", 0)]
    some.release(100, out)
    assert len(out) == 2


def test_a_cut_between_two_deltas_splits_none() -> None:
    out: list[Delta] = []
    held().cut(3, out)
    assert out == [TextDelta("one", 0)]


def test_the_tokens_of_a_step_are_counted_once_and_by_kind() -> None:
    step: list[Delta] = [
        Accepted(input_tokens=7),
        ReasoningDelta("hm", 3),
        TextDelta("a", 2),
        CallStart(kind="function_call", name="f", tokens=4),
        CallDelta("{}", 1),
        ItemEnd(tokens=1),
        Finish(),
    ]
    assert counts_of(step) == [TextDelta("", 8), ReasoningDelta("", 3)]
    assert counts_of([Accepted(), Finish()]) == []


def test_what_is_counted_elsewhere_has_no_tokens_of_its_own() -> None:
    assert bare(TextDelta("two", 1, (LOGPROB,))) == TextDelta("two", 0, (LOGPROB,))
    assert bare(ReasoningDelta("hm", 3)) == ReasoningDelta("hm", 0)
    start = CallStart(kind="function_call", name="f", namespace="n", tokens=4)
    assert bare_mark(start) == CallStart(kind="function_call", name="f", namespace="n")
    assert bare_mark(ItemEnd(tokens=1)) == ItemEnd()
    assert bare_mark(ItemEnd(tokens=1, incomplete=True)) == ItemEnd(incomplete=True)
    assert bare_mark(Finish()) == Finish()
