"""What the scripted engine knows of a chain: its size in tokens, and the facts that rules ask for.

Everything here is made once for each link (:meth:`ChainNode.derive`), so that a turn costs what is
new in it, whatever the history.
"""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from tieline.items import (
    OUTPUT_KINDS,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Opaque,
    Reasoning,
)
from tieline_server.core.create.settings import Settings
from tieline_server.core.create.tools import Tool, brought_by
from tieline_server.core.history.chain import ChainNode

Offer = tuple[str | None, ...]
"""(type, name) or (type, name, namespace) of a tool, as a rule names it."""

FRAME: Final = 2
"""Tokens around each item: where it begins and where it ends."""


class Facts(Struct, frozen=True, kw_only=True, gc=False):
    """The facts of a chain."""

    tokens: int = 0
    inherited: int = 0
    """Tokens before the last link."""
    last: str | None = None
    """What the last item is: message, tool_output, or a type that no rule asks for."""
    user: Item | None = None
    """The last message of the user."""
    output: Item | None = None
    """The last tool output, of any kind."""
    tools: tuple[Tool, ...] = ()
    """Tools that items have brought."""
    offers: frozenset[Offer] = frozenset()


NOTHING: Final = Facts()
KEY: Final = "scripted.facts"


class Reader:
    """Learns the facts of a chain. ``count`` tells how many tokens a text has."""

    __slots__ = ("_count", "rendered", "said")

    def __init__(self, count: Callable[[str], int]) -> None:
        self._count = count
        self.rendered = 0
        """Bytes of text that were counted."""
        self.said: str | None = None
        """Text of the user's last message, where it was read."""

    def facts_of(self, chain: ChainNode) -> Facts:
        """The facts of ``chain``; only links that are new are read."""
        return chain.derive(KEY, NOTHING, self._step)

    def _step(self, before: Facts, link: ChainNode) -> Facts:
        """The facts when the items of ``link`` have joined the chain."""
        tokens = before.tokens
        user, output, tools, last = before.user, before.output, before.tools, before.last
        for item in link.shown:
            text = render(item)
            self.rendered += _size(text)
            tokens += self._count(text) + FRAME
            view, last = item.view, item.type
            if isinstance(view, Message):
                if view.role == "user":
                    user, self.said = item, text.removeprefix("user\n")
            elif last in OUTPUT_KINDS:
                output, last = item, "tool_output"
            tools += brought_by(item)
        return Facts(
            tokens=tokens,
            inherited=before.tokens,
            last=last,
            user=user,
            output=output,
            tools=tools,
            offers=before.offers if tools is before.tools else offers_of(tools),
        )


def _size(text: str) -> int:
    """Bytes of UTF-8. Most text is ASCII, and Python knows that without a look."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def size_to_learn(chain: ChainNode) -> int:
    """Bytes of JSON that :meth:`Reader.facts_of` would have to read."""
    size = 0
    link: ChainNode | None = chain
    while link is not None and KEY not in link.memo:
        size += link.size
        link = link.base
    return size


def offers_of(tools: tuple[Tool, ...]) -> frozenset[Offer]:
    """Every way in which a rule may name one of ``tools``, or a namespace that holds some."""
    return frozenset(offer for tool in tools for offer in _offers(tool))


def _offers(tool: Tool) -> Iterator[Offer]:
    yield (tool.type, tool.name)
    yield (tool.type, tool.name, tool.namespace)
    if tool.namespace is not None:
        yield ("namespace", tool.namespace)
        yield ("namespace", tool.namespace, None)


class Head(Struct, frozen=True):
    """What stands before the items: instructions and tools."""

    tokens: int
    rendered: int
    """Bytes of text that the tokens were counted in."""
    offers: frozenset[Offer]


def size_of_head(settings: Settings) -> int:
    """Characters and bytes, about, that :func:`head_of` would have to read."""
    return len(settings.instructions or "") + len(bytes(settings.tools.echo))


def head_of(settings: Settings, count: Callable[[str], int]) -> Head:
    """Counts instructions and tools as a model would read them."""
    tools = settings.tools.offered
    text = [settings.instructions] if settings.instructions else []
    text += [_render_tool(tool) for tool in tools]
    rendered = sum(map(_size, text))
    return Head(sum(count(each) + FRAME for each in text), rendered, offers_of(tools))


def _render_tool(tool: Tool) -> str:
    name = ".".join(each for each in (tool.namespace, tool.name or tool.type) if each)
    schema = tool.parameters or tool.format or b""
    return f"{name}: {tool.description or ''}\n{schema.decode(errors='replace')}"


class _Part(Struct, frozen=True):
    text: str | None = None
    refusal: str | None = None


class _Output(Struct, frozen=True):
    output: Raw | UnsetType = UNSET


_part: Final = msgspec.json.Decoder(_Part)
_output: Final = msgspec.json.Decoder(_Output)
_content: Final = msgspec.json.Decoder(str | list[Raw])


def text_of(item: Item | None) -> str:
    """The text of a message or of a tool output, its parts joined; "" for None.

    An output of a kind that has no text is given as its JSON.
    """
    if item is None:
        return ""
    view = item.view
    if isinstance(view, Message):
        return _joined(view.content)
    if isinstance(view, FunctionCallOutput | CustomToolCallOutput):
        return _joined(view.output)
    return _foreign_text(item)


def _joined(content: str | list[Raw]) -> str:
    return content if isinstance(content, str) else "".join([_part_text(each) for each in content])


def _part_text(part: Raw) -> str:
    try:
        view = _part.decode(part)
    except (msgspec.MsgspecError, RecursionError):
        return ""
    return view.text or view.refusal or ""


def _foreign_text(item: Item) -> str:
    """Outputs of tools that we know by name only: a string, parts, or anything."""
    output = _output.decode(item.raw).output
    raw = item.raw if output is UNSET else bytes(output)
    try:
        text = _joined(_content.decode(raw))
    except msgspec.ValidationError:
        text = ""
    return text or raw.decode(errors="replace")


def render(item: Item) -> str:
    """An item as a model would read it."""
    view = item.view
    if isinstance(view, Message):
        return f"{view.role}\n{_joined(view.content)}"
    if isinstance(view, FunctionCall):
        return f"{view.name}\n{view.arguments}"
    if isinstance(view, CustomToolCall):
        return f"{view.name}\n{view.input}"
    if isinstance(view, FunctionCallOutput | CustomToolCallOutput):
        return f"tool\n{_joined(view.output)}"
    if isinstance(view, Reasoning):
        return "think\n" + _joined([*view.summary, *(view.content or ())])
    if isinstance(view, Opaque) and view.type in OUTPUT_KINDS:
        return f"tool\n{_foreign_text(item)}"
    return item.raw.decode(errors="replace")
