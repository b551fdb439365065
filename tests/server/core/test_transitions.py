"""The tables: total, literal, reachable, and every action has somebody who carries it out."""

import ast
import inspect
from collections.abc import Mapping
from itertools import product
from typing import Any, get_args

import pytest

from tieline_server.core import transitions, turns
from tieline_server.core.connection import Connection
from tieline_server.core.lane import Lane
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

Table = Mapping[tuple[str, str], tuple[str, str]]

MACHINES: list[tuple[str, Any, Any, Any, Any, type]] = [
    ("TURNS", TURNS, TurnState, TurnInput, TurnAction, Turn),
    ("LANES", LANES, LaneState, LaneInput, LaneAction, Lane),
    ("LINES", LINES, LineState, LineInput, LineAction, Connection),
]

machines = pytest.mark.parametrize(
    ("name", "table", "states", "inputs", "actions", "kind"), MACHINES, ids=["turn", "lane", "line"]
)


@machines
def test_every_pair_of_state_and_input_has_a_row(
    name: str, table: Table, states: Any, inputs: Any, actions: Any, kind: type
) -> None:
    assert set(table) == set(product(get_args(states), get_args(inputs)))


@machines
def test_every_row_is_written_out_once_as_a_literal(
    name: str, table: Table, states: Any, inputs: Any, actions: Any, kind: type
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
    pairs = product(get_args(states), get_args(inputs))
    rows = {repr(pair) for pair in pairs}
    assert len(literal.keys) == len(keys) == len(set(keys))
    assert set(keys) == rows


@machines
def test_every_action_is_named_once_used_and_carried_out(
    name: str, table: Table, states: Any, inputs: Any, actions: Any, kind: type
) -> None:
    used = {action for action, _ in table.values()}
    assert used == set(get_args(actions))
    assert all(callable(getattr(kind, action, None)) for action in used)


@machines
def test_every_next_state_is_a_state_and_every_state_can_be_reached(
    name: str, table: Table, states: Any, inputs: Any, actions: Any, kind: type
) -> None:
    assert {after for _, after in table.values()} <= set(get_args(states))
    reached = {get_args(states)[0]}
    while more := {after for (before, _), (_, after) in table.items() if before in reached}:
        if more <= reached:
            break
        reached |= more
    assert reached == set(get_args(states))


@machines
def test_an_ignored_input_changes_no_turn_and_no_line(
    name: str, table: Table, states: Any, inputs: Any, actions: Any, kind: type
) -> None:
    """A lane is the exception: hold, resume and end only change its state."""
    moved = {
        what
        for (before, what), (action, after) in table.items()
        if action == "ignore" and after != before
    }
    assert moved <= {"hold", "resume", "end"}


@pytest.mark.parametrize(("table", "over"), [(TURNS, "ended"), (LINES, "closed")])
def test_what_is_over_stays_over(table: Table, over: str) -> None:
    rows = [(action, after) for (before, _), (action, after) in table.items() if before == over]
    assert {after for _, after in rows} == {over}
    assert {action for action, _ in rows} <= {"ignore", "decline"}


def test_every_living_turn_ends_when_its_line_drops_or_is_being_saved() -> None:
    after = {state: TURNS[state, "drop"][1] for state in get_args(TurnState)}
    assert after.pop("saving") == "saving"
    assert set(after.values()) == {"ended"}


def test_every_turn_that_has_begun_can_be_cut() -> None:
    over: set[TurnState] = {"saving", "ended"}
    # Who follows another response has that one cut.
    assert TURNS["following", "cut"] == ("cut_source", "following")
    every: set[TurnState] = set(get_args(TurnState))
    for state in every - over - {"following"}:
        assert TURNS[state, "cut"][1] in ("doomed", "saving")
    for state in over:
        assert TURNS[state, "cut"] == ("ignore", state)


_NOT_ITS_OWN = ("following", "saving", "ended")
"""States in which a turn has no end of its own ahead of it."""


def test_every_end_but_a_refusal_and_a_drop_passes_saving() -> None:
    to_the_end = {
        (before, what)
        for (before, what), (action, after) in TURNS.items()
        if after == "ended" and before not in _NOT_ITS_OWN
    }
    assert {what for _, what in to_the_end} == {"refuse", "drop"}
