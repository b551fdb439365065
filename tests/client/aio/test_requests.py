"""What callers pass becomes the request that it says."""

from types import MappingProxyType
from typing import Any, Final

import msgspec
import pytest
from msgspec import Raw

from tieline import items
from tieline.requests import MEMBERS, Create
from tieline_client.aio.requests import Call, Settings, to_create, to_json, tool_output


def create(**members: Any) -> Create:
    settings = {key: value for key, value in members.items() if key != "input"}
    return to_create(
        lane="a",
        input=members.get("input"),
        model="m",
        previous_response_id=None,
        settings=Settings(**settings),  # type: ignore[typeddict-item]
    )


def test_text_and_items_become_input() -> None:
    assert create(input='say "hi"').input == Raw(b'"say \\"hi\\""')
    message = {"role": "user", "content": "hi"}
    item = items.decode(b'{"type":"item_reference", "id":"x"}')
    mixed = [MappingProxyType(message), item, Raw(b'{"a": 1}')]
    assert create(input=mixed).input == Raw(
        b'[{"role":"user","content":"hi"},{"type":"item_reference", "id":"x"},{"a": 1}]'
    )


def test_a_setting_that_is_none_is_not_sent() -> None:
    assert create(temperature=None, tools=None) == create()


def test_free_form_settings_are_json_and_raw_ones_stay_as_they_are() -> None:
    request = create(
        instructions="be brief",
        tools=Raw(b'[ {"type":"function"} ]'),
        tool_choice={"type": "function", "name": "f"},
        include=("a",),
        metadata=MappingProxyType({"k": "v"}),
        max_output_tokens=7,
    )
    assert request.instructions == Raw(b'"be brief"')
    assert request.tools == Raw(b'[ {"type":"function"} ]')
    assert request.tool_choice == Raw(b'{"type":"function","name":"f"}')
    assert (request.include, request.metadata) == (["a"], {"k": "v"})
    assert (request.max_output_tokens, request.stream_id, request.model) == (7, "a", "m")


NOT_PASSED: Final = frozenset(
    {
        *("background", "context_management", "conversation", "event_id", "input", "model"),
        *("previous_response_id", "prompt", "stream", "stream_id", "unknown"),
    }
)
"""Members of a create that have a parameter of their own, or that this client does not send."""


def test_callers_may_pass_every_member_of_a_create() -> None:
    members = {each.name for each in MEMBERS}
    assert Settings.__required_keys__ | Settings.__optional_keys__ == members - NOT_PASSED


def test_what_is_no_setting_and_what_is_no_json_is_refused() -> None:
    with pytest.raises(TypeError):
        create(max_tokens=1)
    with pytest.raises(TypeError):
        to_json(object())


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("function_call", "function_call_output"),
        ("custom_tool_call", "custom_tool_call_output"),
    ],
)
def test_an_output_is_of_the_kind_of_its_call(kind: str, expected: str) -> None:
    item = tool_output(Call(call_id="c", name="f", arguments="", type=kind), "out")
    assert msgspec.json.decode(item.raw) == {"type": expected, "call_id": "c", "output": "out"}
