"""What the rules ask of the runtime, and what the runtime may answer.

The core never waits: it returns effects, and what drives it carries them out and reports back
through the methods of a ``Connection``. Docstrings tell the driver what it must call next.
"""

from msgspec import Struct

from tieline.errors import ApiError
from tieline.items import Item
from tieline.requests import Cancel
from tieline_server.core.create.settings import Settings
from tieline_server.core.history.chain import ChainNode, Saved
from tieline_server.core.stream.replay_log import ReplayLog
from tieline_server.core.values import TurnRecord, Work

TurnId = str
"""A turn's own id: it stays the same while the turn reads another response, and as it moves."""


class Prompt(Struct, frozen=True, kw_only=True):
    """What an engine is asked to sample from."""

    response_id: str
    model: str
    """The engine's own name of it."""
    chain: ChainNode
    """The effective input: the chain that ends here."""
    settings: Settings
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

    turn: TurnId
    response_id: str | None
    item_ids: tuple[str, ...]
    owner: str


class Claim(Struct, frozen=True):
    """Claim an idempotency key for the turn, then call ``connection.claimed``. Digests only.

    ``again`` says that it was claimed before, and that its holder had nothing to show.
    """

    turn: TurnId
    owner: str
    key: bytes
    body: bytes
    stored: bool
    again: bool


class Release(Struct, frozen=True):
    """The turn's claim of its key ends: at once, or as long after its end as it can be resumed."""

    turn: TurnId
    owner: str
    key: bytes
    stored: bool
    at_once: bool


class Begin(Struct, frozen=True):
    """The events in this log are kept and, as the response will be stored, written down."""

    log: ReplayLog
    model: str


class Follow(Struct, frozen=True):
    """Find the response, feed ``connection.relayed``, at its end call ``connection.followed``.

    With ``moves`` its turn comes to this connection (``connection.take``), or its chain where it
    has ended; on an error call ``connection.lost``.
    """

    turn: TurnId
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
    """The turn has left its connection, which goes: have another one ``shelter`` it at once."""

    turn: TurnId


class Sample(Struct, frozen=True):
    """Start sampling; feed ``connection.deltas``, then stop; on an error call
    ``connection.engine_failed``.

    With ``settings.generate`` false the engine prepares for the prompt and says nothing.
    """

    turn: TurnId
    engine: str
    prompt: Prompt


class Stop(Struct, frozen=True):
    """Close the turn's sampling at once. Nothing need be reported."""

    turn: TurnId


class Keep(Struct, frozen=True):
    """Items that have joined the chain of a response which will be stored; no turn waits for that.

    They are the next ones of the response's own nodes, whose first follows ``after``.
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
    """Make it durable, then call ``connection.saved``: the terminal event waits for that.

    ``turn_record`` is written down with it, or neither is.
    """

    turn: TurnId
    record: Saved
    turn_record: TurnRecord


class Record(Struct, frozen=True):
    """A turn ended: write it down. Exactly one for each response id.

    With ``booked`` the ledger has it already, from the response's ``Save``. ``log`` has its
    events, where they are kept.
    """

    record: TurnRecord
    booked: bool = False
    log: ReplayLog | None = None


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
