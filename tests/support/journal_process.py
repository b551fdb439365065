"""A process that begins, logs and stores responses until it is killed, and says what it has done.

Run as ``python -m tests.support.journal_process ADDRESS NAME``. Each line on stdout is something
that has been acknowledged: ``begun ID``, ``claimed ID``, ``put ID``.
"""

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from subprocess import PIPE, Popen
from typing import Final

from tests.support.database import durable
from tests.support.journal_contract import Opened, begun, claim, ended, entry, put
from tieline_server.storage.sql.journal import SqlJournal
from tieline_server.storage.sql.processes import identity

EVENTS: Final = 12
"""Of each response, its terminal event not counted."""


@contextmanager
def started(address: str, name: str) -> Iterator["Popen[str]"]:
    """Such a process; it is killed at the end, if it was not before."""
    arguments = [sys.executable, "-m", "tests.support.journal_process", address, name]
    made = Popen(arguments, stdout=PIPE, text=True)
    try:
        yield made
    finally:
        made.kill()
        made.communicate()


async def work(address: str, name: str) -> None:
    """Four turns at a time, for ever."""
    async with durable(address) as opened:
        journal = SqlJournal(
            opened.database,
            opened.writer,
            process=identity(),
            now=time.time,
            clock=time.monotonic,
        )
        all_of_it = Opened(journal, opened.store, lambda seconds: None)
        numbers = count()
        turns = (turn(all_of_it, f"resp_{name}_{number}") for number in numbers)
        await asyncio.gather(*(_each(turns) for _ in range(4)))


async def _each(turns: "Iterator[object]") -> None:
    for one in turns:
        await one  # type: ignore[misc]  # a turn


async def turn(opened: Opened, name: str) -> None:
    """One turn with a key, in the order in which a server takes its steps."""
    await opened.journal.claim(claim(name, key=name.encode()))
    _say("claimed", name)
    await opened.journal.begin(begun(name))
    _say("begun", name)
    for first in range(0, EVENTS, 3):
        opened.journal.log(entry(name, first, 3))
        await asyncio.sleep(0)
    await put(opened, ended(name, terminal=EVENTS))
    _say("put", name)


def _say(done: str, name: str) -> None:
    print(done, name, flush=True)


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))
