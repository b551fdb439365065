"""The tables: whole, literal, reachable, and each action is a method that carries it out."""

import ast
import inspect
from collections import Counter
from collections.abc import Mapping
from itertools import product
from typing import Any, NamedTuple, get_args

import pytest

from tieline_server.core import tables
from tieline_server.core.connection.connection import Connection
from tieline_server.core.connection.lanes import Lane
from tieline_server.core.tables import (
    CONNECTIONS,
    CONNECTIONS_IGNORE,
    LANES,
    LANES_IGNORE,
    TURNS,
    TURNS_IGNORE,
    ConnectionAction,
    ConnectionInput,
    ConnectionState,
    LaneAction,
    LaneInput,
    LaneState,
    TurnAction,
    TurnInput,
    TurnState,
)
from tieline_server.core.turn.machine import TurnMachine


class Machine(NamedTuple):
    """One table with its words, and the class whose methods are its actions."""

    name: str
    rows: Mapping[tuple[Any, Any], tuple[str, Any]]
    ignore: Mapping[Any, tuple[str, ...]]
    states: tuple[str, ...]
    inputs: tuple[str, ...]
    actions: tuple[str, ...]
    kind: type


MACHINES = [
    Machine(
        "TURNS",
        TURNS,
        TURNS_IGNORE,
        get_args(TurnState),
        get_args(TurnInput),
        get_args(TurnAction),
        TurnMachine,
    ),
    Machine(
        "LANES",
        LANES,
        LANES_IGNORE,
        get_args(LaneState),
        get_args(LaneInput),
        get_args(LaneAction),
        Lane,
    ),
    Machine(
        "CONNECTIONS",
        CONNECTIONS,
        CONNECTIONS_IGNORE,
        get_args(ConnectionState),
        get_args(ConnectionInput),
        get_args(ConnectionAction),
        Connection,
    ),
]

machines = pytest.mark.parametrize("machine", MACHINES, ids=["turn", "lane", "connection"])


@machines
def test_each_pair_of_state_and_input_acts_or_is_ignored_and_never_both(machine: Machine) -> None:
    """The two partition the whole: nothing is forgotten, and nothing is named twice."""
    ignored = [(state, what) for state, words in machine.ignore.items() for what in words]
    named = Counter([*machine.rows, *ignored])
    assert set(named) == set(product(machine.states, machine.inputs))
    assert set(named.values()) == {1}


@machines
def test_each_state_says_once_what_it_ignores(machine: Machine) -> None:
    assert tuple(machine.ignore) == machine.states


@machines
@pytest.mark.parametrize("suffix", ["", "_IGNORE"])
def test_each_row_is_written_out_once_as_a_literal(machine: Machine, suffix: str) -> None:
    """No default row, no wildcard, no comprehension, and no row that hides another."""
    source = ast.parse(inspect.getsource(tables))
    (literal,) = [
        node.value
        for node in source.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == machine.name + suffix
    ]
    assert isinstance(literal, ast.Dict)
    keys = [ast.unparse(key) for key in literal.keys if key is not None]
    assert len(literal.keys) == len(keys) == len(set(keys))
    assert keys == [repr(key) for key in (machine.ignore if suffix else machine.rows)]


@machines
def test_each_action_is_named_once_used_and_carried_out(machine: Machine) -> None:
    used = {action for action, _ in machine.rows.values()}
    assert used == set(machine.actions)
    assert all(callable(getattr(machine.kind, action, None)) for action in used)


@machines
def test_each_next_state_is_a_state_and_each_state_can_be_reached(machine: Machine) -> None:
    assert {after for _, after in machine.rows.values()} <= set(machine.states)
    reached = {machine.states[0]}
    while more := {after for (at, _), (_, after) in machine.rows.items() if at in reached}:
        if more <= reached:
            break
        reached |= more
    assert reached == set(machine.states)


def test_a_turn_that_has_ended_and_a_connection_that_has_closed_stay_so() -> None:
    assert {row for (before, _), row in TURNS.items() if before == "ended"} == {
        ("decline", "ended")
    }
    assert CONNECTIONS_IGNORE["closed"] == get_args(ConnectionInput)


def test_every_living_turn_ends_when_its_connection_drops_or_is_being_saved() -> None:
    living = set(get_args(TurnState)) - {"saving", "ended"}
    assert {after for (_, what), (_, after) in TURNS.items() if what == "drop"} == {"ended"}
    assert {before for (before, what) in TURNS if what == "drop"} == living


def test_every_turn_that_has_begun_can_be_cut() -> None:
    over: set[TurnState] = {"doomed", "saving", "ended"}
    # A turn that follows another response has that one cut.
    assert TURNS["following", "cut"] == ("cut_source", "following")
    every: set[TurnState] = set(get_args(TurnState))
    for state in every - over - {"following"}:
        assert TURNS[state, "cut"][1] in ("doomed", "saving")
    for state in over:
        assert "cut" in TURNS_IGNORE[state]


_NOT_ITS_OWN = ("following", "saving", "ended")
"""States in which a turn has no end of its own ahead of it."""


def test_every_end_but_a_refusal_and_a_drop_passes_saving() -> None:
    to_the_end = {
        (before, what)
        for (before, what), (_, after) in TURNS.items()
        if after == "ended" and before not in _NOT_ITS_OWN
    }
    assert {what for _, what in to_the_end} == {"refuse", "drop"}
