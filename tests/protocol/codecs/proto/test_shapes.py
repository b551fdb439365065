"""Items and parts of the usual shapes: what is built without the tables is what they build."""

import msgspec
import pytest

from tests.support.event_samples import CALL, MESSAGE, PART, SUMMARY
from tests.support.json_values import value
from tieline.codecs import proto
from tieline.codecs.proto.schema import ITEM
from tieline.codecs.proto.shapes import item_of, members_of, part_of
from tieline.v1.events_pb2 import ContentPartDone
from tieline.v1.items_pb2 import ContentPart

PARTS = (
    bytes(PART),
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


@pytest.mark.parametrize("raw", ITEMS)
def test_an_item_is_what_the_tables_make_of_it(raw: bytes) -> None:
    assert item_of(raw) == proto.item_to_proto(raw).SerializeToString()


@pytest.mark.parametrize("raw", PARTS)
def test_a_part_is_what_the_tables_make_of_it(raw: bytes) -> None:
    event = proto.json_to_proto(b'{"type":"response.content_part.done","part":%b}' % raw)
    assert event.content_part_done == ContentPartDone(
        part=ContentPart.FromString(part_of(raw) or b""), absent=event.content_part_done.absent
    )


@pytest.mark.parametrize("raw", LEFT)
def test_what_has_another_shape_is_left_to_the_tables(raw: bytes) -> None:
    assert item_of(raw) is None


@pytest.mark.parametrize("raw", [b'{"type":"refusal","refusal":"no"}', b'{"type":"text"}', b"[]"])
def test_other_parts_are_left_to_the_tables(raw: bytes) -> None:
    assert part_of(raw) is None


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
