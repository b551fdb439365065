"""Rows of responses that run: what they are, their events, and how they end.

A response is begun once and then is either finished, by the store that puts it, or forgotten, or
failed by another process that finds its own dead. The transaction that deletes its row in
``running`` has decided which: the others find nothing to do.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace
from sqlalchemy import Connection, bindparam, delete, exists, func, insert, select, update

from tieline import responses
from tieline.codecs.json import decode_event
from tieline.errors import TielineError
from tieline.fold import Fold
from tieline.responses import Response, Usage
from tieline_server.storage.base import RunningResponse
from tieline_server.storage.sql.schema import (
    CLAIMS,
    EVENTS,
    PROCESSES,
    RESPONSES,
    RUNNING,
    insert_new,
)

BLOB: Final = 64 * 1024
"""Bytes from which on events begin another row."""

ROWS: Final = 32
"""Rows of events that one question reads."""

FIRST: Final = 0
"""The number of a response's first event."""

LARGEST: Final = 2**31 - 2
"""Of the numbers that a database takes; a client may ask for any."""

_packed: Final = msgspec.msgpack.Encoder()
_unpacked: Final = msgspec.msgpack.Decoder(list[bytes])
_usage: Final = msgspec.json.Decoder(Usage)


# Writing while it runs.

_DESCRIBE: Final = (
    update(RUNNING)
    .where(
        RUNNING.c.owner == bindparam("by"),
        RUNNING.c.id == bindparam("response"),
        RUNNING.c.process == bindparam("of"),
    )
    .values(body=bindparam("described"))
)
_MINE: Final = exists().where(
    RUNNING.c.owner == bindparam("owner"),
    RUNNING.c.id == bindparam("response"),
    RUNNING.c.process == bindparam("process"),
)
_NEXT: Final = (
    select(func.coalesce(func.max(EVENTS.c.next), FIRST))
    .where(EVENTS.c.owner == bindparam("owner"), EVENTS.c.response == bindparam("response"))
    .scalar_subquery()
)
_COLUMNS: Final = [column.name for column in EVENTS.c]
_LOG: Final = insert(EVENTS).from_select(
    _COLUMNS,
    select(*(bindparam(name, type_=EVENTS.c[name].type) for name in _COLUMNS)).where(
        _MINE, bindparam("first", type_=EVENTS.c.first.type) == _NEXT
    ),
)


def begin(connection: Connection, response: RunningResponse, *, process: str) -> None:
    """A response runs in this process; it may be there already where this runs twice."""
    row = {
        "owner": response.owner,
        "id": response.response.id,
        "process": process,
        "previous": response.response.previous_response_id,
        "model": response.model,
        "transport": response.transport,
        "started_at": response.started_at,
        "body": responses.encode(response.response),
    }
    insert_new(connection, RUNNING, row)


def describe(
    connection: Connection, *, owner: str, response_id: str, process: str, response: Response
) -> None:
    """How a response of this process stands, where its events do not say it."""
    asked = {"by": owner, "response": response_id, "of": process}
    connection.execute(_DESCRIBE, asked | {"described": responses.encode(response)})


def log(
    connection: Connection,
    made: Sequence[bytes],
    *,
    owner: str,
    response_id: str,
    process: str,
    first: int,
    usage: Usage,
) -> bool:
    """Adds events at the end of those of a response that this process runs.

    False where the response has ended meanwhile, or where events before these are missing:
    a log with a gap would be worse than one that ends.
    """
    row = {
        "owner": owner,
        "response": response_id,
        "process": process,
        "usage": msgspec.json.encode(usage),
    }
    for part in _parts(made):
        following = first + len(part)
        numbers = {"first": first, "next": following, "blob": _packed.encode(part)}
        if connection.execute(_LOG, row | numbers).rowcount == 0:
            return False
        first = following
    return True


def _parts(made: Sequence[bytes]) -> list[list[bytes]]:
    """Events in pieces that a reader can take one at a time."""
    parts: list[list[bytes]] = []
    size = BLOB
    for each in made:
        if size >= BLOB:
            parts.append([])
            size = 0
        parts[-1].append(each)
        size += len(each)
    return parts


# Reading.

_LOGGED: Final = (
    select(EVENTS.c.first, EVENTS.c.blob)
    .where(
        EVENTS.c.owner == bindparam("owner"),
        EVENTS.c.response == bindparam("id"),
        EVENTS.c.next > bindparam("after") + 1,
    )
    .order_by(EVENTS.c.first)
    .limit(ROWS)
)
_RUNS: Final = select(RUNNING.c.id).where(
    RUNNING.c.owner == bindparam("owner"), RUNNING.c.id == bindparam("id")
)
_TERMINAL: Final = select(RESPONSES.c.terminal).where(
    RESPONSES.c.owner == bindparam("owner"), RESPONSES.c.id == bindparam("id")
)


def events(
    connection: Connection, *, owner: str, response_id: str, after: int, most: int
) -> list[bytes] | None:
    """Events with numbers > ``after``; None where some are missing, or all."""
    after = min(max(after, FIRST - 1), LARGEST)
    asked = {"owner": owner, "id": response_id}
    # Asked before the events: a response that ends between the questions has all of them.
    terminal = connection.execute(_TERMINAL, asked).scalar_one_or_none()
    runs = terminal is None and connection.execute(_RUNS, asked).first() is not None
    if terminal is None and not runs:
        # It may have ended between the two.
        terminal = connection.execute(_TERMINAL, asked).scalar_one_or_none()
        if terminal is None:
            return None
    found: list[bytes] = []
    wanted = after + 1
    for first, blob in connection.execute(_LOGGED, asked | {"after": after}):
        part = _unpacked.decode(blob)[wanted - first :]
        found += part
        wanted += len(part)
    if not found and terminal is not None and wanted < terminal:
        return None
    return found[:most]


_LAST: Final = (
    select(EVENTS.c.next, EVENTS.c.usage)
    .where(EVENTS.c.owner == bindparam("owner"), EVENTS.c.response == bindparam("id"))
    .order_by(EVENTS.c.first.desc())
    .limit(1)
)
_FIND: Final = (
    select(RUNNING, PROCESSES.c.seen_at)
    .select_from(RUNNING.outerjoin(PROCESSES, PROCESSES.c.id == RUNNING.c.process))
    .where(RUNNING.c.owner == bindparam("owner"), RUNNING.c.id == bindparam("id"))
)
_BLOBS: Final = (
    select(EVENTS.c.blob)
    .where(EVENTS.c.owner == bindparam("owner"), EVENTS.c.response == bindparam("id"))
    .order_by(EVENTS.c.first)
)


class Found(Struct, frozen=True, kw_only=True):
    """A response that runs, as rows: what was written of it until now."""

    owner: str
    process: str
    beat: float | None
    """When its process was last seen."""
    model: str
    transport: str
    started_at: float
    body: bytes
    usage: bytes | None
    """What it had used at its last event."""
    blobs: Sequence[bytes]

    def read(self) -> RunningResponse:
        """As it stands: how it began, and what its events made of it. It takes its time."""
        began = responses.decode(self.body)
        fold = Fold()
        with suppress(TielineError):
            for blob in self.blobs:
                for each in _unpacked.decode(blob):
                    fold.push(decode_event(each))
        made = fold.response
        # Where events were lost, the response was written instead.
        output = max((began.output, made.output), key=lambda items: sum(map(_length, items)))
        usage = Usage() if self.usage is None else _usage.decode(self.usage)
        response = replace(
            began,
            output=output,
            status=made.status if began.status == "queued" and made.status else began.status,
            usage=max(usage, began.usage or Usage(), key=lambda each: each.total_tokens),
        )
        return RunningResponse(
            response=response,
            owner=self.owner,
            model=self.model,
            transport=self.transport,
            started_at=self.started_at,
        )


def find(connection: Connection, *, owner: str, response_id: str) -> Found | None:
    """An owner's response that runs, with all its events."""
    asked = {"owner": owner, "id": response_id}
    row: Any = connection.execute(_FIND, asked).first()
    if row is None:
        return None
    last: Any = connection.execute(_LAST, asked).first()
    return Found(
        owner=owner,
        process=row.process,
        beat=row.seen_at,
        model=row.model,
        transport=row.transport,
        started_at=row.started_at,
        body=row.body,
        usage=None if last is None else last.usage,
        blobs=connection.execute(_BLOBS, asked).scalars().all(),
    )


def next_of(connection: Connection, *, owner: str, response_id: str) -> int:
    """The number that the next event of a response would have."""
    last: Any = connection.execute(_LAST, {"owner": owner, "id": response_id}).first()
    return FIRST if last is None else int(last.next)


_OF_PROCESS: Final = (
    select(RUNNING.c.owner, RUNNING.c.id)
    .where(RUNNING.c.process == bindparam("of"))
    # Two that end the same ones take them in one order, or each would wait for the other.
    .order_by(RUNNING.c.owner, RUNNING.c.id)
)


def find_of(connection: Connection, *, process: str, most: int) -> list[Found]:
    """Some of the responses that a process runs."""
    keys = connection.execute(_OF_PROCESS.limit(most), {"of": process}).all()
    found = (find(connection, owner=owner, response_id=name) for owner, name in keys)
    return [each for each in found if each is not None]


def _length(raw: Raw) -> int:
    return len(memoryview(raw))


# Its end.

_FINISH: Final = (
    delete(RUNNING)
    .where(RUNNING.c.owner == bindparam("by"), RUNNING.c.id == bindparam("response"))
    .returning(RUNNING.c.id)
)
_KEEP_CLAIMS: Final = (
    update(CLAIMS)
    .where(CLAIMS.c.owner == bindparam("by"), CLAIMS.c.response == bindparam("of"))
    .values(process=None, until=None)
)
_EVENT_BYTES: Final = select(func.coalesce(func.sum(func.length(EVENTS.c.blob)), 0)).where(
    EVENTS.c.owner == bindparam("by"), EVENTS.c.response == bindparam("response")
)
_DROP_EVENTS: Final = delete(EVENTS).where(
    EVENTS.c.owner == bindparam("by"), EVENTS.c.response == bindparam("response")
)
_DROP_CLAIMS: Final = delete(CLAIMS).where(
    CLAIMS.c.owner == bindparam("by"), CLAIMS.c.response == bindparam("response")
)


def finish(connection: Connection, *, owner: str, response_id: str) -> bool:
    """A response is stored in this transaction; False where it did not run (any more).

    Its claims hold from now on for as long as it is there.
    """
    asked = {"by": owner, "response": response_id}
    ran = connection.execute(_FINISH, asked).first() is not None
    if ran:
        connection.execute(_KEEP_CLAIMS, {"by": owner, "of": response_id})
    return ran


def size_of(connection: Connection, *, owner: str, response_id: str) -> int:
    """Bytes of a response's events."""
    asked = {"by": owner, "response": response_id}
    return int(connection.execute(_EVENT_BYTES, asked).scalar_one())


def forget(connection: Connection, *, owner: str, response_id: str) -> None:
    """The events and claims of a response go."""
    asked = {"by": owner, "response": response_id}
    connection.execute(_DROP_EVENTS, asked)
    connection.execute(_DROP_CLAIMS, asked)


def end(connection: Connection, *, owner: str, response_id: str) -> None:
    """A response that runs will never be stored. One that is stored stays."""
    asked = {"by": owner, "response": response_id}
    if connection.execute(_FINISH, asked).first() is not None:
        forget(connection, owner=owner, response_id=response_id)
