"""What a chain of items comes to as the messages of a chat completion."""

import json
from typing import Any

import msgspec
import pytest

from tests.support.engine_contract import link
from tieline_server.core.history.chain import ChainNode
from tieline_server.core.values import Work
from tieline_server.engines.base import EngineError
from tieline_server.engines.upstream.fragments import messages_of


def shown(tip: ChainNode, work: Work | None = None) -> Any:
    """The messages of a chain."""
    rendered = messages_of(tip, work or Work())
    joined = b"".join(rendered.pieces())
    assert len(joined) == rendered.size
    return json.loads(b"[" + joined[1:] + b"]")


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **members: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **members}


def call(call_id: str, **members: Any) -> dict[str, Any]:
    item = {"type": "function_call", "call_id": call_id, "name": "read", "arguments": '{"a":1}'}
    return {**item, **members}


def output(call_id: str, text: Any = "done") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def called(*call_ids: str, name: str = "read", arguments: str = '{"a":1}') -> list[dict[str, Any]]:
    function = {"name": name, "arguments": arguments}
    return [{"id": each, "type": "function", "function": function} for each in call_ids]


def told(call_id: str, text: str = "done") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


ODD = 'a "quoted" \\ line\nand \u00e9\U0001f600 </s> <|im_end|>'

CASES: list[tuple[str, list[dict[str, Any]], list[dict[str, Any]]]] = [
    ("text stays what it is", [user(ODD), assistant(ODD)], [user(ODD), assistant(ODD)]),
    (
        "what was said and called in one run is one message",
        [user("go"), assistant("I read."), call("c1"), call("c2"), output("c1"), output("c2")],
        [user("go"), assistant("I read.", tool_calls=called("c1", "c2")), told("c1"), told("c2")],
    ),
    (
        "text behind a call joins its message",
        [assistant("a"), call("c1"), assistant("b"), output("c1")],
        [assistant("a\n\nb", tool_calls=called("c1")), told("c1")],
    ),
    (
        "two texts are two messages",
        [assistant("a"), assistant("b")],
        [assistant("a"), assistant("b")],
    ),
    (
        "nothing stands between calls and their outputs",
        [call("c1"), call("c2"), output("c1"), user("hurry"), output("c2"), user("well?")],
        [
            assistant("", tool_calls=called("c1", "c2")),
            told("c1"),
            told("c2"),
            user("hurry"),
            user("well?"),
        ],
    ),
    (
        "a developer is a system, and parts of one text are a string",
        [{"role": "developer", "content": [{"type": "input_text", "text": "be brief"}]}],
        [{"role": "system", "content": "be brief"}],
    ),
    (
        "reasoning and what has no class are left out",
        [
            user("a"),
            {"type": "reasoning", "summary": [], "id": "rs_1"},
            {"type": "web_search_call"},
        ],
        [user("a")],
    ),
    (
        "parts of an answer are its text",
        [
            {
                "role": "assistant",
                "content": [
                    {"type": "output_text", "text": "a", "annotations": []},
                    {"type": "refusal", "refusal": "b"},
                ],
            }
        ],
        [assistant("ab")],
    ),
    (
        "images, sound and files pass",
        [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "see"},
                    {"type": "input_image", "image_url": "data:x", "detail": "low"},
                    {"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}},
                    {"type": "input_file", "file_data": "data:y", "filename": "y.pdf"},
                ],
            }
        ],
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "see"},
                    {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}},
                    {"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}},
                    {"type": "file", "file": {"file_data": "data:y", "filename": "y.pdf"}},
                ],
            }
        ],
    ),
    (
        "an image that a tool gave is shown by the user once all outputs are in",
        [
            call("c1"),
            call("c2"),
            output("c1", [{"type": "input_image", "image_url": "data:x"}]),
            output("c2", [{"type": "input_text", "text": "done"}]),
        ],
        [
            assistant("", tool_calls=called("c1", "c2")),
            told("c1", ""),
            told("c2"),
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]},
        ],
    ),
    (
        "a custom call is a function of one text, a namespace is part of the name",
        [
            {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": 'x "y"'},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
            call("c2", namespace="files", arguments=""),
        ],
        [
            assistant("", tool_calls=called("c1", name="patch", arguments='{"input":"x \\"y\\""}')),
            told("c1"),
            assistant("", tool_calls=called("c2", name="files__read", arguments="{}")),
        ],
    ),
]


@pytest.mark.parametrize(
    ("items", "messages"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_items_become_messages_wherever_links_are_cut(items: Any, messages: Any) -> None:
    for at in range(len(items)):
        tip = link(items[at:], link(items[:at]) if at else None)
        assert shown(tip) == messages
    one_by_one: ChainNode | None = None
    for item in items:
        one_by_one = link([item], one_by_one)
        shown(one_by_one)
    assert one_by_one is not None
    assert shown(one_by_one) == messages


def test_only_new_links_are_read() -> None:
    work = Work()
    tip = link([user("x" * 1000)])
    shown(tip, work)
    before = work.render
    following = link([user("y")], tip)
    shown(following, work)
    assert work.render - before == following.size
    shown(following, work)
    assert work.render - before == following.size


def test_a_chain_shares_one_buffer_and_forks_share_what_is_before_them() -> None:
    root = link([user("root")])
    forks = [link([user(f"fork {at}")], root) for at in range(3)]
    ends = [link([user("end")], fork) for fork in forks]
    for at, end in enumerate(ends):
        assert shown(end) == [user("root"), user(f"fork {at}"), user("end")]
    assert shown(root) == [user("root")]
    first = messages_of(ends[0], Work())
    assert first.buffer is messages_of(root, Work()).buffer
    later = messages_of(ends[2], Work())
    assert later.buffer is not first.buffer
    assert len(later.buffer) < len(first.buffer)


def test_tools_that_come_with_the_input_are_no_message() -> None:
    tools = [{"type": "function", "name": "read"}]
    tip = link([{"type": "additional_tools", "tools": tools}, user("a")])
    assert shown(tip) == [user("a")]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ([{"type": "hologram", "url": "x"}], "unsupported_value"),
        ([{"type": "input_image", "file_id": "f"}], "unsupported_value"),
        ([{"type": "input_text", "text": 5}], "invalid_value"),
    ],
)
def test_content_that_has_no_form_is_refused_and_the_chain_before_it_stays(
    content: Any, code: str
) -> None:
    before = link([user("a")])
    with pytest.raises(EngineError) as caught:
        shown(link([{"role": "user", "content": content}], before))
    assert (caught.value.code, caught.value.param) == (code, "input")
    assert shown(link([user("b")], before)) == [user("a"), user("b")]


def test_a_long_chain_holds_its_messages_once() -> None:
    tip = link([user("x" * 1000)])
    for _ in range(100):
        tip = link([user("y" * 1000)], tip)
        messages_of(tip, Work())
    buffer = messages_of(tip, Work()).buffer
    assert buffer.__alloc__() < 1.3 * len(msgspec.json.encode(shown(tip)))
