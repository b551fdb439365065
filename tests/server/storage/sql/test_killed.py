"""Real processes that are killed at any point: nothing acknowledged is lost, nothing runs on."""

import asyncio
import random
import time
from collections.abc import Callable
from subprocess import Popen

import pytest
from sqlalchemy import Connection, text

from tests.support.database import Durable, durable
from tests.support.journal_contract import claim, numbers, replayed
from tests.support.journal_process import EVENTS, started
from tieline_server.storage.sql.journal import SqlJournal
from tieline_server.storage.sql.processes import identity

HALF = 30


def killed_after(made: "Popen[str]", lines: int) -> set[tuple[str, str]]:
    """What a process had acknowledged when it was killed after so many lines."""
    assert made.stdout is not None
    said = [made.stdout.readline() for _ in range(lines)]
    made.kill()
    # What was still in the pipe was acknowledged as well; a line that was cut off was not.
    said += made.stdout.readlines()
    # Its files are closed a moment before it has ended.
    made.wait()
    pairs = [tuple(line.split()) for line in said if line.endswith("\n")]
    return {(done, name) for done, name in pairs}


def another(opened: Durable) -> SqlJournal:
    """The journal of a neighbour that lives, with its real clocks and judge."""
    return SqlJournal(
        opened.database,
        opened.writer,
        process=identity(),
        now=time.time,
        clock=time.monotonic,
    )


async def check(opened: Durable, journals: list[SqlJournal], said: set[tuple[str, str]]) -> None:
    """All that was begun has ended, once, and is as it was acknowledged."""
    begun = {name for done, name in said if done == "begun"}
    put = {name for done, name in said if done == "put"}
    assert begun
    await settled(opened)
    asked = [each.running("ann", name) for each in journals for name in sorted(begun - put)]
    await asyncio.gather(*asked, *(each.look() for each in journals))
    for name in begun:
        found = await opened.store.get("ann", name)
        assert found is not None, "a response that was acknowledged"
        if name in put:
            assert found.response.status == "completed"
        assert found.response.status in ("completed", "failed")
        assert found.terminal is not None
        assert await replayed(journals[0], name) == numbers(found.terminal)
        if found.response.status == "completed":
            assert found.terminal == EVENTS
            again = claim("resp_again", key=name.encode())
            assert (await journals[1].claim(again)).response_id == name


async def nothing_runs(opened: Durable) -> None:
    """Every response has one row in the ledger, and of what was not stored nothing is left."""
    assert await opened.count("running") == 0
    assert await opened.count("ledger") == await opened.count("responses")
    for table in ("events", "claims"):
        stored = f"SELECT 1 FROM responses WHERE owner = {table}.owner AND id = {table}.response"
        question = f"SELECT count(*) FROM {table} WHERE NOT EXISTS ({stored})"
        assert await opened.value(question) == 0


async def settled(opened: Durable) -> None:
    """Until the server has done what a killed client still had asked for: to commit."""

    def lock(connection: Connection) -> None:
        if connection.dialect.name == "postgresql":
            connection.execute(text("LOCK TABLE running, events, claims, responses"))

    await opened.database.write(lock)


async def test_what_a_killed_process_left_is_failed_once_and_what_it_acknowledged_is_there(
    address: str, repeats: Callable[[int], int]
) -> None:
    async with durable(address) as opened:
        for seed in range(repeats(30)):
            lines = random.Random(seed).randrange(4, HALF)
            with started(address, str(seed)) as made:
                said = await asyncio.to_thread(killed_after, made, lines)
                journals = [another(opened), another(opened)]
                await check(opened, journals, said)
                await nothing_runs(opened)
                for each in journals:
                    await each.close()


@pytest.mark.parametrize("address", ["sqlite"], indirect=True)
async def test_a_neighbour_that_lives_goes_on_while_another_one_is_killed(address: str) -> None:
    async with durable(address) as opened:
        with started(address, "stays") as stays, started(address, "goes") as goes:
            said = await asyncio.to_thread(killed_after, goes, HALF)
            journals = [another(opened), another(opened)]
            await check(opened, journals, said)
            failed = "SELECT count(*) FROM ledger WHERE outcome = 'failed'"
            assert await opened.value(f"{failed} AND response_id LIKE 'resp_stays%'") == 0
            said = await asyncio.to_thread(killed_after, stays, HALF)
            await check(opened, journals, said)
            await nothing_runs(opened)
            for each in journals:
                await each.close()
