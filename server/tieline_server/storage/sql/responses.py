"""Stored responses in a database: there on any line, worker or replica, and after a restart.

While a response runs, its items are written as a *draft*, a node that nothing finds, once there
are enough of them that the end would feel it. At its end only what is left, the response and the
ledger's row are written, in one transaction. A draft is an economy and never needed: where it
could not be written, or was swept away, the end writes everything.

Where the database goes away, what it made of the last commit may stay unknown. Whoever waits is
then told that it failed, and what was made all the same is *withdrawn* once it is back.

Every answer comes from the database; but a chain that was lately in memory, with the tokens that
were computed on it, is not read and computed again. It is looked for by its node, which only
the owner's response leads to.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace
from sqlalchemy import Connection, bindparam, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from tieline import responses
from tieline.items import Item, decode
from tieline_server.config import KIB
from tieline_server.core.effects import Discard, Keep
from tieline_server.core.history import ChainHead, ChainNode, Saved
from tieline_server.core.values import Booking
from tieline_server.storage.sql import chains
from tieline_server.storage.sql import running as begun
from tieline_server.storage.sql import usage_rows as bookings
from tieline_server.storage.sql.database import Database
from tieline_server.storage.sql.errors import Away, Overtaken, Unavailable
from tieline_server.storage.sql.recent import Chain, RecentChains
from tieline_server.storage.sql.retention import Bounds, Retention, Running
from tieline_server.storage.sql.schema import ITEMS, NODES, RESPONSES
from tieline_server.storage.sql.writer import Write, Writer

logger: Final = logging.getLogger("tieline.store")

LONG: Final = 200
"""Rows of a chain from which on a thread decodes them: the loop has tokens to pass on."""

ENOUGH: Final = 32 * KIB
"""Bytes of items that are worth a transaction of their own while their response runs."""

RETRY: Final = 1.0
"""Seconds after which what could not be withdrawn is tried again."""


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


class SqlStore:
    """A store of responses in a database, by owner."""

    def __init__(
        self,
        database: Database,
        writer: Writer,
        *,
        now: Callable[[], float],
        clock: Callable[[], float],
        bounds: Bounds,
        recent: RecentChains | None = None,
    ) -> None:
        self._database = database
        self._writer = writer
        self._now = now
        self._key = object()
        """Where segments remember the nodes of this store."""
        self.recent = RecentChains() if recent is None else recent
        self._drafts: dict[tuple[str, str], Draft] = {}
        self._used: dict[int, str] = {}
        self._doubtful: dict[tuple[str, str], Booking] = {}
        """What was told as failed and may be there, with the row that it then should have."""
        self._retry: asyncio.TimerHandle | None = None
        self._closing = False
        self.retention = Retention(
            database, writer, bounds, now=now, clock=clock, running=self._running
        )

    def keep(self, keep: Keep) -> None:
        """Has items written while their response runs."""
        key = (keep.owner, keep.response_id)
        draft = self._drafts.get(key)
        if draft is None:
            draft = self._drafts[key] = Draft(keep.owner, keep.after)
        if draft.broken:
            return
        draft.pending.extend(keep.items)
        draft.waiting += sum(len(item.raw) for item in keep.items)
        if draft.waiting >= ENOUGH and not draft.queued:
            draft.queued = True
            self._writer.add(KeepItems(draft, key=self._key, now=self._now()))

    def discard(self, discard: Discard) -> None:
        """Has the draft of a response removed."""
        draft = self._drafts.pop((discard.owner, discard.response_id), None)
        if draft is not None:
            draft.ended = True
            self._writer.leave(DropDraft(draft, gone=self.retention.owe))

    async def put(self, record: Saved, booking: Booking) -> None:
        """Writes what is left of a response, and its row of the ledger."""
        draft = self._drafts.pop((record.owner, record.response.id), None)
        if draft is not None:
            draft.ended = True
        self._doubtful.pop((record.owner, record.response.id), None)
        change = PutResponse(record, booking, draft=draft, key=self._key, now=self._now())
        self._writer.add(change)
        try:
            await change.done
        except Away:
            # It may be there all the same, where only the answer was lost.
            self._doubt(booking)
            raise
        self.recent.add(change.node, Chain(record.tip.segment, record.input_from))
        self.retention.stored()

    async def get(self, owner: str, response_id: str) -> Saved | None:
        """The owner's response with its chain, or None: two questions, however long it is."""
        if not chains.askable(response_id):
            return None
        asked = {"owner": owner, "id": response_id}
        head = await self._database.read(
            lambda connection: connection.execute(_RESPONSE, asked).first()
        )
        if head is None or (owner, response_id) in self._doubtful:
            return None
        chain = self.recent.find(head.node) or await self._chain(owner, head.node)
        if chain is None:
            return None
        self._use(head.node, owner)
        response = responses.decode(head.body)
        tip = ChainHead(response.id, chain.tip, owner=owner, settings=None)
        return Saved(
            response=response,
            tip=tip,
            owner=owner,
            input_from=chain.input_from,
            terminal=head.terminal,
        )

    async def _chain(self, owner: str, node: int) -> Chain | None:
        """The chain that ends at an owner's node; None where a delete came first."""
        rows = await self._database.read(
            lambda connection: chains.read_chain(connection, node=node, owner=owner)
        )
        if not rows:
            return None
        if len(rows) > LONG:
            links = await asyncio.to_thread(chains.segments, rows, self._key)
        else:
            links = chains.segments(rows, self._key)
        chain = Chain(links[-1], links[-2] if len(links) > 1 else None)
        self.recent.add(node, chain)
        return chain

    async def item(self, owner: str, item_id: str) -> Item | None:
        """The newest item of this id among the owner's responses, or None."""
        asked = {"lookup": chains.lookup(owner, item_id)}
        raw = await self._database.read(
            lambda connection: connection.execute(_ITEM, asked).scalar_one_or_none()
        )
        return None if raw is None else decode(raw)

    async def delete(self, owner: str, response_id: str) -> bool:
        """Removes a response and all that only it needed, from the files too."""
        if not chains.askable(response_id):
            return False
        change = DeleteResponse(owner, response_id)
        self._writer.add(change)
        await change.done
        if change.node is not None:
            self.recent.drop(change.node)
        return change.node is not None

    async def close(self) -> None:
        """Ends the sweeping; what is written now is the writer's."""
        self._closing = True
        self._withdraw()
        await self.retention.close()

    def _doubt(self, booking: Booking) -> None:
        failed = replace(booking, outcome="failed", reason=None, error_code=Unavailable().code)
        self._doubtful[(booking.owner, booking.response_id)] = failed
        self._withdraw_later()

    def _withdraw_later(self) -> None:
        if self._retry is None and self._doubtful and not self._closing:
            self._retry = asyncio.get_running_loop().call_later(RETRY, self._withdraw)

    def _withdraw(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._doubtful:
            self._writer.leave(Withdraw(self._doubtful, settled=self._withdrawn))

    def _withdrawn(self, gone: bool) -> None:
        if gone:
            self.retention.owe()
        if self._closing and self._doubtful:
            logger.error("store.responses doubtful", extra={"responses": len(self._doubtful)})
        self._withdraw_later()

    def _running(self) -> Running:
        drafts = self._drafts.values()
        parents = {
            draft.after.memo[self._key]: draft.owner
            for draft in drafts
            if draft.after is not None and self._key in draft.after.memo
        }
        nodes = [draft.node for draft in drafts if draft.node is not None]
        return Running(drafts=nodes, parents=parents)

    def _use(self, node: int, owner: str) -> None:
        """Notes the time of use with whatever is written next."""
        if not self._used:
            self._writer.leave(NoteUse(self._used, now=self._now))
        self._used[node] = owner


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
        """One that stays is swept away when nobody has claimed it for long."""
        if error is None:
            self._gone()


class PutResponse(Write):
    """Writes a response at its end."""

    def __init__(
        self, record: Saved, booking: Booking, *, draft: Draft | None, key: object, now: float
    ) -> None:
        super().__init__()
        self._record = record
        self._booking = booking
        self._draft = draft
        self._key = key
        self._now = now
        self._items = _own_items(record)
        self._body = responses.encode(record.response)
        self._own_size = sum(len(item.raw) for item in self._items) + len(self._body)
        self._size = self._own_size
        """With its events."""
        self.node = 0
        self._context: int | None = None

    def write(self, connection: Connection) -> None:
        """The rest of the items, the response, the ledger's row; it does not run any more."""
        self._size = self._own_size
        if self._record.terminal is not None:
            self._finish_run(connection)
        if not self._finish_draft(connection):
            self.node = self._new_node(connection)
        self._insert_response(connection)
        bookings.replace(connection, self._booking)

    def _finish_run(self, connection: Connection) -> None:
        """A response that was ended in our place stays as it was told to others."""
        owner, response_id = self._record.owner, self._record.response.id
        if not begun.finish(connection, owner=owner, response_id=response_id):
            there = connection.execute(_RESPONSE, {"owner": owner, "id": response_id}).first()
            # Our own is there already where a lost connection had this run twice.
            if there is not None and there.body != self._body:
                raise Overtaken("the response was ended by another process")
        self._size += begun.size_of(connection, owner=owner, response_id=response_id)

    def _finish_draft(self, connection: Connection) -> bool:
        """Makes the draft's node the response's; False where there is none that could be."""
        draft = self._draft
        if draft is None or draft.node is None:
            return False
        if draft.broken:
            chains.remove_node(connection, draft.node)
            return False
        finished = {"draft_node": draft.node, "by": draft.owner}
        now = {"now": self._now, "bytes": self._size}
        if chains.changed(connection.execute(_FINISH, finished | now)) == 0:
            return False
        rest = self._items[draft.written :]
        chains.insert_items(
            connection, rest, node=draft.node, owner=draft.owner, start=draft.written
        )
        self.node, self._context = draft.node, None
        return True

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
            turn=record.tip.segment.turn,
            size=self._size,
            used_at=self._now,
        )
        chains.insert_items(connection, self._items, node=node, owner=owner)
        return node

    def _insert_response(self, connection: Connection) -> None:
        record = self._record
        row = {
            "owner": record.owner,
            "id": record.response.id,
            "node": self.node,
            "created_at": self._now,
            "body": self._body,
            "terminal": record.terminal,
        }
        statement = _ADD[connection.dialect.name]
        if chains.changed(connection.execute(statement, row)) == 0:
            chains.take_out(connection, owner=record.owner, response_id=record.response.id)
            connection.execute(_INSERT, row)

    def settle(self, error: Exception | None) -> None:
        """The chain remembers where it is, so that what follows it writes only what is new."""
        if error is None:
            self._record.tip.segment.memo[self._key] = self.node
            if self._context is not None and self._record.input_from is not None:
                self._record.input_from.memo[self._key] = self._context
        super().settle(error)


class Withdraw:
    """Removes responses that were told as failed, where they are there all the same."""

    erases = False

    def __init__(
        self, doubtful: dict[tuple[str, str], Booking], *, settled: Callable[[bool], None]
    ) -> None:
        self._doubtful = doubtful
        self._settled = settled
        """Called at its end: whether something was removed, which is in the log of the file."""
        self._taken: dict[tuple[str, str], Booking] = {}
        self._gone = False

    def take(self) -> bool:
        """All that are doubtful now: one that is put again is so no longer."""
        self._taken = dict(self._doubtful)
        return bool(self._taken)

    def write(self, connection: Connection) -> None:
        """A row of the ledger waits for a commit of the same one that is still on its way."""
        self._gone = False
        for (owner, response_id), failed in self._taken.items():
            mine = bookings.claim(connection, failed)
            if chains.remove_response(connection, owner=owner, response_id=response_id):
                self._gone = True
                bookings.replace(connection, failed)
            elif mine:
                # The one that its line books says more.
                bookings.remove(connection, response_id)

    def settle(self, error: Exception | None) -> None:
        """What could not be done is tried again."""
        if error is None:
            for key in self._taken:
                self._doubtful.pop(key, None)
        self._settled(self._gone and error is None)


class DeleteResponse(Write):
    """Removes a response."""

    def __init__(self, owner: str, response_id: str) -> None:
        super().__init__()
        self._asked = (owner, response_id)
        self.erases = True
        self.node: int | None = None
        """Where its chain ended, if there was one."""

    def write(self, connection: Connection) -> None:
        """Removes it with what only it needed."""
        owner, response_id = self._asked
        removed = chains.remove_response(connection, owner=owner, response_id=response_id)
        # Run again where the answer was lost, it finds nothing, and has removed it all the same.
        if removed is not None:
            self.node = removed.node
        self.erases = self.node is not None


class NoteUse:
    """Notes when responses were last read."""

    erases = False

    def __init__(self, used: dict[int, str], *, now: Callable[[], float]) -> None:
        self._used = used
        self._now = now
        self._taken: dict[int, str] = {}

    def take(self) -> bool:
        """All that were read until now."""
        self._taken = dict(self._used)
        self._used.clear()
        return bool(self._taken)

    def write(self, connection: Connection) -> None:
        """One time for all."""
        now = self._now()
        for node, owner in self._taken.items():
            chains.touch(connection, node=node, owner=owner, now=now)

    def settle(self, error: Exception | None) -> None:
        """A time that is lost makes a response look older by one use."""


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
_ADD: Final = {
    "sqlite": sqlite.insert(RESPONSES).on_conflict_do_nothing(),
    "postgresql": postgresql.insert(RESPONSES).on_conflict_do_nothing(),
}
_RESPONSE: Final = select(RESPONSES.c.node, RESPONSES.c.body, RESPONSES.c.terminal).where(
    RESPONSES.c.owner == bindparam("owner"), RESPONSES.c.id == bindparam("id")
)
_ITEM: Final = (
    select(ITEMS.c.raw)
    .join(NODES, NODES.c.id == ITEMS.c.node)
    .where(ITEMS.c.lookup == bindparam("lookup"), NODES.c.used_at.is_not(None))
    .order_by(ITEMS.c.node.desc(), ITEMS.c.position.desc())
    .limit(1)
)


def _own_items(record: Saved) -> list[Item]:
    """The items of the response itself, in order."""
    own: list[ChainNode] = []
    link: ChainNode | None = record.tip.segment
    while link is not None and link is not record.input_from:
        own.append(link)
        link = link.parent
    return [item for segment in reversed(own) for item in segment.items]
