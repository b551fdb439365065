"""What the rules ask of the runtime, and what the runtime may answer.

The core never waits: it returns effects, and whoever drives it carries them out and reports
back through the methods of :class:`~tieline_server.core.connection.Connection`. Docstrings tell the
driver what it must call next.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, Protocol

from msgspec import Struct

from tieline.errors import ApiError
from tieline.items import Item
from tieline.requests import Cancel
from tieline.responses import Response, Usage
from tieline_server.core.history import ChainHead, ChainNode

if TYPE_CHECKING:
    from tieline_server.core.replay_log import ReplayLog
    from tieline_server.core.settings import Settings
    from tieline_server.core.turn import Turn

Outcome = Literal["completed", "incomplete", "cancelled", "failed", "disconnected", "refused"]


class Work(Struct):
    """Bytes handled so far on a connection, by stage: what "a turn costs what is new" is proved
    with.

    ``decode``: request bytes parsed. ``validate``: settings and items checked. ``render``: JSON
    of items turned into tokens or fragments. ``encode``: bytes of events built.
    What is reused counts nowhere.
    """

    decode: int = 0
    validate: int = 0
    render: int = 0
    encode: int = 0

    @property
    def total(self) -> int:
        """All stages together."""
        return self.decode + self.validate + self.render + self.encode

    def copy(self) -> "Work":
        """The counters as they stand."""
        return Work(self.decode, self.validate, self.render, self.encode)

    def since(self, before: "Work") -> "Work":
        """What was done after ``before`` was copied."""
        return Work(
            self.decode - before.decode,
            self.validate - before.validate,
            self.render - before.render,
            self.encode - before.encode,
        )


class Caller(Struct, frozen=True, kw_only=True):
    """The call by which somebody asks, as a log names it; what it says decides nothing."""

    request_id: str
    client_request_id: str | None = None
    """The client's own name of it."""
    address: str = ""


class Principal(Struct, frozen=True, kw_only=True):
    """Who asks: the owner of chains, and the models that the key may use (None: all)."""

    owner: str = "local"
    models: frozenset[str] | None = None
    caller: Caller | None = None


class Defaults(Struct, frozen=True, kw_only=True):
    """What a model's settings say where a create says nothing."""

    reasoning_effort: str | None = None
    max_output_tokens: int | None = None


class Resolved(Struct, frozen=True, kw_only=True):
    """A model name resolved: the public name, its engine, and what it can do."""

    model: str
    engine: str
    steering: bool = True
    target: str | None = None
    """The engine's own name of it, where that is another."""
    defaults: Defaults = Defaults()
    price: Mapping[str, float] | None = None
    """Per million tokens, where the settings say one."""

    @property
    def served(self) -> str:
        """The name that its engine knows."""
        return self.target or self.model


class Catalog(Protocol):
    """Which models there are. Pure: a table lookup."""

    def resolve(self, name: str | None) -> Resolved | None:
        """The model of this name, the default one for None, or None when there is no such."""
        ...

    def entries(self) -> tuple[Resolved, ...]:
        """All of them, the default one first."""
        ...


class Prompt(Struct, frozen=True, kw_only=True):
    """What an engine is asked to sample from."""

    response_id: str
    model: str
    """The engine's own name of it."""
    tip: ChainNode
    """The effective input: the chain that ends here."""
    settings: "Settings"
    session: str
    """Names the connection and lane: the same lane may reuse the same KV slot."""
    owner: str
    """Whose turn it is: what an engine keeps of it is for no other owner."""
    max_output_tokens: int | None
    """What is left of the turn's budget, or None."""
    work: Work


class Load(Struct, frozen=True):
    """Find a stored response and items of this owner, then call ``connection.loaded``.

    ``response_id`` is None where only items are asked for.
    """

    turn: "Turn"
    response_id: str | None
    item_ids: tuple[str, ...]
    owner: str


class Claim(Struct, frozen=True):
    """Claim an idempotency key for the turn, then call ``connection.claimed``. Digests only."""

    turn: "Turn"
    owner: str
    key: bytes
    body: bytes
    stored: bool


class Release(Struct, frozen=True):
    """The turn's claim of its key ends: at once, or as long after its end as it can be resumed."""

    turn: "Turn"
    at_once: bool


class Begin(Struct, frozen=True):
    """The turn's events are kept (``turn.log``), and as it will be stored, written down."""

    turn: "Turn"


class Follow(Struct, frozen=True):
    """Find the response, feed ``connection.relayed``, at its end call ``connection.followed``.

    With ``moves`` its turn, or its chain where it has ended, comes to this connection
    (``connection.take_over``); on an error call ``connection.lost``.
    """

    turn: "Turn"
    response_id: str
    after: int | None
    moves: bool


class CancelSource(Struct, frozen=True):
    """Cancel a response wherever it runs.

    Where the owner has no such response, ``Connection.reject`` tells the client that ``asked`` for
    it.
    """

    response_id: str
    owner: str
    asked: Cancel | None = None


class Outlive(Struct, frozen=True):
    """The turn has left its connection, which goes: have another connection ``join`` it at once."""

    turn: "Turn"


class Sample(Struct, frozen=True):
    """Start sampling; feed ``connection.deltas``, then stop; on an error call
    ``connection.engine_failed``.

    With ``settings.generate`` false the engine prepares for the prompt and says nothing.
    """

    turn: "Turn"
    engine: str
    prompt: Prompt


class Stop(Struct, frozen=True):
    """Close the turn's sampling at once. Nothing need be reported."""

    turn: "Turn"


class Saved(Struct, frozen=True, kw_only=True):
    """A response as a store keeps it."""

    response: Response
    tip: ChainHead
    owner: str
    input_from: ChainNode | None
    """The link before the response's own input; None for the first of a chain."""
    terminal: int | None = None
    """The number of its terminal event where its events are kept; None where they are not."""


class Keep(Struct, frozen=True):
    """Items that have joined the chain of a response which will be stored; nobody waits.

    They are the next ones of the response's own links, whose first follows ``after``.
    """

    response_id: str
    owner: str
    after: ChainNode | None
    items: tuple[Item, ...]


class Discard(Struct, frozen=True):
    """A response whose items were kept will never be stored."""

    response_id: str
    owner: str


class Save(Struct, frozen=True):
    """Make it durable, then call ``connection.saved(turn, error or None)``; the terminal event
    waits.

    ``booking`` is written down with it, or neither is.
    """

    turn: "Turn"
    record: Saved
    booking: "TurnRecord"


class Times(Struct, frozen=True, kw_only=True):
    """When a turn ran, in seconds on the driver's clock, and where its time went."""

    started_at: float
    """When the create was received."""
    ended_at: float
    first_token_at: float | None
    phases: Callable[[], dict[str, int]]
    """Microseconds by phase (wire.md 3.4.4), worked out where somebody asks."""


# A call with more than 15 keywords packs them into a dictionary, which costs four times as much.
class TurnRecord(Struct, frozen=True, kw_only=True):
    """What one turn was: for the log, the ledger, metrics and spans. Never content."""

    response_id: str
    previous_response_id: str | None
    owner: str
    model: str
    """What was asked for or resolved; see ``public_model``."""
    lane: str | None
    outcome: Outcome
    kind: Literal["turn", "prewarm", "compaction"]
    reason: str | None
    error_code: str | None
    usage: Usage
    times: Times
    trace_context: dict[str, str] | None
    work: Work
    """The connection's work during this turn; what of its events is encoded later is not in it."""
    store: bool
    events: int
    """Events of the response, merged ones counted once."""
    caller: Caller | None = None
    """The call that asked for it."""
    settled: bool = True
    """Whether its model and settings were settled: its turn on the lane had come."""

    @property
    def public_model(self) -> str:
        """The model's public name, or "" where ``model`` may be any word of the client's."""
        return self.model if self.settled and self.outcome != "refused" else ""


class Record(Struct, frozen=True):
    """A turn ended: write it down. Exactly one for each response id.

    With ``booked`` the ledger has it already, from the response's ``Save``. ``kept`` are its
    events, where they were kept.
    """

    record: TurnRecord
    booked: bool = False
    kept: "ReplayLog | None" = None


class Close(Struct, frozen=True):
    """End the connection once what is queued is written; with an error, as that error."""

    error: ApiError | None = None


Effect = (
    Begin
    | CancelSource
    | Claim
    | Close
    | Discard
    | Follow
    | Keep
    | Load
    | Outlive
    | Record
    | Release
    | Sample
    | Save
    | Stop
)
