"""The tables: total, literal, reachable, and every action has somebody who carries it out."""

import ast
import inspect
from collections.abc import Mapping
from enum import StrEnum
from itertools import product
from typing import Any, get_args

import pytest

from tieline_server.core import transitions, turns
from tieline_server.core.lane import Lane
from tieline_server.core.line import Line
from tieline_server.core.transitions import (
    LANES,
    LINES,
    LaneAction,
    LaneInput,
    LaneState,
    LineAction,
    LineInput,
    LineState,
)
from tieline_server.core.turn import Turn
from tieline_server.core.turns import TURNS, TurnAction, TurnInput, TurnState

Table = Mapping[tuple[StrEnum, StrEnum], tuple[str, StrEnum]]

MACHINES: list[tuple[str, Any, type[StrEnum], type[StrEnum], Any, type]] = [
    ("TURNS", TURNS, TurnState, TurnInput, TurnAction, Turn),
    ("LANES", LANES, LaneState, LaneInput, LaneAction, Lane),
    ("LINES", LINES, LineState, LineInput, LineAction, Line),
]

machines = pytest.mark.parametrize(
    ("name", "table", "states", "inputs", "actions", "kind"), MACHINES, ids=["turn", "lane", "line"]
)


@machines
def test_every_pair_of_state_and_input_has_a_row(
    name: str, table: Table, states: type[StrEnum], inputs: type[StrEnum], actions: Any, kind: type
) -> None:
    assert set(table) == set(product(states, inputs))


@machines
def test_every_row_is_written_out_once_as_a_literal(
    name: str, table: Table, states: type[StrEnum], inputs: type[StrEnum], actions: Any, kind: type
) -> None:
    """No default row, no wildcard, no comprehension, and no row that hides another."""
    source = ast.parse(inspect.getsource(turns if table is TURNS else transitions))
    (literal,) = [
        node.value
        for node in source.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name
    ]
    assert isinstance(literal, ast.Dict)
    keys = [ast.unparse(key) for key in literal.keys if key is not None]
    pairs = product(states, inputs)
    rows = {f"({a.__class__.__name__}.{a.name}, {b.__class__.__name__}.{b.name})" for a, b in pairs}
    assert len(literal.keys) == len(keys) == len(set(keys))
    assert set(keys) == rows


@machines
def test_every_action_is_named_once_used_and_carried_out(
    name: str, table: Table, states: type[StrEnum], inputs: type[StrEnum], actions: Any, kind: type
) -> None:
    used = {action for action, _ in table.values()}
    assert used == set(get_args(actions))
    assert all(callable(getattr(kind, action, None)) for action in used)


@machines
def test_every_next_state_is_a_state_and_every_state_can_be_reached(
    name: str, table: Table, states: type[StrEnum], inputs: type[StrEnum], actions: Any, kind: type
) -> None:
    assert all(isinstance(after, states) for _, after in table.values())
    reached = {next(iter(states))}
    while more := {after for (before, _), (_, after) in table.items() if before in reached}:
        if more <= reached:
            break
        reached |= more
    assert reached == set(states)


@machines
def test_an_ignored_input_changes_no_turn_and_no_line(
    name: str, table: Table, states: type[StrEnum], inputs: type[StrEnum], actions: Any, kind: type
) -> None:
    """A lane is the exception: hold, resume and end only change its state."""
    moved = {
        what
        for (before, what), (action, after) in table.items()
        if action == "ignore" and after != before
    }
    assert moved <= {LaneInput.HOLD, LaneInput.RESUME, LaneInput.END}


@pytest.mark.parametrize(("table", "over"), [(TURNS, TurnState.ENDED), (LINES, LineState.CLOSED)])
def test_what_is_over_stays_over(table: Table, over: StrEnum) -> None:
    rows = [(action, after) for (before, _), (action, after) in table.items() if before is over]
    assert {after for _, after in rows} == {over}
    assert {action for action, _ in rows} <= {"ignore", "decline"}


def test_every_living_turn_ends_when_its_line_drops_or_is_being_saved() -> None:
    after = {state: TURNS[state, TurnInput.DROP][1] for state in TurnState}
    assert after.pop(TurnState.SAVING) is TurnState.SAVING
    assert set(after.values()) == {TurnState.ENDED}


def test_every_turn_that_has_begun_can_be_cut() -> None:
    over = {TurnState.SAVING, TurnState.ENDED}
    # Who follows another response has that one cut.
    assert TURNS[TurnState.FOLLOWING, TurnInput.CUT] == ("cut_source", TurnState.FOLLOWING)
    for state in set(TurnState) - over - {TurnState.FOLLOWING}:
        assert TURNS[state, TurnInput.CUT][1] in (TurnState.DOOMED, TurnState.SAVING)
    for state in over:
        assert TURNS[state, TurnInput.CUT] == ("ignore", state)


_NOT_ITS_OWN = (TurnState.FOLLOWING, TurnState.SAVING, TurnState.ENDED)
"""States in which a turn has no end of its own ahead of it."""


def test_every_end_but_a_refusal_and_a_drop_passes_saving() -> None:
    to_the_end = {
        (before, what)
        for (before, what), (action, after) in TURNS.items()
        if after is TurnState.ENDED and before not in _NOT_ITS_OWN
    }
    assert {what for _, what in to_the_end} == {TurnInput.REFUSE, TurnInput.DROP}
