"""A chain of items as the ``input`` of a Responses request, each item encoded once.

As in ``fragments``, the JSON of a chain stands in one buffer that grows with it, and a link
remembers its own part: all of it is one copy of bytes, what came after a link as well.

An item is written with the members that every server takes: ids are those of the upstream's own
responses there, and a client's mean nothing to it. What the assistant said is plain text, but for
what has annotations, as not every server takes its parts without ids. Reasoning is sent where its
text is known; what is sealed is sealed for us. Items that have no class in ``tieline.items`` are
left out.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from tieline.items import Item
from tieline_server.core.history.chain import ChainNode
from tieline_server.core.values import Work
from tieline_server.engines.base import EngineError
from tieline_server.engines.client_tools import as_functions
from tieline_server.engines.upstream import views
from tieline_server.engines.upstream.tool_names import found, wire_name
from tieline_server.engines.upstream.truncation import derived_from

KEY: Final = "upstream.items"


class Items(Struct, frozen=True, kw_only=True):
    """The items of a chain: those before ``buffer``, those in it up to ``end``."""

    before: "Items | None" = None
    """Where a fork left the chain that it shares."""
    buffer: bytearray
    begin: int = 0
    """Where the last link's own items begin."""
    end: int = 0
    size: int = 0
    """Bytes up to here."""

    def pieces(self) -> Iterator[memoryview]:
        """The items in order, each with a comma before it. To be joined at once."""
        shared: list[Items] = []
        each: Items | None = self
        while each is not None:
            shared.append(each)
            each = each.before
        return (memoryview(part.buffer)[: part.end] for part in reversed(shared))

    def followed_by(self, new: bytes | bytearray) -> "Items":
        """With the items of one link more."""
        # Who came first writes on in the shared buffer; who comes after it is a fork.
        grows = len(self.buffer) == self.end
        buffer = self.buffer if grows else bytearray()
        begin = len(buffer)
        buffer += new
        return Items(
            before=self.before if grows else self,
            buffer=buffer,
            begin=begin,
            end=len(buffer),
            size=self.size + len(new),
        )

    @property
    def own(self) -> memoryview:
        """Those of the last link. To be joined at once."""
        return memoryview(self.buffer)[self.begin : self.end]


def items_of(
    last_node: ChainNode, work: Work, *, custom: bool = True, start: ChainNode | None = None
) -> Items:
    """The items of the chain that ends in ``last_node``; only what is new costs anything.

    They begin at the link ``start``, by default at the first one. Without ``custom`` the calls
    of custom tools are written as calls of functions. Bytes are added to ``work.render``. Raises
    :class:`EngineError` for content that cannot be read.
    """

    def step(before: Items, link: ChainNode) -> Items:
        work.render += link.size
        new = bytearray()
        for item in as_functions(link.shown, found):
            if (write := _WRITERS.get(item.type)) is not None:
                new += _written(write, item, custom=custom)
        return before.followed_by(new)

    key = KEY if custom else f"{KEY}.functions"
    initial = Items(buffer=bytearray())
    if start is None:
        return last_node.derive(key, initial, step)
    return derived_from(start, last_node, key, step=step, initial=initial)


class _Part(Struct, frozen=True):
    text: str | None = None
    refusal: str | None = None
    annotations: list[Raw] | None = None


class _Thought(Struct, frozen=True):
    id: str | None = None
    summary: Raw = Raw(b"[]")
    content: list[Raw] | None = None


_encode: Final = msgspec.json.Encoder().encode
_parts: Final = msgspec.json.Decoder(list[_Part])
_thought: Final = msgspec.json.Decoder(_Thought)


def _on_message(raw: bytes, *, custom: bool) -> bytes:
    message = views.MESSAGE.decode(raw)
    content = bytes(message.content)
    if message.role == "assistant" and content[:1] != b'"':
        content = _encode(_said(_parts.decode(content)))
    phase = b"" if message.phase is None else b',"phase":' + _encode(message.phase)
    return b',{"type":"message","role":%b%b,"content":%b}' % (
        _encode(message.role),
        phase,
        content,
    )


def _said(parts: list[_Part]) -> str | list[dict[str, Any]]:
    """What the assistant said: text, and parts only where they say more than that."""
    if not any(part.annotations for part in parts):
        return "".join(part.text or part.refusal or "" for part in parts)
    return [
        {"type": "output_text", "text": part.text, "annotations": part.annotations or []}
        if part.text is not None
        else {"type": "refusal", "refusal": part.refusal or ""}
        for part in parts
    ]


def _on_call(raw: bytes, *, custom: bool) -> bytes:
    call = views.CALL.decode(raw)
    return _function_call(call, bytes(call.arguments))


def _on_custom_call(raw: bytes, *, custom: bool) -> bytes:
    call = views.CALL.decode(raw)
    if not custom:
        return _function_call(call, _encode(_encode({"input": call.input}).decode()))
    return b',{"type":"custom_tool_call","call_id":%b,"name":%b,"input":%b}' % (
        _encode(call.call_id),
        _encode(wire_name(call.name, call.namespace)),
        _encode(call.input),
    )


def _function_call(call: views.Call, arguments: bytes) -> bytes:
    """``arguments`` is a JSON string of JSON."""
    return b',{"type":"function_call","call_id":%b,"name":%b,"arguments":%b}' % (
        _encode(call.call_id),
        _encode(wire_name(call.name, call.namespace)),
        arguments if arguments != b'""' else b'"{}"',
    )


def _on_output(raw: bytes, *, custom: bool) -> bytes:
    return _output_of(b"function_call_output", raw)


def _on_custom_output(raw: bytes, *, custom: bool) -> bytes:
    return _output_of(b"custom_tool_call_output" if custom else b"function_call_output", raw)


def _output_of(kind: bytes, raw: bytes) -> bytes:
    output = views.OUTPUT.decode(raw)
    return b',{"type":"%b","call_id":%b,"output":%b}' % (
        kind,
        _encode(output.call_id),
        bytes(output.output),
    )


def _on_reasoning(raw: bytes, *, custom: bool) -> bytes:
    thought = _thought.decode(raw)
    if not thought.content:
        return b""
    return b',{"type":"reasoning","id":%b,"summary":%b,"content":%b}' % (
        _encode(thought.id or ""),
        bytes(thought.summary),
        _encode(thought.content),
    )


_WRITERS: Final[dict[str, Callable[..., bytes]]] = {
    "message": _on_message,
    "function_call": _on_call,
    "function_call_output": _on_output,
    "custom_tool_call": _on_custom_call,
    "custom_tool_call_output": _on_custom_output,
    "reasoning": _on_reasoning,
}
"""Type of item -> who writes it, with the comma before it."""


def _written(write: Callable[..., bytes], item: Item, *, custom: bool) -> bytes:
    try:
        return write(item.raw, custom=custom)
    except (msgspec.MsgspecError, RecursionError):
        raise EngineError(
            "invalid_value", "An item has a member of the wrong type.", param="input"
        ) from None
