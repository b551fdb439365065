"""Items and parts of the usual shapes: what is built without the tables is what they build."""

import pytest

from tests.support.event_samples import CALL, MESSAGE, PART, SUMMARY
from tieline.codecs import proto
from tieline.codecs.proto.shapes import item_of, part_of
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
