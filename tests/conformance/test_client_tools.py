"""Over every transport and engine: tools that clients run and that are no functions."""

from typing import Any

import pytest

from tests.conformance.server import serve
from tests.conformance.wire import Wire, ask, collect, response

SEARCH = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds tools.",
    "parameters": {
        "type": "object",
        "properties": {"query": {"type": "string"}},
        "required": ["query"],
        "additionalProperties": False,
    },
}
FORECAST = {
    "type": "function",
    "name": "forecast",
    "description": "The weather to come.",
    "defer_loading": True,
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
WEATHER = {
    "type": "namespace",
    "name": "weather",
    "description": "About the weather.",
    "tools": [FORECAST],
}
FETCH = "Please use the weather forecast."


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def kinds(made: dict[str, Any]) -> list[str]:
    return [item["type"] for item in made["output"]]


@pytest.mark.needs("custom_tools")
@pytest.mark.parametrize("offered", [[SEARCH], [SEARCH, WEATHER]], ids=["found", "deferred"])
async def test_up_07_what_a_search_of_the_client_finds_is_callable_from_then_on(
    wire: Wire, offered: list[dict[str, Any]]
) -> None:
    settings: dict[str, Any] = {"tools": offered, "store": True}

    async with serve() as served, wire(served) as peer:
        first = response(await ask(peer, input=f"{FETCH} Call tool_search first.", **settings))
        (search,) = first["output"]
        assert search["type"] == "tool_search_call"
        assert (search["execution"], search["status"]) == ("client", "completed")
        assert isinstance(search["arguments"]["query"], str)
        output = {
            "type": "tool_search_output",
            "call_id": search["call_id"],
            "execution": "client",
            "status": "completed",
            "tools": [WEATHER],
        }
        after = {"previous_response_id": first["id"], **settings}
        second = response(await ask(peer, input=[output, said(FETCH)], **after))
        (call,) = second["output"]
        assert (call["type"], call["namespace"], call["name"]) == (
            "function_call",
            "weather",
            "forecast",
        )
        told = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
        after = {"previous_response_id": second["id"], "store": True}
        third = response(await ask(peer, input=[told, said(FETCH)], **after))
        assert kinds(third) == ["function_call"]
        # What was not found on this chain is not there.
        empty = {**output, "tools": []}
        after = {"previous_response_id": first["id"], **settings}
        other = response(await ask(peer, input=[empty, said(FETCH)], **after))
        assert kinds(other) == ["message"]


@pytest.mark.needs("append", "custom_tools")
async def test_up_07_a_held_turn_goes_on_with_what_was_found(wire: Wire) -> None:
    async with serve() as served, wire(served) as peer:
        asked = f"{FETCH} Call tool_search first."
        first = response(await ask(peer, input=asked, tools=[SEARCH], append=True))
        (search,) = first["output"]
        found = {
            "type": "tool_search_output",
            "call_id": search["call_id"],
            "execution": "client",
            "tools": [WEATHER],
        }
        await peer.send({"type": "response.append", "input": [found, said(FETCH)]})
        made = response(await collect(peer))
        assert made["id"] == first["id"]
        assert kinds(made) == ["tool_search_call", "function_call"]


@pytest.mark.needs("custom_tools")
async def test_up_07_nor_can_a_choice_require_it(wire: Wire) -> None:
    choice = {"type": "function", "name": "forecast"}
    tools = [SEARCH, FORECAST]
    async with serve() as served, wire(served) as peer:
        refused = (await ask(peer, input=FETCH, tools=tools, tool_choice=choice))[-1]
        assert (refused["type"], refused["status"]) == ("error", 400)
        assert refused["error"]["param"] == "tool_choice"
        call = {"type": "tool_search_call", "call_id": "s1", "arguments": {"query": "rain"}}
        found = {"type": "tool_search_output", "call_id": "s1", "tools": [FORECAST]}
        chain = [said("hello"), call, found, said(FETCH)]
        made = response(await ask(peer, input=chain, tools=tools, tool_choice=choice))
        assert kinds(made) == ["function_call"]


@pytest.mark.needs("custom_tools")
async def test_a_choice_of_a_namespace_requires_one_of_its_tools(wire: Wire) -> None:
    other = {"type": "function", "name": "other", "strict": False, "parameters": {}}
    choice = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "namespace", "name": "weather"}],
    }
    async with serve() as served, wire(served) as peer:
        made = response(await ask(peer, input="hello", tools=[other, WEATHER], tool_choice=choice))
        (call,) = made["output"]
        assert (call["namespace"], call["name"]) == ("weather", "forecast")


@pytest.mark.needs("custom_tools")
async def test_up_07_a_deferred_function_that_was_not_found_is_not_called(wire: Wire) -> None:
    async with serve() as served, wire(served) as peer:
        made = response(await ask(peer, input=FETCH, tools=[SEARCH, FORECAST]))
        assert kinds(made) == ["message"]


RAN = [{"stdout": "total 7", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
OUTPUTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("shell_call", {"action": {"commands": ["ls"]}}, {"output": RAN}),
    (
        "apply_patch_call",
        {"operation": {"type": "delete_file", "path": "a"}},
        {"status": "completed", "output": "total 7"},
    ),
    (
        "local_shell_call",
        {"id": "lsh_1", "action": {"type": "exec", "command": ["ls"], "env": {}}},
        {"id": "lsho_1", "output": "total 7"},
    ),
]


@pytest.mark.parametrize(("kind", "call", "output"), OUTPUTS, ids=[each[0] for each in OUTPUTS])
async def test_up_06_a_model_is_shown_what_a_clients_tool_gave(
    wire: Wire, kind: str, call: dict[str, Any], output: dict[str, Any]
) -> None:
    items = [
        said("go"),
        {"type": kind, "call_id": "call_1", "status": "completed", **call},
        {"type": f"{kind}_output", "call_id": "call_1", **output},
    ]

    async with serve() as served, wire(served) as peer:
        made = response(await ask(peer, input=items))
        assert "total 7" in made["output"][0]["content"][0]["text"]
