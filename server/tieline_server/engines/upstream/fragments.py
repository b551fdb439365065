"""A chain of items as the ``messages`` of a chat completion, each item encoded once.

The JSON of a chain's messages stands in one buffer that grows with the chain; a link remembers
how far it reaches. So the messages of a turn are one copy of bytes, whatever the history, and
only new links are read. A fork starts a buffer of its own behind what it shares.

Two rules of chat completions shape what is written. What the assistant said and the calls it
made in one run are one message, so the last one stays open until an item of another role
comes. Between calls and their outputs nothing may stand: what came there waits until the last
output is in.
Reasoning, and items that have no class in ``tieline.items``, are not shown to the model.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from tieline.items import Item
from tieline_server.core.history.chain import ChainNode
from tieline_server.core.values import Work
from tieline_server.engines.base import EngineError
from tieline_server.engines.client_tools import as_functions
from tieline_server.engines.upstream import views
from tieline_server.engines.upstream.tool_names import found, wire_name
from tieline_server.engines.upstream.truncation import derived_from

KEY: Final = "upstream.messages"

PARAGRAPH: Final = rb"\n\n"
"""Between two texts of one message, inside a JSON string."""

ROLES: Final = {"developer": "system"}
"""Roles that chat templates do not know -> the one that stands for it."""


class Assistant(Struct, frozen=True):
    """A message of the assistant that may still grow. ``text`` is a JSON string."""

    text: bytes = b'""'
    calls: tuple[bytes, ...] = ()

    def encoded(self) -> bytes:
        """The message, with the comma before it."""
        head = b',{"role":"assistant","content":' + self.text
        if not self.calls:
            return head + b"}"
        return head + b',"tool_calls":[' + b",".join(self.calls) + b"]}"


class Rendered(Struct, frozen=True, kw_only=True):
    """The messages of a chain: those before ``buffer``, those in it up to ``end``, and a rest."""

    before: "Rendered | None" = None
    """Where a fork left the chain that it shares."""
    buffer: bytearray
    end: int = 0
    length: int = 0
    """Bytes up to here, without the rest."""
    open: Assistant | None = None
    waiting: frozenset[str] = frozenset()
    """Calls whose outputs have not come."""
    held: tuple[bytes, ...] = ()
    """Messages that wait for these outputs."""

    def pieces(self) -> list[bytes | memoryview]:
        """The messages in order, each with a comma before it. To be joined at once."""
        shared: list[bytes | memoryview] = []
        each: Rendered | None = self
        while each is not None:
            shared.append(memoryview(each.buffer)[: each.end])
            each = each.before
        shared.reverse()
        if self.open is not None:
            shared.append(self.open.encoded())
        return [*shared, *self.held]

    @property
    def size(self) -> int:
        """Bytes of all messages."""
        rest = len(self.open.encoded()) if self.open is not None else 0
        return self.length + rest + sum(map(len, self.held))


def messages_of(last_node: ChainNode, work: Work, *, start: ChainNode | None = None) -> Rendered:
    """The messages of the chain that ends in ``last_node``; only what is new costs anything.

    They begin at the link ``start``, by default at the first one. Bytes are added to
    ``work.render``. Raises :class:`EngineError` for content that chat completions have no form
    for.
    """

    def step(before: Rendered, link: ChainNode) -> Rendered:
        work.render += link.size
        writer = _Writer(before)
        for item in as_functions(link.shown, found):
            writer.add(item)
        return writer.rendered()

    if start is None:
        return last_node.derive(KEY, Rendered(buffer=bytearray()), step)
    return derived_from(start, last_node, KEY, step=step, initial=Rendered(buffer=bytearray()))


class _Image(Struct, frozen=True):
    url: str | None = None
    detail: str | None = None


class _Part(Struct, frozen=True):
    """What is read of a content part; further members of ours have no place upstream."""

    type: str | None = None
    text: str | None = None
    refusal: str | None = None
    image_url: str | _Image | None = None
    detail: str | None = None
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None
    input_audio: dict[str, Any] | None = None


_encode: Final = msgspec.json.Encoder().encode
_parts: Final = msgspec.json.Decoder(list[_Part])


class _Writer:
    """Writes the messages of one link behind those before it."""

    def __init__(self, before: Rendered) -> None:
        self._before = before
        self._new = bytearray()
        self._open = before.open
        self._waiting = set(before.waiting)
        self._held = list(before.held)

    def add(self, item: Item) -> None:
        """Writes one item, where it has a form."""
        write = _WRITERS.get(item.type)
        if write is not None:
            write(self, item.raw)

    def rendered(self) -> Rendered:
        """The chain with what was written."""
        last = self._before
        # Who came first writes on in the shared buffer; who comes after it is a fork.
        grows = len(last.buffer) == last.end
        buffer = last.buffer if grows else bytearray()
        buffer += self._new
        return Rendered(
            before=last.before if grows else last,
            buffer=buffer,
            end=len(buffer),
            length=last.length + len(self._new),
            open=self._open,
            waiting=frozenset(self._waiting),
            held=tuple(self._held),
        )

    # Kinds of items.

    def _on_message(self, raw: bytes) -> None:
        message = views.MESSAGE.decode(raw)
        content = bytes(message.content)
        if message.role == "assistant":
            self._say(content if content[:1] == b'"' else _encode(_text(_read(content))))
            return
        if content[:1] != b'"':
            content = _encode(_content(_read(content)))
        role = ROLES.get(message.role, message.role)
        self._speak(b',{"role":"%b","content":%b}' % (role.encode(), content))

    def _on_call(self, raw: bytes) -> None:
        call = views.CALL.decode(raw)
        self._make_call(call, bytes(call.arguments))

    def _on_custom_call(self, raw: bytes) -> None:
        call = views.CALL.decode(raw)
        self._make_call(call, _encode(_encode({"input": call.input}).decode()))

    def _on_output(self, raw: bytes) -> None:
        output = views.OUTPUT.decode(raw)
        content, shown = bytes(output.output), []
        if content[:1] != b'"':
            parts = _read(content)
            content = _encode(_text(part for part in parts if _is_text(part)))
            # The message of a tool is text; what else it gave, the user shows.
            shown = [part for part in parts if not _is_text(part)]
        self._close()
        self._new += b',{"role":"tool","tool_call_id":%b,"content":%b}' % (
            _encode(output.call_id),
            content,
        )
        self._waiting.discard(output.call_id)
        if shown:
            self._held.append(b',{"role":"user","content":%b}' % _encode(_content(shown)))
        self._release()

    # What they come to.

    def _say(self, text: bytes) -> None:
        """The assistant said something."""
        last = self._open
        if last is None or (not last.calls and last.text != b'""'):
            self._close()
            self._open = Assistant(text)
        elif text != b'""':
            joined = text if last.text == b'""' else last.text[:-1] + PARAGRAPH + text[1:]
            self._open = Assistant(joined, last.calls)

    def _make_call(self, call: views.Call, arguments: bytes) -> None:
        """The assistant called a tool; ``arguments`` is a JSON string of JSON."""
        entry = b'{"id":%b,"type":"function","function":{"name":%b,"arguments":%b}}' % (
            _encode(call.call_id),
            _encode(wire_name(call.name, call.namespace)),
            arguments if arguments != b'""' else b'"{}"',
        )
        last = self._open or Assistant()
        self._open = Assistant(last.text, (*last.calls, entry))
        self._waiting.add(call.call_id)

    def _speak(self, message: bytes) -> None:
        """An item of another role comes."""
        if self._waiting:
            self._held.append(message)
            return
        self._close()
        self._new += message

    def _close(self) -> None:
        if self._open is not None:
            self._new += self._open.encoded()
            self._open = None

    def _release(self) -> None:
        if not self._waiting:
            for message in self._held:
                self._new += message
            self._held.clear()


_WRITERS: Final[dict[str, Callable[[_Writer, bytes], None]]] = {
    "message": _Writer._on_message,
    "function_call": _Writer._on_call,
    "function_call_output": _Writer._on_output,
    "custom_tool_call": _Writer._on_custom_call,
    "custom_tool_call_output": _Writer._on_output,
}
"""Type of item -> who writes it."""


def _read(content: bytes) -> list[_Part]:
    try:
        return _parts.decode(content)
    except (msgspec.MsgspecError, RecursionError):
        raise EngineError(
            "invalid_value", "A content part has a member of the wrong type.", param="input"
        ) from None


def _is_text(part: _Part) -> bool:
    return part.text is not None or part.refusal is not None


def _text(parts: "Iterator[_Part] | list[_Part]") -> str:
    """Text alone; raises :class:`EngineError` for anything else."""
    found = []
    for part in parts:
        text = part.text if part.text is not None else part.refusal
        if text is None:
            raise _unsupported(part)
        found.append(text)
    return "".join(found)


def _content(parts: list[_Part]) -> Any:
    """The content of a message: a string where one will do, which every server reads."""
    if len(parts) == 1 and parts[0].text is not None:
        return parts[0].text
    return [_part(part) for part in parts]


def _part(part: _Part) -> dict[str, Any]:
    if _is_text(part):
        return {"type": "text", "text": part.text if part.text is not None else part.refusal}
    if part.type in ("input_image", "image_url") and part.image_url is not None:
        given = part.image_url
        image = _Image(given, part.detail) if isinstance(given, str) else given
        detail = {"detail": image.detail} if image.detail else {}
        return {"type": "image_url", "image_url": {"url": image.url, **detail}}
    if part.type == "input_audio" and part.input_audio is not None:
        return {"type": "input_audio", "input_audio": part.input_audio}
    if part.type == "input_file" and (part.file_data or part.file_id):
        members = {
            "file_data": part.file_data,
            "file_id": part.file_id,
            "filename": part.filename,
        }
        return {"type": "file", "file": {name: each for name, each in members.items() if each}}
    raise _unsupported(part)


def _unsupported(part: _Part) -> EngineError:
    return EngineError(
        "unsupported_value",
        f"Content of type '{(part.type or '')[:64]}' cannot be passed to this model.",
        param="input",
    )
