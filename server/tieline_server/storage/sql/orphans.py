"""Responses whose process has died: another one that finds them stores and books them as failed."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Raw
from sqlalchemy import Connection, bindparam, delete, insert

from tieline import responses
from tieline.errors import TielineError
from tieline.items import Item, decode
from tieline.responses import Response, ResponseError, Usage
from tieline_server.core.values import UsageRecord
from tieline_server.storage.base import RunningResponse
from tieline_server.storage.sql import chains, claims, processes, running, usage
from tieline_server.storage.sql.processes import Others
from tieline_server.storage.sql.schema import CLAIMS, RESPONSES, RUNNING

CODE: Final = "server_error"
MESSAGE: Final = "The process that ran this response ended before the response did."

_TAKE: Final = (
    delete(RUNNING)
    .where(
        RUNNING.c.owner == bindparam("by"),
        RUNNING.c.id == bindparam("response"),
        RUNNING.c.process == bindparam("of"),
    )
    .returning(RUNNING.c.model, RUNNING.c.transport, RUNNING.c.started_at)
)
_INSERT: Final = insert(RESPONSES)
_DROP_CLAIMS: Final = delete(CLAIMS).where(
    CLAIMS.c.owner == bindparam("by"), CLAIMS.c.response == bindparam("response")
)


def end(
    connection: Connection,
    remains: Sequence[RunningResponse],
    *,
    process: str,
    others: Others,
    now: float,
    last: bool = False,
) -> None:
    """Fails responses of a process that is dead still, or our own.

    Where these are the ``last`` ones, all that the process has goes with them.
    """
    if process != others.process and not processes.is_dead(connection, others, process):
        return
    for each in remains:
        fail(connection, each.response, owner=each.owner, process=process, now=now)
    if last:
        claims.drop_of(connection, process)
        processes.drop(connection, process)


def fail(
    connection: Connection, response: Response, *, owner: str, process: str, now: float
) -> bool:
    """Stores a response of a process that died as failed, and books it.

    False where it does not run there (any more): another process was first.
    """
    asked = {"by": owner, "response": response.id, "of": process}
    row = connection.execute(_TAKE, asked).first()
    if row is None:
        return False
    response = failed(response)
    _store(connection, response, owner=owner, now=now)
    model, transport = row.model, row.transport
    usage_record = _usage_record(
        response, owner, model=model, transport=transport, started_at=row.started_at, now=now
    )
    usage.add(connection, [usage_record])
    # A create with the same key gets an answer that is made anew.
    connection.execute(_DROP_CLAIMS, {"by": owner, "response": response.id})
    return True


def failed(response: Response) -> Response:
    """A response as it is when its process has died."""
    return msgspec.structs.replace(
        response,
        status="failed",
        error=ResponseError(code=CODE, message=MESSAGE),
        incomplete_details=None,
        completed_at=None,
        output=[_cut(raw) for raw in response.output],
        usage=response.usage or Usage(),
    )


def _cut(raw: Raw) -> Raw:
    """An item of which no more will come."""
    item = msgspec.json.decode(raw)
    if not isinstance(item, dict) or item.get("status") != "in_progress":
        return raw
    return Raw(msgspec.json.encode(item | {"status": "incomplete"}))


def _items(response: Response) -> list[Item]:
    """Its output that is whole enough to be found by its id: any of it may have been cut off."""
    items = []
    for raw in response.output:
        with suppress(TielineError):
            items.append(decode(raw))
    return items


def _store(connection: Connection, response: Response, *, owner: str, now: float) -> None:
    """Its node has no parent: nothing continues a failed response."""
    terminal = running.next_of(connection, owner=owner, response_id=response.id)
    items = _items(response)
    body = responses.encode(response)
    size = sum(len(item.raw) for item in items) + len(body)
    size += running.size_of(connection, owner=owner, response_id=response.id)
    node = chains.insert_node(connection, owner=owner, parent=None, turn=1, size=size, used_at=now)
    chains.insert_items(connection, items, node=node, owner=owner)
    row = {"owner": owner, "id": response.id, "node": node, "created_at": now}
    connection.execute(_INSERT, row | {"body": body, "terminal": terminal})


def _usage_record(
    response: Response, owner: str, *, model: str, transport: str, started_at: float, now: float
) -> UsageRecord:
    used = response.usage or Usage()
    return UsageRecord(
        response_id=response.id,
        owner=owner,
        model=model,
        transport=transport,
        outcome="failed",
        kind="turn",
        reason=None,
        error_code=CODE,
        input_tokens=used.input_tokens,
        cached_tokens=used.input_tokens_details.cached_tokens,
        output_tokens=used.output_tokens,
        reasoning_tokens=used.output_tokens_details.reasoning_tokens,
        phases={},
        started_at=started_at,
        ended_at=now,
        stored=True,
    )
