"""Facts of a chain, and how items are read."""

import json
from typing import Any

import pytest

from tests.support.engine_contract import WEATHER, link, prompt
from tieline.items import decode
from tieline_server.core.history.chain import ChainNode
from tieline_server.engines import bpe
from tieline_server.engines.scripted.facts import (
    FRAME,
    Facts,
    Reader,
    head_of,
    render,
    size_to_learn,
    text_of,
)

count = bpe.shipped().count


def facts(chain: ChainNode) -> Facts:
    return Reader(count).facts_of(chain)


def read(chain: ChainNode) -> Reader:
    reader = Reader(count)
    reader.facts_of(chain)
    return reader


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def parts(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "input_text", "text": text} for text in texts]


CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "42"}


def test_the_last_item_decides_what_is_last() -> None:
    first = link([user("q")])
    call = link([CALL], first, output=True)
    output = link([OUTPUT], call)
    assert facts(first).last == "message"
    assert facts(call).last == "function_call"
    assert facts(output).last == "tool_output"
    assert facts(link([user("more")], output)).last == "message"


@pytest.mark.parametrize(
    "item",
    [
        {"type": "custom_tool_call_output", "call_id": "c", "output": "42"},
        {"type": "local_shell_call_output", "call_id": "c", "output": "42"},
        {"type": "apply_patch_call_output", "call_id": "c", "output": "42"},
        {"type": "shell_call_output", "call_id": "c", "output": parts("4", "2")},
        {"type": "function_call_output", "call_id": "c", "output": parts("4", "2")},
    ],
)
def test_an_output_of_any_kind_is_a_tool_output_with_text(item: dict[str, Any]) -> None:
    known = facts(link([user("q"), item]))
    assert known.last == "tool_output"
    assert text_of(known.output) == "42"


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ({"type": "computer_screenshot", "n": 1}, '{"type":"computer_screenshot","n":1}'),
        ([{"stdout": "x"}], '[{"stdout":"x"}]'),
        (7, "7"),
    ],
)
def test_an_output_without_text_is_given_as_its_json(output: Any, text: str) -> None:
    raw = json.dumps(
        {"type": "computer_call_output", "call_id": "c", "output": output}, separators=(",", ":")
    )
    assert text_of(decode(raw.encode())) == text


def test_an_output_that_has_no_member_of_that_name_is_given_whole() -> None:
    raw = b'{"type":"mcp_approval_response","approval_request_id":"m","approve":true}'
    assert text_of(decode(raw)) == raw.decode()


def test_parts_that_hold_no_text_add_none() -> None:
    content = [*parts("a"), {"type": "input_image", "image_url": "x"}, 5, {"text": 3}, *parts("b")]
    assert text_of(decode(json.dumps(user("") | {"content": content}).encode())) == "ab"


def test_the_last_user_message_and_the_last_output_are_found_behind_other_items() -> None:
    items = [user("one"), {"role": "assistant", "content": "x"}, CALL, OUTPUT, user("two")]
    chain = link([{"role": "developer", "content": "y"}], link(items))
    assert text_of(facts(chain).user) == "two"
    assert text_of(facts(chain).output) == "42"
    assert text_of(None) == ""


def test_tools_that_come_with_the_input_are_offered_from_then_on() -> None:
    grouped = {"type": "namespace", "name": "crm", "tools": [WEATHER]}
    tools = [{"type": "custom", "name": "patch"}, {"type": "shell"}, grouped]
    before = link([user("q")])
    after = link([{"type": "additional_tools", "role": "developer", "tools": tools}], before)
    later = link([user("more")], after)
    assert facts(before).offers == frozenset()
    assert facts(later).offers == {
        ("custom", "patch"),
        ("custom", "patch", None),
        ("shell", None),
        ("shell", None, None),
        ("function", "get_weather"),
        ("function", "get_weather", "crm"),
        ("namespace", "crm"),
        ("namespace", "crm", None),
    }
    assert [tool.name for tool in facts(later).tools] == ["patch", None, "get_weather"]


def test_tools_in_the_input_that_cannot_be_read_are_no_tools() -> None:
    assert facts(link([{"type": "additional_tools", "tools": [{"name": 3}]}])).tools == ()


def test_tokens_are_those_of_the_text_and_two_around_each_item() -> None:
    first = link([user("hello there"), OUTPUT])
    expected = count("user\nhello there") + count("tool\n42") + 2 * FRAME
    assert facts(first).tokens == expected
    second = link([user("more")], first)
    assert facts(second).tokens == expected + count("user\nmore") + FRAME
    assert (facts(first).inherited, facts(second).inherited) == (0, expected)


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (CALL, "f\n{}"),
        ({"type": "custom_tool_call", "call_id": "c", "name": "p", "input": "x"}, "p\nx"),
        ({"type": "reasoning", "summary": parts("a"), "content": parts("b")}, "think\nab"),
        ({"type": "local_shell_call_output", "call_id": "c", "output": "o"}, "tool\no"),
        ({"type": "compaction", "encrypted_content": "z"}, None),
        ({"type": "of_tomorrow", "x": 1}, None),
    ],
)
def test_an_item_is_read_as_what_it_says_and_else_as_its_json(
    item: dict[str, Any], text: str | None
) -> None:
    raw = json.dumps(item).encode()
    assert render(decode(raw)) == (raw.decode() if text is None else text)


def test_only_links_that_are_new_are_read() -> None:
    first = link([user("x" * 1000)])
    assert size_to_learn(first) == first.size
    assert read(first).rendered == len("user\n") + 1000
    second = link([user("more")], first)
    assert size_to_learn(second) == second.size
    assert read(second).rendered == len("user\nmore")
    assert read(second).rendered == 0
    assert size_to_learn(second) == 0


def test_the_head_counts_instructions_and_every_tool() -> None:
    none = head_of(prompt().settings, count)
    told = head_of(prompt(instructions="Be brief.").settings, count)
    both = head_of(prompt(instructions="Be brief.", tools=[WEATHER]).settings, count)
    assert (none.tokens, none.rendered) == (0, 0)
    assert told.tokens == count("Be brief.") + FRAME
    assert both.tokens > told.tokens + 30
    assert ("function", "get_weather") in both.offers
