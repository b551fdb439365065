"""Stored responses in this process's memory: gone when it ends, bounded while it runs."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Final, Protocol, Self

from tieline.items import Item
from tieline_server.config import MIB, Config
from tieline_server.core.effects import Discard, Keep
from tieline_server.core.history import ChainNode, Saved
from tieline_server.core.holdings import Holdings
from tieline_server.core.values import Booking

RESPONSES: Final = 10_000
"""Responses that are kept where no other bound is set."""

BYTES: Final = 256 * MIB


class Journal(Protocol):
    """What the journal of the same process has of stored responses."""

    @property
    def size(self) -> int:
        """Bytes of all events."""
        ...

    def stored(self, owner: str, response_id: str) -> None:
        """A response has been put."""
        ...

    def dropped(self, owner: str, response_id: str) -> None:
        """A response has gone."""
        ...

    def spares(self, owner: str, response_id: str) -> bool:
        """Whether a response is needed still, however old it is."""
        ...


class NoJournal:
    """Nothing but responses is kept."""

    size = 0

    def stored(self, owner: str, response_id: str) -> None:
        """Nothing is to be done."""

    def dropped(self, owner: str, response_id: str) -> None:
        """Nothing is to be done."""

    def spares(self, owner: str, response_id: str) -> bool:
        """Nothing needs it."""
        return False


class MemoryStore:
    """A dictionary of responses; past a bound, the one that was not used for longest goes.

    ``max_bytes`` bounds the JSON of items and events. Chains share their links, so each link
    counts once, for as long as any stored response descends from it. The newest response always
    stays.
    """

    def __init__(
        self,
        *,
        book: Callable[[Booking], None],
        max_responses: int | None = None,
        max_bytes: int | None = None,
        ttl: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        journal: Journal | None = None,
    ) -> None:
        self._book = book
        self._journal = NoJournal() if journal is None else journal
        self._clock = clock
        self.ttl = float("inf") if ttl is None else ttl
        """Seconds since its last use that a response stays."""
        self.max_responses = RESPONSES if max_responses is None else max_responses
        self.max_bytes = BYTES if max_bytes is None else max_bytes
        self._records: OrderedDict[tuple[str, str], Saved] = OrderedDict()
        """(owner, response id) -> record, the least recently used first."""
        self._used: dict[tuple[str, str], float] = {}
        """(owner, response id) -> when it was last used."""
        self._items: dict[tuple[str, str], dict[str, Item]] = {}
        """(owner, item id) -> the item in each response that has it, the newest last."""
        self._chains = Holdings()
        self._settings = 0

    @property
    def size(self) -> int:
        """Bytes of the items of all chains, and of the responses' output, settings, events."""
        return self._chains.size + self._settings + self._journal.size

    @classmethod
    def of(
        cls,
        config: Config,
        *,
        book: Callable[[Booking], None],
        clock: Callable[[], float],
        journal: Journal | None = None,
    ) -> Self:
        """A store with the bounds that the settings give; ``book`` takes the ledger's rows."""
        return cls(
            book=book,
            max_responses=config.store_max_responses,
            max_bytes=config.store_max_bytes,
            ttl=config.store_ttl,
            clock=clock,
            journal=journal,
        )

    def __len__(self) -> int:
        return len(self._records)

    def keep(self, keep: Keep) -> None:
        """Nothing: the chain itself is in memory."""

    def discard(self, discard: Discard) -> None:
        """Nothing was kept."""

    async def put(self, record: Saved, booking: Booking) -> None:
        """Keeps a response. Costs what its chain has that is not stored yet."""
        self._book(booking)
        key = (record.owner, record.response.id)
        self._take_out(key)
        self._journal.stored(*key)
        self._records[key] = record
        self._used[key] = self._clock()
        self._chains.hold(record.tip.segment)
        self._settings += _settings_size(record)
        for item in _own_items(record):
            if item.id is not None:
                holders = self._items.setdefault((record.owner, item.id), {})
                holders[record.response.id] = item
        self._evict(key)
        self._expire()

    async def get(self, owner: str, response_id: str) -> Saved | None:
        """The owner's response, or None; it is now the most recently used."""
        self._expire()
        key = (owner, response_id)
        record = self._records.get(key)
        if record is not None:
            self._records.move_to_end(key)
            self._used[key] = self._clock()
        return record

    async def delete(self, owner: str, response_id: str) -> bool:
        """Forgets a response and its items."""
        return self._drop((owner, response_id))

    async def item(self, owner: str, item_id: str) -> Item | None:
        """An item of one of the owner's responses, or None."""
        holders = self._items.get((owner, item_id))
        return next(reversed(holders.values())) if holders else None

    async def close(self) -> None:
        """Forgets everything."""
        self._records.clear()
        self._used.clear()
        self._items.clear()
        self._chains = Holdings()
        self._settings = 0

    def _evict(self, newest: tuple[str, str]) -> None:
        while len(self._records) > self.max_responses or self.size > self.max_bytes:
            oldest = next((key for key in self._records if not self._journal.spares(*key)), newest)
            if oldest == newest:
                return
            self._drop(oldest)

    def _expire(self) -> None:
        used_before = self._clock() - self.ttl
        old = takewhile(lambda key: self._used[key] < used_before, self._records)
        for key in [key for key in old if not self._journal.spares(*key)]:
            self._drop(key)

    def _drop(self, key: tuple[str, str]) -> bool:
        was_there = self._take_out(key)
        if was_there:
            self._journal.dropped(*key)
        return was_there

    def _take_out(self, key: tuple[str, str]) -> bool:
        """Removes a response alone: another one of its id may take its place."""
        record = self._records.pop(key, None)
        if record is None:
            return False
        del self._used[key]
        self._chains.release(record.tip.segment)
        self._settings -= _settings_size(record)
        for item in _own_items(record):
            self._drop_item(record, item.id)
        return True

    def _drop_item(self, record: Saved, item_id: str | None) -> None:
        holders = self._items.get((record.owner, item_id or ""), {})
        if holders.pop(record.response.id, None) is not None and not holders:
            del self._items[record.owner, item_id or ""]


def _own_items(record: Saved) -> Iterator[Item]:
    """The items of the response itself: its input and output, not what it inherited."""
    link: ChainNode | None = record.tip.segment
    while link is not None and link is not record.input_from:
        yield from link.items
        link = link.parent


def _settings_size(record: Saved) -> int:
    response = record.response
    free_form = (response.instructions, response.tools, response.text, response.metadata)
    return sum(len(memoryview(raw)) for raw in (*response.output, *free_form))
