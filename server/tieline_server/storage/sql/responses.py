"""Stored responses in a database: there on any connection, worker or replica, and after a restart.

Where the database goes away, what it made of the last commit may stay unknown. The caller is
then told that it failed, and what was made all the same is *withdrawn* once it is back.

Every answer comes from the database; but a chain that was lately in memory, with the tokens that
were computed on it, is not read and computed again. It is looked for by its node, which only
the owner's response leads to.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Connection, bindparam, select

from tieline import responses
from tieline.items import Item, decode
from tieline_server.config import KIB, MIB
from tieline_server.core.effects import Discard, Keep
from tieline_server.core.history.chain import ChainHead, ChainNode, Saved
from tieline_server.core.history.holdings import Holdings
from tieline_server.core.values import UsageRecord
from tieline_server.storage.sql import chains, usage
from tieline_server.storage.sql.database import Database
from tieline_server.storage.sql.drafts import Draft, DropDraft, KeepItems, PutResponse, find
from tieline_server.storage.sql.errors import Away, Unavailable
from tieline_server.storage.sql.retention import Bounds, Retention, Running
from tieline_server.storage.sql.schema import ITEMS, NODES
from tieline_server.storage.sql.writer import Gathered, Write, Writer

logger: Final = logging.getLogger("tieline.store")

LONG: Final = 200
"""Rows of a chain from which on a thread decodes them: the loop has tokens to pass on."""

ENOUGH: Final = 32 * KIB
"""Bytes of items that are worth a transaction of their own while their response runs."""

RETRY: Final = 1.0
"""Seconds after which what could not be withdrawn is tried again."""

BYTES: Final = 32 * MIB
"""JSON of the items of recent chains."""

CHAINS: Final = 1000
"""Recent chains; small ones cost more than their JSON."""


class Chain(Struct, frozen=True):
    """The chain of a response, with what has been computed on its nodes."""

    last_node: ChainNode
    input_from: ChainNode | None
    """The node before the response's own input."""


class RecentChains:
    """The chains that were last written or read, by their node, within bounds."""

    def __init__(self, *, most: int = CHAINS, max_bytes: int = BYTES) -> None:
        self._most = most
        self._max_bytes = max_bytes
        self._chains: OrderedDict[int, Chain] = OrderedDict()
        self._held = Holdings()

    def __len__(self) -> int:
        return len(self._chains)

    @property
    def size(self) -> int:
        """Bytes of the items of all chains."""
        return self._held.size

    def add(self, node: int, chain: Chain) -> None:
        """The chain of a node is the most recent one."""
        self.drop(node)
        self._chains[node] = chain
        self._held.hold(chain.last_node)
        while self._chains and (len(self._chains) > self._most or self.size > self._max_bytes):
            self.drop(next(iter(self._chains)))

    def find(self, node: int) -> Chain | None:
        """The chain of a node, or None; it is now the most recent one."""
        chain = self._chains.get(node)
        if chain is not None:
            self._chains.move_to_end(node)
        return chain

    def drop(self, node: int) -> None:
        """Forgets the chain of a node; those that share nodes with it stay."""
        chain = self._chains.pop(node, None)
        if chain is not None:
            self._held.release(chain.last_node)


_ITEM: Final = (
    select(ITEMS.c.raw)
    .join(NODES, NODES.c.id == ITEMS.c.node)
    .where(ITEMS.c.lookup == bindparam("lookup"), NODES.c.used_at.is_not(None))
    .order_by(ITEMS.c.node.desc(), ITEMS.c.position.desc())
    .limit(1)
)


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
        """Where chain nodes remember their rows in this store."""
        self.recent = RecentChains() if recent is None else recent
        self._drafts: dict[tuple[str, str], Draft] = {}
        self._used: dict[int, str] = {}
        self._doubtful: dict[tuple[str, str], UsageRecord] = {}
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

    async def put(self, record: Saved, usage_record: UsageRecord) -> None:
        """Writes what is left of a response, and its row of the ledger."""
        draft = self._drafts.pop((record.owner, record.response.id), None)
        if draft is not None:
            draft.ended = True
        self._doubtful.pop((record.owner, record.response.id), None)
        change = PutResponse(record, usage_record, draft=draft, key=self._key, now=self._now())
        self._writer.add(change)
        try:
            node = await change.done
        except Away:
            # It may be there all the same, where only the answer was lost.
            self._doubt(usage_record)
            raise
        self.recent.add(node, Chain(record.head.node, record.input_from))
        self.retention.stored()

    async def get(self, owner: str, response_id: str) -> Saved | None:
        """The owner's response with its chain, or None: two questions, however long it is."""
        if not chains.askable(response_id):
            return None
        head = await self._database.read(
            lambda connection: find(connection, owner=owner, response_id=response_id)
        )
        if head is None or (owner, response_id) in self._doubtful:
            return None
        chain = self.recent.find(head.node) or await self._chain(owner, head.node)
        if chain is None:
            return None
        self._use(head.node, owner)
        response = responses.decode(head.body)
        last_node = ChainHead(response.id, chain.last_node, owner=owner, settings=None)
        return Saved(
            response=response,
            head=last_node,
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
            nodes = await asyncio.to_thread(chains.decoded, rows, self._key)
        else:
            nodes = chains.decoded(rows, self._key)
        chain = Chain(nodes[-1], nodes[-2] if len(nodes) > 1 else None)
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
        node = await change.done
        if node is not None:
            self.recent.drop(node)
        return node is not None

    async def close(self) -> None:
        """Ends the sweeping; what is written now is the writer's."""
        self._closing = True
        self._withdraw()
        await self.retention.close()

    def _doubt(self, usage_record: UsageRecord) -> None:
        failed = replace(usage_record, outcome="failed", reason=None, error_code=Unavailable().code)
        self._doubtful[(usage_record.owner, usage_record.response_id)] = failed
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
            self._writer.leave(Gathered(self._take_used, self._note_use))
        self._used[node] = owner

    def _take_used(self) -> dict[int, str]:
        used, self._used = self._used, {}
        return used

    def _note_use(self, connection: Connection, used: dict[int, str]) -> None:
        """One time for all. Where it is lost, responses look older by one use."""
        now = self._now()
        for node, owner in used.items():
            chains.touch(connection, node=node, owner=owner, now=now)


class Withdraw:
    """Removes responses that were told as failed, where they are there all the same."""

    erases = False

    def __init__(
        self, doubtful: dict[tuple[str, str], UsageRecord], *, settled: Callable[[bool], None]
    ) -> None:
        self._doubtful = doubtful
        self._settled = settled
        """Called at its end: whether something was removed, which is in the log of the file."""
        self._taken: dict[tuple[str, str], UsageRecord] = {}
        self._gone = False

    def take(self) -> bool:
        """All that are doubtful now: one that is put again is so no longer."""
        self._taken = dict(self._doubtful)
        return bool(self._taken)

    def write(self, connection: Connection) -> None:
        """A row of the ledger waits for a commit of the same one that is still on its way."""
        self._gone = False
        for (owner, response_id), failed in self._taken.items():
            mine = usage.claim(connection, failed)
            if chains.remove_response(connection, owner=owner, response_id=response_id):
                self._gone = True
                usage.replace(connection, failed)
            elif mine:
                # The one that its connection books says more.
                usage.remove(connection, response_id)

    def settle(self, error: Exception | None) -> None:
        """What could not be done is tried again."""
        if error is None:
            for key in self._taken:
                self._doubtful.pop(key, None)
        self._settled(self._gone and error is None)


class DeleteResponse(Write[int | None]):
    """Removes a response; comes to the node where its chain ended, or None."""

    def __init__(self, owner: str, response_id: str) -> None:
        super().__init__(self._delete)
        self._asked = {"owner": owner, "response_id": response_id}
        self._node: int | None = None

    def _delete(self, connection: Connection) -> int | None:
        """Removes it with what only it needed."""
        removed = chains.remove_response(connection, **self._asked)
        # Run again where the answer was lost, it finds nothing, and has removed it all the same.
        if removed is not None:
            self._node = removed.node
        self.erases = self._node is not None
        return self._node
