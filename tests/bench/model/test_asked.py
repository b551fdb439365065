"""What the model was asked: calls and their outputs, over both interfaces."""

import json
from collections.abc import Callable

import pytest

from tieline_bench.clients import LoadError
from tieline_bench.model.asked import calls_in


def chat(*ids: str) -> bytes:
    messages: list[dict[str, object]] = [{"role": "user", "content": "hi"}]
    for each in ids:
        messages.append({"role": "assistant", "tool_calls": [{"id": each, "type": "function"}]})
        messages.append({"role": "tool", "tool_call_id": each, "content": "x"})
    return json.dumps({"model": "m", "messages": messages}).encode()


def responses(*ids: str) -> bytes:
    items: list[dict[str, object]] = [{"role": "user", "content": "hi"}]
    for each in ids:
        items.append({"type": "function_call", "call_id": each, "name": "f", "arguments": "{}"})
        items.append({"type": "function_call_output", "call_id": each, "output": "x"})
    return json.dumps({"model": "m", "input": items}).encode()


@pytest.mark.parametrize("body", [chat, responses])
def test_each_call_is_counted_with_its_output(body: Callable[..., bytes]) -> None:
    assert calls_in(body()) == 0
    assert calls_in(body("call_1", "call_2")) == 2


@pytest.mark.parametrize("name", [b'"call_id": "a"', b'"tool_call_id": "a"'])
def test_an_output_of_another_call_is_an_error(name: bytes) -> None:
    body = (responses if b'"call_id"' in name else chat)("a")
    broken = body[: body.rindex(name)] + body[body.rindex(name) :].replace(b'"a"', b'"b"')
    with pytest.raises(LoadError, match="without their outputs"):
        calls_in(broken)
