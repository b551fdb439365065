"""Events of a Responses stream, to deltas.

Items come one after the other, as everywhere that speaks this API; what an upstream leaves out of
the stream and has in a whole item is taken from there. Items of tools that the upstream runs by
itself, and those of types that we do not know, are passed on whole. Those that a client would
have to answer are passed over: its answer would not reach the upstream.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, structs

from tieline.codecs.json import check
from tieline.errors import ApiError
from tieline.items import OUTPUT_KINDS, VIEWS, decode
from tieline_server.core.create.tools import Tool
from tieline_server.core.deltas import (
    TOOL_SEARCH,
    Annotation,
    CallDelta,
    CallKind,
    CallStart,
    Delta,
    Finish,
    FinishReason,
    ItemEnd,
    Phase,
    ReasoningDelta,
    RefusalDelta,
    SummaryDelta,
    TextDelta,
    WholeItem,
)
from tieline_server.engines.upstream.answer import tokens_of
from tieline_server.engines.upstream.calls import custom_input, is_arguments
from tieline_server.engines.upstream.chunks import DONE
from tieline_server.engines.upstream.faults import (
    broken_call,
    cut,
    malformed,
    refused,
    said_of,
    status_in,
)
from tieline_server.engines.upstream.logprobs import given
from tieline_server.engines.upstream.mending import Mender, lenient, sound, written
from tieline_server.engines.upstream.stated import ResponseUsage, readable

NULL: Final = Raw(b"null")


class _Part(Struct, frozen=True):
    text: str | None = None
    refusal: str | None = None
    annotations: list[Raw] | None = None


class _Item(Struct, frozen=True):
    type: str = ""
    status: str | None = None
    name: str | None = None
    namespace: str | None = None
    phase: Any = None
    arguments: Any = None
    input: Any = None
    content: list[_Part] | None = None
    summary: list[_Part] | None = None


class _Typed(Struct, frozen=True):
    type: str = ""
    execution: Any = None


class _Event(Struct, frozen=True):
    type: str = ""
    delta: Any = None
    item: Raw = NULL
    response: Raw = NULL
    logprobs: list[Raw] | None = None
    annotation: Raw = NULL
    error: Any = None


class _Reason(Struct, frozen=True):
    reason: str | None = None


class _Response(Struct, frozen=True):
    id: str | None = None
    status: str | None = None
    usage: ResponseUsage | None = None
    incomplete_details: _Reason | None = None
    error: Any = None


class _Whole(Struct, frozen=True):
    output: list[Raw] | None = None


_event: Final = msgspec.json.Decoder(_Event)
_typed: Final = msgspec.json.Decoder(_Typed)
_item: Final = msgspec.json.Decoder(_Item)
_response: Final = msgspec.json.Decoder(_Response)
_whole: Final = msgspec.json.Decoder(_Whole)

Remember = Callable[[str, tuple[str, ...]], None]
"""Takes the upstream's id of a whole response, and the types of its items as we have them."""


class _Call:
    """A call that is being written."""

    __slots__ = ("pieces", "tool", "type")

    def __init__(self, item: _Item, tool: Tool | None) -> None:
        self.type = item.type
        self.tool = tool
        self.pieces: list[str] = []

    @property
    def wrapped(self) -> bool:
        """Whether it is a custom tool's that the upstream knows as a function."""
        custom = self.tool is not None and self.tool.type == "custom"
        return custom and self.type == "function_call"


class ResponseAnswer:
    """Reads one answer. ``tools`` are those that were sent, ``remember`` hears of a whole one."""

    __slots__ = (
        "_call",
        "_kind",
        "_kinds",
        "_logprobs",
        "_mender",
        "_notes",
        "_phase",
        "_remember",
        "_response",
        "_said",
        "_tools",
        "done",
        "moved",
    )

    def __init__(
        self,
        tools: Mapping[str, Tool],
        remember: Remember | None = None,
        *,
        logprobs: bool = False,
    ) -> None:
        self._tools = tools
        self._mender = Mender()
        self._logprobs = logprobs
        self._remember = remember
        self._response: _Response | None = None
        self._call: _Call | None = None
        self._kind = ""
        """Type of the open item, as far as it said something."""
        self._said = False
        """Whether something of the open item was passed on."""
        self._phase: list[Delta] = []
        """What the message that has begun is for; its first piece says so."""
        self._notes: list[Raw] = []
        """Annotations of the open message; they follow its text."""
        self._kinds: list[str] = []
        self.done = False
        """Whether the upstream said that nothing more comes."""
        self.moved = False
        """Whether something came that is held back, or that tells of work."""

    @property
    def finished(self) -> bool:
        """Whether the model has ended."""
        return self._response is not None

    @property
    def stated(self) -> int:
        """Output tokens of which the upstream has said so far that there are."""
        usage = self._response.usage if self._response is not None else None
        return 0 if usage is None else usage.output_tokens or 0

    def read(self, events: Iterable[bytes]) -> list[Delta]:
        """The deltas of some events. Raises :class:`Failure`."""
        deltas: list[Delta] = []
        for data in events:
            if data == DONE:
                break
            try:
                event = None if self._mender.halves else _event.decode(data)
            except (msgspec.MsgspecError, RecursionError):
                event = None
            try:
                if event is not None:
                    self._hear(event, data, deltas)
                elif data:
                    for each in self._mender.event(data):
                        self._hear(_event.decode(each), each, deltas)
            except (msgspec.MsgspecError, RecursionError):
                raise malformed() from None
        return deltas

    def _hear(self, event: _Event, data: bytes, deltas: list[Delta]) -> None:
        handle = _HANDLERS.get(event.type)
        if handle is not None:
            handle(self, event, deltas)
        elif event.type == "error" or event.error is not None:
            said = said_of(event.error or lenient(data))
            raise refused(status_in(said), said)
        if event.type not in _LIVES:
            self.moved = True

    def end(self, phases: dict[str, int]) -> list[Delta]:
        """The last step. Raises :class:`Failure` where the answer is not whole."""
        response = self._response
        if response is None:
            raise cut()
        deltas: list[Delta] = []
        reason = _reason_of(response)
        if reason == "stop":
            self._close(_Item(), deltas)
            if self._remember is not None and response.id is not None:
                self._remember(response.id, tuple(self._kinds))
        usage = response.usage or ResponseUsage()
        cached, thought = usage.input_tokens_details, usage.output_tokens_details
        finish = Finish(
            reason=reason,
            input_tokens=usage.input_tokens,
            cached_tokens=cached.cached_tokens if cached is not None else None,
            written_tokens=cached.cache_write_tokens if cached is not None else None,
            output_tokens=usage.output_tokens,
            reasoning_tokens=thought.reasoning_tokens if thought is not None else None,
            phases=phases,
        )
        return [*deltas, finish]

    # Kinds of events.

    def _on_added(self, event: _Event, deltas: list[Delta]) -> None:
        self._close(_Item(), deltas)
        item = self._item_in(event.item)
        self._open(item, deltas)
        self._phase = _phase_of(item)

    def _on_annotation(self, event: _Event, deltas: list[Delta]) -> None:
        self._notes.append(event.annotation)

    def _on_text(self, event: _Event, deltas: list[Delta]) -> None:
        text = self._says("message", event, deltas)
        logprobs = event.logprobs if self._logprobs else None
        deltas.append(TextDelta(text, tokens_of(text), given(logprobs) if logprobs else ()))

    def _on_refusal(self, event: _Event, deltas: list[Delta]) -> None:
        text = self._says("message", event, deltas)
        deltas.append(RefusalDelta(text, tokens_of(text)))

    def _on_reasoning(self, event: _Event, deltas: list[Delta]) -> None:
        text = self._says("reasoning", event, deltas)
        deltas.append(ReasoningDelta(text, tokens_of(text)))

    def _on_summary(self, event: _Event, deltas: list[Delta]) -> None:
        deltas.append(SummaryDelta(self._says("reasoning", event, deltas)))

    def _on_call(self, event: _Event, deltas: list[Delta]) -> None:
        call = self._call
        if call is None or not isinstance(event.delta, str):
            raise malformed()
        call.pieces.append(event.delta)
        if not call.wrapped:
            deltas.append(CallDelta(event.delta, tokens_of(event.delta)))

    def _on_done(self, event: _Event, deltas: list[Delta]) -> None:
        self._take(event.item, deltas)

    def _take(self, raw: Raw, deltas: list[Delta]) -> None:
        """An item is whole."""
        item = self._item_in(raw)
        if item.type not in _OURS:
            self._pass_on(item.type, raw, deltas)
            return
        if item.type in _CALLS and self._call is None:
            self._open(item, deltas)
        elif not self._said:
            self._whole(item, deltas)
        # What is cut stays open: the end of the response says why.
        if item.status != "incomplete":
            self._close(item, deltas)

    def _on_end(self, event: _Event, deltas: list[Delta]) -> None:
        response = _response_in(event.response)
        if response.status in ("failed", "cancelled") or response.error is not None:
            said = said_of(response.error)
            raise refused(status_in(said), said)
        if not (self._kinds or self._said or self._call):
            # No event has said anything: who does not stream has it all in the last one.
            for item in _whole.decode(event.response).output or ():
                self._take(item, deltas)
        self._response = response
        self.done = True

    # What they come to.

    def _item_in(self, raw: Raw) -> _Item:
        """An item; of a type that is passed over, its type alone."""
        typed = _typed.decode(raw)
        if typed.type in _OURS:
            return _item.decode(raw)
        if typed.type == _SEARCH and typed.execution == "client" and TOOL_SEARCH in self._tools:
            # The search is a function that we offered, whatever the upstream makes of its name.
            return structs.replace(_item.decode(raw), type="function_call", name=TOOL_SEARCH)
        return _Item(typed.type)

    def _says(self, kind: str, event: _Event, deltas: list[Delta]) -> str:
        if not isinstance(event.delta, str) or self._call is not None:
            raise malformed()
        if self._phase:
            deltas += self._phase
            self._phase = []
        self._said = True
        self._kind = kind
        return event.delta

    def _open(self, item: _Item, deltas: list[Delta]) -> None:
        self._said = False
        self._notes = []
        if item.type not in _CALLS:
            return
        if not item.name:
            raise malformed()
        tool = self._tools.get(item.name)
        self._call = _Call(item, tool)
        self._kind = kind = _kind_of(item, tool)
        deltas.append(
            CallStart(
                kind=kind,
                name=tool.name or item.name if tool is not None else item.name,
                namespace=tool.namespace if tool is not None else item.namespace,
            )
        )

    def _whole(self, item: _Item, deltas: list[Delta]) -> None:
        """What an item holds that no event has said."""
        before = len(deltas)
        if item.type == "message":
            for part in item.content or ():
                if part.text:
                    deltas.append(TextDelta(part.text, tokens_of(part.text)))
                elif part.refusal:
                    deltas.append(RefusalDelta(part.refusal, tokens_of(part.refusal)))
        elif item.type == "reasoning":
            deltas += [SummaryDelta(part.text) for part in item.summary or () if part.text]
            thoughts = [part.text for part in item.content or () if part.text]
            deltas += [ReasoningDelta(text, tokens_of(text)) for text in thoughts]
        else:
            return
        if len(deltas) > before:
            deltas[before:before] = _phase_of(item)
            self._said, self._kind = True, item.type

    def _close(self, item: _Item, deltas: list[Delta]) -> None:
        """Nothing more comes of the open item; ``item`` is what is known of it as a whole."""
        call, self._call = self._call, None
        if call is not None:
            self._end_call(call, item, deltas)
        elif not self._said:
            return
        elif self._kind == "message":
            deltas += _phase_of(item)
            parts = [part.annotations or [] for part in item.content or ()]
            notes = [note for each in parts for note in each] or self._notes
            deltas += [Annotation(_checked(note)) for note in notes if bytes(note)[:1] == b"{"]
        deltas.append(ItemEnd())
        self._kinds.append(self._kind)
        self._said = False

    def _pass_on(self, kind: str, raw: Raw, deltas: list[Delta]) -> None:
        """An item that stays as it is."""
        self._close(_Item(), deltas)
        if kind in _NO_OUTPUT:
            return
        try:
            item = decode(_checked(raw))
        except ApiError:
            raise malformed() from None
        if item.opens is None:
            deltas.append(WholeItem(item))
            self._kinds.append(kind)

    def _end_call(self, call: _Call, item: _Item, deltas: list[Delta]) -> None:
        text = "".join(call.pieces)
        whole = item.input if call.type == "custom_tool_call" else written(item.arguments)
        if not text and isinstance(whole, str) and whole:
            text = whole
            if not call.wrapped:
                deltas.append(CallDelta(text, tokens_of(text)))
        if call.wrapped:
            deltas.append(CallDelta(custom_input(text), max(1, len(call.pieces))))
        elif call.type == "function_call":
            if not text.strip():
                deltas.append(CallDelta("{}", tokens=0))
            elif not is_arguments(text, _kind_of(item, call.tool)):
                raise broken_call()


_LIVES: Final = frozenset(
    {"keepalive", "response.created", "response.queued", "response.in_progress"}
)
"""Types of events that say no more than a comment does."""

_NO_OUTPUT: Final = frozenset({"", *VIEWS, *OUTPUT_KINDS})
"""Types of items that have their own way, or that only a client says."""

_OUTER: Final = 8
"""Levels of JSON that stand around an item, or around an annotation in it, at the most."""

_SEARCH: Final = "tool_search_call"

_CALLS: Final = ("function_call", "custom_tool_call")

_OURS: Final = frozenset({*_CALLS, "message", "reasoning"})
"""Types of items that are said anew, piece by piece."""

_HANDLERS: Final[dict[str, Callable[[ResponseAnswer, _Event, list[Delta]], None]]] = {
    "response.output_item.added": ResponseAnswer._on_added,
    "response.output_text.delta": ResponseAnswer._on_text,
    "response.output_text.annotation.added": ResponseAnswer._on_annotation,
    "response.refusal.delta": ResponseAnswer._on_refusal,
    "response.reasoning_text.delta": ResponseAnswer._on_reasoning,
    "response.reasoning.delta": ResponseAnswer._on_reasoning,
    "response.reasoning_summary_text.delta": ResponseAnswer._on_summary,
    "response.function_call_arguments.delta": ResponseAnswer._on_call,
    "response.custom_tool_call_input.delta": ResponseAnswer._on_call,
    "response.output_item.done": ResponseAnswer._on_done,
    "response.completed": ResponseAnswer._on_end,
    "response.incomplete": ResponseAnswer._on_end,
    "response.failed": ResponseAnswer._on_end,
}
"""Type of event -> who reads it; any other says nothing that we pass on."""


def _kind_of(item: _Item, tool: Tool | None) -> CallKind:
    """The type of a call as the client knows it."""
    if item.type == "custom_tool_call":
        return "custom_tool_call"
    return "function_call" if tool is None else tool.call_kind


def _phase_of(item: _Item) -> list[Delta]:
    """What a message is for, where that is said."""
    said = item.type == "message" and isinstance(item.phase, str)
    return [Phase(item.phase)] if said else []


def _response_in(raw: Raw) -> _Response:
    try:
        return _response.decode(raw)
    except msgspec.ValidationError:
        response = lenient(raw)
        if not isinstance(response, dict):
            raise
        # It may be usage alone that is not of its form.
        usage = readable(response.get("usage"))
        return msgspec.convert({**response, "usage": usage}, _Response)


def _checked(raw: Raw) -> Raw:
    """Checks what goes on as it came, and was not looked into yet. Raises :class:`Failure`."""
    try:
        check(bytes(raw), outer=_OUTER)
    except ApiError:
        pass
    else:
        return raw
    try:
        mended = sound(raw)
        check(mended, outer=_OUTER)
    except (msgspec.MsgspecError, RecursionError, ApiError):
        raise malformed() from None
    return Raw(mended)


def _reason_of(response: _Response) -> FinishReason:
    """Why it ended. A reason that we do not know is a limit of the upstream's."""
    details = response.incomplete_details
    if response.status != "incomplete" and details is None:
        return "stop"
    reason = details.reason if details is not None else None
    return "content_filter" if reason == "content_filter" else "length"
