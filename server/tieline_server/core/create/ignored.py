"""What a create asks for that nothing here acts on: told to the client, or refused by a setting.

Two kinds: members that neither OpenAI's API nor this server has, which are mostly slips of the
pen, and tools that neither the client nor this server runs. Looked at are the create itself,
``text`` and its format, ``reasoning``, ``context_management``, and each tool's own members. Items
are not: they are kept and handed back as they came. Nor are schemas, metadata, and what else is
free-form.
"""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, Final, Protocol, TypeVar

import msgspec
from msgspec import UNSET, Raw

from tieline.errors import ApiError
from tieline.events import RequestWarning
from tieline.requests import LONGEST_NAME, UNKNOWN, Create

T = TypeVar("T")
Warnings = tuple[RequestWarning, ...]

UNKNOWN_PARAMETER: Final = "unknown_parameter"
UNSUPPORTED_TOOL: Final = "unsupported_tool"

MOST: Final = UNKNOWN
"""Warnings of one create; what is beyond them is not told."""

# How much of a name has to be as in a known one for the client to have meant that.
_LIKENESS: Final = 0.7

_CREATE: Final = tuple(name for name in Create.__struct_encode_fields__ if name)
_TEXT: Final = frozenset({"format", "verbosity"})
_FORMAT: Final = frozenset({"description", "name", "schema", "strict", "type"})
_REASONING: Final = frozenset({"context", "effort", "generate_summary", "mode", "summary"})
_MANAGEMENT: Final = frozenset({"compact_threshold", "type"})
_CALLED: Final = frozenset(
    {"allowed_callers", "async", "defer_loading", "description", "name", "type"}
)
# Tools whose calls the client runs -> their members in OpenAI's API.
_TOOLS: Final = {
    "function": _CALLED | {"output_schema", "parameters", "strict"},
    "custom": _CALLED | {"format"},
    "namespace": frozenset({"description", "name", "tools", "type"}),
}

# A search for tools: the client runs it, or no tool is deferred and it is not needed.
_SEARCH: Final = "tool_search"

_object: Final = msgspec.json.Decoder(dict[str, Raw] | None)
_objects: Final = msgspec.json.Decoder(list[dict[str, Raw]] | None)
_word: Final = msgspec.json.Decoder(str)


class Read(Protocol):
    """``SettingsCache.read``: what was found in the bytes of last time is not looked for again."""

    def __call__(self, name: str, raw: Raw, parse: Callable[[bytes], T]) -> T:
        """What ``parse`` makes of it."""
        ...


def found(create: Create, read: Read) -> Warnings:
    """The warnings of a create whose members are valid."""
    warned = list(_unknown(() if create.unknown is UNSET else create.unknown, _CREATE, ""))
    for name, parse in _MEMBERS:
        raw = getattr(create, name)
        if bytes(raw) != b"null":
            warned += read(f"{name}, ignored", raw, parse)
    # A create full of slips is one message to its author, and not a thousand.
    return tuple(warned[:MOST])


def refusal(warning: RequestWarning) -> ApiError:
    """The warning as the error that it is where nothing may be ignored."""
    return ApiError.of(warning.code, warning.message, param=warning.param)


def _unknown(names: Iterable[str], known: Iterable[str], param: str) -> Iterable[RequestWarning]:
    for name in names:
        said = name[:LONGEST_NAME]
        path = f"{param}.{said}" if param else said
        close = get_close_matches(said, known, n=1, cutoff=_LIKENESS)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        message = f"Unknown parameter: '{path}'.{hint}"
        yield RequestWarning(code=UNKNOWN_PARAMETER, message=message, param=path)


def _odd(given: dict[str, Raw], known: frozenset[str], param: str) -> Iterable[RequestWarning]:
    names = given.keys() - known
    # In the order in which they came, and in the usual case there are none.
    return _unknown([name for name in given if name in names], known, param) if names else ()


def _of_text(data: bytes) -> Warnings:
    given = _object.decode(data) or {}
    form = _object.decode(given["format"]) if "format" in given else None
    return (*_odd(given, _TEXT, "text"), *_odd(form or {}, _FORMAT, "text.format"))


def _of_reasoning(data: bytes) -> Warnings:
    return tuple(_odd(_object.decode(data) or {}, _REASONING, "reasoning"))


def _of_management(data: bytes) -> Warnings:
    warned: list[RequestWarning] = []
    for index, entry in enumerate(_objects.decode(data) or ()):
        warned += _odd(entry, _MANAGEMENT, f"context_management[{index}]")
    return tuple(warned[:MOST])


def _of_tools(data: bytes) -> Warnings:
    warned: list[RequestWarning] = []
    for index, tool in enumerate(_objects.decode(data) or ()):
        warned += _of_tool(tool, f"tools[{index}]")
    return tuple(warned)


def _of_tool(tool: dict[str, Raw], param: str) -> Iterable[RequestWarning]:
    kind = _word.decode(tool["type"])
    known = _TOOLS.get(kind)
    if known is not None:
        yield from _odd(tool, known, param)
        # A namespace: what is in it are tools like any other.
        if "tools" in known:
            for index, inner in enumerate(_objects.decode(tool.get("tools", b"null")) or ()):
                yield from _of_tool(inner, f"{param}.tools[{index}]")
    elif kind != _SEARCH:
        said = kind[:LONGEST_NAME]
        message = f"Tools of type '{said}' are not run here; the model is not offered this one."
        yield RequestWarning(code=UNSUPPORTED_TOOL, message=message, param=f"{param}.type")


# Member of a create that has members of its own -> what looks at them.
_MEMBERS: Final[tuple[tuple[str, Callable[[bytes], Any]], ...]] = (
    ("text", _of_text),
    ("reasoning", _of_reasoning),
    ("context_management", _of_management),
    ("tools", _of_tools),
)
