"""What streamed completions have in common, a chat's and others: chunks, errors, their end."""

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from tieline_server.core.deltas import Delta
from tieline_server.engines.upstream.faults import malformed, refused, said_of, status_in
from tieline_server.engines.upstream.mending import Mender, lenient
from tieline_server.engines.upstream.stated import CompletionUsage

DONE: Final = b"[DONE]"

ABORTED: Final = frozenset({"abort", "error", "insufficient_system_resource"})
"""Finish reasons by which servers say that they failed."""

_NOTHING: Final = CompletionUsage()


class ChunkedAnswer:
    """Reads the chunks of one answer; what a choice of them says is a matter of the kind."""

    __slots__ = ("_decode", "_mender", "_reason", "_usage", "done", "moved")

    def __init__(self, decode: Callable[[bytes], Any]) -> None:
        self._decode = decode
        self._mender = Mender()
        self._reason: str | None = None
        self._usage = _NOTHING
        self.done = False
        """Whether the upstream said that nothing more comes."""
        self.moved = False
        """Whether something came that is held back."""

    @property
    def finished(self) -> bool:
        """Whether the model has ended, even if its usage is still to come."""
        return self._reason is not None

    @property
    def stated(self) -> int:
        """Output tokens of which the upstream has said so far that there are."""
        return self._usage.completion_tokens or 0

    def read(self, events: Iterable[bytes]) -> list[Delta]:
        """The deltas of some events.

        Raises :class:`Failure`, and :class:`EngineError` for text off the form it must have.
        """
        deltas: list[Delta] = []
        mender = self._mender
        for data in events:
            if data == DONE:
                self.done = True
                if not mender.halves:
                    break
                data = mender.rest()
            try:
                chunk = self._mended(data) if mender.halves and data else self._decode(data)
            except (msgspec.MsgspecError, RecursionError):
                # An event of nothing is none (WHATWG HTML 9.2.6).
                if not data:
                    continue
                chunk = self._mended(data)
            if chunk.error or chunk.object == "error":
                said = said_of(chunk.error or lenient(data))
                raise refused(status_in(said), said)
            if chunk.usage is not None:
                self._usage = chunk.usage
            for choice in chunk.choices or ():
                if choice.index == 0:
                    self._take(choice, chunk, deltas)
                    if choice.finish_reason is not None:
                        self._finish(choice.finish_reason)
            if self.done:
                break
        return deltas

    def _mended(self, data: bytes) -> Any:
        try:
            return self._decode(self._mender.chunk(data))
        except (msgspec.MsgspecError, RecursionError):
            raise malformed() from None

    def _take(self, choice: Any, chunk: Any, deltas: list[Delta]) -> None:
        """Adds what a choice of a chunk says."""
        raise NotImplementedError

    def _finish(self, reason: str) -> None:
        if reason in ABORTED:
            raise refused(500, said_of(None))
        self._reason = reason
