"""Where a turn's time went.

Phases are microseconds. ``lane``: behind others on its lane. ``resolve``: settings, parent and
input settled, the store asked. ``queue``: waiting for an active place. ``prefill``: from asking
the engine to the first token. ``decode``: the rest of sampling. ``held``: the client ran its
tools. ``guard``: guards were waited for. ``store``: the commit. ``first_token``: from the create
to the first token. ``overhead``: all of ``total`` that is neither engine, nor queue, nor client
(wire.md 3.4).
"""

from functools import partial

from tieline_server.core.values import Times


class Timestamps:
    """Moments of one turn, seconds on the driver's clock."""

    __slots__ = (
        "_asked",
        "_concluded",
        "_engine",
        "_first_asked",
        "_head",
        "_held",
        "_held_at",
        "_phases",
        "_prefill",
        "_resolved",
        "_saved",
        "first_token_at",
        "received",
    )

    def __init__(self, received: float) -> None:
        self.received = received
        """When the create came in."""
        self.first_token_at: float | None = None
        """When the first token came, or None."""
        self._head: float | None = None
        self._resolved: float | None = None
        self._first_asked: float | None = None
        self._asked: float | None = None
        self._concluded: float | None = None
        self._saved: float | None = None
        self._held_at: float | None = None
        self._engine = 0.0
        self._held = 0.0
        self._prefill = 0.0
        self._phases: dict[str, int] = {}

    def head(self, now: float) -> None:
        """It is first on its lane."""
        self._head = now

    def resolved(self, now: float) -> None:
        """Settings, parent and input are settled."""
        self._resolved = now

    def asked(self, now: float) -> None:
        """The engine is asked, for the first time or again."""
        self._asked = now
        self._held_at = None
        # A turn that was held asks again, and has waited for its place once.
        if self._first_asked is None:
            self._first_asked = now

    def first_token(self, now: float) -> None:
        """Notes the first token, once for the turn."""
        if self.first_token_at is None:
            self.first_token_at = now
            self._prefill = now - (now if self._asked is None else self._asked)

    def sampled(self, now: float, phases: dict[str, int] | None) -> None:
        """One sampling is over; ``phases`` is what the engine itself measured."""
        if self._asked is not None:
            self._engine += now - self._asked
        if phases:
            mine = self._phases
            # A turn that was held samples more than once: its phases add up.
            again = {name: mine[name] + phases[name] for name in mine.keys() & phases.keys()}
            self._phases = {**mine, **phases, **again}

    def held(self, now: float) -> None:
        """It waits for its client."""
        self._held_at = now

    def resume(self, now: float) -> None:
        """A held turn goes on: the time since was the client's."""
        self._held += self._since_held(now)
        self._held_at = None

    def concluded(self, now: float) -> None:
        """Its output is whole."""
        self._concluded = now

    def saved(self, now: float) -> None:
        """The store has it, or need not."""
        self._saved = now

    def add(self, name: str, microseconds: int) -> None:
        """Adds to a phase that the engine or the driver measures."""
        self._phases[name] = self._phases.get(name, 0) + microseconds

    def phases(self, now: float) -> dict[str, int]:
        """All phases so far."""
        head = now if self._head is None else self._head
        resolved = head if self._resolved is None else self._resolved
        lane, total = head - self.received, now - self.received
        asked = now if self._first_asked is None else self._first_asked
        queue = 0.0 if self._resolved is None else asked - resolved
        held = self._held + self._since_held(now)
        store = 0.0
        if self._saved is not None and self._concluded is not None:
            store = self._saved - self._concluded
        token = self.received if self.first_token_at is None else self.first_token_at
        # All that is neither the engine's, nor waiting, nor the client's is overhead of the server.
        overhead = max(0.0, total - lane - queue - self._engine - held)
        return {
            **self._phases,
            "lane": round(lane * 1e6),
            "resolve": round((resolved - head) * 1e6),
            "queue": round(queue * 1e6),
            "prefill": round(self._prefill * 1e6),
            "decode": round(max(0.0, self._engine - self._prefill) * 1e6),
            "held": round(held * 1e6),
            "store": round(store * 1e6),
            "first_token": round((token - self.received) * 1e6),
            "total": round(total * 1e6),
            "overhead": round(overhead * 1e6) + self._work_of_ours(),
        }

    def times(self, ended_at: float) -> Times:
        """When the turn ran, now that it ends.

        Its phases are worked out when they are asked for: what is marked by then is in them.
        """
        return Times(
            started_at=self.received,
            ended_at=ended_at,
            first_token_at=self.first_token_at,
            phases=partial(self.phases, ended_at),
        )

    def _work_of_ours(self) -> int:
        """What an engine's own time has of the service's: rendering, and waiting for guards."""
        # It ran within the engine's time, and was not the engine's work.
        work = self._phases.get("render", 0) + self._phases.get("guard", 0)
        return min(work, round(self._engine * 1e6))

    def _since_held(self, now: float) -> float:
        return 0.0 if self._held_at is None else now - self._held_at
