"""Chains as the input of a Responses request: each item once, without what means nothing there."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.engine_contract import WEATHER, link
from tieline.items import Opened, decode_input
from tieline_server.core.history.chain import ChainNode
from tieline_server.core.values import Work
from tieline_server.engines.base import EngineError
from tieline_server.engines.upstream.items import items_of

USER = {"type": "message", "role": "user", "content": "hello"}
CUSTOM = {"type": "custom_tool_call", "call_id": "c", "name": "sh", "namespace": "os", "input": "l"}
CUSTOM_OUTPUT = {"type": "custom_tool_call_output", "call_id": "c", "output": "files"}


def sent(tip: ChainNode, **options: Any) -> list[Any]:
    pieces = b"".join(items_of(tip, Work(), **options).pieces())
    found: list[Any] = json.loads(b"[" + pieces[1:] + b"]")
    return found


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"role": "user", "content": "hello", "id": "msg_1", "status": "completed"}, USER),
        (
            {"role": "developer", "content": [{"type": "input_text", "text": "x"}]},
            {
                "type": "message",
                "role": "developer",
                "content": [{"type": "input_text", "text": "x"}],
            },
        ),
        (
            {
                "role": "assistant",
                "content": [{"type": "output_text", "text": "a"}, {"refusal": "b"}],
            },
            {"type": "message", "role": "assistant", "content": "ab"},
        ),
        (
            {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": ""},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        ),
        (
            {"type": "function_call_output", "id": "o", "call_id": "c", "output": [{"a": 1}]},
            {"type": "function_call_output", "call_id": "c", "output": [{"a": 1}]},
        ),
        (CUSTOM, {k: v for k, v in {**CUSTOM, "name": "os__sh"}.items() if k != "namespace"}),
        (CUSTOM_OUTPUT, CUSTOM_OUTPUT),
        (
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"text": "hm"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"text": "hm"}]},
        ),
    ],
)
def test_an_item_has_the_members_that_every_server_takes(item: Any, expected: Any) -> None:
    assert sent(link([item])) == [expected]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x" * 16},
        {"type": "web_search_call", "id": "ws_1"},
    ],
)
def test_what_the_upstream_cannot_read_is_left_out(item: Any) -> None:
    assert sent(link([USER, item, USER])) == [USER, USER]


def test_custom_tools_are_functions_where_the_upstream_does_not_know_them() -> None:
    assert sent(link([CUSTOM, CUSTOM_OUTPUT]), custom=False) == [
        {"type": "function_call", "call_id": "c", "name": "os__sh", "arguments": '{"input":"l"}'},
        {"type": "function_call_output", "call_id": "c", "output": "files"},
    ]


def test_tools_that_come_with_the_input_are_not_sent() -> None:
    tip = link([{"type": "additional_tools", "tools": [WEATHER]}, USER])
    assert sent(tip) == [USER]


def test_forks_share_what_is_before_them_and_write_on_in_buffers_of_their_own() -> None:
    root = link("root")
    one, two = link("one", root), link("two", root)
    for tip, said in ((one, "one"), (two, "two")):
        assert [each["content"] for each in sent(link("on", tip))] == ["root", said, "on"]
    assert items_of(one, Work()).buffer is items_of(root, Work()).buffer
    assert bytes(items_of(two, Work()).own).count(b"two") == 1


def test_each_link_is_read_once() -> None:
    root = link("x" * 1000)
    work = Work()
    items_of(root, work)
    items_of(link("again", root), work)
    assert 1000 < work.render < 1200


def test_what_is_sealed_is_sent_as_it_was_opened() -> None:
    held = link([USER])
    sealed = decode_input(b'[{"type":"compaction","encrypted_content":"abcdefghijklmnop"}]')[0]
    stands = replace(sealed, opened=Opened(items=held.items, whole=True))
    assert sent(link("on", ChainNode(link("long"), (stands,), turn=2))) == [
        USER,
        {**USER, "content": "on"},
    ]


def test_a_member_of_the_wrong_type_is_the_clients_error() -> None:
    with pytest.raises(EngineError) as caught:
        sent(link([{"role": "assistant", "content": [{"type": "output_text", "text": 5}]}]))
    assert caught.value.code == "invalid_value"
