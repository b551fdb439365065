"""What a storage keeps: stored responses, the journal of those that run, the ledger of usage.

All three are of one place (``--store``), and each storage implements all three. The owner is part
of every question: what belongs to another owner is exactly like what does not exist.
"""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Literal, NamedTuple, Protocol

from msgspec import Struct

from tieline.items import Item
from tieline.responses import Response
from tieline_server.config import Config
from tieline_server.core.effects import Discard, Keep
from tieline_server.core.history.chain import ChainNode, Saved
from tieline_server.core.values import UsageRecord


class ResponseStore(Protocol):
    """What keeps responses that asked for ``store``.

    After ``put`` has returned, every ``get`` sees the response.
    """

    def keep(self, keep: Keep) -> None:
        """Takes items of a response that still runs. Never waits and never raises."""
        ...

    def discard(self, discard: Discard) -> None:
        """Forgets what was kept of a response that will not be put. Never waits, never raises."""
        ...

    async def put(self, record: Saved, usage_record: UsageRecord) -> None:
        """Keeps a response, in place of an earlier one of the same id and owner, and books it.

        Both are durable on return; where it raises, neither is. What a journal has of it stays
        with it from then on, and it does not run any more; it raises where it had been ended by
        another process meanwhile.
        """
        ...

    async def get(self, owner: str, response_id: str) -> Saved | None:
        """The owner's response, or None."""
        ...

    async def delete(self, owner: str, response_id: str) -> bool:
        """Forgets a response, its items and events; False where the owner has no such response.

        Responses that continue it keep what they inherited.
        """
        ...

    async def item(self, owner: str, item_id: str) -> Item | None:
        """An item of one of the owner's stored responses, its input or its output, or None."""
        ...

    async def close(self) -> None:
        """Frees what the store holds open. Called once."""
        ...


class RunningResponse(Struct, frozen=True, kw_only=True):
    """A response that will be stored and has not ended, as it stood when last written.

    Its ``usage`` is what it has used so far.
    """

    response: Response
    owner: str
    model: str
    """The public name, for the ledger."""
    transport: str
    started_at: float
    """Unix seconds."""


class Entry(Struct, frozen=True, kw_only=True):
    """Events of one response in order, without a gap; ``first`` is the number of the first.

    Numbers begin at 0, and each entry goes on where the one before it ended.
    ``events`` are JSON as the WebSocket shows it, without a ``stream_id``. ``standing`` is the
    response as it stands after them.
    """

    response_id: str
    owner: str
    first: int
    events: tuple[bytes, ...]
    standing: RunningResponse


class Claim(Struct, frozen=True, kw_only=True):
    """An idempotency key in use: hashes only."""

    owner: str
    key: bytes
    """Digest of owner and key."""
    body: bytes
    """Digest of the create's body: the same over all transports."""
    response_id: str
    stored: bool
    """Whether the response will be stored: the claim then lives as long as the response."""


class Cancellation(Struct, frozen=True, kw_only=True):
    """A client wants a turn cancelled that runs in a process out of its reach."""

    owner: str
    response_id: str


class Journal(Protocol):
    """Keeps what must survive a connection or a process for responses that still run.

    It knows that they run, their events, their idempotency keys, and cancels that were asked for
    in other processes.

    What is here of a ``store:true`` response goes when the response does (its TTL, its bounds,
    DELETE). Of a ``store:false`` response nothing but hashes of its key is ever here.

    A response that is **begun** is put with ``Saved.terminal``, and one that was not is put
    without: that is how the store knows that there is something to end here.
    """

    async def begin(self, response: RunningResponse) -> None:
        """Notes that a response runs; durable on return.

        Until ``ResponseStore.put`` has stored it, or ``end`` was called, ``running`` finds it.
        """
        ...

    def log(self, entry: Entry) -> None:
        """Takes events of a response that was begun. Never waits, never raises.

        They are durable soon, and before the response itself is. Where they could not be written
        they are lost, with all that follow them: what is read never has a gap.
        """
        ...

    def end(self, owner: str, response_id: str) -> None:
        """A begun response will never be stored (refused, or lost): all of it goes."""
        ...

    async def running(self, owner: str, response_id: str) -> RunningResponse | None:
        """The owner's begun response as it stands, or None where it ended or never was.

        One whose process has died is ended first: it is stored as ``failed`` with code
        ``server_error`` and its usage so far, booked once, and not running any more. Should it
        live after all, its own ``put`` raises.
        """
        ...

    async def events(
        self, owner: str, response_id: str, *, after: int, most: int
    ) -> Sequence[bytes] | None:
        """At most so many events with numbers > ``after`` (-1: from the first), in order.

        Fewer than ``most`` need not be all; none at all are the end for now. None where the
        owner has no response of this id with events, running or stored, or where those that
        should come next were lost. Terminal events are not among them: they are made of the
        stored response, and ``Saved.terminal`` is their number.
        """
        ...

    async def claim(self, claim: Claim) -> Claim:
        """The claim of this owner and key that holds: this one, or an earlier one.

        Durable on return. An earlier one whose process died before it had stored its response
        holds no more (what that left behind is stored as failed, and does not count), and
        neither does one whose time is over.
        """
        ...

    def expire(self, claim: Claim, *, at: float | None) -> None:
        """Lets a claim end at ``at`` (Unix seconds), at once with None. Never waits, never raises.

        It is known by its owner, key and response.

        A claim of a stored response needs no call: it goes with the response.
        """
        ...

    async def ask_cancel(self, wanted: Cancellation) -> None:
        """Leaves word for whichever process runs it; the word is good for a few seconds.

        Whether there is such a response is not asked.
        """
        ...

    async def asked_cancels(self) -> Sequence[Cancellation]:
        """The words left since this was last called here: each is told once to each process."""
        ...

    async def close(self) -> None:
        """Frees what is open; before the store's own ``close``. Called once.

        What this process still runs then is ended as if it had died.
        """
        ...


By = Literal["key", "model", "day"]
"""What sums are grouped by: who asked, the model, or the day (UTC, ``YYYY-MM-DD``) of the end."""


class Question(Struct, frozen=True, kw_only=True):
    """Which rows to sum. Times are Unix seconds of a response's end; ``until`` is exclusive."""

    by: By = "day"
    owner: str | None = None
    """One owner's rows, or None for all."""
    since: float | None = None
    until: float | None = None


class Sum(Struct, frozen=True, kw_only=True):
    """The rows of one group, added up."""

    group: str
    responses: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int


class Ledger(Protocol):
    """What keeps usage records: one row for each response id, on every way that it can end.

    The row of a stored response is written with the response, by its store; all others come
    through ``add``. A response id that is booked twice has one row: the store's, else the first.
    """

    keeps_phases: bool
    """Whether rows keep their phases: others may come without."""

    def add(self, usage_record: UsageRecord) -> None:
        """Takes a row. Never waits and never raises; it is durable within 50 ms.

        A disk, or another process that holds the database's lock, may take longer.
        """
        ...

    async def usage(self, question: Question) -> Sequence[Sum]:
        """Sums in order of their group, by code point. What was booked before is in them."""
        ...

    async def close(self) -> None:
        """Writes what is left and frees what is open. Called once, after the last ``add``."""
        ...


class Storage(NamedTuple):
    """All that one place keeps. ``check`` raises :class:`ApiError` while it can keep nothing."""

    store: ResponseStore
    ledger: Ledger
    journal: Journal
    check: Callable[[], None] = lambda: None


class Outages(Protocol):
    """What is told when the place cannot be read or written, once for each time."""

    def silent(self, reason: str) -> None:
        """It does not answer, or cannot be written to."""
        ...

    def answers(self, seconds: float) -> None:
        """It answers again, after so many seconds."""
        ...

    def full(self) -> None:
        """There is no room for what is written; said again after a while."""
        ...


class StorageModule(Protocol):
    """A module of :data:`tieline_server.config.toml_tables.STORES`, which opens storages."""

    async def open_storage(
        self, config: Config, stack: AsyncExitStack, *, outages: Outages
    ) -> Storage:
        """Opens the storage of the settings, as it was left. Raises :class:`ConfigError`.

        The caller closes ledger, store and journal; ``stack`` closes what else is open, such as a
        connection that the three share, after them.
        """
        ...

    async def open_ledger(self, config: Config, stack: AsyncExitStack) -> Ledger:
        """Opens the ledger by itself, to be read while a server may write it.

        The caller closes the ledger, and ``stack`` what else is open. Raises
        :class:`ConfigError` where there is no such storage yet.
        """
        ...


def own_items(saved: Saved) -> list[Item]:
    """The items of a response itself, in order: its input and output, not what it inherited."""
    own: list[ChainNode] = []
    node: ChainNode | None = saved.head.node
    while node is not None and node is not saved.input_from:
        own.append(node)
        node = node.parent
    return [item for node in reversed(own) for item in node.items]
