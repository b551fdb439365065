"""The journal in a database: what every connection, worker and replica finds, also after a crash.

Events gather in memory for a moment and are written in groups, in their order and never after
the response itself. Where the database is away, those that could not be written are lost, and so
are the ones behind them: the response cannot be replayed from here, and its ``put`` will most
likely fail as well.

A response of a process that has died is ended by the process that meets it: by a question for
it, or by the look that every journal takes all few seconds.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from msgspec import Struct
from sqlalchemy import Connection, bindparam, delete, exists, insert, or_, select

from tieline.responses import Usage
from tieline_server.config import MIB
from tieline_server.storage.base import Cancellation, Claim, Entry, RunningResponse
from tieline_server.storage.sql import claims, orphans, processes, running
from tieline_server.storage.sql.chains import askable
from tieline_server.storage.sql.database import Database
from tieline_server.storage.sql.errors import DatabaseError, Unavailable
from tieline_server.storage.sql.processes import BEAT, Others, lives
from tieline_server.storage.sql.running import Found
from tieline_server.storage.sql.schema import CANCELS, CLAIMS
from tieline_server.storage.sql.writer import LINGER, Gathered, Writer

T = TypeVar("T")

logger: Final = logging.getLogger("tieline.journal")

GATHER: Final = 0.05
"""Seconds for which events of all responses gather."""

WAITING: Final = 16 * MIB
"""Bytes of events that wait for the database; what comes past it is lost."""

BATCH: Final = 16
"""Responses of a dead process that end in one transaction."""

WORD: Final = 10.0
"""Seconds for which a word to cancel is good."""

DAY: Final = 86_400.0

Key = tuple[str, str]
"""Owner and response id."""


class Run(Struct):
    """What is to be written of one response that runs: events without a gap, and how it stands."""

    first: int
    standing: RunningResponse
    events: list[bytes] = []


class Left(Struct):
    """What is to end that nothing waits for."""

    responses: dict[Key, None] = {}
    claims: dict[Claim, float | None] = {}

    def __bool__(self) -> bool:
        return bool(self.responses or self.claims)


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

    async def begin(self, response: RunningResponse) -> None:
        """Notes that a response runs; durable on return."""
        try:
            await self._make(partial(running.begin, response=response, process=self._process))
        except BaseException:
            # It may be there all the same, and nothing would end it.
            self.end(response.owner, response.response.id)
            raise

    def log(self, entry: Entry) -> None:
        """Takes events; they are written soon, in their order, before the response is stored."""
        key = (entry.owner, entry.response_id)
        if not self._runs:
            self._writer.leave(Gathered(self._take, self._write, self._logged), within=GATHER)
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = Run(entry.first, entry.standing)
        run.standing = entry.standing
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

    async def running(self, owner: str, response_id: str) -> RunningResponse | None:
        """The owner's begun response as it was last written."""
        if not askable(response_id):
            return None
        found = await self._find(owner, response_id)
        if found is None:
            return None
        (standing,) = await _as_they_stand([found])
        if not self._others.dead(found.process, found.beat):
            return standing
        await self._fail([standing], found.process)
        # Its process may have shown that it lives after all.
        return standing if await self._find(owner, response_id) else None

    async def events(
        self, owner: str, response_id: str, *, after: int, most: int
    ) -> Sequence[bytes] | None:
        """Events that are in the database; None too where some of them were lost."""
        if not askable(response_id):
            return None
        return await self._database.read(
            lambda connection: running.events(
                connection, owner=owner, response_id=response_id, after=after, most=most
            )
        )

    async def _find(self, owner: str, response_id: str) -> Found | None:
        return await self._database.read(
            lambda connection: running.find(connection, owner=owner, response_id=response_id)
        )

    def _take(self) -> Mapping[Key, Run]:
        """What has gathered, as its transaction begins."""
        runs, self._runs = self._runs, {}
        self._waiting = 0
        return runs

    def _write(self, connection: Connection, runs: Mapping[Key, Run]) -> None:
        """One response after another; of one that has ended meanwhile nothing is written."""
        for (owner, response_id), run in runs.items():
            mine = {"owner": owner, "response_id": response_id, "process": self._process}
            response = run.standing.response
            usage = response.usage or Usage()
            logged = run.events and running.log(
                connection, run.events, first=run.first, usage=usage, **mine
            )
            if not logged:
                running.describe(connection, response=response, **mine)

    def _logged(self, runs: Mapping[Key, Run], error: Exception | None) -> None:
        """What failed is lost, and so are the events behind it: a log has no gap."""
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
        take = partial(claims.take, claim=claim, others=self._others, now=self._now())
        try:
            return await self._make(take)
        except BaseException:
            # It may be there all the same, and would hold for as long as this process lives.
            self.expire(claim, at=None)
            raise

    def expire(self, claim: Claim, *, at: float | None) -> None:
        """Has a claim end; tried until it is done."""
        self._tidy()
        self._left.claims[claim] = at

    def _tidy(self) -> None:
        """Has what is left to end written soon; called before the first of it is there."""
        if not self._left:
            self._writer.leave(Gathered(self._take_left, _end_left, self._tidied))

    def _try_again(self) -> None:
        if self._left:
            self._writer.leave(Gathered(self._take_left, _end_left, self._tidied))

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
        row = {
            "owner": wanted.owner,
            "response": wanted.response_id,
            "until": self._now() + WORD,
        }
        await self._writer.make(partial(_ask, row=row))

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
        """Ends what this process still runs: it will never be stored."""
        self._ending.set()
        await self._task
        self._try_again()
        try:
            await self._end_all(self._process)
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
        beats, over = await self._database.read(partial(_survey, now=now))
        self._others.watch.look(beats, self._clock())
        if self._process in beats:
            alive = partial(processes.beat, process=self._process, now=now)
            await self._writer.make(alive, within=LINGER)
            self._beat_at = self._clock()
        for process, beat in beats.items():
            if self._others.dead(process, beat):
                await self._end_all(process)
        if over or not self._looked:
            await self._writer.make(partial(_sweep, now=now), within=LINGER)
            self._looked = True
        await self._make_good()

    async def _make_good(self) -> None:
        """What could not be done at its time."""
        self._try_again()
        if self._owing:
            self._owing = not await self._database.erase()

    async def _end_all(self, process: str) -> None:
        """Ends all that a process has begun, some in each transaction."""
        last = False
        while not last:
            found = await self._database.read(
                lambda connection: running.find_of(connection, process=process, most=BATCH)
            )
            last = len(found) < BATCH
            await self._fail(await _as_they_stand(found), process, last=last)

    async def _fail(
        self, remains: Sequence[RunningResponse], process: str, *, last: bool = False
    ) -> None:
        """Stores responses as failed, if their process is this one, or dead still."""
        end = partial(
            orphans.end,
            remains=remains,
            process=process,
            others=self._others,
            now=self._now(),
            last=last,
        )
        await self._writer.make(end)

    async def _make(self, work: Callable[[Connection], T]) -> T:
        """Makes a change, with a beat where the last one is some time ago.

        Without a beat no process elsewhere could judge this one.
        """
        due, now = self._clock() - self._beat_at >= BEAT, self._now()

        def write(connection: Connection) -> T:
            if due:
                processes.beat(connection, self._process, now=now)
            return work(connection)

        made = await self._writer.make(write)
        if due:
            self._beat_at = self._clock()
        return made


_WORDS: Final = (
    select(CANCELS.c.id, CANCELS.c.owner, CANCELS.c.response)
    .where(CANCELS.c.until > bindparam("now"))
    .order_by(CANCELS.c.id)
)
_OVER: Final = select(
    or_(
        exists().where(CANCELS.c.until <= bindparam("now")),
        exists().where(CLAIMS.c.until <= bindparam("now")),
    )
)


_ASK: Final = insert(CANCELS)
_DROP_CANCELS: Final = delete(CANCELS).where(CANCELS.c.until <= bindparam("now"))


async def _as_they_stand(found: Sequence[Found]) -> list[RunningResponse]:
    """What their events have made of them, on a thread: the loop has tokens to pass on."""
    return await asyncio.to_thread(lambda: [each.read() for each in found])


def _ask(connection: Connection, row: Mapping[str, object]) -> None:
    connection.execute(_ASK, row)


def _end_left(connection: Connection, left: Left) -> None:
    for owner, response_id in left.responses:
        running.end(connection, owner=owner, response_id=response_id)
    for claim, at in left.claims.items():
        claims.expire(connection, claim, at=at)


def _survey(connection: Connection, *, now: float) -> tuple[dict[str, float | None], bool]:
    """The beats of processes that have something to lose, and whether anything is over."""
    over = bool(connection.execute(_OVER, {"now": now}).scalar_one())
    return processes.beats(connection), over


def _sweep(connection: Connection, *, now: float) -> None:
    """Removes what is over: words, claims, processes that have nothing and are long gone."""
    connection.execute(_DROP_CANCELS, {"now": now})
    claims.drop_over(connection, now=now)
    processes.drop_unused(connection, before=now - DAY)
