"""Items and parts of the usual shapes: what is built without the tables is what they build."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.event_samples import CALL, MESSAGE, SUMMARY
from tests.support.event_samples import PART as TEXT_PART
from tests.support.json_values import dumps, value
from tieline.codecs import proto
from tieline.codecs.proto.schema import ITEM, PART
from tieline.codecs.proto.shapes import fill_item, fill_part, members_of
from tieline.v1.items_pb2 import ContentPart, Item

PARTS = (
    bytes(TEXT_PART),
    bytes(SUMMARY),
    b'{"text":"\\u00e9\\n","type":"reasoning_text"}',
    b'{"type":"output_text","text":"a","annotations":[{"type":"file_path"}],"logprobs":[1.50]}',
)
ITEMS = (
    bytes(MESSAGE),
    bytes(CALL),
    b'{"type":"message","role":"assistant","content":[]}',
    b'{"type":"function_call","call_id":"","name":"","arguments":"","id":""}',
)
LEFT = (
    b'{"type":"message","role":"assistant","content":"text"}',
    b'{"type":"message","role":"assistant","content":[],"id":null}',
    b'{"type":"message","role":"assistant","content":[],"vendor":1}',
    b'{"type":"message","role":"assistant","content":[{"type":"refusal","refusal":"no"}]}',
    b'{"type":"message","content":[]}',
    b'{"type":"function_call","name":"f","arguments":"{}"}',
    b'{"type":"function_call","call_id":"c","name":"f","arguments":"{}","namespace":"n"}',
    b'{"role":"assistant","content":[]}',
    b'{"type":"reasoning","summary":[]}',
    b'"text"',
    b"{",
)


def by_tables(raw: bytes) -> Item:
    message = Item()
    ITEM.fill_any(message, raw)
    return message


def part_by_tables(raw: bytes) -> ContentPart:
    message = ContentPart()
    PART.fill_any(message, raw)
    return message


@pytest.mark.parametrize("raw", ITEMS)
def test_an_item_is_what_the_tables_make_of_it(raw: bytes) -> None:
    message = Item()
    assert fill_item(message, raw)
    assert message == by_tables(raw)


@pytest.mark.parametrize("raw", PARTS)
def test_a_part_is_what_the_tables_make_of_it(raw: bytes) -> None:
    message = ContentPart()
    assert fill_part(message, raw)
    assert message == part_by_tables(raw)


@pytest.mark.parametrize("raw", LEFT)
def test_what_has_another_shape_is_left_to_the_tables(raw: bytes) -> None:
    message = Item()
    assert not fill_item(message, raw)
    assert message == Item()


@pytest.mark.parametrize("raw", [b'{"type":"refusal","refusal":"no"}', b'{"type":"text"}', b"[]"])
def test_other_parts_are_left_to_the_tables(raw: bytes) -> None:
    message = ContentPart()
    assert not fill_part(message, raw)
    assert message == ContentPart()


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
VALUES: st.SearchStrategy[Any] = TEXTS | st.none() | st.just(1.5) | st.just([]) | st.just({"a": 1})
PART_MEMBERS = {
    "type": st.sampled_from(["output_text", "summary_text", "input_text", "refusal"]),
    "text": TEXTS | VALUES,
    "annotations": VALUES,
    "logprobs": VALUES,
    "vendor": VALUES,
}
MEMBERS = {
    "type": st.sampled_from(["message", "function_call", "reasoning"]),
    "role": st.just("assistant") | VALUES,
    "content": st.lists(st.fixed_dictionaries({}, optional=PART_MEMBERS), max_size=2) | VALUES,
    "id": TEXTS | VALUES,
    "status": st.just("completed") | VALUES,
    "call_id": TEXTS | VALUES,
    "name": TEXTS | VALUES,
    "arguments": TEXTS | VALUES,
    "vendor": VALUES,
}


@st.composite
def items(draw: st.DrawFn) -> bytes:
    """Items near the usual shapes: mostly with all of their members, each in its usual type."""
    base = msgspec.json.decode(draw(st.sampled_from(ITEMS)))
    for name in draw(st.sets(st.sampled_from(sorted(MEMBERS)), max_size=2)):
        base[name] = draw(MEMBERS[name])
    for name in draw(st.sets(st.sampled_from(sorted(base)), max_size=1)):
        del base[name]
    return dumps(base)


@given(items())
def test_any_item_is_what_the_tables_make_of_it(raw: bytes) -> None:
    message = Item()
    ITEM.fill(message, raw)
    assert message == by_tables(raw)


CAME = (
    b'{"type":"message","role":"user","content":"hi"}',
    b'{"type":"message","role":"","content":""}',
    b'{"type":"message","role":"user","content":[]}',
    b'{"type":"message","role":"assistant","id":"m","status":"completed","phase":"final_answer",'
    b'"content":[{"type":"input_text","text":"\\u00e9"},{"type":"output_text","text":""}]}',
    b'{"type":"function_call_output","call_id":"c","output":"\\n"}',
    b'{"type":"function_call_output","call_id":"","id":"o","output":'
    b'[{"type":"input_text","text":"x"}]}',
)
CAME_ODD = (
    b'{"role":"user","content":"hi"}',
    b'{"type":"message","content":"hi"}',
    b'{"type":"message","role":"user","content":"hi","vendor":1}',
    b'{"type":"message","role":"user","content":"hi","id":null}',
    b'{"type":"message","role":"user","content":[{"type":"input_image","image_url":"u"}]}',
    b'{"type":"message","role":"user","content":[{"type":"input_text","text":"a","b":1}]}',
    b'{"type":"message","role":"user","content":[{"type":"input_text"}]}',
    bytes(MESSAGE),
    bytes(CALL),
    b'{"type":"vendor:x"}',
)


@pytest.mark.parametrize("raw", CAME)
def test_a_usual_item_that_came_is_read_as_the_json_that_it_was(raw: bytes) -> None:
    members = members_of(proto.item_to_proto(raw))
    assert members is not None
    assert value(msgspec.json.encode(members)) == value(raw)


@pytest.mark.parametrize("raw", CAME_ODD)
def test_an_item_that_came_with_more_or_less_is_left_to_the_tables(raw: bytes) -> None:
    message = proto.item_to_proto(raw)
    assert members_of(message) is None
    assert value(msgspec.json.encode(ITEM.load(message, "input[0]"))) == value(raw)
