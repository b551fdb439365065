"""What a create's settings come to in the body of a chat completion."""

import json
from typing import Any

import pytest

from tests.support.engine_contract import WEATHER, link, prompt
from tieline_server.core.create.settings import SettingsCache
from tieline_server.core.values import Work
from tieline_server.engines.upstream.chat import ChatMode

FUNCTION = {
    "name": "get_weather",
    "description": WEATHER["description"],
    "parameters": WEATHER["parameters"],
    "strict": True,
}
TOOL = {"type": "function", "function": FUNCTION}
OTHER = {"type": "function", "name": "other"}
OTHER_TOOL = {
    "type": "function",
    "function": {"name": "other", "parameters": {"type": "object", "properties": {}}},
}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
PATCH = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
ALLOWED = [{"type": "function", "name": "get_weather"}, {"type": "function", "name": "other"}]


def body(**members: Any) -> dict[str, Any]:
    """The body without what every one has."""
    made: dict[str, Any] = json.loads(ChatMode().build(prompt(model="m", **members)).body)
    for name in ("model", "messages", "stream", "stream_options"):
        made.pop(name)
    return made


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({}, {}),
        ({"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5, "top_p": 0.9}),
        ({"max_output_tokens": 64}, {"max_tokens": 64}),
        ({"max_output_tokens": 64, "budget": 5}, {"max_tokens": 5}),
        ({"presence_penalty": 1.0}, {"presence_penalty": 1.0}),
        ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
        (
            {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
            {"logprobs": True, "top_logprobs": 2},
        ),
        (
            {"text": {"format": {"type": "json_object"}}},
            {"response_format": {"type": "json_object"}},
        ),
        (
            {
                "text": {
                    "format": {
                        "type": "json_schema",
                        "name": "x",
                        "schema": {"type": "object"},
                        "strict": True,
                    }
                }
            },
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "object"}, "strict": True},
                }
            },
        ),
        ({"tools": [WEATHER]}, {"tools": [TOOL], "tool_choice": "auto"}),
        (
            {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False},
            {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
        ),
        (
            {"tools": [WEATHER, OTHER], "tool_choice": "none"},
            {"tools": [TOOL, OTHER_TOOL], "tool_choice": "none"},
        ),
        (
            {
                "tools": [WEATHER, OTHER],
                "tool_choice": {"type": "function", "name": "get_weather"},
            },
            {"tools": [TOOL], "tool_choice": NAMED},
        ),
        (
            {
                "tools": [WEATHER, OTHER, {"type": "function", "name": "third"}],
                "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": ALLOWED},
            },
            {"tools": [TOOL, OTHER_TOOL], "tool_choice": "required"},
        ),
        (
            {"tools": [{"type": "custom", "name": "patch"}]},
            {
                "tools": [{"type": "function", "function": {"name": "patch", "parameters": PATCH}}],
                "tool_choice": "auto",
            },
        ),
        ({"tools": [{"type": "web_search"}], "parallel_tool_calls": False}, {}),
    ],
)
def test_settings_become_members(members: dict[str, Any], expected: dict[str, Any]) -> None:
    assert body(**members) == expected


def test_instructions_come_first_and_without_them_the_messages_begin_at_once() -> None:
    with_them = json.loads(ChatMode().build(prompt("a", instructions="b")).body)
    assert [each["content"] for each in with_them["messages"]] == ["b", "a"]
    without = json.loads(ChatMode().build(prompt("a")).body)
    assert [each["content"] for each in without["messages"]] == ["a"]


def test_what_a_lane_sends_again_is_not_encoded_again() -> None:
    work = Work()
    recall, requests = SettingsCache(work), ChatMode()
    tip = link("hello")
    again: dict[str, Any] = {
        "tools": [WEATHER],
        "instructions": "x" * 1000,
        "recall": recall,
        "work": work,
        "tip": tip,
    }
    first = requests.build(prompt(**again))
    rendered = work.render
    assert rendered > 1000
    assert requests.build(prompt(**again)).body == first.body
    longer = requests.build(prompt(**again, metadata={"a": "b"}))
    assert (longer.body, work.render) == (first.body, rendered)
    cooler = json.loads(requests.build(prompt(**again, temperature=0.1)).body)
    assert cooler["temperature"] == 0.1


def test_a_warm_up_and_its_turn_have_the_same_estimate() -> None:
    requests = ChatMode()
    given = prompt("word " * 100, tools=[WEATHER], instructions="Be brief.")
    assert requests.estimate(given) == requests.build(given).tokens
    assert "stream" not in json.loads(requests.counted(given))
