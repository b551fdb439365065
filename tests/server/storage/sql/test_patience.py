"""A database that is silent for a while: what waits for it, and what is refused (OP-02)."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from sqlalchemy import Connection, text

from tests.support.postgres import Cluster
from tests.support.switched_proxy import switched
from tieline.errors import ApiError
from tieline_server.storage.sql import connect, patience
from tieline_server.storage.sql.errors import Away, Unavailable
from tieline_server.storage.sql.patience import PatientDatabase

PATIENCE = 15.0


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Heard:
    """What was told, in order."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self._news = asyncio.Event()

    def silent(self, reason: str) -> None:
        self._say(f"silent: {reason}")

    def answers(self, seconds: float) -> None:
        self._say(f"answers after {seconds:g} s")

    def full(self) -> None:
        self._say("full")

    def _say(self, what: str) -> None:
        self.said.append(what)
        self._news.set()

    async def once(self, many: int) -> None:
        """Returns when so many things were told."""
        async with asyncio.timeout(30):
            while len(self.said) < many:
                self._news.clear()
                await self._news.wait()


class Stage:
    """A patient database with all that a test moves."""

    def __init__(self, database: PatientDatabase, clock: Clock, heard: Heard) -> None:
        self.database = database
        self.clock = clock
        self.heard = heard

    async def until_away(self) -> None:
        """The patience passes."""
        self.clock.now += PATIENCE
        async with asyncio.timeout(30):
            while not self.database.away:  # noqa: ASYNC110  # nothing tells of it
                await asyncio.sleep(0.01)


@asynccontextmanager
async def patient(address: str) -> AsyncIterator[Stage]:
    clock, heard = Clock(), Heard()
    opened = await connect(address)
    database = PatientDatabase(opened, patience=PATIENCE, clock=clock, outages=heard)
    watching = asyncio.create_task(database.watch())
    try:
        yield Stage(database, clock, heard)
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        await database.close()


@pytest.fixture(autouse=True)
def _short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PERIOD", 0.02)
    monkeypatch.setattr(patience, "ANSWER", 0.1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    return made


def address(folder: Path) -> str:
    return f"sqlite:///{folder}/tieline.db"


def take_away(folder: Path) -> None:
    folder.rename(folder.parent / "elsewhere")


def bring_back(folder: Path) -> None:
    (folder.parent / "elsewhere").rename(folder)


def count(connection: Connection) -> int:
    return int(connection.execute(text("SELECT count(*) FROM leases")).scalar_one())


def add(connection: Connection) -> None:
    connection.execute(text("INSERT INTO leases VALUES ('one', 'me', 0)"))


async def test_op_02_what_waits_through_a_short_silence_is_done_once(folder: Path) -> None:
    async with patient(address(folder)) as stage:
        take_away(folder)
        waiting = [
            asyncio.create_task(stage.database.write(add)),
            asyncio.create_task(stage.database.read(count)),
        ]
        await stage.heard.once(1)
        stage.clock.now += PATIENCE - 3
        bring_back(folder)
        await stage.heard.once(2)
        await asyncio.gather(*waiting)
        assert await stage.database.read(count) == 1
        assert stage.heard.said == [
            "silent: the file was moved, removed or replaced",
            "answers after 12 s",
        ]


async def test_op_02_past_the_patience_what_waits_and_what_comes_is_refused_until_it_answers(
    folder: Path,
) -> None:
    async with patient(address(folder)) as stage:
        take_away(folder)
        waiting = asyncio.create_task(stage.database.write(add))
        await stage.heard.once(1)
        stage.database.check()
        await stage.until_away()
        with pytest.raises(Unavailable) as refused:
            await waiting
        assert (refused.value.code, refused.value.status) == ("storage_unavailable", 503)
        assert refused.value.retry_after
        with pytest.raises(Unavailable):
            await stage.database.read(count)
        with pytest.raises(ApiError, match="try again later"):
            stage.database.check()
        bring_back(folder)
        await stage.heard.once(2)
        stage.database.check()
        await stage.database.write(add)
        assert await stage.database.read(count) == 1
        assert len(stage.heard.said) == 2


async def test_op_02_a_lock_that_another_process_holds_is_a_silence(folder: Path) -> None:
    async with patient(address(folder)) as stage:
        path = folder / "tieline.db"
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            await stage.heard.once(1)
            # It can be read all the while.
            assert await stage.database.read(count) == 0
            other.execute("ROLLBACK")
            await stage.heard.once(2)
        assert stage.heard.said[0] == "silent: it does not answer"
        await stage.database.write(add)


async def test_op_02_a_disk_without_room_is_told_once_and_refused_at_once(folder: Path) -> None:
    def shrink(connection: Connection) -> None:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

    def fill(connection: Connection) -> None:
        connection.execute(text("INSERT INTO leases VALUES (:name, '', 0)"), {"name": "x" * 10_000})

    async with patient(address(folder)) as stage:
        await stage.database.write(shrink)
        for _ in range(2):
            with pytest.raises(Unavailable):
                await stage.database.write(fill)
        assert stage.heard.said == ["full"]
        assert not stage.database.away
        # What is small finds room.
        await stage.database.write(add)
        stage.clock.now += 60.0
        with pytest.raises(Unavailable):
            await stage.database.write(fill)
        assert stage.heard.said == ["full", "full"]


async def test_what_fails_though_the_database_answers_is_tried_for_so_long_and_no_longer(
    folder: Path,
) -> None:
    tries = 0

    async with patient(address(folder)) as stage:

        def refused(_connection: Connection) -> None:
            nonlocal tries
            tries += 1
            stage.clock.now += PATIENCE / 3
            raise Away("it is read-only")

        with pytest.raises(Unavailable):
            await stage.database.write(refused)
        assert tries == 3
        assert stage.heard.said == []


async def test_op_02_a_server_that_stalls_costs_nothing_and_past_the_patience_is_broken_off(
    cluster: Cluster,
) -> None:
    """The statement was on its way when the network stood still."""

    name = urlsplit(cluster.new_database()).path
    async with switched(cluster.socket) as proxy:
        through = f"postgresql://tieline@127.0.0.1:{proxy.port}{name}"
        async with patient(through) as stage:
            await stage.database.read(count)
            proxy.stall()
            waiting = asyncio.create_task(stage.database.write(add))
            await stage.heard.once(1)
            stage.clock.now += PATIENCE - 3
            proxy.mend()
            await waiting
            await stage.heard.once(2)
            assert await stage.database.read(count) == 1
            proxy.stall()
            asking = asyncio.create_task(stage.database.read(count))
            await stage.heard.once(3)
            await stage.until_away()
            with pytest.raises(Unavailable):
                await asking
            proxy.cut()
            proxy.mend()
            await stage.heard.once(4)
            assert await stage.database.read(count) == 1
