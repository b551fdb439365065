"""What a mode is: a path of the API, how a turn is asked there, and how its answer is read.

The engine knows replicas, tries and time-outs; what is in a body and what an event means, a mode
knows alone.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from tieline_server.core.deltas import Delta
from tieline_server.core.effects import Prompt
from tieline_server.engines.upstream.faults import Failure
from tieline_server.engines.upstream.probe import Prober
from tieline_server.engines.upstream.replicas import Replica


class Answer(Protocol):
    """Reads one answer."""

    @property
    def done(self) -> bool:
        """Whether the upstream said that nothing more comes."""
        ...

    moved: bool
    """Whether something came that is held back, or that tells of work; who has seen it says so."""

    @property
    def finished(self) -> bool:
        """Whether the model has ended, even if its usage is still to come."""
        ...

    @property
    def stated(self) -> int:
        """Output tokens of which the upstream has said so far that there are."""
        ...

    def read(self, events: Iterable[bytes]) -> list[Delta]:
        """The deltas of some events. Raises :class:`Failure`."""
        ...

    def end(self, phases: dict[str, int]) -> list[Delta]:
        """The last step. Raises :class:`Failure` where something is not whole."""
        ...


class Sent(Struct, frozen=True):
    """One try: what is sent, and who reads what comes back."""

    body: bytes
    answer: Answer


class Request(Protocol):
    """A create, ready to be sent."""

    @property
    def tokens(self) -> int:
        """How many tokens the prompt has, about."""
        ...

    def to(self, replica: Replica) -> Sent:
        """As this replica is asked."""
        ...


class Mode(Protocol):
    """One of the ways to have an upstream sample."""

    path: str
    """Of the API, behind its base URL."""
    counts: Sequence[str]
    """Ways in which the upstream may count what :meth:`counted` makes (``probe.Counter``)."""

    async def probe(self, prober: Prober) -> None:
        """Asks what it must know before it is used; raises :class:`UpstreamError` of one line."""
        ...

    def heavy(self, prompt: Prompt) -> bool:
        """Whether it has so much to render that a thread should."""
        ...

    def build(self, prompt: Prompt) -> Request:
        """The request; raises :class:`EngineError` for content that has no form upstream."""
        ...

    def estimate(self, prompt: Prompt) -> int:
        """About how many tokens the prompt has."""
        ...

    def counted(self, prompt: Prompt) -> bytes:
        """The body that asks what the prompt comes to."""
        ...

    def again(
        self, prompt: Prompt, request: Request, replica: Replica, failure: Failure
    ) -> Request | None:
        """Another request for the same replica, which may take that one; None where none would.

        Called where ``request`` failed before its first token.
        """
        ...
