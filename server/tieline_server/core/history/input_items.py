"""What an input item from a client has to be, in one pass over its JSON.

What is right is listed: each kind of item and of content part with the members that it cannot be
without, and the type of each that is read by anything behind this. An item that passes has its
words where every reader looks for them; one that has not is refused with the member to blame, so
that no word is lost in silence. Members that are not listed pass: they are kept as they came.

Stored items and items of an engine are not read here: :func:`tieline.items.decode` takes what
has been taken once.
"""

from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from tieline import items
from tieline.complaints import invalid_value, missing, refusal
from tieline.items import ROLES, Item
from tieline_server.core.create.tools import parse_tools

_Name = Annotated[str, Meta(min_length=1)]
_Id = Annotated[str, Meta(min_length=1)] | None
_Status = Literal["in_progress", "completed", "incomplete"]
_Phase = Literal["commentary", "final_answer"]
_Detail = Literal["auto", "low", "high", "original"]
_Role = Literal["assistant", "system", "developer", "user"]
_Execution = Literal["client", "server"]


# Content parts.


class _Text(Struct, frozen=True, gc=False):
    """A part that says its words itself."""

    text: str


class _InputText(_Text, frozen=True, gc=False, tag="input_text"):
    pass


class _OutputText(_Text, frozen=True, gc=False, tag="output_text"):
    pass


class _PlainText(_Text, frozen=True, gc=False, tag="text"):
    pass


class _SummaryText(_Text, frozen=True, gc=False, tag="summary_text"):
    pass


class _ReasoningText(_Text, frozen=True, gc=False, tag="reasoning_text"):
    pass


class _Refusal(Struct, frozen=True, gc=False, tag="refusal"):
    refusal: str


class _Encrypted(Struct, frozen=True, gc=False, tag="encrypted_content"):
    encrypted_content: str


class _Image(Struct, frozen=True):
    """How chat completions have an image."""

    url: str
    detail: _Detail | None = None


class _Sourced(Struct, frozen=True):
    """A part that says where its content is: in one of these members."""

    image_url: str | _Image | None = None
    file_id: str | None = None
    detail: _Detail | None = None


class _InputImage(_Sourced, frozen=True, tag="input_image"):
    pass


class _ImageUrl(_Sourced, frozen=True, tag="image_url"):
    pass


class _Screenshot(_Sourced, frozen=True, tag="computer_screenshot"):
    pass


class _InputFile(Struct, frozen=True, tag="input_file"):
    file_id: str | None = None
    file_url: str | None = None
    file_data: str | None = None
    filename: str | None = None


class _Recording(Struct, frozen=True):
    data: str
    format: str


class _InputAudio(Struct, frozen=True, tag="input_audio"):
    input_audio: _Recording


_Part = (
    _InputText
    | _OutputText
    | _PlainText
    | _SummaryText
    | _ReasoningText
    | _Refusal
    | _Encrypted
    | _InputImage
    | _ImageUrl
    | _Screenshot
    | _InputFile
    | _InputAudio
)
_IMAGE: Final = ("image_url", "file_id")
# Parts that are nothing without one of these members.
_SOURCES: Final[dict[type, tuple[str, ...]]] = {
    _InputImage: _IMAGE,
    _ImageUrl: _IMAGE,
    _Screenshot: _IMAGE,
    _InputFile: ("file_id", "file_url", "file_data"),
}


# Items.


class _Message(Struct, frozen=True, tag="message"):
    role: _Role
    content: str | list[_Part]
    id: _Id = None
    status: _Status | None = None
    phase: _Phase | None = None


class _FunctionCall(Struct, frozen=True, tag="function_call"):
    call_id: _Name
    name: _Name
    arguments: str
    namespace: str | None = None
    id: _Id = None
    status: _Status | None = None


class _CustomCall(Struct, frozen=True, tag="custom_tool_call"):
    call_id: _Name
    name: _Name
    input: str
    namespace: str | None = None
    id: _Id = None
    status: _Status | None = None


class _Output(Struct, frozen=True):
    call_id: _Name
    output: str | list[_Part]
    id: _Id = None
    status: _Status | None = None


class _FunctionOutput(_Output, frozen=True, tag="function_call_output"):
    pass


class _CustomOutput(_Output, frozen=True, tag="custom_tool_call_output"):
    pass


class _Reasoning(Struct, frozen=True, tag="reasoning"):
    summary: list[_Part] = []
    content: list[_Part] | None = None
    encrypted_content: str | None = None
    id: _Id = None
    status: _Status | None = None


class _Compaction(Struct, frozen=True, tag="compaction"):
    encrypted_content: str
    id: _Id = None


class _Reference(Struct, frozen=True, tag="item_reference"):
    id: _Name


class _AdditionalTools(Struct, frozen=True, kw_only=True, tag="additional_tools"):
    tools: list[Raw]
    id: _Id = None
    role: str | None = None


class _ClientCall(Struct, frozen=True):
    """A call of a kind that has no view, which the client runs."""

    call_id: _Name
    id: _Id = None


class _ComputerCall(_ClientCall, frozen=True, tag="computer_call"):
    pass


class _LocalShellCall(_ClientCall, frozen=True, tag="local_shell_call"):
    pass


class _ShellCall(_ClientCall, frozen=True, tag="shell_call"):
    pass


class _PatchCall(_ClientCall, frozen=True, tag="apply_patch_call"):
    pass


class _ComputerOutput(Struct, frozen=True, kw_only=True, tag="computer_call_output"):
    call_id: _Name
    output: _Screenshot | _InputImage
    id: _Id = None


class _LocalShellOutput(Struct, frozen=True, kw_only=True, tag="local_shell_call_output"):
    call_id: _Id = None
    id: _Id = None
    output: str


class _Ended(Struct, frozen=True):
    type: Literal["exit", "timeout"]
    exit_code: int | None = None


class _Streams(Struct, frozen=True):
    stdout: str
    stderr: str
    outcome: _Ended | None = None


class _ShellOutput(Struct, frozen=True, kw_only=True, tag="shell_call_output"):
    call_id: _Name
    output: list[_Streams]
    id: _Id = None


class _PatchOutput(Struct, frozen=True, kw_only=True, tag="apply_patch_call_output"):
    call_id: _Name
    status: Literal["completed", "failed"]
    output: str | None = None
    id: _Id = None


class _Search(Struct, frozen=True, kw_only=True):
    call_id: _Id = None
    execution: _Execution | None = None
    id: _Id = None


class _SearchCall(_Search, frozen=True, kw_only=True, tag="tool_search_call"):
    pass


class _SearchOutput(_Search, frozen=True, kw_only=True, tag="tool_search_output"):
    tools: list[Raw]


class _ApprovalRequest(Struct, frozen=True, tag="mcp_approval_request"):
    id: _Name
    name: _Name
    arguments: str


class _ApprovalResponse(Struct, frozen=True, kw_only=True, tag="mcp_approval_response"):
    approval_request_id: _Name
    approve: bool
    id: _Id = None


_Known = (
    _Message
    | _FunctionCall
    | _FunctionOutput
    | _CustomCall
    | _CustomOutput
    | _Reasoning
    | _Compaction
    | _Reference
    | _AdditionalTools
    | _ComputerCall
    | _ComputerOutput
    | _LocalShellCall
    | _LocalShellOutput
    | _ShellCall
    | _ShellOutput
    | _PatchCall
    | _PatchOutput
    | _SearchCall
    | _SearchOutput
    | _ApprovalRequest
    | _ApprovalResponse
)

_TYPES: Final[dict[type, str]] = {kind: str(kind.__struct_config__.tag) for kind in _Known.__args__}
_KINDS: Final[dict[str, msgspec.json.Decoder[Any]]] = {
    name: msgspec.json.Decoder(kind) for kind, name in _TYPES.items()
}
_known: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(_Known)
_message: Final = _KINDS["message"]

_CALLS: Final = frozenset({_FunctionCall, _CustomCall})
_OUTPUTS: Final = frozenset({_FunctionOutput, _CustomOutput})
_PLAIN: Final = frozenset({_Message, _Reasoning, _Compaction, _Reference})
_TOOLS: Final = frozenset({_AdditionalTools, _SearchOutput})

# Name of a member -> what it may say.
_VALUES: Final = {
    "role": ROLES,
    "status": get_args(_Status),
    "phase": get_args(_Phase),
    "detail": get_args(_Detail),
    "execution": get_args(_Execution),
    "type": tuple(str(part.__struct_config__.tag) for part in get_args(_Part)),
    "outcome.type": ("exit", "timeout"),
    "output.type": ("computer_screenshot", "input_image"),
}
_PATCHED: Final = {"status": ("completed", "failed")}


class _Probe(Struct, frozen=True):
    """What tells an item's kind."""

    type: str | UnsetType | None = UNSET
    role: Raw | UnsetType = UNSET
    content: Raw | UnsetType = UNSET
    id: Raw | UnsetType = UNSET

    @property
    def kind(self) -> str:
        """The item's type. One that has none is a message, or a reference if it is but an id."""
        if self.type is not UNSET and self.type is not None:
            return self.type
        bare = self.role is UNSET and self.content is UNSET and self.id is not UNSET
        return "item_reference" if bare else "message"


_probe: Final = msgspec.json.Decoder(_Probe)
_members: Final = msgspec.json.Decoder(dict[str, Raw])


def read_input(raw: bytes | Raw, *, param: str = "input") -> list[Item]:
    """Reads ``input``; raises :class:`ApiError` 400 with the member that is wrong.

    >>> [item.type for item in read_input(b'[{"role": "user", "content": "hi"}]')]
    ['message']
    """
    return items.decode_input(raw, param=param, item=read)


def read(raw: bytes | Raw, *, param: str) -> Item:
    """Reads one item; raises :class:`ApiError` 400 with the member that is wrong."""
    data = bytes(raw)
    try:
        # Nearly always it says what it is, or is a plain message.
        said = _known.decode(data) if b'"type"' in data else _message.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return _looked_at(data, param)
    return _item(data, said, param)


def _looked_at(data: bytes, param: str) -> Item:
    """What says its kind in another way, or not at all, or is wrong."""
    known: dict[str, tuple[str, ...]] = _VALUES
    try:
        probe = _probe.decode(data)
        kind = probe.kind
        decoder = _KINDS.get(kind)
        if decoder is None:
            if not kind or probe.role is not UNSET:
                # A message by all that it has: no reader would find its words.
                raise invalid_value(f"{param}.type", kind, tuple(_KINDS))
            return items.decode(data, param=param)
        if probe.type is None:
            said = {name: each for name, each in _members.decode(data).items() if name != "type"}
            data = msgspec.json.encode(said)
        known = _VALUES | _PATCHED if kind == "apply_patch_call_output" else _VALUES
        return _item(data, decoder.decode(data), param)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise refusal(error, at=param, what="item", known=known) from None


def _item(data: bytes, said: Any, param: str) -> Item:
    kind = type(said)
    if kind is _Message:
        if type(said.content) is list:
            _check_sources(said.content, f"{param}.content")
        return Item(raw=data, type="message", id=said.id)
    if kind in _OUTPUTS:
        if type(said.output) is list:
            _check_sources(said.output, f"{param}.output")
        return Item(raw=data, type=_TYPES[kind], id=said.id, answers=said.call_id)
    if kind in _CALLS:
        return Item(raw=data, type=_TYPES[kind], id=said.id, opens=said.call_id)
    if kind in _PLAIN:
        return Item(raw=data, type=_TYPES[kind], id=said.id)
    return _rare(data, said, param)


def _rare(data: bytes, said: Any, param: str) -> Item:
    kind = type(said)
    if kind in _TOOLS:
        parse_tools(msgspec.json.encode(said.tools), param=f"{param}.tools")
    elif kind is _ComputerOutput:
        _check_source(said.output, f"{param}.output")
    elif kind is _LocalShellOutput and said.call_id is None and said.id is None:
        raise missing(f"{param}.call_id")
    return items.decode(data, param=param)


def _check_sources(parts: list[Any], param: str) -> None:
    for index, part in enumerate(parts):
        if type(part) in _SOURCES:
            _check_source(part, f"{param}[{index}]")


def _check_source(part: Any, param: str) -> None:
    names = _SOURCES[type(part)]
    if all(getattr(part, name) is None for name in names):
        raise missing(f"{param}.{names[0]}", *(f"{param}.{name}" for name in names[1:]))
