"""Tool calls come out one after the other, whole, however they came in."""

import asyncio
from typing import Any

import pytest

from tests.support.engine_contract import deltas_of, prompt
from tests.support.upstream_server import MODEL, Part, call, chunk, streamed, upstream
from tieline_server.core.deltas import (
    Accepted,
    CallDelta,
    CallStart,
    Delta,
    Finish,
    ItemEnd,
    TextDelta,
)
from tieline_server.engines.base import EngineError
from tieline_server.engines.upstream import UpstreamEngine

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "read", "parameters": {"type": "object"}},
    {"type": "custom", "name": "patch"},
    {"type": "namespace", "name": "web", "tools": [{"type": "function", "name": "open"}]},
]

Made = tuple[str, str, str | None, str]


def made(deltas: list[Delta]) -> list[Made]:
    """(kind, name, namespace, arguments) of each call."""
    calls: list[Made] = []
    for delta in deltas:
        if isinstance(delta, CallStart):
            calls.append((delta.kind, delta.name, delta.namespace, ""))
        elif isinstance(delta, CallDelta):
            calls[-1] = (*calls[-1][:3], calls[-1][3] + delta.text)
    return calls


def answered(*parts: Part) -> list[Delta]:
    async def main() -> list[Delta]:
        async with upstream() as server:
            engine = UpstreamEngine([server.url])
            await engine.probe()
            server.plans.append(streamed(*parts))
            try:
                return await deltas_of(engine, prompt("go", model=MODEL, tools=TOOLS))
            finally:
                await engine.close()

    return asyncio.run(main())


def whole(index: int, arguments: dict[str, Any], *, name: str, **members: Any) -> bytes:
    """A call whose arguments are no text of JSON."""
    function = {"name": name, "arguments": arguments}
    return chunk(tool_calls=[{"index": index, "function": function, **members}])


READ_A: Made = ("function_call", "read", None, '{"a":1}')
READ_B: Made = ("function_call", "read", None, '{"b":2}')
STOP = chunk("tool_calls")


@pytest.mark.parametrize(
    ("parts", "calls"),
    [
        ([call(0, '{"a":', id="1", name="read"), call(0, "1}")], [READ_A]),
        ([call(0, '{"a":1}', id="1", name="read"), call(1, '{"b":2}', id="2", name="read")],
         [READ_A, READ_B]),
        ([call(0, '{"a"', id="1", name="read"), call(1, '{"b"', id="2", name="read"),
          call(0, ":1}"), call(1, ":2}")], [READ_A, READ_B]),
        ([call(None, '{"a":1}', id="1", name="read"), call(None, '{"b"', id="2", name="read"),
          call(None, ":2}")], [READ_A, READ_B]),
        ([call(0, '{"a":1}', id="1", name="read"), call(0, '{"b":2}', id="2", name="read")],
         [READ_A, READ_B]),
        ([call(0, "", id="1"), call(0, '{"a":1}', name="read")], [READ_A]),
        ([call(0, "", id="1", name="read")], [("function_call", "read", None, "{}")]),
        ([call(0, '{"input":"a \\"b\\""}', id="1", name="patch")],
         [("custom_tool_call", "patch", None, 'a "b"')]),
        ([call(0, "{}", id="1", name="web__open")], [("function_call", "open", "web", "{}")]),
        ([call(0, "{}", id="1", name="unheard_of")], [("function_call", "unheard_of", None, "{}")]),
        ([whole(0, {"a": 1}, id=1, name="read"), whole(0, {"b": 2}, id=2, name="read")],
         [READ_A, READ_B]),
    ],
    ids=["one", "two", "interleaved", "no index", "one index for all", "name comes late",
         "no arguments", "custom", "namespace", "not offered",
         "objects for arguments, numbers for ids"],
)  # fmt: skip
def test_calls_come_out_whole(parts: list[Part], calls: list[Made]) -> None:
    assert made(answered(*parts, STOP)) == calls


@pytest.mark.parametrize(
    "parts",
    [
        [call(0, '{"a":', id="1", name="read")],
        [call(0, '{"a":1}}', id="1", name="read")],
        [call(0, "{}", id="1")],
        [call(0, '{"other":1}', id="1", name="patch")],
        [call(0, "{}", id="1", name="read"), call(1, "", id="2", name="read"), call(0, "{}")],
    ],
    ids=["cut JSON", "more than JSON", "no name", "no input", "piece behind its end"],
)
def test_calls_that_nobody_could_run_fail_the_turn(parts: list[Part]) -> None:
    with pytest.raises(EngineError) as caught:
        answered(*parts, STOP)
    assert caught.value.code == "server_error"


def test_a_call_that_the_limit_cut_is_left_as_it_is() -> None:
    deltas = answered(call(0, '{"a":', id="1", name="read"), chunk("length"))
    assert made(deltas) == [("function_call", "read", None, '{"a":')]


def test_what_is_said_between_two_calls_ends_the_first() -> None:
    first = call(0, '{"a":1}', id="1", name="read")
    deltas = answered(first, chunk(content="so"), call(1, '{"b":2}', id="2", name="read"), STOP)
    assert made([each for each in deltas if not isinstance(each, TextDelta)]) == [READ_A, READ_B]
    kinds = [type(each) for each in deltas if not isinstance(each, Accepted | Finish)]
    assert kinds == [
        CallStart, CallDelta, ItemEnd, TextDelta, CallStart, CallDelta, ItemEnd
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["content", "reasoning", "refusal"])
def test_what_is_said_within_a_call_is_no_part_of_anything(name: str) -> None:
    parts = [call(0, '{"a":', id="1", name="read"), chunk(**{name: "b"}), call(0, "1}"), STOP]
    with pytest.raises(EngineError, match="not valid JSON"):
        answered(*parts)
