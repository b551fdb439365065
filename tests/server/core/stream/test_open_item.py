"""The shapes of output items, as JSON, while they are written and when they are whole."""

from typing import Any

import msgspec
import pytest

from tieline_server.core.deltas import CallKind, CallStart
from tieline_server.core.stream.open_item import Open


def members(item: Open, status: str = "completed") -> Any:
    return msgspec.json.decode(msgspec.json.encode(item.shape(status)))


def call(kind: CallKind, namespace: str | None) -> Open:
    item = Open(kind, "fc_1", 0)
    item.call, item.call_id = CallStart(kind=kind, name="run", namespace=namespace), "call_1"
    item.pieces += ['{"a"', ":1}"]
    return item


def test_a_message_and_reasoning_have_their_parts() -> None:
    head = {"id": "x_1", "status": "in_progress"}
    assert members(Open("message", "x_1", 0), "in_progress") == {
        **head, "type": "message", "role": "assistant", "content": [],
    }  # fmt: skip
    assert members(Open("reasoning", "x_1", 0), "in_progress") == {
        **head, "type": "reasoning", "summary": [], "content": [], "encrypted_content": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "said"), [("function_call", "arguments"), ("custom_tool_call", "input")]
)
@pytest.mark.parametrize("namespace", [None, "files"])
def test_a_call_says_what_its_kind_says_and_no_more(
    kind: CallKind, said: str, namespace: str | None
) -> None:
    named = {} if namespace is None else {"namespace": namespace}
    assert members(call(kind, namespace)) == {
        "id": "fc_1", "type": kind, "status": "completed", "call_id": "call_1", "name": "run",
        **named, said: '{"a":1}',
    }  # fmt: skip
