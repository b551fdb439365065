"""What a client may ask: one frozen class for each client event (wire.md 2).

Members that come again with every create and are free-form (``input``, ``tools``,
``instructions``, ``text``, ...) stay raw JSON here, so that a connection can compare them byte by
byte with the last ones and do no work where they are equal. Unknown members are ignored, and null
means absent.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from tieline.complaints import refusal

ABSENT: Final = Raw(b"null")
"""A free-form member that was not given, or given as null."""

EVENT_ID: Final = 512
"""Characters of an ``event_id``: it is echoed, and remembered for a while."""

Metadata = dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]]


class Request(Struct, frozen=True, kw_only=True, tag_field="type"):
    """What all client events have. Not made by itself."""

    stream_id: str | None = None
    event_id: Annotated[str, Meta(max_length=EVENT_ID)] | None = None
    trace_context: dict[str, str] | None = None
    """W3C traceparent, tracestate and baggage."""

    @property
    def type(self) -> str:
        """The event's ``type`` on the JSON wire."""
        return str(self.__struct_config__.tag)


class Create(Request, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="response.create"):
    """Asks for one response. ``input`` is text or items; settings are never inherited.

    Members that are unknown here are ignored, but not unseen: it is for a codec to look at them.
    """

    model: str | None = None
    input: Raw | UnsetType = UNSET
    previous_response_id: str | None = None
    instructions: Raw = ABSENT
    tools: Raw = ABSENT
    tool_choice: Raw = ABSENT
    parallel_tool_calls: bool | None = None
    text: Raw = ABSENT
    reasoning: Raw = ABSENT
    include: list[str] | None = None
    metadata: Annotated[Metadata, Meta(max_length=16)] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    truncation: str | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    user: str | None = None
    client_metadata: Raw = ABSENT
    generate: bool | None = None
    stream: bool | None = None
    background: bool | None = None
    conversation: Raw = ABSENT
    prompt: Raw = ABSENT
    context_management: Raw = ABSENT
    # Ours (docs/protocol.md#extensions).
    append: bool | None = None
    timeout_ms: Annotated[int, Meta(ge=1)] | None = None
    resumable: bool | None = None
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    unknown: tuple[str, ...] | UnsetType = field(default=UNSET, name="")
    """Members that came with it and that nobody knows (``unknown_of``). No member itself."""


ACCEPTED: Final = frozenset(
    {
        "access_programs",
        "background_options",
        "image",
        "input_transformations",
        "moderation",
        "multi_agent",
        "prompt_cache_diagnostics",
        "prompt_cache_options",
        "prompt_cache_retention",
        "stream_options",
        "tool_usage",
    }
)
"""Members of a create in OpenAI's API that are taken, and on which nothing acts here."""

UNKNOWN: Final = 16
"""Unknown members of one create that are told of: the first ones."""

LONGEST_NAME: Final = 64
"""Characters of their names that are kept."""


def unknown_of(names: Iterable[str]) -> tuple[str, ...] | UnsetType:
    """Those of a create's members that neither this schema nor OpenAI's API has.

    >>> unknown_of(["model", "tempratur", "stream_options"])
    ('tempratur',)
    """
    known = Create.__struct_encode_fields__
    odd = (name for name in names if not name or (name not in known and name not in ACCEPTED))
    kept = (name[:LONGEST_NAME] for name in odd if name != "type")
    return tuple(islice(kept, UNKNOWN)) or UNSET


class Append(Request, frozen=True, kw_only=True, tag="response.append"):
    """Answers the open calls of a held turn, or goes on after the lane's latest response.

    ``tool_choice`` replaces the response's own from here on; all other settings stay.
    """

    input: Raw | UnsetType = UNSET
    response_id: str | None = None
    tool_choice: Raw = ABSENT
    client_metadata: Raw = ABSENT


class Cancel(Request, frozen=True, kw_only=True, tag="response.cancel"):
    """Ends a turn: by ``response_id``, else the create named by ``event_id``, else the lane's."""

    response_id: str | None = None


class Steer(Request, frozen=True, kw_only=True, tag="response.steer"):
    """New user messages for the response that is running now."""

    previous_response_id: str | None = None
    input: Raw | UnsetType = UNSET


class Resume(Request, frozen=True, kw_only=True, tag="response.resume"):
    """Attach to a resumable response again: its events after one, with the very numbers.

    ``after`` is a sequence_number; without it every event comes. The response and its chain move
    to the lane of this message, which must be free.
    """

    response_id: str | None = None
    after: Annotated[int, Meta(ge=0)] | None = None


class Processed(Request, frozen=True, kw_only=True, tag="response.processed"):
    """A short-lived acknowledgement of one client; accepted and ignored (wire.md 2)."""

    response_id: str | None = None


class SessionStart(Request, frozen=True, kw_only=True, tag="tieline.session.start"):
    """Optional first message of a connection: what the client can take."""

    max_receive_bytes: Annotated[int, Meta(ge=0)] | None = None
    merge: str | None = None
    extensions: list[str] | None = None


class SessionEnd(Request, frozen=True, kw_only=True, tag="tieline.session.end"):
    """Goodbye: running turns end, then the connection closes."""


class ClientHeartbeat(Request, frozen=True, kw_only=True, tag="tieline.heartbeat"):
    """Proof of life of the client."""

    phase: str | None = None


class Opaque(Request, frozen=True, kw_only=True, tag="tieline.opaque"):
    """A client event of a type that has no class here."""

    name: str
    raw: Raw

    @property
    def type(self) -> str:
        """The event's own ``type``."""
        return self.name


CLASSES: Final[tuple[type[Request], ...]] = (
    Create,
    Append,
    Cancel,
    Steer,
    Resume,
    Processed,
    SessionStart,
    SessionEnd,
    ClientHeartbeat,
)

BY_TYPE: Final[dict[str, type[Request]]] = {
    str(kind.__struct_config__.tag): kind for kind in CLASSES
}
"""Client event type -> its class."""


def decode(raw: bytes | Raw, kind: type[Request]) -> Any:
    """Reads the members of one client event; raises :class:`ApiError` (400) on a wrong one."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise refusal(error) from None
