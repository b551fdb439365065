"""Events as a JSON client of one connection sees them: WebSocket frames and SSE data alike.

Our own events go only to who asked for them, some types go by another name in a profile, and
an error always has the members that one client or another insists on (wire.md 4.1.1).
"""

import json as ascii_json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, structs

from tieline import events
from tieline.codecs import json
from tieline.errors import ApiError
from tieline.responses import Response, ResponseError
from tieline_server.core.create.profile import Profile

WARNINGS: Final = "x-tieline-warnings"
"""Header of an HTTP answer: a JSON array, in ASCII, of what of the create is ignored."""

WARNINGS_BYTES: Final = 4096
"""Where that header ends: clients refuse an answer with more than 8 KiB of them."""

HEADER: Final = "x-tieline-extensions"
"""Header, or query member, by which a client asks for events of ours: names with commas."""

TIMING_HEADER: Final = "x-responsesapi-include-timing-metrics"
"""The header by which an older client asks for timing alone (wire.md 1.2.1)."""

NAMES: Final = frozenset({"heartbeat", "limits", "session", "timing", "warnings"})
"""What can be asked for. ``session``: the greeting and the goodbye of a connection."""

_ASKED: Final[Mapping[type[events.Event], str]] = {
    events.Heartbeat: "heartbeat",
    events.SessionStarted: "session",
    events.SessionGoingAway: "session",
    events.Timing: "timing",
}

FAILURES: Final = frozenset(
    {
        # OpenAI's closed list for response.error.code (openai-python's ResponseError).
        "server_error",
        "rate_limit_exceeded",
        "invalid_prompt",
        "data_residency_mismatch",
        "bio_policy",
        "misalignment_policy_violation",
        "vector_store_timeout",
        "invalid_image",
        "invalid_image_format",
        "invalid_base64_image",
        "invalid_image_url",
        "image_too_large",
        "image_too_small",
        "image_parse_error",
        "image_content_policy_violation",
        "invalid_image_mode",
        "image_file_too_large",
        "unsupported_image_media_type",
        "empty_image_file",
        "failed_to_download_image",
        "image_file_not_found",
        # Outside of it, and acted upon by Codex (wire.md 4.2.3).
        "context_length_exceeded",
        "cyber_policy",
        "insufficient_quota",
        "server_is_overloaded",
    }
)
"""What ``response.error.code`` may say to a JSON client; anything else is a ``server_error``."""

REASONS: Final = frozenset(
    {
        # OpenAI's closed list (openai-python's IncompleteDetails).
        "max_output_tokens",
        "max_messages",
        "content_filter",
        "steered",
        # Ours, which only a client meets that has used append or timeout_ms.
        "superseded",
        "held_timeout",
        "deadline",
    }
)
"""What ``incomplete_details.reason`` may say to a JSON client; no other reason is told."""

_encoder: Final = msgspec.json.Encoder()


def asked_for(lists: Iterable[str | None], *, timing: str | None = None) -> frozenset[str]:
    """The extensions in some comma-separated lists; unknown names are ignored.

    ``timing`` is the value of :data:`TIMING_HEADER`.

    >>> sorted(asked_for(["heartbeat, Timing", None, "later"]))
    ['heartbeat', 'timing']
    """
    names = {name.strip().lower() for each in lists if each for name in each.split(",")}
    if (timing or "").strip().lower() == "true":
        names.add("timing")
    return NAMES & names


def told(response: Response) -> Response:
    """The response as every JSON client knows it: how it ended in words of the closed lists."""
    error, details = response.error, response.incomplete_details
    if error is not None and error.code not in FAILURES:
        error = ResponseError(code="server_error", message=error.message)
    if details is not None and details.reason not in REASONS:
        details = None
    if error is response.error and details is response.incomplete_details:
        return response
    return structs.replace(response, error=error, incomplete_details=details)


class EventJson:
    """Encodes the events of one connection for one client.

    ``extensions`` is what the client asked for; nothing of it exists in a profile without them.
    """

    __slots__ = ("_extensions", "_profile", "encoders")

    def __init__(self, profile: Profile, extensions: frozenset[str] = frozenset()) -> None:
        self._profile = profile
        self._extensions: frozenset[str] = frozenset()
        self.encoders: dict[type[events.Event], Callable[[Any], bytes | None]] = {
            **dict.fromkeys(events.CLASSES, _encoder.encode),
            **dict.fromkeys((events.ErrorEvent, events.RequestRefused), error_json),
            events.ResponseCreated: _unwarned,
            events.ResponseFailed: _ended,
            events.ResponseIncomplete: _ended,
            events.Opaque: json.encode,
            **dict.fromkeys(_ASKED, _withheld),
        }
        """Class of an event -> what makes JSON text of it; None where this client did not ask."""
        for name, other in profile.renamed:
            self.encoders[events.BY_TYPE[name]] = _renamed(name, other)
        self.allow(extensions)

    @property
    def extensions(self) -> frozenset[str]:
        """What the client gets beside OpenAI's events."""
        return self._extensions

    def allow(self, extensions: frozenset[str]) -> None:
        """The client asks for these as well."""
        if not self._profile.extensions:
            return
        self._extensions |= extensions & NAMES
        for kind, name in _ASKED.items():
            if name in self._extensions:
                self.encoders[kind] = timing_json if kind is events.Timing else json.encode
        if "warnings" in self._extensions:
            self.encoders[events.ResponseCreated] = _encoder.encode

    def encode(self, event: events.Event) -> bytes | None:
        """The event as JSON text; None where this client did not ask for its kind."""
        return self.encoders[type(event)](event)


def error_json(event: events.ErrorEvent) -> bytes:
    """An error with all that one client or another needs (wire.md 4.1.1).

    ``status`` and a string ``code`` always, a number always (0 outside any response), and where
    a retry has its time, that as a header in the frame too.
    """
    detail = event.error
    code = detail.code or "server_error"
    status = event.status if event.status is not UNSET else ApiError.of(code, "").status
    body: dict[str, Any] = {
        "type": "error",
        "status": status,
        "error": structs.replace(detail, code=code),
        "sequence_number": 0 if event.sequence_number is UNSET else event.sequence_number,
    }
    if event.stream_id is not UNSET:
        body["stream_id"] = event.stream_id
    if detail.retry_after is not UNSET:
        body["headers"] = {"retry-after": f"{detail.retry_after:g}"}
    return _encoder.encode(body)


def timing_json(event: events.Timing) -> bytes:
    """Where a turn's time went, under the name and the two members that Codex reads, in ms.

    All phases follow in microseconds, under their own names (wire.md 3.4.4).
    """
    phases = event.phases
    engine = phases.get("prefill", 0) + phases.get("decode", 0)
    metrics: dict[str, float] = {
        "responses_duration_excl_engine_and_client_tool_time_ms": phases.get("overhead", 0) / 1000,
        "engine_service_total_ms": engine / 1000,
        "engine_service_ttft_total_ms": phases.get("prefill", 0) / 1000,
        **{f"{name}_us": value for name, value in phases.items()},
    }
    body: dict[str, Any] = {
        "type": "responsesapi.websocket_timing",
        "timing_metrics": metrics,
        "response_id": event.response_id,
    }
    if event.stream_id is not UNSET:
        body["stream_id"] = event.stream_id
    return _encoder.encode(body)


def _ended(event: events.LifecycleEvent) -> bytes:
    response = told(event.response)
    if response is not event.response:
        event = structs.replace(event, response=response)
    return _encoder.encode(event)


def warnings_header(warnings: Iterable[events.RequestWarning]) -> str:
    """What of a create is ignored, as the value of a header: the first ones, as many as fit."""
    entries: list[str] = []
    for warning in warnings:
        entry = ascii_json.dumps(structs.asdict(warning), separators=(",", ":"))
        if sum(map(len, entries)) + len(entry) > WARNINGS_BYTES:
            break
        entries.append(entry)
    return f"[{','.join(entries)}]"


def _unwarned(event: events.ResponseCreated) -> bytes:
    if event.warnings is not UNSET:
        event = structs.replace(event, warnings=UNSET)
    return _encoder.encode(event)


def _withheld(_event: events.Event) -> None:
    return None


def _renamed(name: str, other: str) -> Callable[[events.Event], bytes]:
    """Encodes with another type: the tag is the first member of what msgspec writes."""
    ours, theirs = f'{{"type":"{name}"'.encode(), f'{{"type":"{other}"'.encode()

    def encode(event: events.Event) -> bytes:
        return theirs + _encoder.encode(event).removeprefix(ours)

    return encode
