"""In every mode: tools that clients run and that are no functions."""

import json
from typing import Any

import pytest

from tests.server.engines.upstream.test_modes import ask, in_each_mode, refusal, run
from tests.support.engine_contract import deltas_of, link
from tests.support.upstream_server import streamed, upstream
from tests.support.upstream_shapes import (
    CHAT,
    COMPLETIONS,
    RESPONSES,
    TOKENIZER,
    Shape,
    added,
    ended,
    item,
    opened,
)
from tieline_server.core.deltas import CallDelta, CallStart, Delta
from tieline_server.core.history.chain import ChainNode
from tieline_server.engines.chat_format import gguf_metadata

SEARCH = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds tools.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
}
FORECAST = {
    "type": "function",
    "name": "forecast",
    "description": "The weather to come.",
    "defer_loading": True,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
WEATHER = {"type": "namespace", "name": "weather", "description": "Skies.", "tools": [FORECAST]}
CALL = {
    "type": "tool_search_call",
    "call_id": "s1",
    "execution": "client",
    "arguments": {"query": "weather"},
}
FOUND = {"type": "tool_search_output", "call_id": "s1", "execution": "client", "tools": [WEATHER]}


def wired(shape: Shape) -> str:
    """The name of what was found, as the model knows it."""
    return "weather.forecast" if shape is COMPLETIONS else "weather__forecast"


async def told(shape: Shape, content: Any, **members: Any) -> dict[str, Any]:
    """The body that an upstream gets for this."""
    async with upstream() as server, opened(shape, server) as engine:
        server.plans.append(shape.good)
        await deltas_of(engine, ask(content, **members))
        return server.bodies[-1]


def prompt_of(body: dict[str, Any]) -> str:
    """What a model reads of a body."""
    if "prompt" not in body:
        return json.dumps(body)
    ranks = gguf_metadata.read(TOKENIZER).ranks or {}
    words = {rank: word for word, rank in ranks.items()}
    return b"".join(words.get(each, b"") for each in body["prompt"]).decode()


def offered(body: dict[str, Any]) -> list[str]:
    """The names of the functions that a body offers; a grammar of calls has them too."""
    if "prompt" in body:
        grammar = json.dumps(body.get("structured_outputs"))
        return [name for name in ("tool_search", "weather.forecast") if name in grammar]
    return [tool.get("function", tool)["name"] for tool in body.get("tools", ())]


async def said(shape: Shape, *parts: bytes, **members: Any) -> list[Delta]:
    async with upstream() as server, opened(shape, server) as engine:
        server.plans.append(streamed(*parts))
        return await deltas_of(engine, ask(**members))


def started(deltas: list[Delta]) -> CallStart:
    return next(delta for delta in deltas if isinstance(delta, CallStart))


def arguments(deltas: list[Delta]) -> Any:
    return json.loads("".join(each.text for each in deltas if isinstance(each, CallDelta)))


@in_each_mode
def test_up_07_a_search_is_offered_as_a_function_and_called_as_a_search(shape: Shape) -> None:
    body = run(told(shape, "hello", tools=[SEARCH, WEATHER]))
    assert offered(body) == ["tool_search"]
    assert "weather.forecast: The weather to come." in prompt_of(body)
    pieces = shape.call("tool_search", '{"query":', '"x"}')
    deltas = run(said(shape, *pieces, *shape.stop, tools=[SEARCH, WEATHER]))
    assert started(deltas).kind == "tool_search_call"
    assert arguments(deltas) == {"query": "x"}


@in_each_mode
def test_up_07_what_was_found_is_offered_and_called_under_its_own_name(shape: Shape) -> None:
    chain = [{"role": "user", "content": "go"}, CALL, FOUND]
    body = run(told(shape, chain, tools=[SEARCH]))
    assert offered(body) == ["tool_search", wired(shape)]
    assert "The weather to come." in prompt_of(body)
    pieces = shape.call(wired(shape), '{"city":"Oslo"}')
    deltas = run(said(shape, *pieces, *shape.stop, content=chain, tools=[SEARCH]))
    start = started(deltas)
    assert (start.kind, start.namespace, start.name) == ("function_call", "weather", "forecast")


@in_each_mode
def test_up_07_a_search_and_what_it_found_are_shown_as_a_call_and_its_output(shape: Shape) -> None:
    chain = [{"role": "user", "content": "go"}, CALL, FOUND]
    body = run(told(shape, chain, tools=[SEARCH]))
    if shape is CHAT:
        _, call, output = body["messages"]
        function = call["tool_calls"][0]["function"]
        assert function == {"name": "tool_search", "arguments": '{"query":"weather"}'}
        assert output["role"] == "tool"
        shown = output["content"]
    elif shape is RESPONSES:
        _, call, output = body["input"]
        assert call == {
            "type": "function_call",
            "call_id": "s1",
            "name": "tool_search",
            "arguments": '{"query":"weather"}',
        }
        assert output["type"] == "function_call_output"
        shown = output["output"]
    else:
        shown = prompt_of(body)
        assert '{"query":"weather"}' in shown
    assert wired(shape) in shown
    assert "The weather to come." in shown


@pytest.mark.parametrize("shape", [CHAT, RESPONSES], ids=str)
@pytest.mark.parametrize("text", ["[1]", '"x"', "7", "{"])
def test_up_07_arguments_of_a_search_that_are_no_object_are_a_failure(
    shape: Shape, text: str
) -> None:
    async def main() -> None:
        async with upstream() as server, opened(shape, server) as engine:
            server.plans.append(streamed(*shape.call("tool_search", text), *shape.stop))
            assert (await refusal(engine, ask(tools=[SEARCH]))).code == "server_error"

    run(main())


def test_up_07_an_upstream_that_calls_a_search_by_its_own_item_has_called_it() -> None:
    members = {"id": "tsc_1", "call_id": "c", "execution": "client"}
    parts = [
        added("tool_search_call", arguments={}, status="in_progress", **members),
        item("tool_search_call", arguments={"query": "x"}, status="completed", **members),
        ended(),
    ]
    deltas = run(said(RESPONSES, *parts, tools=[SEARCH]))
    assert started(deltas).kind == "tool_search_call"
    assert arguments(deltas) == {"query": "x"}
    assert not [each for each in run(said(RESPONSES, *parts)) if isinstance(each, CallStart)]


@pytest.mark.parametrize("shape", [CHAT, RESPONSES], ids=str)
def test_up_07_tools_found_in_what_is_left_out_of_a_prompt_stay_callable(shape: Shape) -> None:
    async def main() -> None:
        async with upstream() as server, opened(shape, server) as engine:
            server.plans.append(shape.good)
            tip: ChainNode = link([{"role": "user", "content": "go"}, CALL, FOUND])
            for at in range(8):
                tip = link([{"role": "user", "content": f"{at} " * 1500}], tip)
            await deltas_of(engine, ask("on", after=tip, truncation="auto", tools=[SEARCH]))
            assert "The weather to come" not in json.dumps(server.bodies[-1].get("messages"))
            assert offered(server.bodies[-1]) == ["tool_search", wired(shape)]

    run(main())


RAN = [
    {"stdout": "total 7", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
    {"stdout": "", "stderr": "no such file", "outcome": {"type": "exit", "exit_code": 2}},
]
TEXTS: list[tuple[str, dict[str, Any], dict[str, Any], str, str]] = [
    ("shell_call", {"action": {"commands": ["ls"]}}, {"output": RAN}, "shell",
     "total 7\nno such file\nexit code: 2"),
    ("apply_patch_call", {"operation": {"type": "delete_file", "path": "a"}},
     {"status": "failed", "output": "no"}, "apply_patch", "failed: no"),
    ("local_shell_call", {"action": {"type": "exec", "command": ["ls"], "env": {}}},
     {"output": "total 7"}, "local_shell", "total 7"),
]  # fmt: skip


@in_each_mode
@pytest.mark.parametrize(("kind", "call", "output", "name", "text"), TEXTS)
def test_up_06_calls_and_outputs_of_a_clients_tools_reach_the_model(
    shape: Shape, kind: str, call: dict[str, Any], output: dict[str, Any], name: str, text: str
) -> None:
    chain = [
        {"role": "user", "content": "go"},
        {"type": kind, "call_id": "c1", "id": "x_1", "status": "completed", **call},
        {"type": f"{kind}_output", "call_id": "c1", "id": "x_2", **output},
    ]
    body = run(told(shape, chain))
    arguments = json.dumps(next(iter(call.values())), separators=(",", ":"))
    if shape is CHAT:
        _, called, answered = body["messages"]
        assert called["tool_calls"][0]["function"] == {"name": name, "arguments": arguments}
        assert answered == {"role": "tool", "tool_call_id": "c1", "content": text}
    elif shape is RESPONSES:
        _, called, answered = body["input"]
        assert (called["name"], called["arguments"]) == (name, arguments)
        assert answered == {"type": "function_call_output", "call_id": "c1", "output": text}
    else:
        shown = prompt_of(body)
        assert name in shown
        assert arguments in shown
        assert text in shown


SCREEN = [
    {"role": "user", "content": "go"},
    {"type": "computer_call", "call_id": "c1", "action": {"type": "screenshot"}},
    {
        "type": "computer_call_output",
        "call_id": "c1",
        "output": {"type": "computer_screenshot", "image_url": "data:image/png;base64,AA=="},
    },
]


@in_each_mode
def test_up_06_a_screenshot_is_an_image_where_there_are_any(shape: Shape) -> None:
    async def refused() -> str | None:
        async with upstream() as server, opened(shape, server) as engine:
            return (await refusal(engine, ask(SCREEN))).code

    if shape is COMPLETIONS:
        assert run(refused()) == "unsupported_value"
        return
    body = run(told(shape, SCREEN))
    url = "data:image/png;base64,AA=="
    if shape is CHAT:
        *_, answered, image = body["messages"]
        assert answered == {"role": "tool", "tool_call_id": "c1", "content": ""}
        assert image["content"] == [{"type": "image_url", "image_url": {"url": url}}]
    else:
        image = {"type": "input_image", "image_url": url}
        assert body["input"][-1]["output"] == [image]
