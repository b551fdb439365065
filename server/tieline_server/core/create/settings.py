"""What a create asks for, checked once and remembered.

``tools``, ``instructions``, ``text``, ``reasoning`` and ``tool_choice`` come again in full with
every create (agents re-send 20 to 40 kB of them). A lane keeps the raw bytes of the last ones in
a :class:`SettingsCache`; where the bytes are equal, what was parsed, checked and built for the echo
is used again and nothing is read.
"""

from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct

from tieline.complaints import invalid_value, missing
from tieline.errors import ApiError
from tieline.events import RequestWarning
from tieline.items import Item
from tieline.requests import ABSENT, MEMBERS, Create, Trait
from tieline.responses import EMPTY_OBJECT, NULL, Response
from tieline_server.core.create import ignored
from tieline_server.core.create.tools import (
    ToolChoice,
    Tools,
    brought_by,
    check_choice,
    decode,
    parse_choice,
    parse_tools,
    present,
)
from tieline_server.core.values import Defaults, Work

T = TypeVar("T")

INCLUDE: Final = (
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
)
"""What ``include`` may name (wire.md 2.1.4). A response is stored with all that it has."""

# The words that OpenAI's API knows for ``service_tier``, ``truncation``, ``reasoning.effort``,
# ``reasoning.summary`` (where clients say "none" as well, and mean null) and ``text.verbosity``.
TIERS: Final = ("auto", "default", "flex", "scale", "priority", "fast", "ultrafast")
TRUNCATIONS: Final = ("auto", "disabled")
EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
SUMMARIES: Final = ("auto", "concise", "detailed")
VERBOSITIES: Final = ("low", "medium", "high")


def check_words(create: Create) -> None:
    """Refuses what is on no list of its member; raises :class:`ApiError` 400 ``invalid_value``.

    It would be echoed as if it meant something.
    """
    if create.truncation not in (None, *TRUNCATIONS):
        raise invalid_value("truncation", create.truncation, TRUNCATIONS)
    if create.service_tier not in (None, *TIERS):
        raise invalid_value("service_tier", create.service_tier, TIERS)
    for index, name in enumerate(create.include or ()):
        if name not in INCLUDE:
            raise invalid_value(f"include[{index}]", name, INCLUDE)


LOGPROBS: Final = "message.output_text.logprobs"
"""The member of ``include`` that asks for log probabilities."""

SERVED: Final = "default"
"""The tier that serves here, whichever was asked for: there is one. So it is what the response
says; an upstream that states a tier of its own is believed, where its answer is read."""


class Format(Struct, frozen=True, kw_only=True):
    """The shape of the text: text, json_object, or json_schema with its raw schema."""

    type: str = "text"
    name: str | None = None
    schema: bytes | None = None
    strict: bool | None = None


class Compacting(Struct, frozen=True):
    """History may be folded away past so many tokens; None leaves the number to the server."""

    threshold: int | None


class Settings(Struct, frozen=True, kw_only=True):
    """One create's settings, valid. Never inherited by ``previous_response_id``."""

    model: str
    instructions: str | None
    tools: Tools
    tool_choice: ToolChoice
    format: Format
    parallel_tool_calls: bool
    max_output_tokens: int | None
    max_tool_calls: int | None
    temperature: float | None
    top_p: float | None
    top_logprobs: int | None
    reasoning_effort: str | None
    include: frozenset[str]
    truncation: str
    store: bool
    generate: bool
    background: bool
    append: bool
    timeout_ms: int | None
    echo: dict[str, Any]
    """Members of the Response object that repeat the settings."""
    blank: Response
    """A response that has these, and nothing of its own yet."""
    echoed: int = 0
    """Bytes of JSON that they take in each snapshot."""
    compaction: Compacting | None = None
    passed_on: dict[str, Any] = {}
    """Members that mean something to an upstream alone, as they were said."""
    verbosity: str | None = None
    unmet: bool = False
    """Whether the choice names a tool, or needs one, that only the input can bring."""
    warnings: tuple[RequestWarning, ...] = ()
    """What of the create is ignored."""

    def meet(self, items: Iterable[Item]) -> None:
        """Refuses a choice that neither ``tools`` nor these items meet; raises 400."""
        # What a release before this one took may not be right by this one's rules: it brings none.
        brought = (tool for item in items for tool in brought_by(item))
        check_choice(self.tool_choice, [*self.tools.offered, *brought])

    def following(self) -> "Settings":
        """The same settings for a response that continues another by itself."""
        # A deadline, a warm-up and warnings were those of the one create.
        return msgspec.structs.replace(self, generate=True, timeout_ms=None, warnings=())

    def choosing(self, said: Raw, recall: "SettingsCache") -> "Settings":
        """The same settings with another ``tool_choice``, where one is ``said``.

        Raises :class:`ApiError` 400 for what is no choice.
        """
        if bytes(said) == b"null":
            return self
        choice = recall.read("tool_choice", said, parse_choice)
        echo = {**self.echo, "tool_choice": Raw(bytes(said))}
        return msgspec.structs.replace(
            self,
            echo=echo,
            blank=Response(**echo),
            tool_choice=choice,
            unmet=_unmet(choice, self.tools),
        )


class SettingsCache:
    """The last raw bytes of each free-form member on a lane, and what was read from them."""

    __slots__ = ("_last", "_said", "_settled", "work")

    def __init__(self, work: Work | None = None) -> None:
        self.work = work or Work()
        """Where is counted what had to be read: the work of the lane that it serves now."""
        self._last: dict[str, tuple[bytes, Any]] = {}
        self._said: tuple[Any, ...] = ()
        self._settled: Settings | None = None

    def settings(self, model: str, said: tuple[Any, ...]) -> Settings | None:
        """The lane's last settings, where they were those of the same ``model`` and ``said``."""
        settled = self._settled
        if settled is not None and settled.model == model and self._said == said:
            return settled
        return None

    def settle(self, said: tuple[Any, ...], settings: Settings) -> Settings:
        """What was ``said`` comes to these settings."""
        self._said, self._settled = said, settings
        return settings

    def read(self, name: str, raw: Raw, parse: Callable[[bytes], T]) -> T:
        """``parse(raw)``, or the last result where the bytes are the last bytes."""
        data = bytes(raw)
        last = self._last.get(name)
        if last is not None and last[0] == data:
            value: T = last[1]
            return value
        # Only what was really read counts: that a turn costs what is new in it is tested by this.
        self.work.validate += len(data)
        value = parse(data)
        self._last[name] = (data, value)
        return value


_members: Final = msgspec.json.Decoder(dict[str, Raw])


class _FormatView(Struct, frozen=True):
    type: str
    name: str | None = None
    schema: Raw = NULL
    strict: bool | None = None


class _Text(Struct, frozen=True):
    format: _FormatView | None = None
    verbosity: str | None = None


class _Verbosity(Struct, frozen=True):
    verbosity: str | None = None


_text: Final = msgspec.json.Decoder(_Text | None)
_verbosity: Final = msgspec.json.Decoder(_Verbosity)


def parse_text(data: bytes) -> tuple[Format, Raw]:
    """Reads ``text``; returns the format and the echo, which always names a format."""
    text = decode(_text, data, "text")
    if text is not None and text.verbosity not in (None, *VERBOSITIES):
        raise invalid_value("text.verbosity", text.verbosity, VERBOSITIES)
    if text is None or text.format is None:
        members = _members.decode(data) if text else {}
        plain = {key: value for key, value in members.items() if bytes(value) != b"null"}
        return Format(), Raw(msgspec.json.encode({"format": {"type": "text"}, **plain}))
    view = text.format
    if view.type not in ("text", "json_object", "json_schema"):
        raise invalid_value("text.format.type", view.type, ("text", "json_object", "json_schema"))
    schema = present(view.schema)
    # Whether a schema can be met is for the engine to say; here it is only an object.
    if view.type == "json_schema" and (schema is None or not schema.lstrip().startswith(b"{")):
        raise missing("text.format.schema")
    return Format(type=view.type, name=view.name, schema=schema, strict=view.strict), Raw(data)


class _ReasoningView(Struct, frozen=True):
    effort: str | None = None
    summary: str | None = None


_reasoning: Final = msgspec.json.Decoder(_ReasoningView | None)


def parse_reasoning(data: bytes, *, default: str | None = None) -> tuple[str | None, Raw]:
    """Reads ``reasoning``; returns the effort and the echo with both members present.

    The ``default`` of a model, which may be a word of its upstream's, is one that can be asked for.
    """
    view = decode(_reasoning, data, "reasoning") or _ReasoningView()
    effort = view.effort if view.effort is not None else default
    if effort not in (None, default, *EFFORTS):
        raise invalid_value("reasoning.effort", str(effort), EFFORTS)
    if view.summary not in (None, "none", *SUMMARIES):
        raise invalid_value("reasoning.summary", view.summary, SUMMARIES)
    members: dict[str, Any] = _members.decode(data) if data != b"null" else {}
    echo = {"effort": None, "summary": None, **members, **({"effort": effort} if effort else {})}
    # Clients mean null by it, and it is no word of the API.
    if view.summary == "none":
        echo["summary"] = None
    return effort, Raw(msgspec.json.encode(echo))


class _Management(Struct, frozen=True):
    type: str
    compact_threshold: Annotated[int, Meta(ge=1000)] | None = None


_management: Final = msgspec.json.Decoder(list[_Management] | None)


def parse_context_management(data: bytes) -> Compacting | None:
    """Reads ``context_management``; of several thresholds the lowest counts."""
    entries = decode(_management, data, "context_management") or []
    for index, entry in enumerate(entries):
        if entry.type != "compaction":
            raise invalid_value(f"context_management[{index}].type", entry.type, ("compaction",))
    # An entry without a number still asks for compaction: at the number of the server.
    named = [each.compact_threshold for each in entries if each.compact_threshold is not None]
    return Compacting(min(named, default=None)) if entries else None


_instructions: Final = msgspec.json.Decoder(str | None)


def parse_instructions(data: bytes) -> str | None:
    """Reads ``instructions``: text or nothing."""
    return decode(_instructions, data, "instructions")


UNSUPPORTED: Final = ("conversation", "prompt")
"""Members that are refused until what they name exists (docs/protocol.md#what-is-accepted)."""


def settle(
    create: Create,
    recall: SettingsCache,
    *,
    model: str,
    defaults: Defaults | None = None,
) -> Settings:
    """Checks a create and builds its settings; raises :class:`ApiError` 400 (wire.md 4).

    ``model`` is the resolved public name, with its ``defaults``. What ``recall`` has seen last is
    not read again.
    """
    # A warm-up has nothing to answer, and what continues a response may have nothing to add.
    if create.input is UNSET and create.generate is not False and not create.previous_response_id:
        raise missing("input")
    said = _members_of(create)
    settled = recall.settings(model, said)
    if settled is None:
        built = _build(create, recall, model, defaults or Defaults())
        # Behind the checks: what is wrong is refused before anything is called unknown.
        warnings = ignored.found(create, recall.read)
        if warnings:
            built = msgspec.structs.replace(built, warnings=warnings)
        settled = recall.settle(said, built)
    return settled


_members_of: Final = attrgetter(*(each.name for each in MEMBERS if each.setting))


def _build(create: Create, recall: SettingsCache, model: str, defaults: Defaults) -> Settings:
    _refuse_unsupported(create)
    create = _bounded(create)
    most = create.max_output_tokens
    if most is None:
        most = defaults.max_output_tokens
    tools = recall.read("tools", create.tools, parse_tools)
    choice = recall.read("tool_choice", create.tool_choice, parse_choice)
    form, text_echo = recall.read("text", create.text, parse_text)
    effort, reasoning_echo = _reasoning_of(create, recall, defaults.reasoning_effort)
    managed = recall.read("context_management", create.context_management, parse_context_management)
    truncation = "disabled" if create.truncation is None else create.truncation
    check_words(create)
    echo = _echo(create, model, tools, text_echo, reasoning_echo, most)
    return Settings(
        model=model,
        instructions=recall.read("instructions", create.instructions, parse_instructions),
        tools=tools,
        tool_choice=choice,
        format=form,
        parallel_tool_calls=create.parallel_tool_calls is not False,
        max_output_tokens=most,
        max_tool_calls=create.max_tool_calls,
        temperature=create.temperature,
        top_p=create.top_p,
        top_logprobs=create.top_logprobs,
        reasoning_effort=effort,
        include=frozenset(create.include or ()),
        truncation=truncation,
        store=create.store is not False,
        generate=create.generate is not False,
        background=create.background is True,
        append=create.append is True,
        timeout_ms=create.timeout_ms,
        echo=echo,
        blank=Response(**echo),
        echoed=len(msgspec.json.encode(echo)),
        compaction=managed,
        passed_on=_passed_on(create),
        verbosity=_verbosity.decode(text_echo).verbosity,
        unmet=_unmet(choice, tools),
    )


_PASSED_ON: Final = tuple(each.name for each in MEMBERS if Trait.PASSED_ON in each.traits)


def _passed_on(create: Create) -> dict[str, Any]:
    said = {name: getattr(create, name) for name in _PASSED_ON}
    return {name: value for name, value in said.items() if value not in (None, "", ABSENT)}


def _unmet(choice: ToolChoice, tools: Tools) -> bool:
    try:
        # The input may still bring the tool: refused is the choice once that has been read.
        check_choice(choice, tools.offered)
    except ApiError:
        return True
    return False


def _reasoning_of(
    create: Create, recall: SettingsCache, default: str | None
) -> tuple[str | None, Raw]:
    """The effort and its echo. A lane may change between models of different defaults."""
    # The key of the cache: the same bytes mean another effort under another default.
    name = "reasoning" if default is None else f"reasoning, else {default}"
    return recall.read(name, create.reasoning, partial(parse_reasoning, default=default))


def _refuse_unsupported(create: Create) -> None:
    for name in UNSUPPORTED:
        if bytes(getattr(create, name)) != b"null":
            raise _unsupported(name)
    # Nothing but the store would have what a client asks for later.
    if create.background and create.store is False:
        raise ApiError.of(
            "invalid_value", "A background response has to be stored.", param="background"
        )


LARGEST: Final = 2**31 - 1
"""The largest count that a message of gRPC has a field for."""


def _bounded(create: Create) -> Create:
    """The create with counts that a Response object can echo on every wire.

    A larger one bounds nothing that a turn could reach: it acts as the largest.
    """
    tokens, calls = create.max_output_tokens or 0, create.max_tool_calls or 0
    if max(tokens, calls) <= LARGEST:
        return create
    return msgspec.structs.replace(
        create,
        max_output_tokens=min(tokens, LARGEST) or None,
        max_tool_calls=min(calls, LARGEST) or None,
    )


# Member of a create that its response repeats -> what it says where the create says nothing.
_DEFAULTS: Final = {
    each.name: getattr(Response(), each.name) for each in MEMBERS if Trait.ECHOED in each.traits
}


def _echo(
    create: Create, model: str, tools: Tools, text: Raw, reasoning: Raw, most: int | None
) -> dict[str, Any]:
    said = {name: getattr(create, name) for name in _DEFAULTS}
    echo = {
        name: _DEFAULTS[name] if value is None or value == ABSENT else value
        for name, value in said.items()
    }
    read = {
        "model": model,
        "instructions": Raw(bytes(create.instructions)),
        "tools": tools.echo,
        "tool_choice": Raw(bytes(echo["tool_choice"])),
        "text": text,
        "reasoning": reasoning,
        "max_output_tokens": most,
        "metadata": Raw(msgspec.json.encode(create.metadata)) if create.metadata else EMPTY_OBJECT,
        "service_tier": SERVED,
    }
    return echo | read


def _unsupported(name: str) -> ApiError:
    return ApiError.of("unsupported_parameter", f"Unsupported parameter: '{name}'.", param=name)
