"""From deltas to events: opens, fills and closes the output items of a response.

The order of events for each kind of item is wire.md 3.2. An item is open from its
``output_item.added`` to its ``output_item.done``; only one is open at a time. Parts and items
are encoded once, when they close, and those very bytes go into the stream, the final snapshot
and the store, so that an id or an argument can never differ between them.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import Raw, structs

from tieline import events, ids, items
from tieline.items import Item
from tieline_server.core import deltas
from tieline_server.core.history import sealed
from tieline_server.core.stream.open_item import Open, Text
from tieline_server.core.stream.outbox import Outbox

_encode: Final = msgspec.json.Encoder().encode


# The kind of item that a delta belongs in; a call start, or a whole item, begins its own.
_ITEM_OF: Final[dict[type, str]] = {
    deltas.TextDelta: "message",
    deltas.RefusalDelta: "message",
    deltas.ReasoningDelta: "reasoning",
    deltas.SummaryDelta: "reasoning",
    deltas.CallStart: "call",
    deltas.WholeItem: "whole",
}


def _text_part(text: str, annotations: list[Raw], logprobs: list[Raw]) -> Raw:
    members = {
        "type": "output_text",
        "text": text,
        "annotations": annotations,
        "logprobs": logprobs,
    }
    return Raw(_encode(members))


_PART_STARTS: Final = {
    "output_text": _text_part("", [], []),
    "refusal": Raw(b'{"type":"refusal","refusal":""}'),
    "reasoning_text": Raw(b'{"type":"reasoning_text","text":""}'),
    "summary_text": Raw(b'{"type":"summary_text","text":""}'),
}


_PART_DELTAS: Final[dict[str, type[events.Event]]] = {
    "output_text": events.OutputTextDelta,
    "refusal": events.RefusalDelta,
    "reasoning_text": events.ReasoningTextDelta,
    "summary_text": events.ReasoningSummaryTextDelta,
}
# What grows -> the event of its next piece. A search for tools is told whole, at its end.
_CALL_DELTAS: Final[dict[str, type[events.Event]]] = {
    "function_call": events.FunctionCallArgumentsDelta,
    "custom_tool_call": events.CustomToolCallInputDelta,
}

# Kind of a call -> prefix of its id.
_PREFIXES: Final[dict[str, str]] = {
    "function_call": ids.FUNCTION_CALL,
    "custom_tool_call": ids.CUSTOM_TOOL_CALL,
    "tool_search_call": ids.TOOL_SEARCH_CALL,
}

_logprobs_of: Final = attrgetter("logprobs")


class Output:
    """The output of one response, across all its samplings. ``new_id(prefix)`` makes ids."""

    __slots__ = (
        "_new_id",
        "_outbox",
        "_short",
        "calls",
        "done",
        "foreign",
        "kept",
        "open",
        "phase",
        "raws",
        "seal",
    )

    def __init__(self, outbox: Outbox, new_id: Callable[[str], str]) -> None:
        self._outbox = outbox
        self._new_id = new_id
        self.open: Open | None = None
        self.done: list[Item] = []
        """Items that are whole (or were cut), in order of output_index."""
        self.raws: list[Raw] = []
        """Their JSON, as a snapshot carries it."""
        self.kept: list[Item] = []
        """Items that go into the chain with the next node."""
        # Ids of those that can be read to their end and say ``incomplete``.
        self._short: set[str] = set()
        self.phase: str | None = None
        """What the next message is for, where that is known."""
        self.calls = 0
        """Tool calls so far."""
        self.foreign = True
        """Whether items that came whole are shown."""
        self.seal: Callable[[bytes], str] | None = None
        """Seals whole reasoning, where the client asked for that."""

    def feed(self, run: Sequence[deltas.Delta]) -> None:
        """Takes deltas in order; those of one kind that follow each other, together."""
        # A paced engine says one thing at a time: no groups to make.
        if len(run) == 1:
            HANDLERS[type(run[0])](self, run)
            return
        for kind, some in groupby(run, type):
            HANDLERS[kind](self, list(some))

    def grow(self, delta: deltas.Delta) -> bool:
        """Takes one more piece of what is being said; False where the delta is anything else."""
        # Fast path of nearly every token: the item is open and this is one more piece of it. What
        # it leaves out, logprobs and empty pieces, ``feed`` does.
        item = self.open
        if item is None or type(delta) is not item.grows:
            return False
        text = delta.text
        if not text or getattr(delta, "logprobs", None):
            return False
        item.pieces.append(text)
        self._outbox.extend(item.make, (text,))
        return True

    def begins_an_item(self, delta: deltas.Delta) -> bool:
        """Whether ``delta`` begins an item of its own."""
        kind = _ITEM_OF.get(type(delta)) if getattr(delta, "text", " ") else None
        return kind is not None and (self.open is None or kind != self.open.kind)

    def close(self, status: str, *, kept: bool = False) -> None:
        """Closes the open item, if any: ``completed`` by itself, ``incomplete`` when cut.

        Of a cut response only its message text stays in the chain: half a call or half a
        thought would mislead the next turn (wire.md 4.4.4). What can be read to its end
        is ``kept`` all the same.
        """
        item = self.open
        if item is None:
            return
        self._end_part(item)
        if item.kind in _CALL_DELTAS:
            self._end_call(item)
        shape = item.shape(status)
        # A thought that was cut cannot be gone on with: it is not sealed for later.
        if item.kind == "reasoning" and status == "completed" and self.seal is not None:
            whole = sealed.thought(structs.asdict(shape), self.seal)
        else:
            whole = Item(raw=_encode(shape), type=item.kind, id=item.id, opens=item.call_id)
        self.open = None
        self.done.append(whole)
        self.raws.append(Raw(whole.raw))
        if status == "completed" or item.kind == "message" or kept:
            self.kept.append(whole)
            if kept and status != "completed":
                self._short.add(item.id)
        self._say_done(item.index, self.raws[-1])

    def cut(self) -> None:
        """Closes what is open of a response that is cut.

        Its client cannot tell a call that reached a bound from one that was cut: no call that
        says ``incomplete`` goes into the chain.
        """
        self.close("incomplete")
        self.kept = [each for each in self.kept if not each.opens or each.id not in self._short]

    def add(self, item: Item) -> None:
        """An item that is whole from the start; its node in the chain is made elsewhere."""
        index, raw = len(self.done), Raw(item.raw)
        self.done.append(item)
        self.raws.append(raw)
        self._say_added(index, raw)
        self._say_done(index, raw)

    @property
    def has_open_calls(self) -> bool:
        """Whether calls that the client runs wait for their outputs."""
        open_call = self.open is not None and self.open.kind in items.CALL_KINDS
        return open_call or any(item.opens is not None for item in self.kept)

    def take_kept(self) -> tuple[Item, ...]:
        """The items that the chain has not got yet."""
        # A copy: the list goes on with the next sampling.
        kept = tuple(self.kept)
        self.kept.clear()
        return kept

    # One handler for each kind of delta.

    def _on_text(self, run: list[deltas.TextDelta]) -> None:
        if any(map(_logprobs_of, run)):
            for delta in run:
                self._on_logprobs(delta)
            return
        self._grow("message", "output_text", run)

    def _on_logprobs(self, delta: deltas.TextDelta) -> None:
        """Text with its logprobs is an event of its own."""
        if not delta.text:
            return
        item = self._in_part("message", "output_text")
        item.pieces.append(delta.text)
        item.logprobs += delta.logprobs
        box = self._outbox
        box.push(
            events.OutputTextDelta(
                sequence_number=box.count,
                stream_id=box.stream_id,
                item_id=item.id,
                output_index=item.index,
                content_index=len(item.content),
                delta=delta.text,
                logprobs=delta.logprobs,
            )
        )

    def _on_refusal(self, run: list[deltas.RefusalDelta]) -> None:
        self._grow("message", "refusal", run)

    def _on_reasoning(self, run: list[deltas.ReasoningDelta]) -> None:
        self._grow("reasoning", "reasoning_text", run)

    def _on_summary(self, run: list[deltas.SummaryDelta]) -> None:
        self._grow("reasoning", "summary_text", run)

    def _on_call_start(self, run: list[deltas.CallStart]) -> None:
        for delta in run:
            self.close("completed")
            item = self._begin(delta.kind, _PREFIXES[delta.kind], delta)
            self.calls += 1
            if (grows := _CALL_DELTAS.get(delta.kind)) is not None:
                item.make = self._outbox.call_maker(grows, item_id=item.id, output_index=item.index)
                item.grows = deltas.CallDelta

    def _on_call_delta(self, run: list[deltas.CallDelta]) -> None:
        item = self.open
        assert item is not None, "a call delta follows its call start"
        if texts := [delta.text for delta in run if delta.text]:
            item.pieces += texts
            if item.grows is not None:
                self._outbox.extend(item.make, texts)

    def _on_phase(self, run: list[deltas.Phase]) -> None:
        item, phase = self.open, run[-1].name
        # Said before its message begins, it waits for that.
        if item is not None and item.kind == "message":
            item.phase = phase
        else:
            self.phase = phase

    def _on_annotation(self, run: list[deltas.Annotation]) -> None:
        item, box = self._in_part("message", "output_text"), self._outbox
        for delta in run:
            box.push(
                events.OutputTextAnnotationAdded(
                    sequence_number=box.count,
                    stream_id=box.stream_id,
                    item_id=item.id,
                    output_index=item.index,
                    content_index=len(item.content),
                    annotation_index=len(item.annotations),
                    annotation=delta.raw,
                )
            )
            item.annotations.append(delta.raw)

    def _on_whole_item(self, run: list[deltas.WholeItem]) -> None:
        self.close("completed")
        # A strict profile knows no items but its own; the chain goes without them as well.
        for delta in run if self.foreign else ():
            self.add(delta.item)
            self.kept.append(delta.item)

    def _on_item_end(self, run: list[deltas.ItemEnd]) -> None:
        self.close("incomplete" if run[0].incomplete else "completed", kept=True)

    # Items and parts.

    def _grow(self, kind: str, part: str, run: Sequence[Text]) -> None:
        if texts := [delta.text for delta in run if delta.text]:
            item = self._in_part(kind, part)
            item.grows = type(run[0])
            item.pieces += texts
            self._outbox.extend(item.make, texts)

    def _in_part(self, kind: str, part: str) -> Open:
        """The open item of this kind with this part open."""
        item = self.open
        if item is not None and item.part == part and item.kind == kind:
            return item
        if item is None or item.kind != kind:
            self.close("completed")
            prefix = ids.MESSAGE if kind == "message" else ids.REASONING
            item = self._begin(kind, prefix)
        self._end_part(item)
        self._begin_part(item, part)
        return item

    def _begin(self, kind: str, prefix: str, call: deltas.CallStart | None = None) -> Open:
        # The server's own ids, whatever the engine calls it: they are unique in every chain.
        call_id = None if call is None else self._new_id(ids.CALL)
        item = self.open = Open(kind, self._new_id(prefix), len(self.done))
        item.call, item.call_id = call, call_id
        if kind == "message":
            item.phase, self.phase = self.phase, None
        self._say_added(item.index, Raw(_encode(item.shape("in_progress"))))
        return item

    def _begin_part(self, item: Open, part: str) -> None:
        item.part = part
        box, start = self._outbox, _PART_STARTS[part]
        if part == "summary_text":
            index = len(item.summary)
            item.make = box.summary_maker(
                _PART_DELTAS[part], item_id=item.id, output_index=item.index, summary_index=index
            )
            box.push(
                events.ReasoningSummaryPartAdded(
                    sequence_number=box.count,
                    stream_id=box.stream_id,
                    item_id=item.id,
                    output_index=item.index,
                    summary_index=index,
                    part=start,
                )
            )
            return
        index = len(item.content)
        item.make = box.content_maker(
            _PART_DELTAS[part], item_id=item.id, output_index=item.index, content_index=index
        )
        box.push(
            events.ContentPartAdded(
                sequence_number=box.count,
                stream_id=box.stream_id,
                item_id=item.id,
                output_index=item.index,
                content_index=index,
                part=start,
            )
        )

    def _end_part(self, item: Open) -> None:
        """Closes the open part: its ``done``, then the part's ``done``."""
        part = item.part
        if part is None:
            return
        text = "".join(item.pieces)
        if part == "summary_text":
            self._end_summary(item, text)
        else:
            self._end_content(item, part, text)
        item.part, item.grows, item.pieces, item.logprobs = None, None, [], []
        item.annotations = []

    def _end_summary(self, item: Open, text: str) -> None:
        box, index = self._outbox, len(item.summary)
        box.push(
            events.ReasoningSummaryTextDone(
                sequence_number=box.count,
                stream_id=box.stream_id,
                item_id=item.id,
                output_index=item.index,
                summary_index=index,
                text=text,
            )
        )
        whole = Raw(_encode({"type": "summary_text", "text": text}))
        item.summary.append(whole)
        box.push(
            events.ReasoningSummaryPartDone(
                sequence_number=box.count,
                stream_id=box.stream_id,
                item_id=item.id,
                output_index=item.index,
                summary_index=index,
                part=whole,
            )
        )

    def _end_content(self, item: Open, part: str, text: str) -> None:
        box, index = self._outbox, len(item.content)
        done, whole = _CONTENT_ENDS[part](box, item, text)
        box.push(done)
        item.content.append(whole)
        box.push(
            events.ContentPartDone(
                sequence_number=box.count,
                stream_id=box.stream_id,
                item_id=item.id,
                output_index=item.index,
                content_index=index,
                part=whole,
            )
        )

    def _end_call(self, item: Open) -> None:
        text, box = "".join(item.pieces), self._outbox
        if item.kind == "function_call":
            box.push(
                events.FunctionCallArgumentsDone(
                    sequence_number=box.count,
                    stream_id=box.stream_id,
                    item_id=item.id,
                    output_index=item.index,
                    arguments=text,
                )
            )
        else:
            box.push(
                events.CustomToolCallInputDone(
                    sequence_number=box.count,
                    stream_id=box.stream_id,
                    item_id=item.id,
                    output_index=item.index,
                    input=text,
                )
            )

    def _say_added(self, index: int, item: Raw) -> None:
        box = self._outbox
        box.push(
            events.OutputItemAdded(
                sequence_number=box.count, stream_id=box.stream_id, output_index=index, item=item
            )
        )

    def _say_done(self, index: int, item: Raw) -> None:
        box = self._outbox
        box.push(
            events.OutputItemDone(
                sequence_number=box.count, stream_id=box.stream_id, output_index=index, item=item
            )
        )
        if box.log is not None:
            box.log.count(len(item))


def _text_ends(box: Outbox, item: Open, text: str) -> tuple[events.Event, Raw]:
    done = events.OutputTextDone(
        sequence_number=box.count,
        stream_id=box.stream_id,
        item_id=item.id,
        output_index=item.index,
        content_index=len(item.content),
        text=text,
        logprobs=tuple(item.logprobs),
    )
    return done, _text_part(text, item.annotations, item.logprobs)


def _refusal_ends(box: Outbox, item: Open, text: str) -> tuple[events.Event, Raw]:
    done = events.RefusalDone(
        sequence_number=box.count,
        stream_id=box.stream_id,
        item_id=item.id,
        output_index=item.index,
        content_index=len(item.content),
        refusal=text,
    )
    return done, Raw(_encode({"type": "refusal", "refusal": text}))


def _reasoning_ends(box: Outbox, item: Open, text: str) -> tuple[events.Event, Raw]:
    done = events.ReasoningTextDone(
        sequence_number=box.count,
        stream_id=box.stream_id,
        item_id=item.id,
        output_index=item.index,
        content_index=len(item.content),
        text=text,
    )
    return done, Raw(_encode({"type": "reasoning_text", "text": text}))


# Part of the content -> the event that ends its text, and the part as it then is.
_CONTENT_ENDS: Final = {
    "output_text": _text_ends,
    "refusal": _refusal_ends,
    "reasoning_text": _reasoning_ends,
}

HANDLERS: Final[dict[type, Callable[[Output, Any], None]]] = {
    deltas.TextDelta: Output._on_text,
    deltas.RefusalDelta: Output._on_refusal,
    deltas.ReasoningDelta: Output._on_reasoning,
    deltas.SummaryDelta: Output._on_summary,
    deltas.CallStart: Output._on_call_start,
    deltas.CallDelta: Output._on_call_delta,
    deltas.Phase: Output._on_phase,
    deltas.Annotation: Output._on_annotation,
    deltas.WholeItem: Output._on_whole_item,
    deltas.ItemEnd: Output._on_item_end,
}
"""Kind of delta -> who takes a run of them."""
