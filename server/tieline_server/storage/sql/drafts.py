"""How a response is written: its items while it runs, the rest of it at its end.

While a response runs, its items are written as a *draft*, a node that nothing finds, once there
are enough of them that the end would feel it. At its end only what is left, the response and the
ledger's row are written, in one transaction. A draft is an economy and never needed: where it
could not be written, or was swept away, the end writes everything.
"""

from collections.abc import Callable
from typing import Final

from sqlalchemy import Connection, Row, bindparam, insert, select, update

from tieline import responses
from tieline.items import Item
from tieline_server.core.history.chain import ChainNode, Saved
from tieline_server.core.values import UsageRecord
from tieline_server.storage.base import own_items
from tieline_server.storage.sql import chains, running, usage
from tieline_server.storage.sql.errors import Overtaken
from tieline_server.storage.sql.schema import NODES, RESPONSES, insert_new
from tieline_server.storage.sql.writer import Write

_FINISH: Final = (
    update(NODES)
    .where(
        NODES.c.id == bindparam("draft_node"),
        NODES.c.owner == bindparam("by"),
        NODES.c.draft.is_not(None),
    )
    .values(draft=None, used_at=bindparam("now"), size=bindparam("bytes"))
)
_INSERT: Final = insert(RESPONSES)
_RESPONSE: Final = select(RESPONSES.c.node, RESPONSES.c.body, RESPONSES.c.terminal).where(
    RESPONSES.c.owner == bindparam("owner"), RESPONSES.c.id == bindparam("id")
)


def find(
    connection: Connection, *, owner: str, response_id: str
) -> Row[int, bytes, int | None] | None:
    """An owner's stored response."""
    return connection.execute(_RESPONSE, {"owner": owner, "id": response_id}).first()


class Draft:
    """A response that runs, and how much of it is in the database."""

    __slots__ = (
        "after",
        "broken",
        "ended",
        "node",
        "owner",
        "pending",
        "queued",
        "waiting",
        "written",
    )

    def __init__(self, owner: str, after: ChainNode | None) -> None:
        self.owner = owner
        self.after = after
        self.node: int | None = None
        self.written = 0
        """Items in the database."""
        self.pending: list[Item] = []
        self.waiting = 0
        """Bytes of what is pending."""
        self.queued = False
        """Whether a change is on its way that takes what is pending."""
        self.broken = False
        """Whether an item was not written: the node is of no use."""
        self.ended = False


class KeepItems:
    """Writes what is pending of a draft, and its node before the first."""

    erases = False

    def __init__(self, draft: Draft, *, key: object, now: float) -> None:
        self._draft = draft
        self._key = key
        self._now = now
        self._items: list[Item] = []
        self._node: int | None = None
        self._context: int | None = None

    def take(self) -> bool:
        """All that came until now; an ended response's end writes it."""
        draft = self._draft
        draft.queued = False
        self._items, draft.pending = draft.pending, []
        draft.waiting = 0
        return bool(self._items) and not draft.ended

    def write(self, connection: Connection) -> None:
        """Adds the items at the node's end."""
        draft, self._node = self._draft, self._draft.node
        if self._node is None:
            self._node = self._new_node(connection)
        chains.insert_items(
            connection, self._items, node=self._node, owner=draft.owner, start=draft.written
        )

    def _new_node(self, connection: Connection) -> int:
        draft = self._draft
        parent, made = chains.attach(
            connection, draft.after, owner=draft.owner, key=self._key, now=self._now
        )
        self._context = parent if made else None
        turn = draft.after.turn + 1 if draft.after else 1
        return chains.insert_node(
            connection, owner=draft.owner, parent=parent, turn=turn, draft=self._now
        )

    def settle(self, error: Exception | None) -> None:
        """What is written is known; what failed makes the draft useless."""
        draft = self._draft
        if error is not None:
            draft.broken = True
            draft.pending.clear()
            return
        draft.node = self._node
        draft.written += len(self._items)
        if self._context is not None and draft.after is not None:
            draft.after.memo[self._key] = self._context


class DropDraft:
    """Removes a draft."""

    erases = False

    def __init__(self, draft: Draft, *, gone: Callable[[], None]) -> None:
        self._draft = draft
        self._gone = gone
        """Called once it is removed; it is still in the log of the file then."""

    def take(self) -> bool:
        """Only where there is one."""
        return self._draft.node is not None

    def write(self, connection: Connection) -> None:
        """Removes its node."""
        assert self._draft.node is not None
        chains.remove_node(connection, self._draft.node)

    def settle(self, error: Exception | None) -> None:
        """One that stays is swept away when its writer was not seen for long."""
        if error is None:
            self._gone()


class PutResponse(Write[int]):
    """Writes a response at its end; comes to its node."""

    def __init__(
        self,
        record: Saved,
        usage_record: UsageRecord,
        *,
        draft: Draft | None,
        key: object,
        now: float,
    ) -> None:
        super().__init__(self._put)
        self._record = record
        self._usage_record = usage_record
        self._draft = draft
        self._key = key
        self._now = now
        self._items = own_items(record)
        self._body = responses.encode(record.response)
        self._own_size = sum(len(item.raw) for item in self._items) + len(self._body)
        self._size = self._own_size
        """With its events."""
        self._context: int | None = None

    def _put(self, connection: Connection) -> int:
        """The rest of the items, the response, the ledger's row; it does not run any more."""
        self._size = self._own_size
        if self._record.terminal is not None:
            self._finish_run(connection)
        node = self._finish_draft(connection) or self._new_node(connection)
        self._insert_response(connection, node)
        usage.replace(connection, self._usage_record)
        return node

    def _finish_run(self, connection: Connection) -> None:
        """A response that was ended in our place stays as it was told to others."""
        owner, response_id = self._record.owner, self._record.response.id
        if not running.finish(connection, owner=owner, response_id=response_id):
            there = find(connection, owner=owner, response_id=response_id)
            # Our own is there already where a lost connection had this run twice.
            if there is not None and there.body != self._body:
                raise Overtaken("the response was ended by another process")
        self._size += running.size_of(connection, owner=owner, response_id=response_id)

    def _finish_draft(self, connection: Connection) -> int | None:
        """Makes the draft's node the response's; None where there is none that could be."""
        draft = self._draft
        if draft is None or draft.node is None:
            return None
        if draft.broken:
            chains.remove_node(connection, draft.node)
            return None
        finished = {"draft_node": draft.node, "by": draft.owner}
        now = {"now": self._now, "bytes": self._size}
        if connection.execute(_FINISH, finished | now).rowcount == 0:
            return None
        rest = self._items[draft.written :]
        chains.insert_items(
            connection, rest, node=draft.node, owner=draft.owner, start=draft.written
        )
        self._context = None
        return draft.node

    def _new_node(self, connection: Connection) -> int:
        record, owner = self._record, self._record.owner
        parent, made = chains.attach(
            connection, record.input_from, owner=owner, key=self._key, now=self._now
        )
        self._context = parent if made else None
        node = chains.insert_node(
            connection,
            owner=owner,
            parent=parent,
            turn=record.head.node.turn,
            size=self._size,
            used_at=self._now,
        )
        chains.insert_items(connection, self._items, node=node, owner=owner)
        return node

    def _insert_response(self, connection: Connection, node: int) -> None:
        record = self._record
        row = {
            "owner": record.owner,
            "id": record.response.id,
            "node": node,
            "created_at": self._now,
            "body": self._body,
            "terminal": record.terminal,
        }
        if insert_new(connection, RESPONSES, row) == 0:
            chains.take_out(connection, owner=record.owner, response_id=record.response.id)
            connection.execute(_INSERT, row)

    def settle(self, error: Exception | None) -> None:
        """The chain remembers where it is, so that what follows it writes only what is new."""
        if error is None:
            self._record.head.node.memo[self._key] = self._made
            if self._context is not None and self._record.input_from is not None:
                self._record.input_from.memo[self._key] = self._context
        super().settle(error)
