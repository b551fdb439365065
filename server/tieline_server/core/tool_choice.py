"""Which of the tools on offer the model may or must call."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from tieline.complaints import invalid_value, missing, refusal
from tieline.errors import ApiError

if TYPE_CHECKING:
    from tieline_server.core.settings import Tool


class ToolChoice(Struct, frozen=True, kw_only=True):
    """Which tools the model may or must call.

    ``mode`` is auto, none or required. ``allowed`` limits it to these (type, name) pairs; a
    named tool is ``required`` with one pair.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    allowed: tuple[tuple[str, str | None], ...] | None = None
    several: bool = False
    """Whether they came as a list."""

    def admits(self, tool: "Tool") -> bool:
        """Whether this choice leaves ``tool`` open to the model."""
        if self.mode == "none":
            return False
        if self.allowed is None or (tool.type, tool.name) in self.allowed:
            return True
        # A search has no name to choose it by.
        return tool.type == "tool_search" and (tool.type, None) in self.allowed


class _Choice(Struct, frozen=True):
    type: str
    name: Annotated[str, Meta(min_length=1)] | None = None
    mode: str | None = None
    tools: list["_Choice"] | None = None


_choice: Final = msgspec.json.Decoder(str | _Choice | None)


def parse(data: bytes) -> ToolChoice:
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


def check(choice: ToolChoice, offered: "Iterable[Tool]") -> None:
    """A choice that requires a tool needs one on offer, and names none that is not.

    Raises :class:`ApiError` 400.
    """
    if choice.allowed is None:
        if choice.mode == "required" and not any(True for _ in offered):
            message = "Tool choice 'required' must be specified with 'tools' parameter."
            raise ApiError.of("invalid_value", message, param="tool_choice")
        return
    known = {name for tool in offered for name in _names_of(tool)}
    for index, (kind, name) in enumerate(choice.allowed):
        if _key(kind, name) not in known:
            raise ApiError.of(
                "invalid_value",
                f"Tool choice '{(name or kind)[:64]}' not found in 'tools' parameter.",
                param=f"tool_choice.tools[{index}]" if choice.several else "tool_choice",
            )


def _names_of(tool: "Tool") -> "Iterator[tuple[str, str | None]]":
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


class _Carried(Struct, frozen=True):
    tools: Raw


_carried: Final = msgspec.json.Decoder(_Carried)

CARRIERS: Final = frozenset({"additional_tools", "tool_search_output"})
"""Types of items that bring tools."""


def tools_in(raw: bytes) -> bytes:
    """The JSON of the tools that such an item brings."""
    return bytes(_carried.decode(raw).tools)
