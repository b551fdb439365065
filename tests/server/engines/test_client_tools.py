"""Which tools a model may call, and what it reads of tools that are no functions."""

import json
from typing import Any

import msgspec
import pytest

from tests.support.engine_contract import link, prompt
from tieline.items import decode_input
from tieline_server.core.create.tools import Tool
from tieline_server.engines.client_tools import (
    NOTHING_FOUND,
    as_functions,
    brought_tools,
    callable_tools,
)

SEARCH = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds tools.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
}
CALL = {
    "type": "tool_search_call",
    "call_id": "s1",
    "execution": "client",
    "arguments": {"query": "mail"},
}


def function(name: str, *, deferred: bool = False) -> dict[str, Any]:
    entry = {"type": "function", "name": name, "description": f"Does {name}.", "parameters": {}}
    return {**entry, "defer_loading": True} if deferred else entry


def found(*tools: Any) -> dict[str, Any]:
    return {"type": "tool_search_output", "call_id": "s1", "execution": "client", "tools": tools}


def names(*tools: Any, chain: Any = "hello") -> list[str]:
    """What can be called with these settings behind this input."""
    asked = prompt(chain, tools=list(tools))
    offered = callable_tools(asked.settings, brought_tools(asked.chain))
    return [".".join(filter(None, (tool.namespace, tool.name))) for tool in offered]


def test_up_07_a_deferred_function_is_callable_once_a_search_has_found_it() -> None:
    tools = [SEARCH, function("read"), function("mail", deferred=True)]
    assert names(*tools) == ["tool_search", "read"]
    assert names(*tools, chain=[CALL, found()]) == ["tool_search", "read"]
    chain = [CALL, found(function("mail", deferred=True))]
    assert names(*tools, chain=chain) == ["tool_search", "read", "mail"]
    assert names(*tools, chain=[CALL, {**found(), "tools": None}]) == ["tool_search", "read"]
    space = {"type": "namespace", "name": "crm", "defer_loading": True, "tools": [function("a")]}
    assert names(SEARCH, space) == ["tool_search"]


def test_up_07_what_a_search_brings_need_not_have_been_offered_and_may_be_in_a_namespace() -> None:
    space = {"type": "namespace", "name": "crm", "tools": [function("mail", deferred=True)]}
    assert names(SEARCH, chain=[CALL, found(space)]) == ["tool_search", "crm.mail"]
    assert names(chain=[CALL, found(space)]) == ["crm.mail"]


def test_up_07_where_no_client_searches_nothing_is_deferred() -> None:
    assert names(function("mail", deferred=True)) == ["mail"]
    hosted = {"type": "tool_search"}
    assert names(hosted, function("mail", deferred=True)) == ["mail"]


def test_up_07_a_search_names_what_is_to_be_found() -> None:
    space = {"type": "namespace", "name": "crm", "tools": [function("mail", deferred=True)]}
    asked = prompt("hello", tools=[SEARCH, space])
    (search,) = callable_tools(asked.settings)
    assert search.description == (
        "Finds tools.\nTools that can be searched for:\n- crm.mail: Does mail."
    )


def test_up_07_a_search_without_parameters_takes_the_names_of_what_it_loads() -> None:
    asked = prompt("hello", tools=[{"type": "tool_search", "execution": "client"}])
    (search,) = callable_tools(asked.settings)
    assert json.loads(search.parameters or b"")["required"] == ["paths"]


def test_up_07_forks_and_what_follows_have_the_tools_that_the_chain_was_brought() -> None:
    first = link([{"role": "user", "content": "go"}, CALL, found(function("mail"))])
    second = link("on", after := link("one", first))
    other = link([CALL | {"call_id": "s2"}, found(function("call")) | {"call_id": "s2"}], after)
    assert brought_tools(second) is brought_tools(first)
    assert [tool.name for tool in brought_tools(other)] == ["mail", "call"]
    assert brought_tools(link("apart")) == ()


def test_tools_that_cannot_be_read_are_none() -> None:
    assert brought_tools(link([CALL, found({"type": "function"})])) == ()


SHELL: dict[str, Any] = {"commands": ["ls", "cat x"], "timeout_ms": 5}
PATCH = {"type": "delete_file", "path": "a"}
CLICK = {"type": "click", "x": 1, "y": 2}
LOCAL = {"type": "exec", "command": ["ls"], "env": {}}
CALLS: list[tuple[dict[str, Any], str, Any]] = [
    ({"type": "shell_call", "action": SHELL}, "shell", SHELL),
    ({"type": "local_shell_call", "action": LOCAL}, "local_shell", LOCAL),
    ({"type": "apply_patch_call", "operation": PATCH}, "apply_patch", PATCH),
    ({"type": "computer_call", "action": CLICK}, "computer", CLICK),
    ({"type": "computer_call", "actions": [CLICK]}, "computer", {"actions": [CLICK]}),
    ({"type": "tool_search_call", "execution": "client", "arguments": {"a": 1}}, "tool_search",
     {"a": 1}),
    ({"type": "tool_search_call", "execution": "client", "arguments": '{"a":1}'}, "tool_search",
     {"a": 1}),
    ({"type": "shell_call"}, "shell", {}),
    ({"type": "mcp_approval_request", "id": "c1", "name": "send", "arguments": '{"a":1}'}, "send",
     {"a": 1}),
    ({"type": "mcp_approval_request", "id": "c1", "name": 5}, "mcp_approval_request", {}),
]  # fmt: skip


def shown(item: dict[str, Any]) -> Any:
    """An item as a model is shown it."""
    (one,) = as_functions(
        decode_input(msgspec.json.encode([item])), lambda tools: ",".join(_names(tools))
    )
    return json.loads(one.raw)


def _names(tools: tuple[Tool, ...]) -> list[str]:
    return [tool.name or "" for tool in tools]


@pytest.mark.parametrize(("call", "name", "arguments"), CALLS)
def test_up_06_calls_of_a_clients_tools_are_shown_as_calls_of_functions(
    call: dict[str, Any], name: str, arguments: Any
) -> None:
    item = shown({"call_id": "c1", **call})
    assert json.loads(item.pop("arguments")) == arguments
    assert item == {"type": "function_call", "call_id": "c1", "name": name}


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
SHOT = {"type": "computer_screenshot", "image_url": IMAGE["image_url"]}
OUTPUTS: list[tuple[dict[str, Any], Any]] = [
    (
        {
            "type": "shell_call_output",
            "output": [
                {"stdout": "a\nb", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
                {"stdout": "", "stderr": "no x", "outcome": {"type": "exit", "exit_code": 2}},
                {"stdout": "c", "stderr": "", "outcome": {"type": "timeout"}},
            ],
        },
        "a\nb\nno x\nexit code: 2\nc\ntimed out",
    ),
    ({"type": "shell_call_output", "output": "text"}, "text"),
    ({"type": "shell_call_output", "output": None}, ""),
    ({"type": "shell_call_output", "output": {"odd": 1}}, '{"odd":1}'),
    ({"type": "shell_call_output", "output": "a", "status": 5}, None),
    ({"type": "local_shell_call_output", "output": '{"output":"a"}'}, '{"output":"a"}'),
    ({"type": "apply_patch_call_output", "status": "completed"}, "completed"),
    ({"type": "apply_patch_call_output", "status": "completed", "output": "Done."}, "Done."),
    ({"type": "apply_patch_call_output", "status": "failed", "output": "no"}, "failed: no"),
    ({"type": "computer_call_output", "output": SHOT}, [IMAGE]),
    (
        {"type": "computer_call_output", "output": {**SHOT, "image_url": None, "file_id": "f"}},
        [{"type": "input_image", "file_id": "f"}],
    ),
    (found(function("a"), function("b")), "a,b"),
    (found(), NOTHING_FOUND),
    ({"type": "mcp_approval_response", "approval_request_id": "s1", "approve": True}, "approved"),
    (
        {
            "type": "mcp_approval_response",
            "approval_request_id": "s1",
            "approve": False,
            "reason": "no",
        },
        "not approved: no",
    ),
]


@pytest.mark.parametrize(("output", "told"), OUTPUTS)
def test_up_06_outputs_of_a_clients_tools_are_shown_as_those_of_functions(
    output: dict[str, Any], told: Any
) -> None:
    given = {"call_id": "s1", **output}
    expected = json.dumps(given, separators=(",", ":")) if told is None else told
    item = shown(given)
    assert item == {"type": "function_call_output", "call_id": "s1", "output": expected}


@pytest.mark.parametrize(
    "item",
    [
        {"type": "message", "role": "user", "content": "a"},
        {"type": "tool_search_call", "call_id": "c1", "execution": "server", "arguments": {}},
        {"type": "web_search_call", "id": "ws_1"},
        {"type": "shell_call", "action": SHELL},
    ],
)
def test_what_no_client_has_to_answer_is_shown_as_it_is(item: dict[str, Any]) -> None:
    assert shown(item) == item
