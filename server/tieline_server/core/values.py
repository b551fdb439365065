"""Plain values that the core shares with the rooms around it, and that decide nothing themselves.

Who asks (:class:`Principal`), which model answers (:class:`Resolved`), how much was handled
(:class:`Work`), and what a turn was once it has ended (:class:`TurnRecord`, :class:`UsageRecord`).
"""

from collections.abc import Callable, Mapping
from typing import Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from tieline.responses import Usage

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
    """The call of a client, as a log names it; what it says decides nothing."""

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


class Times(Struct, frozen=True, kw_only=True):
    """When a turn ran, in seconds on the driver's clock, and where its time went."""

    started_at: float
    """When the create was received."""
    ended_at: float
    first_token_at: float | None
    phases: Callable[[], dict[str, int]]
    """Microseconds by phase (wire.md 3.4.4), worked out when they are read."""


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


class UsageRecord(Struct, frozen=True, kw_only=True, gc=False):
    """One row of the ledger. Never content; times are Unix seconds, phases microseconds."""

    response_id: str
    owner: str
    model: str
    """The public name; empty for one that was cancelled before its turn on the lane came."""
    transport: str
    outcome: str
    kind: str
    """``turn``, ``prewarm`` where nothing was to be sampled, or ``compaction`` of a window."""
    reason: str | None
    error_code: str | None
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    phases: dict[str, int] = {}
    started_at: float
    ended_at: float
    stored: bool


def is_response(record: TurnRecord) -> bool:
    """Whether a turn became a response, and so has a row.

    What was refused never did, nor did what still waited behind others when its connection went: no
    client ever saw its id.
    """
    waited = record.outcome == "disconnected" and not record.settled
    return record.outcome != "refused" and not waited


def usage_record_of(
    record: TurnRecord, transport: str, *, ended_at: float, phases: bool = True
) -> UsageRecord:
    """The row of a turn that ended at ``ended_at`` (Unix seconds), with its phases or without."""
    usage, times = record.usage, record.times
    row = UsageRecord(
        response_id=record.response_id,
        owner=record.owner,
        model=record.public_model,
        transport=transport,
        outcome=record.outcome,
        kind=record.kind,
        reason=record.reason,
        error_code=record.error_code,
        input_tokens=usage.input_tokens,
        cached_tokens=usage.input_tokens_details.cached_tokens,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.output_tokens_details.reasoning_tokens,
        # The clock of a turn only tells how long it took; when that was, another one says.
        started_at=ended_at - (times.ended_at - times.started_at),
        ended_at=ended_at,
        stored=record.store,
    )
    # Worked out only for a ledger that keeps them.
    return replace(row, phases=times.phases()) if phases else row
