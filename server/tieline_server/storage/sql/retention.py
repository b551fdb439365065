"""What goes by itself: responses past the bounds, and what dead processes have left.

A sweep first asks, on a reader, whether there is anything to do. Only then does it claim the
work (one process at a time), and removes a few responses in each transaction, so that a write
never waits long behind it. A response that is being continued stays, however old it is.

Times of use are wall-clock time, which people and daemons set. Where the wall clock has moved
against the monotonic one, nothing is called old for a while.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec import Struct
from sqlalchemy import (
    Connection,
    bindparam,
    exists,
    func,
    or_,
    select,
    update,
)

from tieline_server.storage.sql import chains
from tieline_server.storage.sql.database import Database
from tieline_server.storage.sql.errors import DatabaseError, Unavailable
from tieline_server.storage.sql.schema import (
    EVENTS,
    LEASES,
    NODES,
    RESPONSES,
    RUNNING,
    insert_new,
)
from tieline_server.storage.sql.writer import LINGER, Writer

logger: Final = logging.getLogger("tieline.database")

ROUND: Final = 10.0
"""Seconds between two looks, where nothing is written."""

ROUSE: Final = 64
"""Stored responses after which a look comes earlier."""

SHARE: Final = 20
"""Counting what is there may take one part in so many of the time: it grows with the tables."""

BATCH: Final = 32
"""Responses that go in one transaction."""

CLAIM: Final = 30.0
"""Seconds for which a process that sweeps is the only one."""

STALE: Final = 300.0
"""Seconds after which a draft whose writer was not seen is swept away."""

JUMP: Final = 30.0
"""Seconds of difference that make a jump of the wall clock."""

DISTRUST: Final = 600.0
"""Seconds after a jump in which age is no reason to go."""


class Bounds(Struct, frozen=True, kw_only=True):
    """What a store may hold; None is no bound."""

    ttl: float | None = None
    """Seconds since a response was last used: stored, read or continued."""
    responses: int | None = None
    size: int | None = None
    """Bytes of items, responses and their events."""


class Running(Struct, frozen=True, kw_only=True):
    """What responses that run in this process have in the database."""

    drafts: Sequence[int] = ()
    """Nodes that were begun."""
    parents: Mapping[int, str] = {}
    """Node that one of them continues -> its owner."""


class Excess(Struct, frozen=True, kw_only=True):
    """What is to go now. Drafts and responses older than a time, and so many besides."""

    drafts_before: float
    used_before: float | None
    responses: int = 0
    size: int = 0
    old: bool = False
    """Whether anything is older than those times."""

    @property
    def nothing(self) -> bool:
        """Whether all may stay."""
        return not (self.old or self.responses > 0 or self.size > 0)


_STORED: Final = select(func.count()).where(NODES.c.used_at.is_not(None))
_BYTES: Final = select(func.coalesce(func.sum(NODES.c.size), 0))
_EVENT_BYTES: Final = select(func.coalesce(func.sum(func.length(EVENTS.c.blob)), 0)).join(
    RUNNING, (RUNNING.c.owner == EVENTS.c.owner) & (RUNNING.c.id == EVENTS.c.response)
)
"""Of responses that run: those of a stored one are in its size."""
_STALE: Final = select(NODES.c.id).where(NODES.c.draft < bindparam("seen_before")).limit(BATCH)
_child: Final = NODES.alias("child")
_OLDEST: Final = (
    select(RESPONSES.c.owner, RESPONSES.c.id, RESPONSES.c.node)
    .join(NODES, NODES.c.id == RESPONSES.c.node)
    .where(
        NODES.c.used_at.is_not(None),
        ~exists().where(_child.c.parent == NODES.c.id, _child.c.draft.is_not(None)),
        ~exists().where(RUNNING.c.owner == RESPONSES.c.owner, RUNNING.c.previous == RESPONSES.c.id),
    )
    .order_by(NODES.c.used_at)
)
_EXPIRED: Final = _OLDEST.where(NODES.c.used_at < bindparam("used_before"))
_TAKE_CLAIM: Final = (
    update(LEASES)
    .where(
        LEASES.c.name == "sweep",
        or_(
            LEASES.c.holder == bindparam("by"),
            LEASES.c.until < bindparam("now"),
            LEASES.c.until > bindparam("wrong"),
        ),
    )
    .values(holder=bindparam("by"), until=bindparam("ends"))
)
_BEAT: Final = (
    update(NODES)
    .where(NODES.c.id == bindparam("node"), NODES.c.draft.is_not(None))
    .values(draft=bindparam("now"))
)


def excess(connection: Connection, bounds: Bounds, *, now: float, aged: bool) -> Excess:
    """What is past the bounds. Age counts only where the clock can be trusted: ``aged``."""
    drafts_before = now - STALE if aged else float("-inf")
    used_before = now - bounds.ttl if aged and bounds.ttl is not None else None
    old = connection.execute(_STALE, {"seen_before": drafts_before}).first() is not None
    if used_before is not None and not old:
        one = connection.execute(_EXPIRED.limit(1), {"used_before": used_before}).first()
        old = one is not None
    responses = size = 0
    if bounds.responses is not None or bounds.size is not None:
        stored = connection.execute(_STORED).scalar_one()
        responses = stored - bounds.responses if bounds.responses is not None else 0
        # The newest response stays even where it alone is too big.
        if bounds.size is not None and stored > 1:
            there = connection.execute(_BYTES).scalar_one()
            there += connection.execute(_EVENT_BYTES).scalar_one()
            size = there - bounds.size
    return Excess(
        drafts_before=drafts_before,
        used_before=used_before,
        responses=responses,
        size=size,
        old=old,
    )


class Sweep:
    """Removes a few of what is past the bounds, if no other process does."""

    def __init__(
        self, holder: str, over: Excess, *, now: float, spared: Collection[int] = ()
    ) -> None:
        self._spared = spared
        self._holder = holder
        self._over = over
        self._now = now
        self.drafts = 0
        self.responses = 0
        self.freed = 0
        """Bytes."""

    @property
    def went(self) -> bool:
        """Whether anything was removed."""
        return self.drafts + self.responses > 0

    @property
    def left(self) -> Excess:
        """What is still past the bounds."""
        over = self._over
        return Excess(
            drafts_before=over.drafts_before,
            used_before=over.used_before,
            responses=over.responses - self.responses,
            size=over.size - self.freed,
            old=over.old and (self.drafts >= BATCH or self.responses >= BATCH),
        )

    def write(self, connection: Connection) -> None:
        """Claims the work, then removes drafts, old responses, and the least recently used."""
        self.drafts = self.responses = self.freed = 0
        if not claim(connection, holder=self._holder, now=self._now):
            return
        over = self._over
        seen_before = {"seen_before": over.drafts_before}
        for node in connection.execute(_STALE, seen_before).scalars().all():
            self.freed += chains.remove_node(connection, node)
            self.drafts += 1
        if over.used_before is not None:
            self._expire(connection, over.used_before)
        self._evict(connection)

    def _expire(self, connection: Connection, used_before: float) -> None:
        some = _EXPIRED.limit(BATCH + len(self._spared))
        oldest = connection.execute(some, {"used_before": used_before})
        for owner, response_id, node in oldest.all():
            if node not in self._spared:
                self._remove(connection, owner, response_id)

    def _evict(self, connection: Connection) -> None:
        if self._enough():
            return
        oldest = connection.execute(_OLDEST.limit(BATCH + 1 + len(self._spared))).all()
        # The newest one stays, even where it alone is past the bound.
        for owner, response_id, node in oldest[:-1]:
            if self._enough() or self.responses >= BATCH:
                return
            if node not in self._spared:
                self._remove(connection, owner, response_id)

    def _enough(self) -> bool:
        return self.responses >= self._over.responses and self.freed >= self._over.size

    def _remove(self, connection: Connection, owner: str, response_id: str) -> None:
        removed = chains.remove_response(connection, owner=owner, response_id=response_id)
        self.freed += removed.size if removed else 0
        self.responses += 1


def claim(connection: Connection, *, holder: str, now: float) -> bool:
    """Makes ``holder`` the only one that sweeps for a while; False where another one does.

    A claim that lies far ahead was made by a clock that was wrong, and counts for nothing.
    """
    row = {"name": "sweep", "holder": holder, "until": now + CLAIM}
    if insert_new(connection, LEASES, row):
        return True
    taken = {"by": holder, "now": now, "wrong": now + 10 * CLAIM, "ends": now + CLAIM}
    return connection.execute(_TAKE_CLAIM, taken).rowcount == 1


def beat(connection: Connection, running: Running, *, now: float) -> None:
    """Says of drafts that their writer lives, and of what they continue that it is in use."""
    rows = [{"node": node, "now": now} for node in running.drafts]
    if rows:
        connection.execute(_BEAT, rows)
    for node, owner in running.parents.items():
        chains.touch(connection, node=node, owner=owner, now=now)


class Retention:
    """The task that sweeps."""

    def __init__(
        self,
        database: Database,
        writer: Writer,
        bounds: Bounds,
        *,
        now: Callable[[], float],
        clock: Callable[[], float],
        running: Callable[[], Running],
    ) -> None:
        self._database = database
        self._writer = writer
        self._bounds = bounds
        self._now = now
        self._clock = clock
        self._running = running
        self._holder = secrets.token_hex(8)
        self._stored = 0
        self._wanted = asyncio.Event()
        self._ending = asyncio.Event()
        self._looking = asyncio.Lock()
        self._asking = 0.0
        """Seconds that the last count took."""
        self._ahead = now() - clock()
        self._trusted_at = clock()
        self._tidied_at = self._beat_at = clock()
        self._owed = 0
        """Removals that are still to be erased."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stored(self) -> None:
        """One more response is there."""
        self._stored += 1
        if self._stored >= ROUSE:
            self._wanted.set()

    def owe(self) -> None:
        """Something was removed that no caller waits for: the files forget it soon."""
        self._owed += 1

    async def close(self) -> None:
        """Ends after the transaction that is in flight."""
        self._ending.set()
        self._wanted.set()
        await self._task

    async def _run(self) -> None:
        while not self._ending.is_set():
            self._stored = 0
            self._wanted.clear()
            try:
                await self.look()
            except Unavailable:
                pass  # Said once, where it was found out.
            except DatabaseError as error:
                logger.warning("database.sweep failed", extra={"reason": str(error)})
            except Exception:
                logger.exception("database.sweep failed")
            await _wait(self._ending, self._asking * SHARE)
            await _wait(self._wanted, ROUND)

    async def look(self) -> None:
        """One round: beats, sweeps, gives room back. One at a time, or both would remove."""
        async with self._looking:
            await self._look()

    async def _look(self) -> None:
        running = self._running()
        due = self._clock() - self._beat_at >= ROUND
        if due and (running.drafts or running.parents):
            self._beat_at = self._clock()
            now = self._now()
            await self._writer.make(partial(beat, running=running, now=now), within=LINGER)
        while not self._ending.is_set() and await self._sweep():
            self.owe()
        if self._clock() - self._tidied_at >= ROUND:
            self._tidied_at = self._clock()
            owed = self._owed
            if owed and await self._database.erase():
                self._owed -= owed
            await self._database.tidy()

    async def _sweep(self) -> bool:
        """Removes what is past the bounds now; whether anything went."""
        over = await self._excess()
        went = False
        while not self._ending.is_set() and not over.nothing:
            spared = self._running().parents
            sweep = Sweep(self._holder, over, now=self._now(), spared=spared)
            await self._writer.make(sweep.write)
            if not sweep.went:
                break
            went, over = True, sweep.left
        return went

    async def _excess(self) -> Excess:
        now, aged = self._now(), self._clock_is_steady()

        def ask(connection: Connection) -> tuple[Excess, float]:
            began = self._clock()
            over = excess(connection, self._bounds, now=now, aged=aged)
            # Without the wait for a reader: a busy machine must not let the store grow.
            return over, self._clock() - began

        over, self._asking = await self._database.read(ask)
        return over

    def _clock_is_steady(self) -> bool:
        ahead = self._now() - self._clock()
        if abs(ahead - self._ahead) > JUMP:
            seconds = round(ahead - self._ahead)
            logger.warning("database.clock has jumped", extra={"seconds": seconds})
            self._trusted_at = self._clock() + DISTRUST
        self._ahead = ahead
        return self._clock() >= self._trusted_at


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Until the event is set, at most so long."""
    try:
        async with asyncio.timeout(min(seconds, ROUND)):
            await event.wait()
    except TimeoutError:
        return
