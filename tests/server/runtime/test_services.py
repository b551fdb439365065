"""What connections need of the process: its models, as each owner sees them, and its ledger."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from msgspec import structs

from tests.support.records import turn
from tests.support.runtime import Stage, hello, run
from tieline_server.core.deltas import Delta
from tieline_server.core.effects import Prompt
from tieline_server.core.values import Principal, Resolved, UsageRecord
from tieline_server.engines.base import Model
from tieline_server.models.catalog import ModelCatalog
from tieline_server.runtime import Services


class Serves:
    """An engine of some models."""

    name = "serves"

    def __init__(self, *models: Model) -> None:
        self._models = models

    def models(self) -> Sequence[Model]:
        """Its models."""
        return self._models

    async def count(self, prompt: Prompt) -> int:
        """Is not called."""
        raise AssertionError

    async def sample(self, prompt: Prompt) -> AsyncGenerator[Sequence[Delta], None]:
        """Is not called."""
        raise AssertionError
        yield

    async def close(self) -> None:
        """Nothing is open."""


class Books:
    """A ledger that keeps what it is told."""

    def __init__(self, *, keeps_phases: bool) -> None:
        self.keeps_phases = keeps_phases
        self.rows: list[UsageRecord] = []

    def add(self, row: UsageRecord) -> None:
        """Keeps a row."""
        self.rows.append(row)


def services(**members: Any) -> Services:
    """Those of a process, with these members."""
    made: list[Services] = []

    async def main() -> None:
        stage = Stage(hello)
        made.append(structs.replace(stage.services, **members))
        await stage.driver.close()

    run(main)
    return made[0]


def offered(*entries: Resolved, may: frozenset[str] | None = None) -> list[Any]:
    """What of two engines with two models each is offered to an owner who may use these."""
    engines = {
        "a": Serves(Model(id="one", context_window=1), Model(id="two")),
        "b": Serves(Model(id="one", context_window=2), Model(id="three")),
    }
    found = services(engines=engines, catalog=ModelCatalog([*entries])).offered(
        Principal(owner="ann", models=may)
    )
    return [(engine, model.id, model.context_window) for engine, model in found]


ONE, OTHER = Resolved(model="one", engine="b"), Resolved(model="two", engine="a")


def test_what_is_offered_has_the_order_of_the_catalog_and_is_of_its_engine() -> None:
    assert offered(ONE, OTHER) == [("b", "one", 2), ("a", "two", None)]
    assert offered(OTHER, ONE) == [("a", "two", None), ("b", "one", 2)]


def test_a_model_is_offered_under_its_public_name() -> None:
    assert offered(Resolved(model="fast", engine="a", target="one")) == [("a", "fast", 1)]


def test_what_no_engine_serves_is_not_offered() -> None:
    assert offered(Resolved(model="three", engine="a"), Resolved(model="one", engine="c")) == []


def test_an_owner_is_offered_what_it_may_use_by_the_public_names() -> None:
    fast = Resolved(model="fast", engine="a", target="one")
    assert offered(fast, OTHER, may=frozenset({"fast"})) == [("a", "fast", 1)]
    assert offered(fast, OTHER, may=frozenset({"one"})) == []
    assert offered(fast, OTHER, may=frozenset()) == []


@pytest.mark.parametrize("keeps_phases", [True, False])
def test_a_turn_is_booked_at_the_time_of_the_wall_clock_as_the_ledger_keeps_it(
    keeps_phases: bool,
) -> None:
    ledger = Books(keeps_phases=keeps_phases)
    services(ledger=ledger, now=lambda: 99.0).record_usage(turn(), "grpc")
    (row,) = ledger.rows
    assert (row.transport, row.ended_at, bool(row.phases)) == ("grpc", 99.0, keeps_phases)
