"""What a journal writes, change by change, in one transaction or none."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, text

from tests.support.journal_contract import begun, claim
from tieline_server.storage.sql import connect
from tieline_server.storage.sql import running as rows
from tieline_server.storage.sql.journal_changes import (
    DAY,
    Beat,
    Begin,
    EndOrphans,
    EndOwn,
    Left,
    Log,
    Run,
    Sweep,
    TakeClaim,
    Tidy,
)
from tieline_server.storage.sql.processes import Others
from tieline_server.storage.sql.writer import Change

NOW = 1_000_000.0


class Bench:
    """A database in which changes are made one by one, in their own transactions."""

    def __init__(self, address: str) -> None:
        self.address = address

    def make(self, *changes: Callable[[], Change]) -> list[Change]:
        """Makes changes, each as its loop would."""

        async def main() -> list[Change]:
            database = await connect(self.address)
            made = [change() for change in changes]
            try:
                for change in made:
                    await database.write(change.write)
            finally:
                await database.close()
            return made

        return asyncio.run(main())

    def rows(self, question: str) -> list[tuple[Any, ...]]:
        """What is there."""

        async def main() -> list[tuple[Any, ...]]:
            def ask(connection: Connection) -> list[tuple[Any, ...]]:
                return [tuple(row) for row in connection.execute(text(question))]

            database = await connect(self.address)
            try:
                return await database.read(ask)
            finally:
                await database.close()

        return asyncio.run(main())


@pytest.fixture
def bench(address: str) -> Bench:
    return Bench(address)


def others(process: str, *dead: str) -> Others:
    return Others(process, lambda name: name not in dead)


def take(response_id: str, process: str, *dead: str, now: float = NOW) -> TakeClaim:
    return TakeClaim(claim(response_id), others(process, *dead), now=now, beat=None)


def test_a_beat_takes_the_place_of_the_last_one(bench: Bench) -> None:
    bench.make(*(partial(Beat, "one", now=now) for now in (1.0, 2.0)))
    bench.make(lambda: Beat("two", now=3.0))
    found = bench.rows("SELECT id, seen_at FROM processes ORDER BY id")
    assert found == [("one", 2.0), ("two", 3.0)]


def test_a_begin_that_runs_twice_begins_once(bench: Bench) -> None:
    bench.make(
        *(lambda: Begin(begun("resp_1", after="resp_0"), "one", beat=Beat("one", now=NOW)),) * 2
    )
    (row,) = bench.rows("SELECT owner, id, process, previous, model, transport FROM running")
    assert row == ("ann", "resp_1", "one", "resp_0", "m", "test")
    assert len(bench.rows("SELECT * FROM processes")) == 1


def test_a_claim_that_runs_twice_is_its_own(bench: Bench) -> None:
    first, again = bench.make(*(lambda: take("resp_1", "one"),) * 2)
    assert isinstance(first, TakeClaim)
    assert isinstance(again, TakeClaim)
    assert first.holds == again.holds == claim("resp_1")


@pytest.mark.parametrize(
    ("until", "dead", "holds"),
    [
        (None, (), True),
        (NOW + 1, (), True),
        (NOW, (), False),
        (None, ("one",), False),
        (NOW + 1, ("one",), False),
    ],
)
def test_a_claim_holds_while_its_process_lives_and_its_time_is_not_over(
    bench: Bench, until: float | None, dead: tuple[str, ...], holds: bool
) -> None:
    bench.make(lambda: take("resp_1", "one"))
    if until is not None:
        bench.make(lambda: _tidied(Left(claims={claim("resp_1"): until})))
    (second,) = bench.make(lambda: take("resp_2", "two", *dead))
    assert isinstance(second, TakeClaim)
    assert second.holds == claim("resp_1" if holds else "resp_2")
    (row,) = bench.rows("SELECT response, process, until FROM claims")
    assert row == (("resp_1", "one", until) if holds else ("resp_2", "two", None))


def test_who_lives_loses_nothing_and_who_goes_loses_all_of_his(bench: Bench) -> None:
    for name in ("one", "two"):
        begin = partial(Begin, begun(f"resp_{name}"), name)
        mine = claim(f"resp_{name}", key=name.encode())
        bench.make(
            partial(lambda begin, name: begin(beat=Beat(name, now=NOW)), begin, name),
            partial(TakeClaim, mine, others(name), now=NOW, beat=None),
        )
    remains = [begun("resp_one"), begun("resp_two")]
    bench.make(lambda: EndOrphans("one", others("three"), remains, now=NOW, last=True))
    assert len(bench.rows("SELECT * FROM running")) == 2
    bench.make(lambda: EndOwn("one", others("one"), remains, now=NOW, last=True))
    for table, column in (("running", "process"), ("claims", "process"), ("processes", "id")):
        assert [row[0] for row in bench.rows(f"SELECT {column} FROM {table}")] == ["two"]
    assert [row[0] for row in bench.rows("SELECT id FROM responses")] == ["resp_one"]


def test_a_sweep_removes_what_is_over_and_no_process_that_has_something_to_lose(
    bench: Bench,
) -> None:
    bench.make(
        *(partial(Beat, name, now=at) for name, at in (("used", 0.0), ("old", 0.0), ("new", NOW))),
        lambda: Begin(begun("resp_1"), "used", beat=None),
        lambda: take("resp_2", "new"),
        lambda: _tidied(Left(claims={claim("resp_2"): NOW})),
    )
    bench.make(lambda: Sweep(now=NOW - 1))
    assert len(bench.rows("SELECT * FROM claims")) == 1
    bench.make(lambda: Sweep(now=NOW + DAY / 2))
    assert bench.rows("SELECT * FROM claims") == []
    names = bench.rows("SELECT id FROM processes ORDER BY id")
    assert [row[0] for row in names] == ["new", "used"]


def test_changes_that_gather_take_what_is_there_when_their_time_comes() -> None:
    runs: dict[tuple[str, str], Run] = {}
    settled: list[object] = []
    log = Log("one", lambda: dict(runs), settled.append)
    assert not log.take()
    runs["ann", "resp_1"] = Run(0, begun("resp_1"), [b"0"])
    assert log.take()
    log.settle(None)
    tidy = Tidy(Left, lambda left, error: settled.append((left, error)))
    assert not tidy.take()
    error = KeyError()
    tidy.settle(error)
    assert settled == [None, (Left(), error)]


def test_of_a_response_that_another_process_runs_nothing_is_logged(bench: Bench) -> None:
    bench.make(lambda: Begin(begun("resp_1"), "two", beat=None))
    runs = {("ann", "resp_1"): Run(0, begun("resp_1"), [b"0"])}
    log = Log("one", lambda: runs, lambda error: None)
    log.take()
    bench.make(lambda: log)
    assert bench.rows("SELECT * FROM events") == []


def _tidied(left: Left) -> Tidy:
    tidy = Tidy(lambda: left, lambda left, error: None)
    tidy.take()
    return tidy


def test_the_events_of_a_run_are_read_as_they_were_written(bench: Bench) -> None:
    bench.make(lambda: Begin(begun("resp_1"), "one", beat=None))
    made = [b'{"a": 1}', b"", b"\xff\n"]
    runs = {("ann", "resp_1"): Run(0, begun("resp_1"), made)}
    log = Log("one", lambda: runs, lambda error: None)
    log.take()
    bench.make(lambda: log)

    async def read() -> list[bytes] | None:
        def ask(connection: Connection) -> list[bytes] | None:
            return rows.events(connection, owner="ann", response_id="resp_1", after=-1, most=9)

        database = await connect(bench.address)
        try:
            return await database.read(ask)
        finally:
            await database.close()

    assert asyncio.run(read()) == made
