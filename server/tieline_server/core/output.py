"""From deltas to events: opens, fills and closes the output items of a response.

The order of events for each kind of item is wire.md 3.2. An item is open from its
``output_item.added`` to its ``output_item.done``; only one is open at a time. Parts and items
are encoded once, when they close, and those very bytes go into the stream, the final snapshot
and the store, so that an id or an argument can never differ between them.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from tieline import events, ids, items
from tieline.items import Item
from tieline_server.core import deltas

Push = Callable[..., None]

_encode: Final = msgspec.json.Encoder().encode


_ITEM_OF: Final[dict[type, str]] = {
    deltas.TextDelta: "message",
    deltas.RefusalDelta: "message",
    deltas.ReasoningDelta: "reasoning",
    deltas.SummaryDelta: "reasoning",
    deltas.CallStart: "call",
}
"""The kind of item that a delta belongs in; a call start always begins its own."""


def _text_part(text: str, logprobs: list[Raw]) -> Raw:
    members = {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
    return Raw(_encode(members))


_PART_STARTS: Final = {
    "output_text": _text_part("", []),
    "refusal": Raw(b'{"type":"refusal","refusal":""}'),
    "reasoning_text": Raw(b'{"type":"reasoning_text","text":""}'),
    "summary_text": Raw(b'{"type":"summary_text","text":""}'),
}


class Open:
    """An item that is being written: its id and index, and the part that grows."""

    __slots__ = ("call", "content", "id", "index", "kind", "logprobs", "part", "pieces", "summary")

    def __init__(self, kind: str, item_id: str, index: int) -> None:
        self.kind = kind
        self.id = item_id
        self.index = index
        self.part: str | None = None
        """Type of the part that grows, or None between parts."""
        self.pieces: list[str] = []
        self.logprobs: list[Raw] = []
        self.content: list[Raw] = []
        self.summary: list[Raw] = []
        self.call: dict[str, Any] = {}

    def members(self, status: str) -> dict[str, Any]:
        """The item as it stands, as JSON members."""
        head = {"id": self.id, "type": self.kind, "status": status}
        if self.kind == "message":
            return {**head, "role": "assistant", "content": self.content}
        if self.kind == "reasoning":
            body = {"summary": self.summary, "content": self.content, "encrypted_content": None}
            return {**head, **body}
        text = "arguments" if self.kind == "function_call" else "input"
        return {**head, **self.call, text: "".join(self.pieces)}


class Output:
    """The output of one response, across all its samplings.

    ``push(event class, **members)`` numbers and queues; ``new_id(prefix)`` makes ids.
    """

    __slots__ = ("_handlers", "_new_id", "_push", "calls", "done", "kept", "open", "raws")

    def __init__(self, push: Push, new_id: Callable[[str], str]) -> None:
        self._push = push
        self._new_id = new_id
        self.open: Open | None = None
        self.done: list[Item] = []
        """Items that are whole (or were cut), in order of output_index."""
        self.raws: list[Raw] = []
        """Their JSON, as a snapshot carries it."""
        self.kept: list[Item] = []
        """Items that go into the chain with the next link."""
        self.calls = 0
        """Tool calls so far."""
        self._handlers: dict[type, Callable[[Any], None]] = {
            deltas.TextDelta: self._on_text,
            deltas.RefusalDelta: self._on_refusal,
            deltas.ReasoningDelta: self._on_reasoning,
            deltas.SummaryDelta: self._on_summary,
            deltas.CallStart: self._on_call_start,
            deltas.CallDelta: self._on_call_delta,
            deltas.ItemEnd: self._on_item_end,
        }

    def feed(self, delta: deltas.Delta) -> None:
        """Takes one delta."""
        self._handlers[type(delta)](delta)

    def begins_an_item(self, delta: deltas.Delta) -> bool:
        """Whether ``delta`` begins an item of its own."""
        kind = _ITEM_OF.get(type(delta)) if getattr(delta, "text", " ") else None
        return kind is not None and (self.open is None or kind != self.open.kind)

    def close(self, status: str) -> None:
        """Closes the open item, if any: ``completed`` by itself, ``incomplete`` when cut.

        Of a cut response only its message text stays in the chain: half a call or half a
        thought would mislead the next turn (design: state rules).
        """
        item = self.open
        if item is None:
            return
        self._end_part(item)
        if item.kind in ("function_call", "custom_tool_call"):
            self._end_call(item)
        whole = items.decode(_encode(item.members(status)))
        self.open = None
        self.done.append(whole)
        self.raws.append(Raw(whole.raw))
        if status == "completed" or item.kind == "message":
            self.kept.append(whole)
        self._push(events.OutputItemDone, output_index=item.index, item=Raw(whole.raw))

    @property
    def has_open_calls(self) -> bool:
        """Whether calls that the client runs wait for their outputs."""
        open_call = self.open is not None and self.open.kind in items.CALL_KINDS
        return open_call or any(item.opens is not None for item in self.kept)

    def take_kept(self) -> tuple[Item, ...]:
        """The items that the chain has not got yet."""
        kept = tuple(self.kept)
        self.kept.clear()
        return kept

    # One handler for each kind of delta.

    def _on_text(self, delta: deltas.TextDelta) -> None:
        text = delta.text
        if not text:
            return
        item = self.open
        if item is None or item.part != "output_text" or item.kind != "message":
            item = self._in_part("message", "output_text")
        item.pieces.append(text)
        logprobs = events.NO_LOGPROBS
        if delta.logprobs:
            logprobs = list(delta.logprobs)
            item.logprobs += logprobs
        self._push(
            events.OutputTextDelta,
            item_id=item.id,
            output_index=item.index,
            content_index=len(item.content),
            delta=text,
            logprobs=logprobs,
        )

    def _on_refusal(self, delta: deltas.RefusalDelta) -> None:
        self._grow("message", "refusal", events.RefusalDelta, delta.text)

    def _on_reasoning(self, delta: deltas.ReasoningDelta) -> None:
        self._grow("reasoning", "reasoning_text", events.ReasoningTextDelta, delta.text)

    def _on_summary(self, delta: deltas.SummaryDelta) -> None:
        kind = events.ReasoningSummaryTextDelta
        self._grow("reasoning", "summary_text", kind, delta.text)

    def _on_call_start(self, delta: deltas.CallStart) -> None:
        self.close("completed")
        prefix = ids.FUNCTION_CALL if delta.kind == "function_call" else ids.CUSTOM_TOOL_CALL
        call = {"call_id": self._new_id(ids.CALL), "name": delta.name}
        if delta.namespace is not None:
            call["namespace"] = delta.namespace
        self._begin(delta.kind, prefix, call)
        self.calls += 1

    def _on_call_delta(self, delta: deltas.CallDelta) -> None:
        item = self.open
        assert item is not None, "a call delta follows its call start"
        item.pieces.append(delta.text)
        kind = (
            events.FunctionCallArgumentsDelta
            if item.kind == "function_call"
            else events.CustomToolCallInputDelta
        )
        if delta.text:
            self._push(kind, item_id=item.id, output_index=item.index, delta=delta.text)

    def _on_item_end(self, delta: deltas.ItemEnd) -> None:
        self.close("completed")

    # Items and parts.

    def _grow(self, kind: str, part: str, event: type[events.Event], text: str) -> None:
        if not text:
            return
        item = self._in_part(kind, part)
        item.pieces.append(text)
        self._push(event, delta=text, **self._place(item))

    def _in_part(self, kind: str, part: str) -> Open:
        """The open item of this kind with this part open."""
        item = self.open
        if item is None or item.kind != kind:
            self.close("completed")
            prefix = ids.MESSAGE if kind == "message" else ids.REASONING
            item = self._begin(kind, prefix, {})
        if item.part != part:
            self._end_part(item)
            item.part = part
            added = (
                events.ReasoningSummaryPartAdded
                if part == "summary_text"
                else events.ContentPartAdded
            )
            self._push(added, part=_PART_STARTS[part], **self._place(item))
        return item

    def _begin(self, kind: str, prefix: str, call: dict[str, Any]) -> Open:
        item = self.open = Open(kind, self._new_id(prefix), len(self.done))
        item.call = call
        start = Raw(_encode(item.members("in_progress")))
        self._push(events.OutputItemAdded, output_index=item.index, item=start)
        return item

    def _place(self, item: Open) -> dict[str, Any]:
        """Where the open part is: the members that all its events share."""
        place = {"item_id": item.id, "output_index": item.index}
        if item.part == "summary_text":
            return {**place, "summary_index": len(item.summary)}
        return {**place, "content_index": len(item.content)}

    def _end_part(self, item: Open) -> None:
        """Closes the open part: its ``done``, then the part's ``done``."""
        if item.part is None:
            return
        text, place = "".join(item.pieces), self._place(item)
        if item.part == "output_text":
            part = _text_part(text, item.logprobs)
            self._push(events.OutputTextDone, text=text, logprobs=item.logprobs, **place)
        elif item.part == "refusal":
            part = Raw(_encode({"type": "refusal", "refusal": text}))
            self._push(events.RefusalDone, refusal=text, **place)
        else:
            part = Raw(_encode({"type": item.part, "text": text}))
            summary = item.part == "summary_text"
            done = events.ReasoningSummaryTextDone if summary else events.ReasoningTextDone
            self._push(done, text=text, **place)
        summary = item.part == "summary_text"
        ended = events.ReasoningSummaryPartDone if summary else events.ContentPartDone
        self._push(ended, part=part, **place)
        (item.summary if summary else item.content).append(part)
        item.part, item.pieces, item.logprobs = None, [], []

    def _end_call(self, item: Open) -> None:
        text = "".join(item.pieces)
        place: dict[str, Any] = {"item_id": item.id, "output_index": item.index}
        if item.kind == "function_call":
            self._push(events.FunctionCallArgumentsDone, arguments=text, **place)
        else:
            self._push(events.CustomToolCallInputDone, input=text, **place)
