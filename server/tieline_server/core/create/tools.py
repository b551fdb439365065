"""The tools of a create: which ones it offers, and which of them the model may or must call."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct, structs

from tieline.complaints import invalid_value, missing, refusal
from tieline.errors import ApiError
from tieline.items import Item, too_long
from tieline.responses import EMPTY_LIST, NULL
from tieline_server.core.deltas import CALL_KINDS, TOOL_SEARCH, CallKind

T = TypeVar("T")

# Of a search whose client says none: the names of what it is to load, as OpenAI's has them.
_SEARCH_PARAMETERS: Final = (
    b'{"type":"object","properties":{"paths":{"type":"array","items":{"type":"string"}}},'
    b'"required":["paths"],"additionalProperties":false}'
)


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
        return self.type in CALL_KINDS and self.name is not None

    @property
    def call_kind(self) -> CallKind:
        """The type of the item that is a call of it."""
        return CALL_KINDS[self.type]


class Tools(Struct, frozen=True):
    """All tools of a create: what is offered, and the JSON that echoes them."""

    offered: tuple[Tool, ...] = ()
    echo: Raw = EMPTY_LIST


_Name = Annotated[str, Meta(min_length=1)]


class _ToolView(Struct, frozen=True):
    type: str
    name: _Name | None = None
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
    """Reads ``tools``; raises :class:`ApiError` 400 naming the tool that is wrong.

    Names are unique within a namespace; a tool may come again in another list.
    """
    entries = decode(_tools, data, param) or []
    if len(entries) > MAX_TOOLS:
        raise too_long(param, len(entries), MAX_TOOLS)
    offered: dict[object, Tool] = {}
    echoes = [
        _read_tool(entry, f"{param}[{index}]", offered) for index, entry in enumerate(entries)
    ]
    echo = Raw(msgspec.json.encode(echoes)) if echoes else EMPTY_LIST
    return Tools(tuple(offered.values()), echo)


def _read_tool(
    raw: Raw, param: str, offered: dict[object, Tool], *, within: _ToolView | None = None
) -> Raw | dict[str, Any]:
    """Adds what one entry offers to ``offered`` and returns its echo."""
    view = decode(_tool, bytes(raw), param)
    searches = view.type == TOOL_SEARCH and view.execution == "client"
    if view.type in ("function", "custom", "namespace"):
        if not view.name:
            raise missing(f"{param}.name")
    elif view.type != TOOL_SEARCH and bytes(view.parameters) != b"null":
        # A function by all that it has, which no model would be offered.
        raise invalid_value(f"{param}.type", view.type, ("function", "custom", "namespace"))
    if view.type == "namespace":
        if view.tools is None:
            raise missing(f"{param}.tools")
        for index, entry in enumerate(view.tools):
            _read_tool(entry, f"{param}.tools[{index}]", offered, within=view)
        return raw
    name, parameters = view.name, None
    if view.type == "function":
        parameters = _schema(view.parameters, param)
    elif searches:
        name, parameters = TOOL_SEARCH, _schema(view.parameters, param) or _SEARCH_PARAMETERS
    namespace = within.name if within else None
    called = view.type in ("function", "custom") or searches
    # A hosted tool has no name of the client's: several of one type may stand beside each other.
    key = (namespace, name) if called else len(offered)
    if key in offered:
        raise ApiError.of(
            "invalid_value",
            f"Invalid '{param}.name': another tool has this name. Names have to be unique within "
            "their namespace.",
            param=f"{param}.name",
        )
    offered[key] = Tool(
        type=view.type,
        name=name,
        namespace=namespace,
        description=view.description,
        parameters=parameters,
        strict=view.strict,
        format=_input_format(view.format, param) if view.type == "custom" else None,
        param=param,
        deferred=(view.defer_loading or (within and within.defer_loading)) is True,
    )
    if view.type != "function":
        return raw
    # The echo of a function tool always has all four members (wire.md 6.3).
    empty = {"description": None, "parameters": None, "strict": None}
    return {**empty, **_members.decode(raw)}


class _InputFormat(Struct, frozen=True):
    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


_input_formats: Final = msgspec.json.Decoder(_InputFormat)
_FORMATS: Final = {"type": ("text", "grammar"), "syntax": ("lark", "regex")}


def _input_format(raw: Raw, param: str) -> bytes | None:
    """The format of a custom tool's input, known to be one."""
    data = present(raw)
    if data is None:
        return None
    where = f"{param}.format"
    view = decode(_input_formats, data, where, _FORMATS)
    if view.type == "grammar":
        for name in ("syntax", "definition"):
            if getattr(view, name) is None:
                raise missing(f"{where}.{name}")
    return data


def present(raw: Raw) -> bytes | None:
    """Free-form JSON, or None for null (msgspec has no ``Raw | None``)."""
    return None if bytes(raw) == b"null" else bytes(raw)


def _schema(raw: Raw, param: str) -> bytes | None:
    data = present(raw)
    # What is inside is for the engine: a schema that it cannot keep to is its refusal to make.
    if data is not None and not data.lstrip().startswith(b"{"):
        raise ApiError.of(
            "invalid_function_parameters",
            f"Invalid schema for '{param}': 'parameters' must be a JSON schema object.",
            param=f"{param}.parameters",
        )
    return data


class _Bringing(Struct, frozen=True):
    tools: Raw = Raw(b"[]")


_bringing: Final = msgspec.json.Decoder(_Bringing)

BRINGING: Final = frozenset({"additional_tools", "tool_search_output"})
"""Types of items that bring tools."""


def brought_by(item: Item, param: str = "tools") -> tuple[Tool, ...]:
    """The tools that an item brings, which stand at ``param``; what was found is not deferred."""
    if item.type not in BRINGING:
        return ()
    try:
        tools = parse_tools(bytes(_bringing.decode(item.raw).tools), param).offered
    except (ApiError, msgspec.MsgspecError, RecursionError):
        # Whether the input is right was asked before it came here; these tools are no tools.
        return ()
    if item.type == "additional_tools":
        return tools
    # A search has found them: from here on the model may call them.
    return tuple(structs.replace(tool, deferred=False) for tool in tools)


# The choice.


class ToolChoice(Struct, frozen=True, kw_only=True):
    """Which tools the model may or must call.

    ``mode`` is auto, none or required. ``allowed`` limits it to these (type, name) pairs; a
    named tool is ``required`` with one pair.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    allowed: tuple[tuple[str, str | None], ...] | None = None
    several: bool = False
    """Whether they came as a list."""

    def admits(self, tool: Tool) -> bool:
        """Whether this choice leaves ``tool`` open to the model."""
        if self.mode == "none":
            return False
        if self.allowed is None or (tool.type, tool.name) in self.allowed:
            return True
        if tool.namespace is not None and ("namespace", tool.namespace) in self.allowed:
            return True
        # A search has no name to choose it by.
        return tool.type == TOOL_SEARCH and (tool.type, None) in self.allowed


class _Choice(Struct, frozen=True):
    type: str
    name: Annotated[str, Meta(min_length=1)] | None = None
    mode: str | None = None
    tools: list["_Choice"] | None = None


_choice: Final = msgspec.json.Decoder(str | _Choice | None)


def parse_choice(data: bytes) -> ToolChoice:
    """Reads ``tool_choice``: a word, a named tool, ``allowed_tools``, or a hosted type."""
    try:
        choice = _choice.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise refusal(error, at="tool_choice") from None
    if choice is None:
        return ToolChoice()
    if isinstance(choice, str):
        if choice in ("auto", "none", "required"):
            return ToolChoice(mode=choice)  # type: ignore[arg-type]
        raise invalid_value("tool_choice", choice, ("none", "auto", "required"))
    if choice.type == "allowed_tools":
        mode = "auto" if choice.mode is None else choice.mode
        if mode not in ("auto", "required"):
            raise invalid_value("tool_choice.mode", mode, ("auto", "required"))
        if choice.tools is None:
            raise missing("tool_choice.tools")
        if not choice.tools:
            raise ApiError.of(
                "empty_array",
                "Invalid 'tool_choice.tools': an empty array. Name the tools that are allowed, or "
                "choose 'none'.",
                param="tool_choice.tools",
            )
        allowed = tuple(
            _named(tool, f"tool_choice.tools[{index}]") for index, tool in enumerate(choice.tools)
        )
        return ToolChoice(mode=mode, allowed=allowed, several=True)  # type: ignore[arg-type]
    return ToolChoice(mode="required", allowed=(_named(choice, "tool_choice"),))


def _named(choice: _Choice, param: str) -> tuple[str, str | None]:
    if choice.type in ("function", "custom") and not choice.name:
        raise missing(f"{param}.name")
    return choice.type, choice.name


def check_choice(choice: ToolChoice, offered: Iterable[Tool]) -> None:
    """A choice that requires a tool needs one on offer, and names none that is not.

    Raises :class:`ApiError` 400.
    """
    if choice.allowed is None:
        if choice.mode == "required" and not any(True for _ in offered):
            message = "Tool choice 'required' must be specified with 'tools' parameter."
            raise ApiError.of("invalid_value", message, param="tool_choice")
        return
    tools = tuple(offered)
    known = {name for tool in tools for name in _names_of(tool)}
    for index, (kind, name) in enumerate(choice.allowed):
        if _key(kind, name) not in known:
            raise ApiError.of(
                "invalid_value",
                f"Tool choice '{(name or kind)[:64]}' not found in 'tools' parameter.",
                param=f"tool_choice.tools[{index}]" if choice.several else "tool_choice",
            )
    # Required to call what it cannot see, a model could only fail.
    chosen = [tool for tool in tools if choice.admits(tool)]
    unseen = hidden(tools)
    if choice.mode == "required" and chosen and all(tool in unseen for tool in chosen):
        raise ApiError.of(
            "invalid_value",
            "Tool choice requires a tool whose loading is deferred and which no search has found "
            "yet.",
            param="tool_choice",
        )


def hidden(tools: Sequence[Tool]) -> list[Tool]:
    """Those of ``tools`` that are deferred, that no search has found, and that one could find."""
    # Where no client searches, nothing could ever be found: all of them are offered.
    if not any(tool.type == TOOL_SEARCH and tool.client_run for tool in tools):
        return []
    found = {(tool.namespace, tool.name) for tool in tools if not tool.deferred}
    return [tool for tool in tools if tool.deferred and (tool.namespace, tool.name) not in found]


def _names_of(tool: Tool) -> Iterator[tuple[str, str | None]]:
    yield _key(tool.type, tool.name)
    if tool.namespace is not None:
        yield "namespace", tool.namespace


def _key(kind: str, name: str | None) -> tuple[str, str | None]:
    """What a choice and a tool have in common: a name if it is the client's own, else a kind.

    A hosted tool may be chosen by another version of its type than it is offered by.
    """
    if kind in _NAMED:
        return kind, name
    return next((family for family in _FAMILIES if kind.startswith(family)), kind), None


_NAMED: Final = frozenset({"function", "custom", "namespace"})
_FAMILIES: Final = ("web_search", "computer")


def decode(
    decoder: "msgspec.json.Decoder[T]",
    data: bytes,
    param: str,
    known: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> T:
    """What is in a member of a create, at ``param``; raises :class:`ApiError` 400."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise refusal(error, at=param, known=known) from None
