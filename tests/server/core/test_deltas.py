"""What engines yield: every kind of delta has a taker, and says how many tokens it stands for."""

from typing import get_args

import pytest

from tieline_server.core import deltas
from tieline_server.core.output import HANDLERS

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
