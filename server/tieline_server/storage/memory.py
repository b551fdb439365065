"""A storage in this process's memory: gone when it ends, bounded while it runs.

The store tells the journal of what it keeps, so that a response goes with its events and claims,
and counts with them.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from heapq import heappop, heappush
from itertools import takewhile
from typing import Final

from msgspec.structs import replace

from tieline.items import Item
from tieline_server.config import MIB, Config
from tieline_server.core.effects import Discard, Keep
from tieline_server.core.history.chain import Saved
from tieline_server.core.history.holdings import Holdings
from tieline_server.core.values import UsageRecord
from tieline_server.storage.base import (
    By,
    Cancellation,
    Claim,
    Entry,
    Outages,
    Question,
    RunningResponse,
    Storage,
    Sum,
    own_items,
)

RESPONSES: Final = 10_000
"""Responses that are kept where no other bound is set."""

BYTES: Final = 256 * MIB

WORD: Final = 10.0
"""Seconds for which a word to cancel is good."""

Key = tuple[str, str]
"""Owner and response id."""


class MemoryJournal:
    """Dictionaries. Nothing here outlives the process, so no process is ever found dead."""

    def __init__(self, *, now: Callable[[], float]) -> None:
        self._now = now
        self._running: dict[Key, RunningResponse] = {}
        self._events: dict[Key, list[bytes]] = {}
        """Of responses that run or are stored: events in order, the first has number 0."""
        self._parent: dict[Key, Key] = {}
        """What a running response continues."""
        self._parents: Counter[Key] = Counter()
        self._claims: dict[tuple[str, bytes], Claim] = {}
        self._claims_of: dict[Key, set[Claim]] = {}
        self._until: dict[Claim, float] = {}
        self._due: list[tuple[float, str, bytes]] = []
        """(when, owner, key) of claims that will be over, as a heap."""
        self._words: list[tuple[float, Cancellation]] = []
        self.size = 0
        """Bytes of all events."""

    # Turns.

    async def begin(self, response: RunningResponse) -> None:
        """Notes that a response runs."""
        key = (response.owner, response.response.id)
        self._running[key] = response
        self._events.setdefault(key, [])
        previous = response.response.previous_response_id
        if previous is not None:
            parent = self._parent[key] = (response.owner, previous)
            self._parents[parent] += 1

    def log(self, entry: Entry) -> None:
        """Takes events, if the response runs still."""
        key = (entry.owner, entry.response_id)
        if key not in self._running:
            return
        self._running[key] = entry.standing
        events = self._events[key]
        if entry.first == len(events):
            events.extend(entry.events)
            self.size += sum(map(len, entry.events))

    def end(self, owner: str, response_id: str) -> None:
        """Removes all of a begun response."""
        if (owner, response_id) in self._running:
            self.stored(owner, response_id)
            self.dropped(owner, response_id)

    async def running(self, owner: str, response_id: str) -> RunningResponse | None:
        """The owner's begun response as it stands."""
        return self._running.get((owner, response_id))

    async def events(
        self, owner: str, response_id: str, *, after: int, most: int
    ) -> Sequence[bytes] | None:
        """Events of a response that runs or is stored."""
        events = self._events.get((owner, response_id))
        first = max(after + 1, 0)
        return None if events is None else events[first : first + most]

    # What the store beside it says and asks.

    def stored(self, owner: str, response_id: str) -> None:
        """A response has been put: if it ran, it does so no more; its events stay."""
        key = (owner, response_id)
        self._running.pop(key, None)
        parent = self._parent.pop(key, None)
        if parent is not None:
            self._parents[parent] -= 1
            if not self._parents[parent]:
                del self._parents[parent]

    def dropped(self, owner: str, response_id: str) -> None:
        """A stored response has gone, and its events and claims go with it."""
        key = (owner, response_id)
        self.size -= sum(map(len, self._events.pop(key, ())))
        for claim in self._claims_of.pop(key, ()):
            self._release(claim)

    def spares(self, owner: str, response_id: str) -> bool:
        """Whether a running response continues this one."""
        return (owner, response_id) in self._parents

    # Keys.

    async def claim(self, claim: Claim) -> Claim:
        """Takes the key, or finds the claim that has it."""
        self._release_due()
        holds = self._claims.setdefault((claim.owner, claim.key), claim)
        if holds is claim:
            self._claims_of.setdefault((claim.owner, claim.response_id), set()).add(claim)
        return holds

    def expire(self, claim: Claim, *, at: float | None) -> None:
        """Has a claim end."""
        self._release_due()
        held = self._claims.get((claim.owner, claim.key))
        if held is None or held.response_id != claim.response_id:
            return
        if at is None:
            self._drop_claim(held)
        else:
            self._until[held] = at
            heappush(self._due, (at, held.owner, held.key))

    def _release_due(self) -> None:
        now = self._now()
        while self._due and self._due[0][0] <= now:
            at, owner, key = heappop(self._due)
            claim = self._claims.get((owner, key))
            if claim is not None and self._until.get(claim) == at:
                self._drop_claim(claim)

    def _drop_claim(self, claim: Claim) -> None:
        self._release(claim)
        key = (claim.owner, claim.response_id)
        claims = self._claims_of.get(key, set())
        claims.discard(claim)
        if not claims:
            self._claims_of.pop(key, None)

    def _release(self, claim: Claim) -> None:
        self._claims.pop((claim.owner, claim.key), None)
        self._until.pop(claim, None)

    # Cancels.

    async def ask_cancel(self, wanted: Cancellation) -> None:
        """Leaves word, for this process alone."""
        self._words = [word for word in self._words if word[0] > self._now()]
        self._words.append((self._now() + WORD, wanted))

    async def asked_cancels(self) -> Sequence[Cancellation]:
        """The words that are good still, once."""
        words, self._words = self._words, []
        return [wanted for until, wanted in words if until > self._now()]

    async def close(self) -> None:
        """Forgets everything."""
        self._running.clear()
        self._events.clear()
        self._parent.clear()
        self._parents.clear()
        self._claims.clear()
        self._claims_of.clear()
        self._until.clear()
        self._due.clear()
        self._words.clear()
        self.size = 0


class MemoryStore:
    """A dictionary of responses; past a bound, the one that was not used for longest goes.

    ``max_bytes`` bounds the JSON of items and events. Chains share their nodes, so each node
    counts once, for as long as any stored response descends from it. The newest response always
    stays.
    """

    def __init__(
        self,
        *,
        add_usage: Callable[[UsageRecord], None],
        max_responses: int | None = None,
        max_bytes: int | None = None,
        ttl: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        journal: MemoryJournal | None = None,
    ) -> None:
        self._add_usage = add_usage
        self._journal = MemoryJournal(now=time.time) if journal is None else journal
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

    def __len__(self) -> int:
        return len(self._records)

    def keep(self, keep: Keep) -> None:
        """Nothing: the chain itself is in memory."""

    def discard(self, discard: Discard) -> None:
        """Nothing was kept."""

    async def put(self, record: Saved, usage_record: UsageRecord) -> None:
        """Keeps a response. Costs what its chain has that is not stored yet."""
        self._add_usage(usage_record)
        key = (record.owner, record.response.id)
        self._take_out(key)
        self._journal.stored(*key)
        self._records[key] = record
        self._used[key] = self._clock()
        self._chains.hold(record.head.node)
        self._settings += _settings_size(record)
        for item in own_items(record):
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
        self._chains.release(record.head.node)
        self._settings -= _settings_size(record)
        for item in own_items(record):
            self._drop_item(record, item.id)
        return True

    def _drop_item(self, record: Saved, item_id: str | None) -> None:
        holders = self._items.get((record.owner, item_id or ""), {})
        if holders.pop(record.response.id, None) is not None and not holders:
            del self._items[record.owner, item_id or ""]


def _settings_size(record: Saved) -> int:
    response = record.response
    free_form = (response.instructions, response.tools, response.text, response.metadata)
    return sum(len(memoryview(raw)) for raw in (*response.output, *free_form))


ROWS: Final = 10_000
"""Rows that are kept; past it the oldest go."""


class MemoryLedger:
    """Rows in the order in which they came; past ``most`` the oldest go."""

    keeps_phases = False

    def __init__(self, *, most: int = ROWS) -> None:
        self._most = most
        self._rows: OrderedDict[str, UsageRecord] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[UsageRecord]:
        """The rows, the first booked first."""
        return iter(self._rows.values())

    def add(self, usage_record: UsageRecord) -> None:
        """Takes a row; a response id that has one keeps it. Its phases, half of it, are let go."""
        row = replace(usage_record, phases={}) if usage_record.phases else usage_record
        self._rows.setdefault(usage_record.response_id, row)
        if len(self._rows) > self._most:
            self._rows.popitem(last=False)

    async def usage(self, question: Question) -> Sequence[Sum]:
        """Sums in order of their group."""
        groups: dict[str, list[UsageRecord]] = {}
        for row in self._rows.values():
            if _asked_for(row, question):
                groups.setdefault(_group(row, question.by), []).append(row)
        return [_sum(group, rows) for group, rows in sorted(groups.items())]

    async def close(self) -> None:
        """Forgets everything."""
        self._rows.clear()


def _asked_for(row: UsageRecord, question: Question) -> bool:
    return (
        (question.owner is None or row.owner == question.owner)
        and (question.since is None or row.ended_at >= question.since)
        and (question.until is None or row.ended_at < question.until)
    )


def _group(row: UsageRecord, by: By) -> str:
    if by == "day":
        return datetime.fromtimestamp(row.ended_at, UTC).date().isoformat()
    return row.owner if by == "key" else row.model


def _sum(group: str, rows: Iterable[UsageRecord]) -> Sum:
    counted = [
        (1, row.input_tokens, row.cached_tokens, row.output_tokens, row.reasoning_tokens)
        for row in rows
    ]
    responses, given, cached, made, reasoned = map(sum, zip(*counted, strict=True))
    return Sum(
        group=group,
        responses=responses,
        input_tokens=given,
        cached_tokens=cached,
        output_tokens=made,
        reasoning_tokens=reasoned,
    )


async def open_storage(config: Config, stack: AsyncExitStack, *, outages: Outages) -> Storage:
    """An empty storage with the bounds that the settings give."""
    ledger, journal = MemoryLedger(), MemoryJournal(now=time.time)
    store = MemoryStore(
        add_usage=ledger.add,
        max_responses=config.store_max_responses,
        max_bytes=config.store_max_bytes,
        ttl=config.store_ttl,
        clock=time.monotonic,
        journal=journal,
    )
    return Storage(store, ledger, journal)


async def open_ledger(config: Config, stack: AsyncExitStack) -> MemoryLedger:
    """An empty ledger, of which the settings say nothing."""
    return MemoryLedger()
