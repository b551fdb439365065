"""Which process is which, and whether it lives.

A process is named by the machine's boot, its namespace, its number and when it started, so that
another one on the same machine is judged at once and no number that was given again deceives.
One that runs elsewhere is judged by its beats: a row that it writes anew while it has something
to lose. Only whether the row changes counts, by the watcher's own clock: what the clocks of two
machines say is never compared.
"""

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, bindparam, delete, select, union

from tieline_server.storage.sql.schema import CLAIMS, PROCESSES, RUNNING, insert_or_replace

BEAT: Final = 5.0
"""Seconds between two beats, and between two looks at those of others."""

DEAD: Final = 15.0
"""Seconds without a beat after which a process is dead."""

SLEPT: Final = 2 * BEAT
"""Seconds between two looks after which a watcher cannot say what it has missed."""

PROC: Final = Path("/proc")
UNKNOWN: Final = "-"
GONE: Final = "ZX"
"""States of a process that runs no more and that its parent has not asked after."""


def identity() -> str:
    """The name of this process, a new one at each call: ``boot.namespace.pid.start.random``."""
    pid = os.getpid()
    started = _started(pid) or UNKNOWN
    return ".".join((*_where(), str(pid), started, secrets.token_hex(4)))


def lives(process: str) -> bool | None:
    """Whether a process lives; None where its beats must tell."""
    *where, pid, started, _ = process.split(".") if process.count(".") == 4 else [""] * 5
    if UNKNOWN in (*where, started) or where != _where() or not pid.isdecimal():
        return None
    if (found := _started(int(pid))) is not None:
        return found == started
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except OSError:
        # Another user's, which this machine hides.
        return None
    return False if _is_gone(int(pid)) else None


def _where() -> list[str]:
    """The boot and the namespace in which process numbers mean what they do here."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink(PROC / "self/ns/pid")
    except OSError:
        return [UNKNOWN, UNKNOWN]
    return [boot, namespace.strip("pid:[]")]


def _started(pid: int) -> str | None:
    """When a process that lives has started, in ticks since the boot."""
    fields = _stat(pid)
    return fields[19] if fields and fields[0] not in GONE else None


def _is_gone(pid: int) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[0] in GONE


def _stat(pid: int) -> list[str]:
    """What the system says of a process, from its state on; its name may hold anything."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


class Watch:
    """When the beats of other processes last changed, as this process has seen it."""

    def __init__(self) -> None:
        self._beats: dict[str, tuple[float | None, float]] = {}
        """Process -> its beat, and the look at which that was first seen."""
        self._looked_at: float | None = None

    def look(self, beats: Mapping[str, float | None], at: float) -> None:
        """Notes the beats of all processes that have something to lose; None: it never beat."""
        if self._looked_at is None or at - self._looked_at > SLEPT:
            self._beats.clear()
        self._looked_at = at
        self._beats = {
            process: before
            if (before := self._beats.get(process)) is not None and before[0] == beat
            else (beat, at)
            for process, beat in beats.items()
        }

    def blink(self) -> None:
        """A look failed: processes that could not be seen may have had the same trouble."""
        self._beats.clear()

    def silent(self, process: str, beat: float | None) -> bool:
        """Whether a process whose beat is this one has been without another for too long."""
        seen, since = self._beats.get(process, (None, None))
        if since is None or self._looked_at is None or seen != beat:
            return False
        return self._looked_at - since >= DEAD


class Others:
    """What one process knows of the others."""

    def __init__(self, process: str, judge: Callable[[str], bool | None]) -> None:
        self.process = process
        self._judge = judge
        self.watch = Watch()

    def dead(self, process: str, beat: float | None) -> bool:
        """Whether a process is dead whose beat in the database is this one."""
        if process == self.process:
            return False
        told = self._judge(process)
        return self.watch.silent(process, beat) if told is None else not told


# Rows.

_SEEN: Final = select(PROCESSES.c.seen_at).where(PROCESSES.c.id == bindparam("of"))
_USED: Final = union(
    select(RUNNING.c.process),
    select(CLAIMS.c.process).where(CLAIMS.c.process.is_not(None)),
).subquery("used")
"""Processes that have something to lose."""
_BEATS: Final = select(_USED.c.process, PROCESSES.c.seen_at).select_from(
    _USED.outerjoin(PROCESSES, PROCESSES.c.id == _USED.c.process)
)
_DROP: Final = delete(PROCESSES).where(PROCESSES.c.id == bindparam("of"))
_DROP_UNUSED: Final = delete(PROCESSES).where(
    PROCESSES.c.seen_at < bindparam("before"), PROCESSES.c.id.not_in(select(_USED.c.process))
)


def beat(connection: Connection, process: str, *, now: float) -> None:
    """Says that a process lives, in place of what was said before."""
    insert_or_replace(connection, PROCESSES, {"id": process, "seen_at": now})


def beats(connection: Connection) -> dict[str, float | None]:
    """The beats of all processes that have something to lose."""
    return {row.process: row.seen_at for row in connection.execute(_BEATS)}


def is_dead(connection: Connection, others: Others, process: str) -> bool:
    """Whether a process is dead, by the beat that this transaction sees."""
    return others.dead(process, connection.execute(_SEEN, {"of": process}).scalar_one_or_none())


def drop(connection: Connection, process: str) -> None:
    """Removes the beat of a process that has nothing any more."""
    connection.execute(_DROP, {"of": process})


def drop_unused(connection: Connection, *, before: float) -> None:
    """Removes the beats of processes that have nothing and were last seen before a time."""
    connection.execute(_DROP_UNUSED, {"before": before})
