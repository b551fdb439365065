"""Deltas, and the tokens that they add up to."""

from typing import get_args

import pytest

from tieline_server.core import deltas
from tieline_server.core.deltas import (
    MOST,
    Accepted,
    CallDelta,
    CallStart,
    Delta,
    Finish,
    ItemEnd,
    ReasoningDelta,
    SummaryDelta,
    TextDelta,
    UsageCounter,
)
from tieline_server.core.stream.output import HANDLERS

KINDS = get_args(deltas.Delta)


def test_output_takes_every_delta_that_is_not_about_the_sampling_itself() -> None:
    taken = set(HANDLERS)
    assert set(KINDS) - taken == {deltas.Accepted, deltas.Finish}


@pytest.mark.parametrize(
    "delta",
    [
        deltas.TextDelta("x"),
        deltas.RefusalDelta("x"),
        deltas.ReasoningDelta("x"),
        deltas.CallDelta("x"),
    ],
)
def test_a_piece_of_sampled_text_is_one_token_unless_said(delta: deltas.TextDelta) -> None:
    assert delta.tokens == 1


@pytest.mark.parametrize(
    "delta",
    [
        deltas.SummaryDelta("x"),
        deltas.CallStart(kind="function_call", name="f"),
        deltas.ItemEnd(),
    ],
)
def test_what_is_not_sampled_text_is_no_token_unless_said(delta: deltas.ItemEnd) -> None:
    assert delta.tokens == 0


@pytest.mark.parametrize("kind", KINDS)
def test_deltas_cannot_be_changed(kind: type) -> None:
    """A step is shared by the writer, the ledger and the chain."""
    assert kind.__struct_config__.frozen  # type: ignore[attr-defined]


RUN: list[Delta] = [
    ReasoningDelta("hm", tokens=3),
    SummaryDelta("s"),
    ItemEnd(),
    TextDelta("a", tokens=2),
    CallStart(kind="function_call", name="f", tokens=1),
    CallDelta("{}"),
]


def counted() -> UsageCounter:
    counter = UsageCounter()
    counter.accept(Accepted(input_tokens=10, cached_tokens=4))
    counter.count(RUN)
    counter.count([TextDelta("b")])
    return counter


def test_a_cut_sampling_used_what_its_deltas_add_up_to() -> None:
    usage = counted().usage(None)
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (10, 8, 18)
    assert usage.input_tokens_details.cached_tokens == 4
    assert usage.output_tokens_details.reasoning_tokens == 3


def test_what_the_engine_states_at_the_end_replaces_what_was_counted() -> None:
    stated = Finish(input_tokens=7, cached_tokens=1, output_tokens=0, reasoning_tokens=0)
    usage = counted().usage(stated)
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (7, 0, 7)
    assert usage.input_tokens_details.cached_tokens == 1
    assert usage.output_tokens_details.reasoning_tokens == 0


def test_a_sampling_that_was_never_accepted_used_nothing() -> None:
    assert UsageCounter().usage(None).total_tokens == 0


@pytest.mark.parametrize("stated", [-1, MOST + 1, 1 << 70])
def test_what_no_sampling_can_have_used_is_passed_over(stated: int) -> None:
    end = Finish(
        input_tokens=stated, cached_tokens=stated, output_tokens=stated, reasoning_tokens=stated
    )
    assert counted().usage(end) == counted().usage(None)


def test_cached_and_reasoning_tokens_are_among_the_others() -> None:
    usage = UsageCounter().usage(
        Finish(input_tokens=5, cached_tokens=9, output_tokens=3, reasoning_tokens=4)
    )
    assert usage.input_tokens_details.cached_tokens == 5
    assert usage.output_tokens_details.reasoning_tokens == 3
