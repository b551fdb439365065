"""What a journal in a database writes: each change is one, and runs whole or not at all."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from sqlalchemy import Connection, Insert, bindparam, delete, insert, select, union, update
from sqlalchemy.dialects import postgresql, sqlite

from tieline import responses
from tieline.responses import Usage
from tieline_server.storage.base import Begun, Cancellation, Claim
from tieline_server.storage.sql import orphans
from tieline_server.storage.sql import running as rows
from tieline_server.storage.sql.errors import Conflict
from tieline_server.storage.sql.processes import Others
from tieline_server.storage.sql.schema import CANCELS, CLAIMS, PROCESSES, RUNNING
from tieline_server.storage.sql.writer import Write

DAY: Final = 86_400.0

Key = tuple[str, str]
"""Owner and response id."""


class Beat(Write):
    """Says that this process lives."""

    def __init__(self, process: str, *, now: float) -> None:
        super().__init__()
        self._row = {"id": process, "seen_at": now}

    def write(self, connection: Connection) -> None:
        """In place of what was said before."""
        connection.execute(_BEAT[connection.dialect.name], self._row)


class Begin(Write):
    """Notes that a response runs."""

    def __init__(self, begun: Begun, process: str, *, beat: Beat | None) -> None:
        super().__init__()
        self._beat = beat
        self._row = {
            "owner": begun.owner,
            "id": begun.response.id,
            "process": process,
            "previous": begun.response.previous_response_id,
            "model": begun.model,
            "transport": begun.transport,
            "started_at": begun.started_at,
            "body": responses.encode(begun.response),
        }

    def write(self, connection: Connection) -> None:
        """Its row; and the beat, without which nobody elsewhere could judge its process."""
        if self._beat is not None:
            self._beat.write(connection)
        rows.begin(connection, self._row)


class Run(Struct):
    """What is to be written of one response that runs: events without a gap, and how it stands."""

    first: int
    begun: Begun
    events: list[bytes] = []


class Log:
    """Writes events that have gathered."""

    erases = False

    def __init__(
        self,
        process: str,
        take: Callable[[], Mapping[Key, Run]],
        settled: Callable[[Exception | None], None],
    ) -> None:
        self._process = process
        self._take = take
        self._settled = settled
        self._runs: Mapping[Key, Run] = {}

    def take(self) -> bool:
        """All that came until now."""
        self._runs = self._take()
        return bool(self._runs)

    def write(self, connection: Connection) -> None:
        """One response after another; of one that has ended meanwhile nothing is written."""
        for (owner, response_id), run in self._runs.items():
            mine = {"owner": owner, "response_id": response_id, "process": self._process}
            response = run.begun.response
            usage = response.usage or Usage()
            logged = run.events and rows.log(
                connection, run.events, first=run.first, usage=usage, **mine
            )
            if not logged:
                rows.describe(connection, response=response, **mine)

    def settle(self, error: Exception | None) -> None:
        """What failed is lost, and so are the events behind it: a log has no gap."""
        self._settled(error)


class EndOrphans(Write):
    """Ends responses of a process that has died, and all that it has where these are the last."""

    def __init__(
        self,
        process: str,
        others: Others,
        remains: Sequence[Begun],
        *,
        now: float,
        last: bool = False,
    ) -> None:
        super().__init__()
        self._process = process
        self._others = others
        self._remains = remains
        self._now = now
        self._last = last

    def write(self, connection: Connection) -> None:
        """Stores each as failed, if the process is still dead."""
        if not self._dead(connection):
            return
        for begun in self._remains:
            orphans.fail(
                connection,
                begun.response,
                owner=begun.owner,
                process=self._process,
                now=self._now,
            )
        if self._last:
            connection.execute(_DROP_CLAIMS_OF, {"of": self._process})
            connection.execute(_DROP_PROCESS, {"of": self._process})

    def _dead(self, connection: Connection) -> bool:
        return is_dead(connection, self._others, self._process)


class EndOwn(EndOrphans):
    """Ends what this process leaves behind as it goes."""

    def _dead(self, connection: Connection) -> bool:
        return True


class TakeClaim(Write):
    """Takes a key, or finds who has it."""

    def __init__(self, claim: Claim, others: Others, *, now: float, beat: Beat | None) -> None:
        super().__init__()
        self._others = others
        self._now = now
        self._beat = beat
        self._claim = claim
        self.holds = claim
        """The claim that holds in the end."""
        self._row = {
            "owner": claim.owner,
            "key": claim.key,
            "body": claim.body,
            "response": claim.response_id,
            "stored": claim.stored,
            "process": others.process,
            "until": None,
        }

    def write(self, connection: Connection) -> None:
        """The key is unique: of those who take it at once, one does."""
        if self._beat is not None:
            self._beat.write(connection)
        asked = {"by": self._claim.owner, "digest": self._claim.key}
        for _ in range(2):
            if connection.execute(_TAKE[connection.dialect.name], self._row).rowcount:
                self.holds = self._claim
                return
            found: Any = connection.execute(_HOLDER, asked).first()
            if found is not None and self._still_holds(connection, found):
                self.holds = _claim_of(found)
                return
            if found is not None:
                connection.execute(_RELEASE, asked | {"response_id": found.response})
        raise Conflict("another one has taken the key meanwhile")

    def _still_holds(self, connection: Connection, row: Any) -> bool:
        if row.until is not None and row.until <= self._now:
            return False
        return row.process is None or not is_dead(connection, self._others, row.process)


class Left(Struct):
    """What is to end that nobody waits for."""

    responses: dict[Key, None] = {}
    claims: dict[Claim, float | None] = {}

    @property
    def nothing(self) -> bool:
        """Whether there is none."""
        return not (self.responses or self.claims)


class Tidy:
    """Ends claims, and responses that will not be stored."""

    erases = False

    def __init__(
        self, take: Callable[[], Left], settled: Callable[[Left, Exception | None], None]
    ) -> None:
        self._take = take
        self._settled = settled
        self._left = Left()

    def take(self) -> bool:
        """All that came until now."""
        self._left = self._take()
        return not self._left.nothing

    def write(self, connection: Connection) -> None:
        """One by one."""
        for owner, response_id in self._left.responses:
            rows.end(connection, owner=owner, response_id=response_id)
        for claim, until in self._left.claims.items():
            asked = {"by": claim.owner, "digest": claim.key, "response_id": claim.response_id}
            if until is None:
                connection.execute(_RELEASE, asked)
            else:
                connection.execute(_EXPIRE, asked | {"ends": until})

    def settle(self, error: Exception | None) -> None:
        """What failed is to be done again: a response that stays would run for ever."""
        self._settled(self._left, error)


class AskCancel(Write):
    """Leaves word that a response is to be cancelled."""

    def __init__(self, wanted: Cancellation, *, until: float) -> None:
        super().__init__()
        self._row = {"owner": wanted.owner, "response": wanted.response_id, "until": until}

    def write(self, connection: Connection) -> None:
        """One row each time."""
        connection.execute(_ASK, self._row)


class Sweep(Write):
    """Removes what is over: words, claims, processes that have nothing and are long gone."""

    def __init__(self, *, now: float) -> None:
        super().__init__()
        self._now = now

    def write(self, connection: Connection) -> None:
        """By time alone."""
        connection.execute(_DROP_CANCELS, {"now": self._now})
        connection.execute(_DROP_CLAIMS, {"now": self._now})
        connection.execute(_DROP_PROCESSES, {"before": self._now - DAY})


def is_dead(connection: Connection, others: Others, process: str) -> bool:
    """Whether a process is dead, by the beat that this transaction sees."""
    return others.dead(process, connection.execute(_SEEN, {"of": process}).scalar_one_or_none())


def _claim_of(row: Any) -> Claim:
    return Claim(
        owner=row.owner,
        key=row.key,
        body=row.body,
        response_id=row.response,
        stored=row.stored,
    )


def _beats() -> Mapping[str, Insert]:
    ours, theirs = sqlite.insert(PROCESSES), postgresql.insert(PROCESSES)
    return {
        "sqlite": ours.on_conflict_do_update(
            index_elements=["id"], set_={"seen_at": ours.excluded.seen_at}
        ),
        "postgresql": theirs.on_conflict_do_update(
            index_elements=["id"], set_={"seen_at": theirs.excluded.seen_at}
        ),
    }


_BEAT: Final = _beats()
_SEEN: Final = select(PROCESSES.c.seen_at).where(PROCESSES.c.id == bindparam("of"))
USED: Final = union(
    select(RUNNING.c.process),
    select(CLAIMS.c.process).where(CLAIMS.c.process.is_not(None)),
).subquery("used")
"""Processes that have something to lose."""

_DROP_PROCESS: Final = delete(PROCESSES).where(PROCESSES.c.id == bindparam("of"))
_DROP_PROCESSES: Final = delete(PROCESSES).where(
    PROCESSES.c.seen_at < bindparam("before"), PROCESSES.c.id.not_in(select(USED.c.process))
)
_DROP_CLAIMS_OF: Final = delete(CLAIMS).where(CLAIMS.c.process == bindparam("of"))
_DROP_CLAIMS: Final = delete(CLAIMS).where(CLAIMS.c.until <= bindparam("now"))
_DROP_CANCELS: Final = delete(CANCELS).where(CANCELS.c.until <= bindparam("now"))
_ASK: Final = insert(CANCELS)
_TAKE: Final[Mapping[str, Insert]] = {
    "sqlite": sqlite.insert(CLAIMS).on_conflict_do_nothing(),
    "postgresql": postgresql.insert(CLAIMS).on_conflict_do_nothing(),
}
_HOLDER: Final = select(CLAIMS).where(
    CLAIMS.c.owner == bindparam("by"), CLAIMS.c.key == bindparam("digest")
)
_RELEASE: Final = delete(CLAIMS).where(
    CLAIMS.c.owner == bindparam("by"),
    CLAIMS.c.key == bindparam("digest"),
    CLAIMS.c.response == bindparam("response_id"),
)
_EXPIRE: Final = (
    update(CLAIMS)
    .where(
        CLAIMS.c.owner == bindparam("by"),
        CLAIMS.c.key == bindparam("digest"),
        CLAIMS.c.response == bindparam("response_id"),
    )
    .values(until=bindparam("ends"))
)
