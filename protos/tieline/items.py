"""Input and output items: the raw JSON of each, and a typed view of it.

What comes from outside keeps its bytes. An :class:`Item` is its raw JSON plus a view that
``decode`` picks from ``VIEWS`` by ``type``. A missing ``type`` means a message (wire.md 6.5); a
type that is not in the table is opaque: carried, echoed, never guessed at. Emitting an item
again emits its bytes, so a client gets back exactly what it sent.
"""

from typing import Any, Final, Protocol

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from tieline.complaints import invalid_value, refusal
from tieline.errors import ApiError


class Message(Struct, frozen=True, kw_only=True, tag="message"):
    """A message: who speaks, and text or content parts (each part stays raw JSON)."""

    role: str
    content: str | list[Raw] = ""
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class FunctionCall(Struct, frozen=True, kw_only=True, tag="function_call"):
    """A call of a function tool; ``arguments`` is JSON text, never parsed here."""

    call_id: str
    name: str
    arguments: str = ""
    namespace: str | None = None
    id: str | None = None
    status: str | None = None


class FunctionCallOutput(Struct, frozen=True, kw_only=True, tag="function_call_output"):
    """What a function returned: text, or a list of content parts."""

    call_id: str
    output: str | list[Raw]
    id: str | None = None
    status: str | None = None


class CustomToolCall(Struct, frozen=True, kw_only=True, tag="custom_tool_call"):
    """A call of a custom tool; ``input`` is free text."""

    call_id: str
    name: str
    input: str = ""
    namespace: str | None = None
    id: str | None = None
    status: str | None = None


class CustomToolCallOutput(Struct, frozen=True, kw_only=True, tag="custom_tool_call_output"):
    """What a custom tool returned."""

    call_id: str
    output: str | list[Raw]
    id: str | None = None
    status: str | None = None


class Reasoning(Struct, frozen=True, kw_only=True, tag="reasoning"):
    """What the model thought; parts stay raw JSON."""

    summary: list[Raw] = []
    content: list[Raw] | None = None
    encrypted_content: str | None = None
    id: str | None = None
    status: str | None = None


class Compaction(Struct, frozen=True, kw_only=True, tag="compaction"):
    """Stands for earlier history; what it holds is sealed."""

    encrypted_content: str
    id: str | None = None


class ItemReference(Struct, frozen=True, kw_only=True, tag="item_reference"):
    """Stands for an item that the server already knows."""

    id: str


class AdditionalTools(Struct, frozen=True, kw_only=True, tag="additional_tools"):
    """Tools that come with the input rather than with the settings."""

    tools: list[Raw] = []
    role: str | None = None
    id: str | None = None


class Opaque(Struct, frozen=True, kw_only=True):
    """An item whose type has no class here: hosted tools, and whatever comes next.

    ``call_id`` is there when the item is a client-run call or its output, so that pairing
    works for every kind of call (``CALL_KINDS``).
    """

    type: str = ""
    id: str | None = None
    call_id: str | None = None
    approval_request_id: str | None = None
    execution: str | None = None


Known = (
    Message
    | FunctionCall
    | FunctionCallOutput
    | CustomToolCall
    | CustomToolCallOutput
    | Reasoning
    | Compaction
    | ItemReference
    | AdditionalTools
)
View = Known | Opaque

VIEWS: Final[dict[str, type[Struct]]] = {
    "message": Message,
    "function_call": FunctionCall,
    "function_call_output": FunctionCallOutput,
    "custom_tool_call": CustomToolCall,
    "custom_tool_call_output": CustomToolCallOutput,
    "reasoning": Reasoning,
    "compaction": Compaction,
    "item_reference": ItemReference,
    "additional_tools": AdditionalTools,
}
"""Item type -> its view. Whatever is not here is :class:`Opaque`."""

_NAMES: Final[dict[type[Struct], str]] = {view: name for name, view in VIEWS.items()}
_CALLS: Final = (FunctionCall, CustomToolCall)
_OUTPUTS: Final = (FunctionCallOutput, CustomToolCallOutput)

CALL_KINDS: Final[dict[str, str]] = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "tool_search_call": "tool_search_output",
    "mcp_approval_request": "mcp_approval_response",
}
"""Calls that the client runs -> the item that answers them (wire.md 2.3.5)."""

OUTPUT_KINDS: Final[dict[str, str]] = {output: call for call, output in CALL_KINDS.items()}
"""Tool outputs -> the kind of call that they answer."""

SEALABLE: Final = frozenset({"compaction", "reasoning"})
"""Types of items that may carry sealed text."""

ROLES: Final = ("assistant", "system", "developer", "user")


class _Probe(Struct, frozen=True):
    type: str | UnsetType = UNSET


_REFERENCE: Final = _NAMES[ItemReference]

_probe: Final = msgspec.json.Decoder(_Probe)
_decoders: Final[dict[str, msgspec.json.Decoder[Any]]] = {
    name: msgspec.json.Decoder(view) for name, view in VIEWS.items()
}
_known: Final = msgspec.json.Decoder(Known)
_opaque: Final = msgspec.json.Decoder(Opaque)


class Item(Struct, frozen=True, kw_only=True):
    """One item: its bytes (UTF-8 JSON, exactly as they came) and what rules ask of it.

    A history keeps its items for long, so they keep their text once: ``view`` reads the bytes
    again each time.
    """

    raw: bytes
    type: str
    """The item's ``type``; ``message`` where the JSON has none."""
    id: str | None = None
    """The item's id, where it has one."""
    opens: str | None = None
    """The call_id that this item leaves for the client to answer, or None."""
    answers: str | None = None
    """The call_id that this item answers, or None when it is no tool output."""
    opened: "Opened | None" = None
    """What a sealed item stands for, once a server has opened it. Never leaves the server."""

    @property
    def names(self) -> str | None:
        """The id of the item that this one only names, or None when it is one itself."""
        return self.id if self.type == _REFERENCE else None

    @property
    def view(self) -> View:
        """What we read from the item."""
        view: View = _decoders.get(self.type, _opaque).decode(self.raw)
        return view

    @property
    def sealed(self) -> str | None:
        """The sealed text that this item carries, or None."""
        if self.type not in SEALABLE:
            return None
        view = self.view
        if isinstance(view, Compaction):
            return view.encrypted_content
        return view.encrypted_content or None if isinstance(view, Reasoning) else None


def _item(raw: bytes, view: View) -> Item:
    # isinstance of a msgspec class costs ten times as much as its identity.
    if type(view) is Opaque:
        opens, answers = _opens(view), _answers(view)
        return Item(raw=raw, type=view.type, id=view.id, opens=opens, answers=answers)
    kind = type(view)
    of_a_call: Any = view
    return Item(
        raw=raw,
        type=_NAMES[kind],
        id=view.id,
        opens=of_a_call.call_id if kind in _CALLS else None,
        answers=of_a_call.call_id if kind in _OUTPUTS else None,
    )


def _opens(view: Opaque) -> str | None:
    if view.type not in CALL_KINDS:
        return None
    if view.type == "tool_search_call" and view.execution not in (None, "client"):
        return None
    return view.id if view.type == "mcp_approval_request" else view.call_id


def _answers(view: Opaque) -> str | None:
    if view.type not in OUTPUT_KINDS:
        return None
    if view.type == "tool_search_output" and view.execution not in (None, "client"):
        return None
    if view.type == "local_shell_call_output" and view.call_id is None:
        # OpenAI's schema knows the call under this name alone.
        return view.id
    return view.approval_request_id or view.call_id


class Opened(Struct, frozen=True, kw_only=True):
    """The items that a sealed item stands for.

    With ``whole`` they stand for all that came before it as well. ``behind`` says of each how
    many of the ``users`` user messages that came with the sealed item it follows; without it
    they stand where the sealed item stands.
    """

    items: tuple[Item, ...]
    whole: bool = False
    behind: tuple[int, ...] | None = None
    users: int = 0


class Part(Struct, frozen=True):
    """The members of a content part that carry text."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None


_part: Final = msgspec.json.Decoder(Part)


def decode(raw: bytes | Raw, *, param: str = "input") -> Item:
    """Reads one item.

    Raises :class:`ApiError` (400) that names ``param`` when the item is no object, or a member that
    we read is missing or has the wrong type.

    >>> decode(b'{"role":"user","content":"hi"}').type
    'message'
    """
    data = bytes(raw)
    try:
        view = _view(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise refusal(error, at=param, what="item") from None
    if isinstance(view, Message) and view.role not in ROLES:
        raise invalid_value(f"{param}.role", view.role, ROLES)
    return _item(data, view)


def _view(data: bytes) -> View:
    if data.find(b'"type"') >= 0:
        # Nearly always its own, and known: the text is then read once, and not for its type first.
        try:
            return _known.decode(data)
        except msgspec.ValidationError:
            pass  # It has none, or another one, or a member at fault.
    kind = _probe.decode(data).type
    view: View = _decoders.get("message" if kind is UNSET else kind, _opaque).decode(data)
    return view


def too_long(param: str, length: int, most: int) -> ApiError:
    """The refusal of an array with more entries than we take."""
    return ApiError.of(
        "array_above_max_length",
        f"Invalid '{param}': expected an array of length <= {most}, got one of {length}.",
        param=param,
    )


def encode(view: View) -> Item:
    """An item of our own making: the view and its JSON, members that are None left out."""
    members = {name: value for name, value in _members(view) if value is not None}
    return _item(msgspec.json.encode(members), view)


def _members(view: View) -> list[tuple[str, Any]]:
    kind = [] if isinstance(view, Opaque) else [("type", view.__struct_config__.tag)]
    return [*kind, *((name, getattr(view, name)) for name in view.__struct_fields__)]


def text_of(content: str | list[Raw]) -> str:
    """The text of a message's content or of a tool output, parts joined without a separator."""
    if isinstance(content, str):
        return content
    parts = (_part.decode(part) for part in content)
    return "".join(part.text or part.refusal or "" for part in parts)


MAX_ITEMS: Final = 16_384
"""Items that one ``input`` may have; what comes before them is named, not sent again."""

_items: Final = msgspec.json.Decoder(list[Raw])
_string: Final = msgspec.json.Decoder(str)


class _Decode(Protocol):
    def __call__(self, raw: Raw, *, param: str) -> Item: ...


def decode_input(raw: bytes | Raw, *, param: str = "input", item: _Decode = decode) -> list[Item]:
    """Reads ``input``: a string is one user message, a list is items in order.

    ``item`` reads one of them.

    >>> [item.type for item in decode_input(b'"hello"')]
    ['message']
    """
    data = bytes(raw).lstrip()
    try:
        if data.startswith(b'"'):
            return [encode(Message(role="user", content=_string.decode(data)))]
        entries = _items.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise refusal(error, at=param, what="item") from None
    if len(entries) > MAX_ITEMS:
        raise too_long(param, len(entries), MAX_ITEMS)
    return [item(entry, param=f"{param}[{index}]") for index, entry in enumerate(entries)]
