"""The table of what can happen to one create."""

import itertools

import pytest

from tieline_client._asks import ASKS, AskState, Signal, Verdict


def test_the_table_has_a_row_for_every_state_and_signal() -> None:
    assert set(ASKS) == set(itertools.product(AskState, Signal))


def test_an_ended_ask_stays_ended() -> None:
    assert {after for (before, _), (_, after) in ASKS.items() if before is AskState.ENDED} == {
        AskState.ENDED
    }


@pytest.mark.parametrize("where", [each for each in AskState if each is not AskState.ENDED])
def test_every_ask_ends_with_the_line(where: AskState) -> None:
    assert ASKS[where, Signal.LOST] == (Verdict.FAIL, AskState.ENDED)
