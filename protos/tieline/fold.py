"""Events of one response, folded into the response as it stands.

The rules are those of every accumulator of this API (wire.md 6.6): an item is added, its parts
grow by deltas, a done event has the last word on what it closes, and a lifecycle event that
carries output has the last word on all of it. A terminal event whose output was left out, or
came empty, ends what the items before it have built.
"""

from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw, structs

from tieline import events
from tieline.errors import TielineError
from tieline.events import ErrorEvent, Event, LifecycleEvent
from tieline.responses import Response


class FoldError(TielineError):
    """An event that belongs to another response."""


class _Growth(NamedTuple):
    """What an event adds to: the item's kind, where its parts lie, and the growing member."""

    item: str
    parts: str | None
    part: str
    member: str


_GROWTHS: Final[dict[type[Event], _Growth]] = {
    events.OutputTextDelta: _Growth("message", "content", "output_text", "text"),
    events.OutputTextDone: _Growth("message", "content", "output_text", "text"),
    events.RefusalDelta: _Growth("message", "content", "refusal", "refusal"),
    events.RefusalDone: _Growth("message", "content", "refusal", "refusal"),
    events.ReasoningTextDelta: _Growth("reasoning", "content", "reasoning_text", "text"),
    events.ReasoningTextDone: _Growth("reasoning", "content", "reasoning_text", "text"),
    events.ReasoningSummaryTextDelta: _Growth("reasoning", "summary", "summary_text", "text"),
    events.ReasoningSummaryTextDone: _Growth("reasoning", "summary", "summary_text", "text"),
    events.FunctionCallArgumentsDelta: _Growth("function_call", None, "", "arguments"),
    events.FunctionCallArgumentsDone: _Growth("function_call", None, "", "arguments"),
    events.CustomToolCallInputDelta: _Growth("custom_tool_call", None, "", "input"),
    events.CustomToolCallInputDone: _Growth("custom_tool_call", None, "", "input"),
}
"""Text events -> what grows. A delta has ``delta``; a done event has the member itself."""

_PARTS: Final[dict[type[Event], str]] = {
    events.ContentPartAdded: "content",
    events.ContentPartDone: "content",
    events.ReasoningSummaryPartAdded: "summary",
    events.ReasoningSummaryPartDone: "summary",
}
"""Events with a whole part -> the list that it lies in."""

_INDEX: Final = {"content": "content_index", "summary": "summary_index"}


class _Text:
    """A text that grows by pieces."""

    __slots__ = ("pieces",)

    def __init__(self, text: str = "") -> None:
        self.pieces = [text]

    def __str__(self) -> str:
        self.pieces = ["".join(self.pieces)]
        return self.pieces[0]


class _Item:
    """One output item: its JSON once it is done, before that what has grown so far."""

    __slots__ = ("members", "parts", "raw", "texts")

    def __init__(self, raw: Raw | None, *, done: bool) -> None:
        self.raw = raw if done else None
        self.members: dict[str, Any] = {} if raw is None or done else _object(raw)
        self.parts: dict[tuple[str, int], dict[str, Any]] = {}
        self.texts: dict[tuple[str, int, str], _Text] = {}
        for name in _INDEX:
            listed = self.members.get(name)
            for index, part in enumerate(listed if isinstance(listed, list) else ()):
                self.set_part(name, index, part)

    def set_part(self, name: str, index: int, part: Any) -> None:
        """A part as it stands now."""
        self.parts[name, index] = part if isinstance(part, dict) else {}
        for member in ("text", "refusal"):
            said = self.parts[name, index].get(member)
            if isinstance(said, str):
                self.texts[name, index, member] = _Text(said)

    def snapshot(self) -> Raw:
        """The item as JSON."""
        if self.raw is not None:
            return self.raw
        whole = dict(self.members)
        for (name, index, member), text in self.texts.items():
            if index < 0:
                whole[member] = str(text)
            else:
                self.parts[name, index][member] = str(text)
        for name in {name for name, _ in self.parts}:
            whole[name] = [self.parts[key] for key in sorted(self.parts) if key[0] == name]
        return Raw(msgspec.json.encode(whole))

    def text(self) -> str:
        """The text that the item shows: of a message, its output_text parts joined."""
        if self.raw is not None:
            return _text_of(_object(self.raw))
        shown = [key for key in sorted(self.parts) if self._is_output(key)]
        return "".join(str(self.texts[name, index, "text"]) for name, index in shown)

    def _is_output(self, key: tuple[str, int]) -> bool:
        part = self.parts[key]
        return part.get("type") == "output_text" and (*key, "text") in self.texts


class Fold:
    """Builds the response of one turn from its events.

    >>> fold = Fold()
    >>> fold.push(events.OutputTextDelta(item_id="m", output_index=0, content_index=0, delta="Hi"))
    >>> fold.text
    'Hi'
    """

    __slots__ = ("_items", "_response", "error", "last_sequence_number", "terminal")

    def __init__(self) -> None:
        self._response: Response | None = None
        self._items: dict[int, _Item] = {}
        self.terminal: Event | None = None
        """The event that ended the turn; None while it runs or is held."""
        self.error: ErrorEvent | None = None
        """The error event of the turn, if one came; before the response it ends the turn."""
        self.last_sequence_number: int | None = None
        """The number after which a resume goes on."""

    def push(self, event: Event) -> None:
        """Takes the next event. Unknown events and gaps are no breach.

        Raises :class:`FoldError` when a lifecycle event belongs to another response.
        """
        if isinstance(event.sequence_number, int):
            self.last_sequence_number = event.sequence_number
        kind = type(event)
        growth = _GROWTHS.get(kind)
        if growth is not None:
            self._grow(event, growth)
        elif isinstance(event, LifecycleEvent):
            self._turn(event)
        elif isinstance(event, events.OutputItemAdded | events.OutputItemDone):
            done = isinstance(event, events.OutputItemDone)
            self._items[event.output_index] = _Item(event.item, done=done)
        elif kind in _PARTS:
            self._part(event, _PARTS[kind])
        elif isinstance(event, ErrorEvent):
            self._fail(event)

    @property
    def response(self) -> Response:
        """The response as it stands; a blank one before the first lifecycle event."""
        base = self._response or Response()
        output = [self._items[index].snapshot() for index in sorted(self._items)]
        return structs.replace(base, output=output)

    @property
    def text(self) -> str:
        """The text of all messages so far, joined as the API's ``output_text``."""
        return "".join(self._items[index].text() for index in sorted(self._items))

    @property
    def ended(self) -> bool:
        """Whether the turn is over: no further event changes it."""
        return self.terminal is not None

    def _turn(self, event: LifecycleEvent) -> None:
        response = event.response
        known = self._response
        if known is not None and known.id and response.id and known.id != response.id:
            raise FoldError(f"event of response {response.id[:80]!r}, not {known.id[:80]!r}")
        self._response = response
        if response.output:
            self._items = {
                index: _Item(raw, done=True) for index, raw in enumerate(response.output)
            }
        if event.TERMINAL:
            self.terminal = event

    def _fail(self, event: ErrorEvent) -> None:
        self.error = event
        # After the start of a response, response.failed follows (wire.md 3.2.11).
        if self._response is None:
            self.terminal = event

    def _open(self, event: Any, kind: str) -> _Item | None:
        """The item that an event adds to; None when it is done already."""
        item = self._items.get(event.output_index)
        if item is None:
            seed = msgspec.json.encode({"type": kind, "id": event.item_id})
            self._items[event.output_index] = item = _Item(Raw(seed), done=False)
        return item if item.raw is None else None

    def _part(self, event: Any, name: str) -> None:
        item = self._open(event, "message" if name == "content" else "reasoning")
        if item is not None:
            item.set_part(name, getattr(event, _INDEX[name]), _object(event.part))

    def _grow(self, event: Any, growth: _Growth) -> None:
        item = self._open(event, growth.item)
        if item is None:
            return
        name = growth.parts
        index = -1 if name is None else getattr(event, _INDEX[name])
        key = (name or "", index, growth.member)
        if name is not None and (name, index) not in item.parts:
            item.set_part(name, index, {"type": growth.part, growth.member: ""})
        text = item.texts.get(key)
        if text is None:
            item.texts[key] = text = _Text(str(item.members.get(growth.member) or ""))
        piece = getattr(event, "delta", None)
        if piece is None:
            item.texts[key] = _Text(getattr(event, growth.member))
        else:
            text.pieces.append(piece)


def _object(raw: Raw) -> dict[str, Any]:
    try:
        said = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _text_of(item: dict[str, Any]) -> str:
    content = item.get("content") if item.get("type", "message") == "message" else None
    if isinstance(content, str):
        return content
    parts = [part for part in content or () if isinstance(part, dict)]
    texts = [part.get("text") for part in parts if part.get("type") == "output_text"]
    return "".join(text for text in texts if isinstance(text, str))
