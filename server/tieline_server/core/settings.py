"""What a create asks for, checked once and remembered.

``tools``, ``instructions``, ``text``, ``reasoning`` and ``tool_choice`` come again in full with
every create (agents re-send 20 to 40 kB of them). A lane keeps the raw bytes of the last ones in
a :class:`Recall`; where the bytes are equal, what was parsed, checked and built for the echo is
used again and nothing is read.
"""

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct

from tieline.complaints import refusal
from tieline.errors import ApiError
from tieline.items import too_long
from tieline.requests import Create
from tieline.responses import EMPTY_LIST, EMPTY_OBJECT, NULL, Response
from tieline_server.core.deltas import CallKind
from tieline_server.core.effects import Defaults, Work

T = TypeVar("T")

TOOL_SEARCH: Final = "tool_search"
"""The type of the tool that finds others, and its name where the client runs it."""

_CALL_KINDS: Final[dict[str, CallKind]] = {
    "function": "function_call",
    "custom": "custom_tool_call",
    TOOL_SEARCH: "tool_search_call",
}
"""Type of a tool that a client may run -> type of its calls."""

_SEARCH_PARAMETERS: Final = (
    b'{"type":"object","properties":{"paths":{"type":"array","items":{"type":"string"}}},'
    b'"required":["paths"],"additionalProperties":false}'
)
"""Of a search whose client says none: the names of what it is to load, as OpenAI's has them."""

LOGPROBS: Final = "message.output_text.logprobs"
"""The member of ``include`` that asks for log probabilities."""


class Tool(Struct, frozen=True, kw_only=True):
    """A tool that the client offers.

    ``parameters`` is the raw JSON schema of a function tool. ``namespace`` is the namespace it
    lives in. Hosted tools have only a type: they are accepted and passed over.
    """

    type: str
    name: str | None = None
    namespace: str | None = None
    description: str | None = None
    parameters: bytes | None = None
    strict: bool | None = None
    format: bytes | None = None
    """Raw JSON of a custom tool's input format (a grammar), where it has one."""
    param: str = "tools"
    """Where it stands in the create."""
    deferred: bool = False
    """Whether it is offered only once a search has found it (``core.client_tools``)."""

    @property
    def client_run(self) -> bool:
        """Whether the client runs it; a search without a name is the server's."""
        return self.type in _CALL_KINDS and self.name is not None

    @property
    def call_kind(self) -> CallKind:
        """The type of the item that is a call of it."""
        return _CALL_KINDS[self.type]


class Tools(Struct, frozen=True):
    """All tools of a create: what is offered, and the JSON that echoes them."""

    offered: tuple[Tool, ...] = ()
    echo: Raw = EMPTY_LIST


class ToolChoice(Struct, frozen=True, kw_only=True):
    """Which tools the model may or must call.

    ``mode`` is auto, none or required. ``allowed`` limits it to these (type, name) pairs; a
    named tool is ``required`` with one pair.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    allowed: tuple[tuple[str, str | None], ...] | None = None

    def admits(self, tool: Tool) -> bool:
        """Whether this choice leaves ``tool`` open to the model."""
        if self.mode == "none":
            return False
        if self.allowed is None or (tool.type, tool.name) in self.allowed:
            return True
        return tool.type == TOOL_SEARCH and (tool.type, None) in self.allowed


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

    def following(self) -> "Settings":
        """The same settings for a response that continues another by itself."""
        return msgspec.structs.replace(self, generate=True, timeout_ms=None)

    def choosing(self, tool_choice: Raw, recall: "Recall") -> "Settings":
        """The same settings with another ``tool_choice``, where one is given.

        Raises :class:`ApiError` 400 for a choice that the tools do not allow.
        """
        if bytes(tool_choice) == b"null":
            return self
        choice = recall.read("tool_choice", tool_choice, parse_tool_choice)
        _check_choice(choice, self.tools)
        echo = {**self.echo, "tool_choice": Raw(bytes(tool_choice))}
        blank = Response(**echo)
        return msgspec.structs.replace(self, echo=echo, blank=blank, tool_choice=choice)


class Recall:
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
        self.work.validate += len(data)
        value = parse(data)
        self._last[name] = (data, value)
        return value


class _ToolView(Struct, frozen=True):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: Raw = NULL
    strict: bool | None = None
    format: Raw = NULL
    tools: list[Raw] | None = None
    execution: str | None = None
    defer_loading: bool | None = None


_tools: Final = msgspec.json.Decoder(list[Raw] | None)
_tool: Final = msgspec.json.Decoder(_ToolView)
_members: Final = msgspec.json.Decoder(dict[str, Raw])


MAX_TOOLS: Final = 1024
"""Tools that one create may offer, namespaces counted as one each."""


def parse_tools(data: bytes, param: str = "tools") -> Tools:
    """Reads ``tools``; raises :class:`ApiError` 400 naming the tool that is wrong."""
    entries = _decode(_tools, data, param) or []
    if len(entries) > MAX_TOOLS:
        raise too_long(param, len(entries), MAX_TOOLS)
    offered: list[Tool] = []
    echoes = [
        _read_tool(entry, f"{param}[{index}]", offered) for index, entry in enumerate(entries)
    ]
    echo = Raw(msgspec.json.encode(echoes)) if echoes else EMPTY_LIST
    return Tools(tuple(offered), echo)


def _read_tool(
    raw: Raw, param: str, offered: list[Tool], *, namespace: str | None = None
) -> Raw | dict[str, Any]:
    """Adds what one entry offers to ``offered`` and returns its echo."""
    view = _decode(_tool, bytes(raw), param)
    if view.type in ("function", "custom", "namespace") and not view.name:
        raise _missing(f"{param}.name")
    if view.type == "namespace":
        for index, entry in enumerate(view.tools or ()):
            _read_tool(entry, f"{param}.tools[{index}]", offered, namespace=view.name)
        return raw
    name, parameters = view.name, None
    if view.type == "function":
        parameters = _schema(view.parameters, param)
    elif view.type == TOOL_SEARCH and view.execution == "client":
        name, parameters = TOOL_SEARCH, _schema(view.parameters, param) or _SEARCH_PARAMETERS
    offered.append(
        Tool(
            type=view.type,
            name=name,
            namespace=namespace,
            description=view.description,
            parameters=parameters,
            strict=view.strict,
            format=_present(view.format),
            param=param,
            deferred=view.defer_loading is True,
        )
    )
    if view.type != "function":
        return raw
    # The echo of a function tool always has all four members (wire.md 6).
    empty = {"description": None, "parameters": None, "strict": None}
    return {**empty, **_members.decode(raw)}


def _present(raw: Raw) -> bytes | None:
    """Free-form JSON, or None for null (msgspec has no ``Raw | None``)."""
    return None if bytes(raw) == b"null" else bytes(raw)


def _schema(raw: Raw, param: str) -> bytes | None:
    data = _present(raw)
    if data is not None and not data.lstrip().startswith(b"{"):
        raise ApiError.of(
            "invalid_function_parameters",
            f"Invalid schema for '{param}': 'parameters' must be a JSON schema object.",
            param=f"{param}.parameters",
        )
    return data


class _Choice(Struct, frozen=True):
    type: str
    name: str | None = None
    mode: str | None = None
    tools: list["_Choice"] | None = None


_choice: Final = msgspec.json.Decoder(str | _Choice | None)


def parse_tool_choice(data: bytes) -> ToolChoice:
    """Reads ``tool_choice``: a word, a named tool, ``allowed_tools``, or a hosted type."""
    choice = _decode(_choice, data, "tool_choice")
    if choice is None:
        return ToolChoice()
    if isinstance(choice, str):
        if choice in ("auto", "none", "required"):
            return ToolChoice(mode=choice)  # type: ignore[arg-type]
        raise _bad_value("tool_choice", choice, "'none', 'auto', and 'required'")
    if choice.type == "allowed_tools":
        mode = choice.mode or "auto"
        if mode not in ("auto", "required"):
            raise _bad_value("tool_choice.mode", mode, "'auto' and 'required'")
        allowed = tuple(
            _named(tool, f"tool_choice.tools[{index}]")
            for index, tool in enumerate(choice.tools or ())
        )
        return ToolChoice(mode=mode, allowed=allowed)  # type: ignore[arg-type]
    return ToolChoice(mode="required", allowed=(_named(choice, "tool_choice"),))


def _named(choice: _Choice, param: str) -> tuple[str, str | None]:
    if choice.type in ("function", "custom") and not choice.name:
        raise _missing(f"{param}.name")
    return choice.type, choice.name


class _FormatView(Struct, frozen=True):
    type: str = "text"
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
    text = _decode(_text, data, "text")
    if text is None or text.format is None:
        members = _members.decode(data) if text else {}
        plain = {key: value for key, value in members.items() if bytes(value) != b"null"}
        return Format(), Raw(msgspec.json.encode({"format": {"type": "text"}, **plain}))
    view = text.format
    if view.type not in ("text", "json_object", "json_schema"):
        known = "'text', 'json_object', and 'json_schema'"
        raise _bad_value("text.format.type", view.type, known)
    schema = _present(view.schema)
    if view.type == "json_schema" and (schema is None or not schema.lstrip().startswith(b"{")):
        raise _missing("text.format.schema")
    return Format(type=view.type, name=view.name, schema=schema, strict=view.strict), Raw(data)


class _ReasoningView(Struct, frozen=True):
    effort: str | None = None
    summary: str | None = None


_reasoning: Final = msgspec.json.Decoder(_ReasoningView | None)

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""What OpenAI's API knows as ``reasoning.effort``."""


def parse_reasoning(data: bytes, *, default: str | None = None) -> tuple[str | None, Raw]:
    """Reads ``reasoning``; returns the effort and the echo with both members present.

    The ``default`` of a model, which may be a word of its upstream's, is one that can be asked for.
    """
    view = _decode(_reasoning, data, "reasoning") or _ReasoningView()
    effort = view.effort if view.effort is not None else default
    if effort not in (None, default, *EFFORTS):
        known = ", ".join(f"'{each}'" for each in EFFORTS[:-1])
        raise _bad_value("reasoning.effort", str(effort), f"{known}, and '{EFFORTS[-1]}'")
    members = _members.decode(data) if data != b"null" else {}
    echo = {"effort": None, "summary": None, **members, **({"effort": effort} if effort else {})}
    return effort, Raw(msgspec.json.encode(echo))


class _Management(Struct, frozen=True):
    type: str
    compact_threshold: Annotated[int, Meta(ge=1000)] | None = None


_management: Final = msgspec.json.Decoder(list[_Management] | None)


def parse_context_management(data: bytes) -> Compacting | None:
    """Reads ``context_management``; of several thresholds the lowest counts."""
    entries = _decode(_management, data, "context_management") or []
    for index, entry in enumerate(entries):
        if entry.type != "compaction":
            raise _bad_value(f"context_management[{index}].type", entry.type, "'compaction'")
    named = [each.compact_threshold for each in entries if each.compact_threshold is not None]
    return Compacting(min(named, default=None)) if entries else None


_instructions: Final = msgspec.json.Decoder(str | None)


def parse_instructions(data: bytes) -> str | None:
    """Reads ``instructions``: text or nothing."""
    return _decode(_instructions, data, "instructions")


UNSUPPORTED: Final = ("conversation", "prompt")
"""Members that are refused until what they name exists (docs/protocol.md)."""


def settle(
    create: Create, recall: Recall, *, model: str, defaults: Defaults | None = None
) -> Settings:
    """Checks a create and builds its settings; raises :class:`ApiError` 400 (wire.md 4).

    ``model`` is the resolved public name, with its ``defaults``. What ``recall`` has seen last is
    not read again.
    """
    if create.input is UNSET and create.generate is not False and not create.previous_response_id:
        raise _missing("input")
    said = _members_of(create)
    settled = recall.settings(model, said)
    if settled is None:
        settled = recall.settle(said, _build(create, recall, model, defaults or Defaults()))
    return settled


_UNSETTLED: Final = frozenset(
    {
        "client_metadata",
        "event_id",
        "idempotency_key",
        "input",
        "previous_response_id",
        "resumable",
        "stream_id",
        "trace_context",
    }
)
"""Members of a create that are about this one turn; all others are settings."""
_members_of: Final = attrgetter(
    *(name for name in Create.__struct_fields__ if name not in _UNSETTLED)
)


def _build(create: Create, recall: Recall, model: str, defaults: Defaults) -> Settings:
    _refuse_unsupported(create)
    most = create.max_output_tokens
    if most is None:
        most = defaults.max_output_tokens
    tools = recall.read("tools", create.tools, parse_tools)
    choice = recall.read("tool_choice", create.tool_choice, parse_tool_choice)
    form, text_echo = recall.read("text", create.text, parse_text)
    effort, reasoning_echo = _reasoning_of(create, recall, defaults.reasoning_effort)
    managed = recall.read("context_management", create.context_management, parse_context_management)
    truncation = create.truncation or "disabled"
    if truncation not in ("auto", "disabled"):
        raise _bad_value("truncation", truncation, "'auto' and 'disabled'")
    _check_choice(choice, tools)
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
        passed_on={name: said for name in _PASSED_ON if (said := getattr(create, name))},
        verbosity=_verbosity.decode(text_echo).verbosity,
    )


_PASSED_ON: Final = (
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "user",
)


def _reasoning_of(create: Create, recall: Recall, default: str | None) -> tuple[str | None, Raw]:
    """The effort and its echo. A lane may change between models of different defaults."""
    name = "reasoning" if default is None else f"reasoning, else {default}"
    return recall.read(name, create.reasoning, partial(parse_reasoning, default=default))


def _refuse_unsupported(create: Create) -> None:
    for name in UNSUPPORTED:
        if bytes(getattr(create, name)) != b"null":
            raise _unsupported(name)
    if create.background and create.store is False:
        raise ApiError.of(
            "invalid_value", "A background response has to be stored.", param="background"
        )


def _check_choice(choice: ToolChoice, tools: Tools) -> None:
    """A choice that requires a tool needs one on offer."""
    if choice.mode != "required":
        return
    if choice.allowed is None and not tools.offered:
        raise ApiError.of(
            "invalid_value",
            "Tool choice 'required' must be specified with 'tools' parameter.",
            param="tool_choice",
        )
    offered = {(tool.type, tool.name) for tool in tools.offered}
    missing = [name for kind, name in choice.allowed or () if (kind, name) not in offered and name]
    if missing:
        raise ApiError.of(
            "invalid_value",
            f"Tool choice '{missing[0][:64]}' not found in 'tools' parameter.",
            param="tool_choice",
        )


def _echo(
    create: Create, model: str, tools: Tools, text: Raw, reasoning: Raw, most: int | None
) -> dict[str, Any]:
    metadata = Raw(msgspec.json.encode(create.metadata)) if create.metadata else EMPTY_OBJECT
    choice = bytes(create.tool_choice)
    return {
        "model": model,
        "instructions": Raw(bytes(create.instructions)),
        "tools": tools.echo,
        "tool_choice": Raw(choice if choice != b"null" else b'"auto"'),
        "parallel_tool_calls": create.parallel_tool_calls is not False,
        "truncation": create.truncation or "disabled",
        "text": text,
        "temperature": 1.0 if create.temperature is None else create.temperature,
        "top_p": 1.0 if create.top_p is None else create.top_p,
        "presence_penalty": create.presence_penalty or 0.0,
        "frequency_penalty": create.frequency_penalty or 0.0,
        "top_logprobs": create.top_logprobs or 0,
        "reasoning": reasoning,
        "max_output_tokens": most,
        "max_tool_calls": create.max_tool_calls,
        "background": create.background is True,
        "store": create.store is not False,
        "metadata": metadata,
        "safety_identifier": create.safety_identifier,
        "prompt_cache_key": create.prompt_cache_key,
        "service_tier": "default" if create.service_tier in (None, "auto") else create.service_tier,
    }


def _decode(decoder: "msgspec.json.Decoder[T]", data: bytes, param: str) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise refusal(error, at=param) from None


def _missing(param: str) -> ApiError:
    message = f"Missing required parameter: '{param}'."
    return ApiError.of("missing_required_parameter", message, param=param)


def _unsupported(name: str) -> ApiError:
    return ApiError.of("unsupported_parameter", f"Unsupported parameter: '{name}'.", param=name)


def _bad_value(param: str, value: str, known: str) -> ApiError:
    return ApiError.of(
        "invalid_value",
        f"Invalid value: '{value[:64]}'. Supported values are: {known}.",
        param=param,
    )
