"""What a client may ask: one frozen class for each client event (wire.md 2).

Members that come again with every create and are free-form (``input``, ``tools``,
``instructions``, ``text``, ...) stay raw JSON here, so that a connection can compare them byte by
byte with the last ones and do no work where they are equal. Unknown members are ignored, and null
means absent.
"""

from collections.abc import Iterable
from enum import Enum, auto
from itertools import islice
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field, structs

from tieline.complaints import refusal

ABSENT: Final = Raw(b"null")
"""A free-form member that was not given, or given as null."""

EVENT_ID: Final = 512
"""Characters of an ``event_id``: it is echoed, and remembered for a while."""

Count = Annotated[int, Meta(ge=1)]
Alternatives = Annotated[int, Meta(ge=0, le=20)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
Probability = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
EventId = Annotated[str, Meta(max_length=EVENT_ID)]
UserId = Annotated[str, Meta(max_length=128)]
IdempotencyKey = Annotated[str, Meta(min_length=1, max_length=256)]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]


class Trait(Enum):
    """What a server does with a member of a create, beside what its type says."""

    TURN = auto()
    """The member concerns one turn alone; every other one is a setting, and mostly comes again."""
    ECHOED = auto()
    """The Response object has a member of the same name that repeats it."""
    PASSED_ON = auto()
    """An upstream engine gets it as the client said it."""
    BOUNDED = auto()
    """The server bounds its size by more than its type."""
    NAMED = auto()
    """Its value, once the server has checked it, is one of a few names."""


_TURN: Final = Trait.TURN
_ECHOED: Final = Trait.ECHOED
_PASSED_ON: Final = Trait.PASSED_ON
_BOUNDED: Final = Trait.BOUNDED
_NAMED: Final = Trait.NAMED


class Request(Struct, frozen=True, kw_only=True, tag_field="type"):
    """What all client events have. Not made by itself."""

    stream_id: Annotated[str | None, _TURN, _BOUNDED] = None
    event_id: Annotated[EventId | None, _TURN] = None
    trace_context: Annotated[dict[str, str] | None, _TURN] = None
    """W3C traceparent, tracestate and baggage."""

    @property
    def type(self) -> str:
        """The event's ``type`` on the JSON wire."""
        return str(self.__struct_config__.tag)


class Create(Request, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="response.create"):
    """Asks for one response. ``input`` is text or items; settings are never inherited.

    This is the one list of what a create may carry: whatever else lists members is made of it,
    by their types and traits (``MEMBERS``). A member that is not here has no effect, but a codec
    looks at its name, and the server tells the client of it.
    """

    model: Annotated[str | None, _ECHOED, _NAMED] = None
    input: Annotated[Raw | UnsetType, _TURN] = UNSET
    previous_response_id: Annotated[str | None, _TURN] = None
    instructions: Annotated[Raw, _ECHOED] = ABSENT
    tools: Annotated[Raw, _ECHOED] = ABSENT
    tool_choice: Annotated[Raw, _ECHOED] = ABSENT
    parallel_tool_calls: Annotated[bool | None, _ECHOED] = None
    text: Annotated[Raw, _ECHOED] = ABSENT
    reasoning: Annotated[Raw, _ECHOED] = ABSENT
    include: list[str] | None = None
    metadata: Annotated[Metadata | None, _ECHOED] = None
    max_output_tokens: Annotated[Count | None, _ECHOED] = None
    max_tool_calls: Annotated[Count | None, _ECHOED] = None
    temperature: Annotated[Temperature | None, _ECHOED] = None
    top_p: Annotated[Probability | None, _ECHOED] = None
    presence_penalty: Annotated[Penalty | None, _ECHOED] = None
    frequency_penalty: Annotated[Penalty | None, _ECHOED] = None
    top_logprobs: Annotated[Alternatives | None, _ECHOED] = None
    truncation: Annotated[str | None, _ECHOED, _NAMED] = None
    store: Annotated[bool | None, _ECHOED] = None
    # Known by name as well; but what is echoed may be an upstream's own word.
    service_tier: Annotated[str | None, _ECHOED, _PASSED_ON] = None
    safety_identifier: Annotated[UserId | None, _ECHOED, _PASSED_ON] = None
    prompt_cache_key: Annotated[str | None, _ECHOED, _PASSED_ON] = None
    prompt_cache_retention: Annotated[str | None, _PASSED_ON] = None
    user: Annotated[str | None, _PASSED_ON] = None
    client_metadata: Annotated[Raw, _TURN] = ABSENT
    generate: bool | None = None
    stream: bool | None = None
    background: Annotated[bool | None, _ECHOED] = None
    conversation: Raw = ABSENT
    prompt: Raw = ABSENT
    context_management: Raw = ABSENT
    # Ours (docs/protocol.md, extensions).
    append: bool | None = None
    timeout_ms: Count | None = None
    resumable: Annotated[bool | None, _TURN] = None
    idempotency_key: Annotated[IdempotencyKey | None, _TURN] = None
    unknown: Annotated[tuple[str, ...] | UnsetType, _BOUNDED] = field(default=UNSET, name="")
    """Members that came and that the server does not know (``unknown_of``). No member itself."""


class Member(Struct, frozen=True):
    """One member of a create."""

    name: str
    default: Any
    free_form: bool
    """The struct holds its JSON text."""
    large: bool
    """It may be of any size."""
    traits: frozenset[Trait]

    @property
    def setting(self) -> bool:
        """It says how to answer; agents send the same with every create."""
        return Trait.TURN not in self.traits


def raw_members(kind: type[Struct]) -> frozenset[str]:
    """The members of a struct that stay JSON text."""
    fields = structs.fields(kind)
    return frozenset(each.name for each in fields if _bare(each.type) in (Raw, Raw | UnsetType))


def _bare(kind: Any) -> Any:
    return kind.__origin__ if get_origin(kind) is Annotated else kind


def _member(info: structs.FieldInfo) -> Member:
    kind = info.type
    noted = kind.__metadata__ if get_origin(kind) is Annotated else ()
    traits = frozenset(each for each in noted if isinstance(each, Trait))
    return Member(
        name=info.name,
        default=info.default,
        free_form=_bare(kind) in (Raw, Raw | UnsetType),
        large=Trait.BOUNDED not in traits and _is_large(kind),
        traits=traits,
    )


def _is_large(kind: Any) -> bool:
    """Whether a value of this type may be of any size: JSON, a collection, text without a bound."""
    if get_origin(kind) is Annotated:
        bounded = any(isinstance(each, Meta) and each.max_length for each in kind.__metadata__)
        return _is_large(kind.__origin__) and not (bounded and kind.__origin__ is str)
    if get_origin(kind) in (Union, UnionType):
        return any(map(_is_large, get_args(kind)))
    return (get_origin(kind) or kind) in (Raw, str, list, dict, tuple)


MEMBERS: Final = tuple(map(_member, structs.fields(Create)))
"""The members of a create, in the order of their definition."""

REPEATED: Final = frozenset(each.name for each in MEMBERS if each.free_form and each.setting)
"""Free-form settings, which codecs read and build once while they come again: few, so that what a
connection remembers is bounded."""

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

BEGINNING: Final = (Create, Resume)
"""Client events that ask for a turn: a new one, or one to attach to. Refused, none comes."""

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
