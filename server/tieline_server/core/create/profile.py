"""The two profiles, in one table: what a server offers and how it names it.

``openai`` is OpenAI's API with our extensions. ``open-responses`` is the vendor-neutral
specification: a closed union of events, no extensions, no lanes (wire.md 8). What the second
lacks is refused with 400 ``unsupported_parameter``. One profile per server.
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from tieline.errors import ApiError
from tieline.events import SessionStarted
from tieline.requests import Append, Create
from tieline_server.core.create.limits import Limits

REVISION: Final = "2026-11-29"
"""The protocol revision that ``SessionStarted`` names."""

EXTENSIONS: Final = (
    "append",
    "cancel",
    "heartbeat",
    "idempotency_key",
    "resume",
    "steer",
    "timeout_ms",
    "timing",
    "warnings",
)
"""What this server offers beyond OpenAI's API (docs/protocol.md#extensions)."""


# Where what this server refuses is taken.
_INSTEAD: Final = {
    "background": " On a stream the client stays connected: send it as a POST, Create or Stream."
}


class Profile(Struct, frozen=True, kw_only=True):
    """What one profile offers; a connection may have a variant of its own."""

    name: str
    lanes: bool = True
    steer: bool = True
    append: bool = True
    warm_up: bool = True
    custom_tools: bool = True
    foreign_items: bool = True
    """Whether an output may have items that the rules know nothing of, as they came."""
    context_management: bool = True
    unanswered: bool = False
    """Whether calls may stay open in what is not sampled (a window that is being compacted)."""
    background: bool = False
    """Whether a response may run without a client: on connections, never (wire.md 7.9)."""
    extensions: bool = True
    """Whether events and members of ours exist at all."""
    cancel_foreground: bool = True
    """Whether HTTP can cancel a response that is not in the background."""
    joined_writes: bool = True
    """Whether an SSE write may hold several events (a strict client reads one from each)."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Event types that go by another name: (ours, theirs)."""
    appends_by_default: bool = False
    """Whether every create is in append shape (the append prototype's header)."""
    quiet_holds: bool = False
    """Whether a held turn ends without an event: that client took ``response.done`` as the end."""

    def admit(self, request: Create | Append) -> None:
        """Refuses what this profile lacks before it takes a lane; raises 400."""
        if not self.append and isinstance(request, Append):
            raise unsupported("response.append")
        if request.stream_id is not None and not self.lanes:
            raise unsupported("stream_id")

    def check(self, create: Create) -> None:
        """Refuses what this profile lacks; raises :class:`ApiError` 400."""
        refused = None
        if not self.append and create.append is True:
            refused = "append"
        elif not self.background and create.background is True:
            refused = "background"
        elif not self.context_management and bytes(create.context_management) != b"null":
            refused = "context_management"
        elif not self.warm_up and create.generate is False:
            refused = "generate"
        elif not self.extensions and create.resumable is True:
            refused = "resumable"
        elif not self.extensions and create.timeout_ms is not None:
            refused = "timeout_ms"
        if refused is not None:
            raise unsupported(refused, _INSTEAD.get(refused, ""))

    def v1(self) -> "Profile":
        """This profile for a client of the append prototype (wire.md 2.2.4)."""
        return replace(self, appends_by_default=True, quiet_holds=True)


def unsupported(name: str, instead: str = "") -> ApiError:
    """The refusal of a member that is not there, and what there is instead of it."""
    message = f"Unsupported parameter: '{name}'.{instead}"
    return ApiError.of("unsupported_parameter", message, param=name)


OPENAI: Final = Profile(name="openai")

PROFILES: Final[dict[str, Profile]] = {
    "openai": OPENAI,
    "open-responses": Profile(
        name="open-responses",
        lanes=False,
        steer=False,
        append=False,
        warm_up=False,
        custom_tools=False,
        foreign_items=False,
        context_management=False,
        extensions=False,
        cancel_foreground=False,
        joined_writes=False,
        renamed=(
            ("response.reasoning_text.delta", "response.reasoning.delta"),
            ("response.reasoning_text.done", "response.reasoning.done"),
        ),
    ),
}
"""Setting -> profile."""


def session_started(session_id: str, limits: Limits) -> SessionStarted:
    """What the server offers, and how much of it."""
    return SessionStarted(
        session_id=session_id,
        revision=REVISION,
        extensions=list(EXTENSIONS),
        limits={
            "active_responses": limits.active,
            "lanes": limits.lanes,
            "queued_per_lane": limits.queue,
            "held_timeout_ms": int(limits.held_timeout * 1000),
            "max_message_bytes": limits.message_bytes,
            "resume_window_ms": int(limits.resume_window * 1000),
        },
    )
