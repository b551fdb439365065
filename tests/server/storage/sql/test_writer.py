"""The writer: what leaves together, what fails alone, and that nothing is left at its end."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic

import pytest
from sqlalchemy import Connection, insert, select

from tieline_server.storage.sql import connect
from tieline_server.storage.sql.database import Database
from tieline_server.storage.sql.errors import Conflict, DatabaseError
from tieline_server.storage.sql.schema import LEASES
from tieline_server.storage.sql.writer import LINGER, MOST, Gathered, Write, Writer


class Note(Write[None]):
    """Writes a row; ``first`` runs before it, on the writer's thread."""

    def __init__(self, name: str, *, first: Callable[[], object] = lambda: None) -> None:
        super().__init__(self.insert)
        self.name = name
        self.first = first

    def insert(self, connection: Connection) -> None:
        self.first()
        connection.execute(insert(LEASES), {"name": self.name, "holder": "test", "until": 0.0})


class Counting:
    """A real database whose transactions are counted."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.transactions = 0
        self.erased = 0

    async def write(self, change: Callable[[Connection], object]) -> object:
        self.transactions += 1
        return await self._database.write(change)

    async def erase(self) -> bool:
        self.erased += 1
        return await self._database.erase()

    async def names(self) -> list[str]:
        def ask(connection: Connection) -> list[str]:
            return list(connection.execute(select(LEASES.c.name).order_by(LEASES.c.name)).scalars())

        return await self._database.read(ask)

    async def close(self) -> None:
        await self._database.close()


def still() -> float:
    """A clock by which no transaction takes long."""
    return 0.0


@asynccontextmanager
async def writing(
    tmp_path: Path, *, clock: Callable[[], float] = still
) -> AsyncIterator[tuple[Counting, Writer]]:
    database = Counting(await connect(f"sqlite:///{tmp_path}/tieline.db"))
    writer = Writer(database, clock=clock)  # type: ignore[arg-type]  # what it needs of one
    try:
        yield database, writer
    finally:
        await writer.close()
        await database.close()


async def test_what_gathers_while_a_transaction_is_in_flight_leaves_together(
    tmp_path: Path,
) -> None:
    async with writing(tmp_path) as (database, writer):
        began, go = threading.Event(), threading.Event()

        def hold() -> None:
            began.set()
            go.wait()

        first = Note("first", first=hold)
        writer.add(first)
        await asyncio.to_thread(began.wait)
        others = [Note(f"other {number}") for number in range(50)]
        for other in others:
            writer.add(other)
        go.set()
        await asyncio.gather(first.done, *(other.done for other in others))
        assert database.transactions == 2
        assert len(await database.names()) == 51


async def test_one_transaction_holds_a_bounded_number_of_changes(tmp_path: Path) -> None:
    async with writing(tmp_path) as (database, writer):
        notes = [Note(f"note {number}") for number in range(2 * MOST + 1)]
        for note in notes:
            writer.add(note)
        await asyncio.gather(*(note.done for note in notes))
        assert database.transactions == 3


async def test_a_transaction_that_has_taken_long_leaves_the_rest_to_the_next_ones_in_order(
    tmp_path: Path,
) -> None:
    order: list[str] = []

    async with writing(tmp_path, clock=partial(next, count())) as (database, writer):
        names = [f"note {number}" for number in range(5)]
        notes = [Note(name, first=partial(order.append, name)) for name in names]
        for note in notes:
            writer.add(note)
        await asyncio.gather(*(note.done for note in notes))
        assert order == names
        assert database.transactions == len(notes)


async def test_what_a_transaction_did_not_reach_is_not_taken_again_and_comes_before_the_rest(
    tmp_path: Path,
) -> None:
    """What is taken then may rest on what the earlier change settles."""
    taken: list[tuple[str, bool]] = []

    class Taken(Note):
        def take(self) -> bool:
            taken.append((self.name, unreached[0].done.done()))
            return True

    unreached: list[Taken] = []
    async with writing(tmp_path, clock=partial(next, count())) as (database, writer):
        unreached.append(Taken("unreached"))
        reached, later = Taken("reached"), Taken("later")
        reached.done.add_done_callback(lambda _: writer.add(later))
        for note in (reached, *unreached):
            writer.add(note)
        await later.done
        assert taken == [("reached", False), ("unreached", False), ("later", True)]
        assert database.transactions == 3


async def test_what_is_sent_ahead_goes_before_all_that_came_earlier(tmp_path: Path) -> None:
    order: list[str] = []

    async with writing(tmp_path, clock=partial(next, count())) as (_database, writer):

        class First(Note):
            def settle(self, error: Exception | None) -> None:
                writer.send_ahead(ahead)
                super().settle(error)

        ahead = Note("ahead", first=partial(order.append, "ahead"))
        notes = [
            kind(name, first=partial(order.append, name))
            for kind, name in ((First, "one"), (Note, "two"), (Note, "three"))
        ]
        for note in notes:
            writer.add(note)
        await asyncio.gather(ahead.done, *(note.done for note in notes))
        assert order == ["one", "ahead", "two", "three"]


async def test_of_changes_that_share_a_transaction_only_the_culprit_fails(tmp_path: Path) -> None:
    async with writing(tmp_path) as (database, writer):
        good = [Note("a"), Note("c")]
        double = Note("a")
        for note in (good[0], double, good[1]):
            writer.add(note)
        with pytest.raises(Conflict):
            await double.done
        await asyncio.gather(*(note.done for note in good))
        assert await database.names() == ["a", "c"]


async def test_a_change_with_a_bug_costs_its_neighbours_nothing(tmp_path: Path) -> None:
    def bug() -> None:
        raise KeyError("bug")

    async with writing(tmp_path) as (database, writer):
        broken, good = Note("broken", first=bug), Note("good")
        writer.add(broken)
        writer.add(good)
        with pytest.raises(KeyError):
            await broken.done
        await good.done
        assert await database.names() == ["good"]


async def test_a_change_is_durable_before_who_waits_for_it_is_told(tmp_path: Path) -> None:
    async with writing(tmp_path) as (database, writer):
        for number in range(20):
            note = Note(f"note {number}")
            writer.add(note)
            await note.done
            assert note.name in await database.names()


@pytest.mark.parametrize("way", [Writer.leave, Writer.send_ahead])
async def test_what_nobody_waits_for_lingers_for_company_and_not_for_long(
    tmp_path: Path, way: Callable[[Writer, Note], None]
) -> None:
    async with writing(tmp_path) as (database, writer):
        started = monotonic()
        notes = [Note(f"note {number}") for number in range(5)]
        for note in notes:
            way(writer, note)
        await asyncio.gather(*(note.done for note in notes))
        assert monotonic() - started >= LINGER * 0.9
        assert database.transactions == 1


async def test_what_may_linger_longer_goes_with_what_may_not(tmp_path: Path) -> None:
    async with writing(tmp_path) as (database, writer):
        notes = [Note(f"note {number}") for number in range(4)]
        for note, within in zip(notes, (3600.0, 7200.0, LINGER, 3600.0), strict=True):
            writer.leave(note, within=within)
        await asyncio.gather(*(note.done for note in notes))
        assert database.transactions == 1
        late = Note("late")
        writer.leave(late, within=LINGER)
        await late.done


async def test_what_nobody_waits_for_joins_a_change_that_goes_at_once(tmp_path: Path) -> None:
    async with writing(tmp_path) as (database, writer):
        left, added = Note("left"), Note("added")
        writer.leave(left)
        writer.add(added)
        await added.done
        assert left.done.done()
        assert database.transactions == 1


@pytest.mark.parametrize("clock", [still, partial(next, count())])
async def test_closing_writes_what_is_left(tmp_path: Path, clock: Callable[[], float]) -> None:
    async with writing(tmp_path, clock=clock) as (database, writer):
        for number in range(3):
            writer.leave(Note(f"note {number}"))
        writer.send_ahead(Note("ahead"))
        await writer.close()
        assert len(await database.names()) == 4


async def test_who_no_longer_waits_changes_nothing(tmp_path: Path) -> None:
    async with writing(tmp_path) as (database, writer):
        note = Note("note")
        writer.add(note)
        note.done.cancel()
        other = Note("other")
        writer.add(other)
        await other.done
        assert await database.names() == ["note", "other"]


async def test_what_erases_is_told_after_the_files_were_cleaned(tmp_path: Path) -> None:
    async with writing(tmp_path) as (database, writer):
        note = Note("note")
        note.erases = True
        writer.add(note)
        await note.done
        assert database.erased == 1


async def test_an_error_of_a_change_is_one_of_ours_and_quotes_nothing(tmp_path: Path) -> None:
    async with writing(tmp_path) as (_database, writer):
        notes = [Note("a secret"), Note("a secret")]
        for note in notes:
            writer.add(note)
        await notes[0].done
        with pytest.raises(DatabaseError) as caught:
            await notes[1].done
        assert str(caught.value) == "IntegrityError SQLITE_CONSTRAINT_PRIMARYKEY"
        assert caught.value.__suppress_context__


def test_changes_that_gather_take_what_is_there_when_their_time_comes() -> None:
    gathered: list[str] = []
    settled: list[object] = []
    change = Gathered(
        lambda: tuple(gathered),
        lambda connection, taken: None,
        lambda taken, error: settled.append((taken, error)),
    )
    assert not change.take()
    gathered.append("one")
    assert change.take()
    gathered.append("two")
    change.settle(None)
    error = KeyError()
    assert change.take()
    change.settle(error)
    assert settled == [(("one",), None), (("one", "two"), error)]
