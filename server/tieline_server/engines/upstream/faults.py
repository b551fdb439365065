"""What can go wrong with an upstream, and what a client hears of it.

A client hears fixed words of ours and a code of our table. Only where the upstream says that the
request itself is wrong is its own sentence passed on, clipped: it alone can
say why.
"""

import re
from typing import Any, Final

import msgspec
from msgspec import Struct

from tieline_server.engines.base import EngineError

UNREACHABLE: Final = "The upstream cannot be reached."
SILENT: Final = "The upstream did not answer in time."
CUT: Final = "The upstream ended the answer before it was whole."
MALFORMED: Final = "The upstream sent what is no answer."
BROKEN_CALL: Final = "The upstream sent a tool call that is not valid JSON."
FAILED: Final = "The upstream failed while it was sampling."

NEWER_LIMIT: Final = "max_completion_tokens"
"""What newer models of OpenAI want instead of ``max_tokens``, and name when they refuse that."""

LONGEST: Final = 500
"""Characters of an upstream's own sentence that are passed on."""

_TOO_LONG: Final = re.compile(
    r"context[ _-]?(?:length|size|window)|too many tokens|prompt is too long", re.IGNORECASE
)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]+")

_BY_STATUS: Final[dict[int, tuple[str, str]]] = {
    401: ("server_error", "The upstream refuses the key of this server."),
    403: ("server_error", "The upstream refuses the key of this server."),
    404: ("model_not_found", "The upstream does not serve this model."),
    408: ("engine_unavailable", SILENT),
    413: ("request_too_large", "The request is too large for the upstream."),
    429: ("rate_limit_exceeded", "The upstream takes no more requests for now."),
    502: ("engine_unavailable", UNREACHABLE),
    503: ("engine_unavailable", "The upstream is not available."),
    504: ("engine_unavailable", SILENT),
    529: ("server_is_overloaded", "The upstream is overloaded."),
}
"""Status -> our code and words. Any other from 500 on is ``FAILED``, from 400 on the client's."""

RETRIED: Final = frozenset({408, 429, 500, 502, 503, 504, 529})
"""Statuses after which the same request may succeed, there or elsewhere."""

DOWN: Final = frozenset({502, 503, 504})
"""Statuses that speak against a replica rather than against one request."""


class Failure(Exception):
    """One request to one replica failed.

    ``error`` is for the client. ``retryable``: the same request may succeed elsewhere or later.
    ``down`` speaks against the replica. ``busy``: this replica said when to come again.
    ``other_limit``: it wants the limit under its newer name. ``status`` is what it answered with.
    """

    def __init__(
        self,
        error: EngineError,
        *,
        retryable: bool = False,
        down: bool = False,
        busy: bool = False,
        other_limit: bool = False,
        status: int | None = None,
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.retryable = retryable
        self.down = down
        self.busy = busy
        self.other_limit = other_limit
        self.status = status

    @property
    def too_long(self) -> bool:
        """Whether less of a prompt might do."""
        return self.error.code == "context_length_exceeded"


def unreachable() -> Failure:
    """No server answers there, or the connection broke before the answer began."""
    error = EngineError("engine_unavailable", UNREACHABLE)
    return Failure(error, retryable=True, down=True)


def silent() -> Failure:
    """It was connected and said nothing for too long."""
    return Failure(EngineError("engine_unavailable", SILENT), retryable=True, down=True)


def cut() -> Failure:
    """The answer ended before its end."""
    return Failure(EngineError("server_error", CUT), retryable=True, down=True)


def malformed() -> Failure:
    """What came is no stream of chunks. The same request would give the same."""
    return Failure(EngineError("server_error", MALFORMED))


def broken_call() -> Failure:
    """A tool call whose arguments cannot be parsed."""
    return Failure(EngineError("server_error", BROKEN_CALL))


class Said(Struct, frozen=True):
    """What an upstream says about an error."""

    message: str = ""
    code: Any = None
    param: Any = None
    type: Any = None


class _Envelope(Struct, frozen=True):
    """``error`` holds it in most; in some the body itself is the error."""

    error: Any = None
    message: Any = None
    code: Any = None


_envelope: Final = msgspec.json.Decoder(_Envelope)


def said_in(body: bytes) -> Said:
    """The error in the body of an answer; empty where there is none to be read."""
    try:
        envelope = _envelope.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return Said()
    if envelope.error is not None:
        return said_of(envelope.error)
    return said_of({"message": envelope.message, "code": envelope.code})


def said_of(error: object) -> Said:
    """An error as an upstream puts it: an object, or a bare sentence."""
    if isinstance(error, str):
        return Said(message=error)
    if not isinstance(error, dict):
        return Said()
    message = error.get("message")
    return Said(
        message=message if isinstance(message, str) else "",
        code=error.get("code"),
        param=error.get("param"),
        type=error.get("type"),
    )


def refused(status: int, said: Said, *, retry_after: float | None = None) -> Failure:
    """An answer with this status instead of a stream, or an error in the midst of one."""
    return Failure(
        _error(status, said, retry_after),
        retryable=status in RETRIED,
        down=status in DOWN,
        busy=retry_after is not None or status == 429,
        other_limit=status == 400 and NEWER_LIMIT in said.message,
        status=status,
    )


def _error(status: int, said: Said, retry_after: float | None) -> EngineError:
    if status in (400, 413, 422, 500) and (
        said.code == "context_length_exceeded"
        or said.type == "exceed_context_size_error"
        or _TOO_LONG.search(said.message)
    ):
        return EngineError(
            "context_length_exceeded", "The input is too long for the model.", param="input"
        )
    if status in _BY_STATUS:
        code, words = _BY_STATUS[status]
        return EngineError(code, words, retry_after=retry_after)
    if not 400 <= status < 500:
        return EngineError("server_error", FAILED, retry_after=retry_after)
    words = _CONTROL.sub(" ", said.message).strip()[:LONGEST]
    return EngineError(
        "invalid_request",
        f"The upstream refuses the request: {words}" if words else "The upstream refuses it.",
        param=said.param[:64] if isinstance(said.param, str) else None,
    )


_BY_CODE: Final[dict[str, int]] = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "insufficient_quota": 429,
    "server_is_overloaded": 503,
    "overloaded_error": 529,
    "invalid_prompt": 400,
    "context_length_exceeded": 400,
    "invalid_request_error": 400,
}
"""Code of an error without a status, or its type -> the status that it stands for."""


def status_in(said: Said) -> int:
    """The status that an error in the midst of a stream stands for."""
    code = said.code
    for name in (code, said.type):
        if isinstance(name, str) and name in _BY_CODE:
            return _BY_CODE[name]
    if isinstance(code, str) and code.isascii() and code.isdigit():
        code = int(code[:3])
    return code if isinstance(code, int) and 400 <= code < 600 else 500
