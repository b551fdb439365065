"""Rows of idempotency keys: of all that claim one at once, one holds it."""

from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, and_, bindparam, delete, select, update

from tieline_server.storage.base import Claim
from tieline_server.storage.sql.errors import Conflict
from tieline_server.storage.sql.processes import Others, is_dead
from tieline_server.storage.sql.schema import CLAIMS, insert_new

_KEY: Final = and_(CLAIMS.c.owner == bindparam("by"), CLAIMS.c.key == bindparam("digest"))
_THIS: Final[ColumnElement[bool]] = and_(_KEY, CLAIMS.c.response == bindparam("of"))
_HOLDER: Final = select(CLAIMS).where(_KEY)
_RELEASE: Final = delete(CLAIMS).where(_THIS)
_EXPIRE: Final = update(CLAIMS).where(_THIS).values(until=bindparam("ends"))
_DROP_OF: Final = delete(CLAIMS).where(CLAIMS.c.process == bindparam("of"))
_DROP_OVER: Final = delete(CLAIMS).where(CLAIMS.c.until <= bindparam("now"))


def take(connection: Connection, claim: Claim, others: Others, *, now: float) -> Claim:
    """Takes a key for this process; returns the claim that holds in the end."""
    row = {
        "owner": claim.owner,
        "key": claim.key,
        "body": claim.body,
        "response": claim.response_id,
        "stored": claim.stored,
        "process": others.process,
        "until": None,
    }
    # The second time, the one that held it has been released.
    for _ in range(2):
        if insert_new(connection, CLAIMS, row):
            return claim
        asked = {"by": claim.owner, "digest": claim.key}
        found: Any = connection.execute(_HOLDER, asked).first()
        if found is not None and _still_holds(connection, found, others, now=now):
            return Claim(
                owner=found.owner,
                key=found.key,
                body=found.body,
                response_id=found.response,
                stored=found.stored,
            )
        if found is not None:
            connection.execute(_RELEASE, {**asked, "of": found.response})
    raise Conflict("another one has taken the key meanwhile")


def _still_holds(connection: Connection, row: Any, others: Others, *, now: float) -> bool:
    if row.until is not None and row.until <= now:
        return False
    return row.process is None or not is_dead(connection, others, row.process)


def expire(connection: Connection, claim: Claim, *, at: float | None) -> None:
    """Lets a claim end at a time, at once with None; it is known by owner, key and response."""
    asked = {"by": claim.owner, "digest": claim.key, "of": claim.response_id}
    if at is None:
        connection.execute(_RELEASE, asked)
    else:
        connection.execute(_EXPIRE, {**asked, "ends": at})


def drop_of(connection: Connection, process: str) -> None:
    """Removes the claims that hold for as long as a process lives."""
    connection.execute(_DROP_OF, {"of": process})


def drop_over(connection: Connection, *, now: float) -> None:
    """Removes the claims whose time is over."""
    connection.execute(_DROP_OVER, {"now": now})
