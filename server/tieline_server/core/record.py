"""Where a turn's time went, and the one record that it leaves.

Phases are microseconds. ``lane``: behind others on its lane. ``resolve``: settings, parent and
input settled, the store asked. ``queue``: waiting for an active place. ``prefill``: from asking
the engine to the first token. ``decode``: the rest of sampling. ``held``: the client ran its
tools. ``store``: the commit. ``first_token``: from the create to the first token. ``overhead``:
all of ``total`` that is neither engine, nor queue, nor client (design: timing).
"""

from typing import TYPE_CHECKING

from tieline_server.core.effects import Outcome, TurnRecord

if TYPE_CHECKING:
    from tieline_server.core.turn import Turn


class Marks:
    """Moments of one turn, seconds on the driver's clock."""

    __slots__ = ("_at", "_engine", "_held", "_phases", "_prefill", "spoken")

    def __init__(self, received: float) -> None:
        self._at = {"received": received}
        self._engine = 0.0
        self._held = 0.0
        self._prefill = 0.0
        self.spoken = False
        """Whether the first token came."""
        self._phases: dict[str, int] = {}

    @property
    def received(self) -> float:
        """When the create came in."""
        return self._at["received"]

    @property
    def first_token_at(self) -> float | None:
        """When the first token came, or None."""
        return self._at.get("token")

    def set(self, name: str, now: float) -> None:
        """Notes a moment; a later one of the same name replaces it."""
        self._at[name] = now
        if name == "asked":
            self._at.setdefault("first_asked", now)

    def first_token(self, now: float) -> None:
        """Notes the first token, once for the turn."""
        if not self.spoken:
            self.spoken = True
            self._at["token"] = now
            self._prefill = now - self._at["asked"]

    def sampled(self, now: float, phases: dict[str, int] | None) -> None:
        """One sampling is over; ``phases`` is what the engine itself measured."""
        self._engine += now - self._at.get("asked", now)
        for name, microseconds in (phases or {}).items():
            self.add(name, microseconds)

    def resume(self, now: float) -> None:
        """A held turn goes on: the time since was the client's."""
        self._held += now - self._at["held"]

    def add(self, name: str, microseconds: int) -> None:
        """Adds to a phase that somebody else measures."""
        self._phases[name] = self._phases.get(name, 0) + microseconds

    def phases(self, now: float) -> dict[str, int]:
        """All phases so far."""
        at = self._at
        received = at["received"]
        head = at.get("head", now)
        resolved = at.get("resolved", head)
        queue = at.get("first_asked", now) - resolved if "resolved" in at else 0.0
        held = self._held + (now - at["held"] if at.get("held", 0) > at.get("asked", now) else 0)
        lane = head - received
        spans = {
            "lane": lane,
            "resolve": resolved - head,
            "queue": queue,
            "prefill": self._prefill,
            "decode": max(0.0, self._engine - self._prefill),
            "held": held,
            "store": at["saved"] - at["concluded"] if "saved" in at else 0.0,
            "first_token": at["token"] - received if "token" in at else 0.0,
            "total": now - received,
            "overhead": max(0.0, now - received - lane - queue - self._engine - held),
        }
        whole = {name: round(seconds * 1e6) for name, seconds in spans.items()}
        # An engine renders inside its own time, but rendering is the service's work.
        whole["overhead"] += self._phases.get("render", 0)
        return {**self._phases, **whole}


def record_of(turn: "Turn", outcome: Outcome) -> TurnRecord:
    """What ``turn`` was, as it ends now."""
    host = turn.host
    settings = turn.settings
    return TurnRecord(
        response_id=turn.id,
        previous_response_id=turn.follows,
        owner=turn.principal.owner,
        model=settings.model if settings else turn.request.model or "",
        lane=turn.lane,
        outcome=outcome,
        kind="prewarm" if settings and not settings.generate else "turn",
        reason=turn.reason,
        error_code=turn.failure.code if turn.failure else None,
        usage=turn.usage,
        phases=turn.marks.phases(host.now),
        started_at=turn.marks.received,
        ended_at=host.now,
        first_token_at=turn.marks.first_token_at,
        trace_context=turn.request.trace_context,
        work=host.work.since(turn.work_before),
        store=settings.store if settings else False,
        events=turn.outbox.count,
    )
