"""The journal in a database: what every line, worker and replica finds, also after a crash.

Events gather in memory for a moment and are written in groups, in their order and never after
the response itself. Where the database is away, those that could not be written are lost, and so
are the ones behind them: the response cannot be replayed from here, and its ``put`` will most
likely fail as well.

A response of a process that has died is ended by whoever meets it: by a question for it, or by
the look that every journal takes all few seconds.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from sqlalchemy import Connection, bindparam, exists, or_, select

from tieline_server.config import MIB
from tieline_server.storage.base import Begun, Cancellation, Claim, Entry
from tieline_server.storage.sql import running as rows
from tieline_server.storage.sql.chains import askable
from tieline_server.storage.sql.database import Database
from tieline_server.storage.sql.errors import DatabaseError, Unavailable
from tieline_server.storage.sql.journal_changes import (
    USED,
    AskCancel,
    Beat,
    Begin,
    EndOrphans,
    EndOwn,
    Key,
    Left,
    Log,
    Run,
    Sweep,
    TakeClaim,
    Tidy,
)
from tieline_server.storage.sql.processes import BEAT, Others, lives
from tieline_server.storage.sql.schema import CANCELS, CLAIMS, PROCESSES, RUNNING
from tieline_server.storage.sql.writer import Writer

logger: Final = logging.getLogger("tieline.journal")

GATHER: Final = 0.05
"""Seconds for which events of all responses gather."""

WAITING: Final = 16 * MIB
"""Bytes of events that wait for the database; what comes past it is lost."""

BATCH: Final = 16
"""Responses of a dead process that end in one transaction."""

WORD: Final = 10.0
"""Seconds for which a word to cancel is good."""


class SqlJournal:
    """A journal of one process."""

    def __init__(
        self,
        database: Database,
        writer: Writer,
        *,
        process: str,
        now: Callable[[], float],
        clock: Callable[[], float],
        judge: Callable[[str], bool | None] = lives,
    ) -> None:
        self._database = database
        self._writer = writer
        self._now = now
        self._clock = clock
        self._others = Others(process, judge)
        self._process = process
        self._beat_at = float("-inf")
        self._runs: dict[Key, Run] = {}
        self._waiting = 0
        self._losing = False
        self._left = Left()
        self._owing = False
        """Whether something was removed that may still be in the files."""
        self._told: set[int] = set()
        self._looked = False
        self._looking = asyncio.Lock()
        self._ending = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    # Turns.

    async def begin(self, begun: Begun) -> None:
        """Notes that a response runs; durable on return."""
        key = (begun.owner, begun.response.id)
        beat = self._beat()
        change = Begin(begun, self._process, beat=beat)
        self._writer.add(change)
        try:
            await change.done
        except BaseException:
            # It may be there all the same, and nobody would end it.
            self.end(*key)
            raise
        self._beaten(beat)

    def log(self, entry: Entry) -> None:
        """Takes events; they are written soon, in their order, before the response is stored."""
        key = (entry.owner, entry.response_id)
        if not self._runs:
            self._writer.leave(Log(self._process, self._take, self._logged), within=GATHER)
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = Run(entry.first, entry.begun)
        run.begun = entry.begun
        size = sum(map(len, entry.events))
        if self._waiting + size > WAITING:
            self._lose("too many wait")
        elif entry.first == run.first + len(run.events):
            run.events.extend(entry.events)
            self._waiting += size

    def end(self, owner: str, response_id: str) -> None:
        """Has all of a begun response removed; tried until it is done."""
        key = (owner, response_id)
        run = self._runs.pop(key, None)
        if run is not None:
            self._waiting -= sum(map(len, run.events))
        self._tidy()
        self._left.responses[key] = None

    async def running(self, owner: str, response_id: str) -> Begun | None:
        """The owner's begun response as it was last written."""
        if not askable(response_id):
            return None
        found = await self._find(owner, response_id)
        if found is None:
            return None
        (begun,) = await _as_they_stand([found])
        if not self._others.dead(found.process, found.beat):
            return begun
        change = EndOrphans(found.process, self._others, [begun], now=self._now())
        self._writer.add(change)
        await change.done
        # Its process may have shown that it lives after all.
        return begun if await self._find(owner, response_id) else None

    async def events(
        self, owner: str, response_id: str, *, after: int, most: int
    ) -> Sequence[bytes] | None:
        """Events that are in the database; None too where some of them were lost."""
        if not askable(response_id):
            return None
        return await self._database.read(
            lambda connection: rows.events(
                connection, owner=owner, response_id=response_id, after=after, most=most
            )
        )

    async def _find(self, owner: str, response_id: str) -> rows.Found | None:
        return await self._database.read(
            lambda connection: rows.find(connection, owner=owner, response_id=response_id)
        )

    def _take(self) -> Mapping[Key, Run]:
        """What has gathered, as its transaction begins."""
        runs, self._runs = self._runs, {}
        self._waiting = 0
        return runs

    def _logged(self, error: Exception | None) -> None:
        if error is None:
            self._losing = False
        else:
            self._lose(str(error))

    def _lose(self, reason: str) -> None:
        """Says once that events are lost, until some are written again."""
        if not self._losing:
            self._losing = True
            logger.error("journal.events lost", extra={"reason": reason})

    # Keys.

    async def claim(self, claim: Claim) -> Claim:
        """Takes the key, or finds the claim that has it."""
        # A claim that is over must not be found: its response will never be there.
        self._try_again()
        beat = self._beat()
        change = TakeClaim(claim, self._others, now=self._now(), beat=beat)
        self._writer.add(change)
        try:
            await change.done
        except BaseException:
            # It may be there all the same, and would hold for as long as this process lives.
            self.expire(claim, at=None)
            raise
        self._beaten(beat)
        return change.holds

    def expire(self, claim: Claim, *, at: float | None) -> None:
        """Has a claim end; tried until it is done."""
        self._tidy()
        self._left.claims[claim] = at

    def _tidy(self) -> None:
        if self._left.nothing:
            self._writer.leave(Tidy(self._take_left, self._tidied))

    def _try_again(self) -> None:
        if not self._left.nothing:
            self._writer.leave(Tidy(self._take_left, self._tidied))

    def _take_left(self) -> Left:
        left, self._left = self._left, Left()
        return left

    def _tidied(self, left: Left, error: Exception | None) -> None:
        if error is None:
            self._owing |= bool(left.responses)
            return
        # The next look has them tried again.
        self._left.responses.update(left.responses)
        for claim, at in left.claims.items():
            self._left.claims.setdefault(claim, at)

    # Cancels.

    async def ask_cancel(self, wanted: Cancellation) -> None:
        """Leaves word in a row."""
        if not askable(wanted.response_id):
            return
        change = AskCancel(wanted, until=self._now() + WORD)
        self._writer.add(change)
        await change.done

    async def asked_cancels(self) -> Sequence[Cancellation]:
        """The words that are good and were not told here before."""
        asked = {"now": self._now()}
        found = await self._database.read(
            lambda connection: connection.execute(_WORDS, asked).all()
        )
        # Their numbers come in no order: transactions that began first may end last.
        fresh = [row for row in found if row.id not in self._told]
        self._told = {row.id for row in found}
        return [Cancellation(owner=row.owner, response_id=row.response) for row in fresh]

    # Other processes.

    async def look(self) -> None:
        """One round: beats, ends what dead processes left, removes what is over."""
        async with self._looking:
            try:
                await self._look()
            except BaseException:
                self._others.watch.blink()
                raise

    async def close(self) -> None:
        """Ends what this process still runs: nobody will store it."""
        self._ending.set()
        await self._task
        self._try_again()
        try:
            await self._end_all(EndOwn, self._process)
        except DatabaseError as error:
            logger.warning("journal.end failed", extra={"reason": str(error)})

    async def _run(self) -> None:
        while not self._ending.is_set():
            try:
                await self.look()
            except Unavailable:
                pass  # Said once, where it was found out.
            except DatabaseError as error:
                logger.warning("journal.look failed", extra={"reason": str(error)})
            except Exception:
                logger.exception("journal.look failed")
            try:
                async with asyncio.timeout(BEAT):
                    await self._ending.wait()
            except TimeoutError:
                continue

    async def _look(self) -> None:
        now = self._now()
        beats, over = await self._database.read(lambda connection: _survey(connection, now))
        self._others.watch.look(beats, self._clock())
        if self._process in beats:
            await self._beat_now()
        for process, beat in beats.items():
            if self._others.dead(process, beat):
                await self._end_all(EndOrphans, process)
        if over or not self._looked:
            sweep = Sweep(now=now)
            self._writer.leave(sweep)
            await sweep.done
            self._looked = True
        await self._make_good()

    async def _make_good(self) -> None:
        """What could not be done at its time."""
        self._try_again()
        if self._owing:
            self._owing = not await self._database.erase()

    async def _end_all(self, kind: type[EndOrphans], process: str) -> None:
        """Ends all that a process has begun, some in each transaction."""
        last = False
        while not last:
            found = await self._database.read(lambda connection: _remains(connection, process))
            last = len(found) < BATCH
            remains = await _as_they_stand(found)
            change = kind(process, self._others, remains, now=self._now(), last=last)
            self._writer.add(change)
            await change.done

    def _beat(self) -> Beat | None:
        """A beat to go with a change, where the last one is some time ago."""
        due = self._clock() - self._beat_at >= BEAT
        return Beat(self._process, now=self._now()) if due else None

    def _beaten(self, beat: Beat | None) -> None:
        if beat is not None:
            self._beat_at = self._clock()

    async def _beat_now(self) -> None:
        beat = Beat(self._process, now=self._now())
        self._writer.leave(beat)
        await beat.done
        self._beaten(beat)


_RUNNING_OF: Final = (
    select(RUNNING.c.owner, RUNNING.c.id)
    .where(RUNNING.c.process == bindparam("of"))
    # Two that end the same ones take them in one order, or each would wait for the other.
    .order_by(RUNNING.c.owner, RUNNING.c.id)
    .limit(BATCH)
)
_WORDS: Final = (
    select(CANCELS.c.id, CANCELS.c.owner, CANCELS.c.response)
    .where(CANCELS.c.until > bindparam("now"))
    .order_by(CANCELS.c.id)
)
_USED: Final = select(USED.c.process, PROCESSES.c.seen_at).select_from(
    USED.outerjoin(PROCESSES, PROCESSES.c.id == USED.c.process)
)
_OVER: Final = select(
    or_(
        exists().where(CANCELS.c.until <= bindparam("now")),
        exists().where(CLAIMS.c.until <= bindparam("now")),
    )
)


def _remains(connection: Connection, process: str) -> list[rows.Found]:
    """Some of what a process has begun."""
    keys = connection.execute(_RUNNING_OF, {"of": process}).all()
    found = (rows.find(connection, owner=owner, response_id=name) for owner, name in keys)
    return [each for each in found if each is not None]


async def _as_they_stand(found: Sequence[rows.Found]) -> list[Begun]:
    """What their events have made of them, on a thread: the loop has tokens to pass on."""
    return await asyncio.to_thread(lambda: [_begun(each) for each in found])


def _begun(found: rows.Found) -> Begun:
    return Begun(
        response=found.response(),
        owner=found.owner,
        model=found.model,
        transport=found.transport,
        started_at=found.started_at,
    )


def _survey(connection: Connection, now: float) -> tuple[dict[str, float | None], bool]:
    """The beats of processes that have something to lose, and whether anything is over."""
    beats = {row.process: row.seen_at for row in connection.execute(_USED)}
    return beats, bool(connection.execute(_OVER, {"now": now}).scalar_one())
