"""Tool calls that come in pieces by index, to deltas of one call after the other."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from tieline_server.core.create.tools import Tool
from tieline_server.core.deltas import CallDelta, CallKind, CallStart, Delta, ItemEnd
from tieline_server.engines.upstream.faults import broken_call, malformed
from tieline_server.engines.upstream.mending import is_json, sound


class Function(Struct, frozen=True, gc=False):
    """What a piece says of its function."""

    name: str | None = None
    arguments: str | None = None


class CallPiece(Struct, frozen=True, gc=False):
    """A piece of a tool call. Some servers leave the index out."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None


class _Input(Struct, frozen=True):
    input: str


_input: Final = msgspec.json.Decoder(_Input)


class _Call:
    """One call: what came of it, and how much of that was passed on."""

    __slots__ = ("begun", "id", "index", "kind", "name", "pieces", "said")

    def __init__(self, index: int, call_id: str | None) -> None:
        self.index = index
        self.id = call_id
        self.name = ""
        self.kind: CallKind = "function_call"
        """What it is to the client; known once it has begun."""
        self.pieces: list[str] = []
        self.said = 0
        self.begun = False

    @property
    def custom(self) -> bool:
        """Whether it is one of a custom tool."""
        return self.kind == "custom_tool_call"

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Calls:
    """The calls of one answer. ``tools`` tells by their names upstream what they are."""

    __slots__ = ("_at", "_calls", "_grows", "_places", "_tools")

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._tools = tools
        self._calls: list[_Call] = []
        self._places: dict[int, int] = {}
        """Index upstream -> place in the order of their beginnings."""
        self._at = 0
        """Place of the call that is passed on as it grows; the later ones wait for its end."""
        self._grows: _Call | None = None
        """That call, where each further piece of it is passed on as it is."""

    def feed(self, pieces: Sequence[CallPiece], deltas: list[Delta]) -> None:
        """Takes pieces in order. Raises :class:`Failure` for one that has no place."""
        waits = False
        for piece in pieces:
            function = piece.function or Function()
            text = function.arguments
            grows = self._grows
            if grows is not None and piece.index == grows.index and not function.name:
                if text:
                    grows.pieces.append(text)
                    grows.said += 1
                    deltas.append(CallDelta(text))
            else:
                self._grows = None
                self._take(piece, function)
                waits = True
        if waits:
            self._advance(deltas, ends=False)

    def interrupt(self, deltas: list[Delta]) -> None:
        """Something else is said. Raises :class:`Failure` for a call that is not whole by then."""
        if self._at < len(self._calls):
            self._advance(deltas, ends=True)

    def end(self, deltas: list[Delta], *, cut: bool) -> None:
        """No more pieces come. Raises :class:`Failure` for a call that is no call, unless cut."""
        self._advance(deltas, ends=True, cut=cut)

    def _take(self, piece: CallPiece, function: Function) -> None:
        place = self._place_of(piece, function)
        call = self._calls[place]
        if function.name and not call.name:
            call.name = function.name
        if function.arguments:
            if place < self._at:
                raise broken_call()
            call.pieces.append(function.arguments)

    def _place_of(self, piece: CallPiece, function: Function) -> int:
        index = piece.index
        if index is None:
            opens = bool(function.name) or not self._calls
            index = len(self._calls) if opens else len(self._calls) - 1
        place = self._places.get(index)
        # Some give each of several calls the index 0 and tell them apart by id alone.
        if place is None or (
            function.name and piece.id and self._calls[place].id not in (None, piece.id)
        ):
            place = self._places[index] = len(self._calls)
            self._calls.append(_Call(index, piece.id))
        return place

    def _advance(self, deltas: list[Delta], *, ends: bool, cut: bool = False) -> None:
        self._grows = None
        while self._at < len(self._calls):
            call = self._calls[self._at]
            self._say(call, deltas)
            last = self._at + 1 == len(self._calls)
            if not ends and last:
                self._grows = call if call.begun and not call.custom else None
                break
            if not ends and not is_json(call.text):
                break
            if not (cut and last):
                _end(call, deltas)
            self._at += 1

    def _say(self, call: _Call, deltas: list[Delta]) -> None:
        """What is new of the call that is passed on."""
        if not call.begun and call.name:
            call.begun = True
            tool = self._tools.get(call.name)
            if tool is not None:
                call.kind = tool.call_kind
            deltas.append(
                CallStart(
                    kind=call.kind,
                    name=tool.name or call.name if tool is not None else call.name,
                    namespace=tool.namespace if tool is not None else None,
                )
            )
        if call.begun and not call.custom:
            # The text of a custom tool is inside the JSON, and known when that is whole.
            deltas += map(CallDelta, call.pieces[call.said :])
            call.said = len(call.pieces)


def _end(call: _Call, deltas: list[Delta]) -> None:
    if not call.begun:
        raise malformed()
    text = call.text
    if call.custom:
        deltas.append(CallDelta(custom_input(text), max(1, len(call.pieces))))
    elif not text.strip():
        deltas.append(CallDelta("{}", tokens=0))
    elif not is_arguments(text, call.kind):
        raise broken_call()
    deltas.append(ItemEnd())


def is_arguments(text: str, kind: CallKind) -> bool:
    """Whether this is JSON, and an object where the item has one: that of a search for tools."""
    return is_json(text) and (kind != "tool_search_call" or text.lstrip()[:1] == "{")


def custom_input(text: str) -> str:
    """The text of a custom tool, inside the JSON that a function has; raises :class:`Failure`."""
    try:
        return _input.decode(text).input
    except (msgspec.MsgspecError, RecursionError):
        pass
    try:
        return _input.decode(sound(text.encode())).input
    except (msgspec.MsgspecError, RecursionError):
        raise broken_call() from None
