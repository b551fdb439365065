"""Tools that clients run: which ones a model may call, and calls that are no function's.

A model knows functions alone, so it reads the calls of other tools that a client runs (a shell,
patches, a computer, a search for tools) and their outputs as those of functions.

Tools come with the settings of each create, which nothing inherits, or with an item
(``additional_tools``, ``tool_search_output``), and then they belong to the chain: forks have them
and what goes on from it. A function whose loading is deferred is offered once a search of the
client has found it. Where no client searches, it is offered at once: no search could find it.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from tieline import items
from tieline.items import FunctionCall, FunctionCallOutput, Item
from tieline_server.core.create.settings import Settings
from tieline_server.core.create.tools import Tool, brought_by, hidden
from tieline_server.core.deltas import TOOL_SEARCH
from tieline_server.core.history.chain import ChainNode

KEY: Final = "core.brought_tools"

NOTHING_FOUND: Final = "No tools were found."

SEARCHABLE: Final = "Tools that can be searched for:"

_NO_OBJECT: Final = Raw(b"{}")

Found = Callable[[tuple[Tool, ...]], str]
"""Tells a model of the tools that a search has found."""


class _Call(Struct, frozen=True):
    """What a call of any such tool has to say, under the names that they give it."""

    action: Raw = _NO_OBJECT
    actions: Raw | UnsetType = UNSET
    operation: Raw = _NO_OBJECT
    arguments: Any = None
    name: str = ""


class _Outcome(Struct, frozen=True):
    type: str = ""
    exit_code: int | None = None


class _Ran(Struct, frozen=True):
    stdout: str = ""
    stderr: str = ""
    outcome: _Outcome | None = None


class _Screenshot(Struct, frozen=True):
    image_url: str | None = None
    file_id: str | None = None


class _Output(Struct, frozen=True):
    output: Raw = Raw(b"null")
    status: str | None = None
    approve: bool | None = None
    reason: str | None = None


_call: Final = msgspec.json.Decoder(_Call)
_output: Final = msgspec.json.Decoder(_Output)
_text: Final = msgspec.json.Decoder(str | None)
_ran: Final = msgspec.json.Decoder(str | list[_Ran] | None)
_screenshot: Final = msgspec.json.Decoder(_Screenshot)
_encode: Final = msgspec.json.Encoder().encode


def brought_tools(last_node: ChainNode) -> tuple[Tool, ...]:
    """The tools that items of the chain have brought, the very same where none were added."""

    def step(before: tuple[Tool, ...], link: ChainNode) -> tuple[Tool, ...]:
        new = [
            tool
            for index, item in enumerate(link.shown)
            for tool in brought_by(item, f"input[{index}].tools")
        ]
        return (*before, *new) if new else before

    return last_node.derive(KEY, (), step)


def callable_tools(settings: Settings, brought: tuple[Tool, ...] = ()) -> tuple[Tool, ...]:
    """The tools that a model may call, those of the create and those ``brought`` by the chain."""
    tools = [tool for tool in (*settings.tools.offered, *brought) if tool.client_run]
    if not any(tool.type == TOOL_SEARCH for tool in tools):
        return tuple(tools)
    unseen = hidden(tools)
    return tuple(
        _searching(tool, unseen) if tool.type == TOOL_SEARCH else tool
        for tool in tools
        if not tool.deferred
    )


def _searching(tool: Tool, unseen: Iterable[Tool]) -> Tool:
    """The search, whose description names what there is to be found."""
    lines = [tool.description] if tool.description else []
    named = {".".join(filter(None, (each.namespace, each.name))): each for each in unseen}
    if named:
        lines.append(SEARCHABLE)
        lines += [f"- {name}: {each.description or ''}" for name, each in named.items()]
    return structs.replace(tool, description="\n".join(lines))


def as_functions(shown: Iterable[Item], found: Found) -> Iterator[Item]:
    """Items as a model is shown them: whatever else a client runs is a function there."""
    for item in shown:
        if item.type in _CALLS and item.opens is not None:
            yield _as_call(item, item.opens)
        elif item.type in _OUTPUTS and item.answers is not None:
            output = _told(item, found)
            yield items.encode(FunctionCallOutput(call_id=item.answers, output=output))
        else:
            yield item


def _as_call(item: Item, call_id: str) -> Item:
    try:
        name, arguments = _CALLS[item.type](_call.decode(item.raw))
    except (msgspec.MsgspecError, RecursionError):
        name, arguments = item.type.removesuffix("_call"), "{}"
    return items.encode(FunctionCall(call_id=call_id, name=name, arguments=arguments))


def _told(item: Item, found: Found) -> str | list[Raw]:
    """What an output says; one of a form that is not known says its JSON."""
    if item.type == "tool_search_output":
        return found(brought_by(item)) or NOTHING_FOUND
    try:
        output = _output.decode(item.raw)
    except (msgspec.MsgspecError, RecursionError):
        return item.raw.decode()
    try:
        return _OUTPUTS[item.type](output)
    except (msgspec.MsgspecError, RecursionError):
        return bytes(output.output).decode()


def _on_computer(call: _Call) -> tuple[str, str]:
    if call.actions is not UNSET:
        return "computer", _encode({"actions": call.actions}).decode()
    return "computer", bytes(call.action).decode()


def _on_search(call: _Call) -> tuple[str, str]:
    return TOOL_SEARCH, _arguments(call)


def _arguments(call: _Call) -> str:
    said = call.arguments
    return said if isinstance(said, str) else _encode(said or {}).decode()


_CALLS: Final[dict[str, Callable[[_Call], tuple[str, str]]]] = {
    "apply_patch_call": lambda call: ("apply_patch", bytes(call.operation).decode()),
    "computer_call": _on_computer,
    "local_shell_call": lambda call: ("local_shell", bytes(call.action).decode()),
    "mcp_approval_request": lambda call: (call.name or "mcp", _arguments(call)),
    "shell_call": lambda call: ("shell", bytes(call.action).decode()),
    "tool_search_call": _on_search,
}
"""Type of a call -> the name and the arguments of the function that it is shown as."""


def _on_shell(output: _Output) -> str:
    """What came of each command: its text, and how it ended where that was not well."""
    ran = _ran.decode(output.output)
    if ran is None or isinstance(ran, str):
        return ran or ""
    lines: list[str] = []
    for each in ran:
        lines += filter(None, (each.stdout, each.stderr))
        ended = each.outcome
        if ended is not None and ended.type == "timeout":
            lines.append("timed out")
        elif ended is not None and ended.exit_code:
            lines.append(f"exit code: {ended.exit_code}")
    return "\n".join(lines)


def _on_patch(output: _Output) -> str:
    said = _text.decode(output.output)
    status = output.status or "completed"
    if not said:
        return status
    return said if status == "completed" else f"{status}: {said}"


def _on_screen(output: _Output) -> list[Raw]:
    shown = _screenshot.decode(output.output)
    part = {"type": "input_image", "image_url": shown.image_url, "file_id": shown.file_id}
    return [Raw(_encode({name: each for name, each in part.items() if each is not None}))]


def _on_approval(output: _Output) -> str:
    said = "approved" if output.approve else "not approved"
    return f"{said}: {output.reason}" if output.reason else said


def _on_text(output: _Output) -> str:
    return _text.decode(output.output) or ""


_OUTPUTS: Final[dict[str, Callable[[_Output], str | list[Raw]]]] = {
    "apply_patch_call_output": _on_patch,
    "computer_call_output": _on_screen,
    "local_shell_call_output": _on_text,
    "mcp_approval_response": _on_approval,
    "shell_call_output": _on_shell,
    "tool_search_output": _on_text,
}
"""Type of an output -> what it tells a model. What a search has found is told as its tools are."""
