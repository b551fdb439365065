"""An output item while it is being written, and the shapes that it has as JSON."""

import json
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from tieline_server.core import deltas
from tieline_server.core.stream.outbox import Make

Text = deltas.TextDelta | deltas.RefusalDelta | deltas.ReasoningDelta | deltas.SummaryDelta
"""A delta that says a piece of a part."""


_members: Final = msgspec.json.Decoder(dict[str, Any])


class _Message(Struct, kw_only=True, gc=False):
    """An output item as JSON; so are those below. Members in the order of wire.md 6.4."""

    id: str
    type: str
    status: str
    role: str = "assistant"
    phase: str | UnsetType = UNSET
    content: list[Raw]


class _Reasoning(Struct, kw_only=True, gc=False):
    id: str
    type: str
    status: str
    summary: list[Raw]
    content: list[Raw]
    encrypted_content: str | None = None


class _Call(Struct, kw_only=True, gc=False):
    id: str
    type: str
    status: str
    call_id: str | None
    name: str
    namespace: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    """Of a function."""
    input: str | UnsetType = UNSET
    """Of a custom tool."""


class _ToolSearch(Struct, kw_only=True, gc=False):
    id: str
    type: str
    status: str
    call_id: str | None
    execution: str = "client"
    arguments: Raw


class Open:
    """An item that is being written: its id and index, and the part that grows."""

    __slots__ = (
        "annotations",
        "call",
        "call_id",
        "content",
        "grows",
        "id",
        "index",
        "kind",
        "logprobs",
        "make",
        "part",
        "phase",
        "pieces",
        "summary",
    )

    def __init__(self, kind: str, item_id: str, index: int) -> None:
        self.kind = kind
        self.id = item_id
        self.index = index
        self.part: str | None = None
        """Type of the part that grows, or None between parts."""
        self.grows: type[Text | deltas.CallDelta] | None = None
        """The kind of delta that only adds to it."""
        self.pieces: list[str] = []
        self.logprobs: list[Raw] = []
        self.annotations: list[Raw] = []
        self.content: list[Raw] = []
        self.summary: list[Raw] = []
        self.phase: str | None = None
        """Of a message, what it is for."""
        self.call: deltas.CallStart | None = None
        self.call_id: str | None = None
        self.make: Make
        """Makes the deltas of the part that grows, or of the call."""

    def shape(self, status: str) -> Struct:
        """The item as it stands; its JSON has its members."""
        id, kind = self.id, self.kind
        if kind == "message":
            phase = UNSET if self.phase is None else self.phase
            return _Message(id=id, type=kind, status=status, phase=phase, content=self.content)
        if kind == "reasoning":
            summary, content = self.summary, self.content
            return _Reasoning(id=id, type=kind, status=status, summary=summary, content=content)
        call = self.call
        assert call is not None, "a call began with its start"
        said, custom = "".join(self.pieces), kind == "custom_tool_call"
        if kind == "tool_search_call":
            call_id, arguments = self.call_id, _object(said)
            return _ToolSearch(
                id=id, type=kind, status=status, call_id=call_id, arguments=arguments
            )
        return _Call(
            id=id,
            type=kind,
            status=status,
            call_id=self.call_id,
            name=call.name,
            namespace=UNSET if call.namespace is None else call.namespace,
            arguments=UNSET if custom else said,
            input=said if custom else UNSET,
        )


def _object(text: str) -> Raw:
    """Arguments that are an object on the wire; an empty one for those that are not whole.

    Escapes of half a character are JSON to many readers and not to all: they become U+FFFD.
    """
    try:
        _members.decode(text)
        return Raw(text.encode())
    except (msgspec.MsgspecError, RecursionError):
        pass
    try:
        found = json.loads(text)
        whole = json.dumps(found if isinstance(found, dict) else {}, ensure_ascii=False)
        mended = whole.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
        _members.decode(mended)
    except (ValueError, RecursionError):
        return Raw(b"{}")
    return Raw(mended)
