"""Items and tools as messages: typed arms for what is known, all bytes for what is not."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from tests.support.json_values import dumps, fixture, value
from tieline import items
from tieline.codecs import proto
from tieline.errors import ApiError
from tieline.v1.items_pb2 import (
    ContentList,
    ContentPart,
    CustomToolCallOutput,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    RefusalPart,
    TextPart,
    Unknown,
)

ROWS = fixture("items")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["json"].get("type", "no type"))
def test_every_item_of_the_wire_has_its_arm_and_its_json_back(row: dict[str, Any]) -> None:
    raw = dumps(row["json"])
    message = proto.item_to_proto(raw)
    assert message.WhichOneof("item") == row["arm"]
    again = Item.FromString(message.SerializeToString())
    assert value(proto.item_to_json(again)) == value(raw)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["json"].get("type", "no type"))
def test_an_item_reads_the_same_after_its_way_through_a_message(row: dict[str, Any]) -> None:
    item = items.decode(dumps(row["json"]))
    back = proto.from_item(proto.to_item(item))
    assert value(back.raw) == value(item.raw)
    assert (back.type, back.id, back.opens, back.answers) == (
        item.type,
        item.id,
        item.opens,
        item.answers,
    )


@pytest.mark.parametrize(
    "raw",
    [
        b"{}",
        b'{"type":null,"role":"user"}',
        b'{"type":["message"],"role":"user"}',
        b'{"role":"user","content":null,"id":null,"status":null}',
        b'{"role":5,"content":{"a":1}}',
        b'{"role":"user","content":[1,"x",null,{},{"type":7},{"type":"input_text","text":null}]}',
        b'{"type":"mess\\u0061ge","role":"\\u0075ser","content":"\\ud83c\\udf3f"}',
        b'{"type":"function_call","call_id":null,"arguments":{"a":1},"extra_json":"x","absent":[1]}',
        b'{"type":"reasoning","summary":null,"content":[],"encrypted_content":""}',
        b'{"type":"reasoning","summary":"text"}',
        b'{"type":"item_reference"}',
        b'{"role":"user","role":"assistant","content":"first","content":"last"}',
        b'{"role":"user","content":"a","nested":{"n":123456789012345678901234567890.10}}',
        b"[]",
        b"null",
        b'"text"',
        b"7",
    ],
)
def test_odd_items_survive(raw: bytes) -> None:
    again = Item.FromString(proto.item_to_proto(raw).SerializeToString())
    assert value(proto.item_to_json(again)) == value(raw)


def test_known_members_are_typed_and_only_the_others_are_extra() -> None:
    message = proto.item_to_proto(b'{"role":"user","content":"hi","id":null,"weight":1.50}').message
    assert (message.role, message.text) == ("user", "hi")
    assert msgspec.json.decode(message.unknown.extra_json, type=dict[str, Raw]) == {
        "id": Raw(b"null"),
        "weight": Raw(b"1.50"),
    }
    assert list(message.unknown.absent) == ["type"]


@pytest.mark.parametrize("raw", [b"", b"{", b'{"a":1e999}', b'{"a":"\\udfff"}', b"[" * 999])
def test_hostile_json_becomes_no_item(raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        proto.item_to_proto(raw, param="input[2]")
    assert (caught.value.code, caught.value.param) == ("invalid_json", "input[2]")


def test_a_message_item_that_is_wrong_is_refused_as_in_json() -> None:
    message = proto.item_to_proto(b'{"role":"robot","content":"x"}')
    with pytest.raises(ApiError) as caught:
        proto.from_item(message, param="input[0]")
    assert (caught.value.code, caught.value.param) == ("invalid_value", "input[0].role")


def untyped(text: str = "hi", **members: Any) -> ContentPart:
    return ContentPart(text=TextPart(text=text, **members))


PARTS = ContentList(parts=[untyped(), untyped(annotations_json="[]")])
SAID = ContentList(parts=[untyped(), ContentPart(refusal=RefusalPart(refusal="no"))])
UNTYPED = [
    (Item(message=Message(role="user", parts=PARTS)), "content", ["input_text"] * 2),
    (Item(message=Message(role="system", parts=PARTS)), "content", ["input_text"] * 2),
    (Item(message=Message(role="developer", parts=PARTS)), "content", ["input_text"] * 2),
    (Item(message=Message(role="assistant", parts=PARTS)), "content", ["output_text"] * 2),
    (Item(message=Message(role="assistant", parts=SAID)), "content", ["output_text", "refusal"]),
    (
        Item(message=Message(role="user", parts=ContentList(parts=[untyped(type="text")]))),
        "content",
        ["text"],
    ),
    (
        Item(function_call_output=FunctionCallOutput(call_id="c", parts=PARTS)),
        "output",
        ["input_text"] * 2,
    ),
    (
        Item(custom_tool_call_output=CustomToolCallOutput(call_id="c", parts=PARTS)),
        "output",
        ["input_text"] * 2,
    ),
    (Item(reasoning=Reasoning(summary=PARTS.parts)), "summary", ["summary_text"] * 2),
    (Item(reasoning=Reasoning(content=PARTS)), "content", ["reasoning_text"] * 2),
]


@pytest.mark.parametrize(("message", "member", "types"), UNTYPED)
def test_in_08_a_text_part_without_a_type_has_that_of_its_place(
    message: Item, member: str, types: list[str]
) -> None:
    said = msgspec.json.decode(proto.from_item(message).raw)[member]
    assert [part["type"] for part in said] == types


def test_in_08_a_part_of_json_without_a_type_stays_as_it_came() -> None:
    raw = b'{"type":"message","role":"user","content":[{"text":"x"},{"type":"","text":"x"}]}'
    assert value(proto.item_to_json(proto.item_to_proto(raw))) == value(raw)


def test_in_08_a_part_whose_type_is_named_as_absent_has_none() -> None:
    part = untyped(unknown=Unknown(absent=["type"]))
    message = Item(message=Message(role="user", parts=ContentList(parts=[part])))
    said = msgspec.json.decode(proto.from_item(message).raw)
    assert said["content"] == [{"text": part.text.text}]
