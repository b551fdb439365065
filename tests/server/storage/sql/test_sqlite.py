"""SQLite: what its file holds, and what happens when it is full, locked or damaged."""

import asyncio
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from tests.support.database import durable
from tests.support.store_contract import LONG, kept, put, saved, texts
from tieline_server.config import ConfigError
from tieline_server.core.effects import Discard
from tieline_server.storage.sql import connect, sqlite
from tieline_server.storage.sql.errors import Busy, Damaged, Full

MARK = "marzipan"


def address(folder: Path) -> str:
    return f"sqlite:///{folder}/tieline.db"


def bytes_on_disk(folder: Path) -> bytes:
    """All that is in the database's files now."""
    return b"".join(path.read_bytes() for path in sorted(folder.glob("tieline.db*")))


def beginnings_of_log(folder: Path) -> int:
    """How often the write-ahead log has begun anew: a number in its header."""
    with (folder / "tieline.db-wal").open("rb") as log:
        header = log.read(16)
    return int.from_bytes(header[12:], "big")


def modes(folder: Path) -> set[int]:
    """Who may do what with the database's files."""
    return {path.stat().st_mode & 0o777 for path in folder.glob("tieline.db*")}


def pragma(name: str) -> Callable[[Connection], Any]:
    return lambda connection: connection.exec_driver_sql(f"PRAGMA {name}").scalar()


@pytest.mark.parametrize(("full", "synchronous"), [(False, 1), (True, 2)])
async def test_the_writer_has_a_log_and_overwrites_what_it_deletes(
    tmp_path: Path, full: bool, synchronous: int
) -> None:
    expected = {
        "journal_mode": "wal",
        "synchronous": synchronous,
        "secure_delete": 1,
        "foreign_keys": 1,
        "auto_vacuum": 2,
    }

    database = await connect(address(tmp_path), full=full)
    found = {name: await database.write(pragma(name)) for name in expected}
    assert found == expected
    assert await database.read(pragma("query_only")) == 1
    await database.close()


async def test_the_loop_stands_still_for_a_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread would get the interpreter late at every step."""
    order: list[str] = []

    database = await connect(address(tmp_path))
    # A machine that is full may be late with the thread, and this is not about how long.
    monkeypatch.setattr(sqlite, "LENT", 60.0)
    asyncio.get_running_loop().call_soon(order.append, "loop")
    await database.write(lambda _: order.append("transaction"))
    await database.close()
    assert order == ["transaction", "loop"]


async def test_a_transaction_that_takes_long_does_not_keep_the_loop(tmp_path: Path) -> None:
    database = await connect(address(tmp_path))
    went_on = threading.Event()
    asyncio.get_running_loop().call_soon(went_on.set)
    assert await database.write(lambda _: went_on.wait(30))
    await database.close()


async def test_the_loop_goes_on_while_the_disk_is_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits: list[bool] = []

    database = await connect(address(tmp_path), full=True)
    assert isinstance(database, sqlite.SqliteDatabase)
    monkeypatch.setattr(sqlite, "LENT", 60.0)
    went_on = threading.Event()
    event.listen(database._write, "commit", lambda _: commits.append(went_on.wait(30)))
    asyncio.get_running_loop().call_soon(went_on.set)
    await database.write(lambda _: None)
    await database.close()
    assert commits == [True]


def test_what_a_killed_process_left_in_the_log_is_moved_before_anything_is_written(
    tmp_path: Path,
) -> None:
    killed, alone = tmp_path / "killed", tmp_path / "alone.db"
    killed.mkdir()

    async def first() -> None:
        async with durable(address(tmp_path)) as opened:
            await put(opened.store, saved("resp_1"))
            # The third of its files is rebuilt by who finds it missing.
            for name in ("tieline.db", "tieline.db-wal"):
                shutil.copy(tmp_path / name, killed)

    async def then() -> None:
        database = await connect(address(killed))
        shutil.copy(killed / "tieline.db", alone)
        await database.close()

    asyncio.run(first())
    assert (killed / "tieline.db-wal").stat().st_size > 0
    asyncio.run(then())
    with closing(sqlite3.connect(alone)) as file:
        assert file.execute("SELECT id FROM responses").fetchall() == [("resp_1",)]


async def test_the_log_begins_anew_though_something_is_written_whenever_it_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move_log = sqlite._move_log
    monkeypatch.setattr(sqlite, "LONG_LOG", 1)
    # No commit may do it by itself.
    monkeypatch.setattr(sqlite, "LOG_PAGES", 0)

    database = await connect(address(tmp_path))
    await database.write(lambda it: it.exec_driver_sql("CREATE TABLE much (content TEXT)"))
    before = beginnings_of_log(tmp_path)
    with closing(sqlite3.connect(tmp_path / "tieline.db", check_same_thread=False)) as other:
        other.execute("PRAGMA wal_autocheckpoint = 0")

        def move_and_write(engine: Engine) -> int:
            if not threading.current_thread().name.startswith("sqlite-house"):
                return move_log(engine)
            # Commits at its end, and lets nobody write between.
            with other:
                other.execute("INSERT INTO much VALUES ('beside')")
                return move_log(engine)

        monkeypatch.setattr(sqlite, "_move_log", move_and_write)
        try:
            async with asyncio.timeout(30):
                while beginnings_of_log(tmp_path) == before:
                    await database.write(
                        lambda it: it.exec_driver_sql("INSERT INTO much VALUES ('steadily')")
                    )
                    await asyncio.sleep(0.001)
        finally:
            await database.close()


async def test_only_the_owner_of_the_process_may_read_the_files(tmp_path: Path) -> None:
    async with durable(address(tmp_path)) as opened:
        await put(opened.store, saved("resp_1"))
        assert modes(tmp_path) == {0o600}


async def test_what_was_deleted_is_in_no_file_when_the_answer_comes(tmp_path: Path) -> None:
    async with durable(address(tmp_path)) as opened:
        first = saved("resp_1", text=MARK * 1000)
        await put(opened.store, first)
        await put(opened.store, saved("resp_2", after=first, text="stays"))
        assert MARK.encode() in bytes_on_disk(tmp_path)
        assert await opened.store.delete("ann", "resp_2")
        assert MARK.encode() in bytes_on_disk(tmp_path)
        assert await opened.store.delete("ann", "resp_1")
        assert MARK.encode() not in bytes_on_disk(tmp_path)


async def test_what_a_reader_held_up_is_erased_at_the_next_round(tmp_path: Path) -> None:
    async with durable(address(tmp_path)) as opened:
        await put(opened.store, saved("resp_1", text=MARK * 1000))
        with closing(sqlite3.connect(tmp_path / "tieline.db")) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM items").fetchone()
            assert await opened.store.delete("ann", "resp_1")
        assert MARK.encode() in bytes_on_disk(tmp_path)
        await opened.database.tidy()
        assert MARK.encode() not in bytes_on_disk(tmp_path)


async def test_pages_that_nothing_needs_go_back_to_the_file_system(tmp_path: Path) -> None:
    async with durable(address(tmp_path)) as opened:
        for number in range(10):
            await put(opened.store, saved(f"resp_{number}", text="x" * 1_000_000))
        await opened.database.erase()
        size = (tmp_path / "tieline.db").stat().st_size
        for number in range(10):
            await opened.store.delete("ann", f"resp_{number}")
        for _ in range(20):
            await opened.database.tidy()
        await opened.database.erase()
        assert (tmp_path / "tieline.db").stat().st_size < size / 4


async def test_a_full_disk_fails_what_finds_no_room_and_nothing_else(tmp_path: Path) -> None:
    def allow(pages: int) -> Callable[[Connection], Any]:
        return pragma(f"max_page_count = {pages}")

    async with durable(address(tmp_path)) as opened:
        before = saved("resp_1")
        await put(opened.store, before)
        pages = int(await opened.value("SELECT page_count FROM pragma_page_count()"))
        await opened.database.write(allow(pages + 8))
        big = saved("resp_big", after=before, text="x" * 1_000_000)
        for keep in kept(big):
            opened.store.keep(keep)
        with pytest.raises(Full):
            await put(opened.store, big)
        assert await opened.store.get("ann", "resp_big") is None
        assert await opened.count("ledger") == 1
        small = saved("resp_2", after=before)
        await put(opened.store, small)
        await opened.database.write(allow(1_000_000))
        await put(opened.store, big)
        for record in (before, small, big):
            assert texts(await opened.store.get("ann", record.response.id)) == texts(record)
        assert await opened.count("ledger") == 3


async def test_a_lock_that_somebody_keeps_fails_puts_until_it_goes(tmp_path: Path) -> None:
    async with durable(address(tmp_path)) as opened:
        await opened.database.write(pragma("busy_timeout = 50"))
        other = sqlite3.connect(tmp_path / "tieline.db", isolation_level=None)
        with closing(other):
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(Busy):
                await put(opened.store, saved("resp_1"))
            assert await opened.store.get("ann", "resp_1") is None
            other.execute("COMMIT")
        await put(opened.store, saved("resp_1"))
        assert await opened.store.get("ann", "resp_1") is not None


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "tieline.db"
    path.write_bytes(b"somebody's letter " * 1000)
    with pytest.raises(ConfigError, match=r"tieline\.db is no database, or is damaged"):
        asyncio.run(connect(address(tmp_path)))
    assert path.read_bytes() == b"somebody's letter " * 1000


def test_pages_that_were_damaged_while_it_ran_are_an_error_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "tieline.db"

    async def fill() -> None:
        async with durable(address(tmp_path)) as opened:
            for number in range(20):
                await put(opened.store, saved(f"resp_{number}", text="x" * 10_000))

    async def read() -> None:
        async with durable(address(tmp_path)) as opened:
            with pytest.raises(Damaged):
                await asyncio.gather(*(opened.store.get("ann", f"resp_{n}") for n in range(20)))

    asyncio.run(fill())
    whole = path.read_bytes()
    # All but the schema, which is read at the start.
    path.write_bytes(whole[: 4096 * 40] + b"\xff" * (len(whole) - 4096 * 40))
    asyncio.run(read())


async def test_two_processes_may_share_the_file(tmp_path: Path) -> None:
    async with durable(address(tmp_path)) as one, durable(address(tmp_path)) as other:
        first = saved("resp_1")
        await put(one.store, first)
        found = await other.store.get("ann", "resp_1")
        second = saved("resp_2", after=found)
        await put(other.store, second)
        assert texts(await one.store.get("ann", "resp_2")) == texts(second)
        records = [saved(f"resp_{number}", after=first) for number in range(3, 43)]
        await asyncio.gather(
            *(put((one, other)[index % 2].store, each) for index, each in enumerate(records))
        )
        assert await one.count("responses") == 42


async def test_a_draft_is_in_the_file_while_it_runs_and_not_once_it_was_discarded(
    tmp_path: Path,
) -> None:
    async with durable(address(tmp_path)) as opened:
        record = saved("resp_1", text=MARK + LONG)
        for keep in kept(record):
            opened.store.keep(keep)
        await put(opened.store, saved("resp_2"))
        assert MARK.encode() in bytes_on_disk(tmp_path)
        opened.store.discard(Discard("resp_1", "ann"))
        await put(opened.store, saved("resp_3"))
        assert await opened.count("nodes") == 2
        await opened.database.erase()
        assert MARK.encode() not in bytes_on_disk(tmp_path)


async def test_a_change_that_raises_is_undone(tmp_path: Path) -> None:
    def change(connection: Connection) -> None:
        connection.exec_driver_sql("INSERT INTO leases VALUES ('a', 'b', 0)")
        raise KeyError("bug")

    async with durable(address(tmp_path)) as opened:
        with pytest.raises(KeyError):
            await opened.database.write(change)
        assert await opened.count("leases") == 0
