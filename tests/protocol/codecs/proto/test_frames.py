"""Protobuf's framing, against protobuf itself."""

import pytest

from tieline.codecs.proto.frames import NUMBER, VARINT, field, repeated, tag
from tieline.v1.events_pb2 import OpaqueEvent, ServerEvent
from tieline.v1.responses_pb2 import Response
from tieline.v1.service_pb2 import ConverseResponse


@pytest.mark.parametrize("number", [0, 1, 127, 128, 4095, 4096, 16383, 16384, 2**31 - 1])
def test_a_number_is_written_as_protobuf_writes_it(number: int) -> None:
    written = ServerEvent(sequence_number=number).SerializeToString()
    assert b"\x08" + VARINT[number] == written


@pytest.mark.parametrize("size", [0, 1, 127, 128, 70_000])
def test_a_field_is_framed_as_protobuf_frames_it(size: int) -> None:
    body = OpaqueEvent(type="x" * size).SerializeToString()
    number = ServerEvent.DESCRIPTOR.fields_by_name["opaque"].number
    assert ServerEvent.FromString(field(tag(number), body)).opaque.type == "x" * size


@pytest.mark.parametrize("number", [-1, 2**64])
def test_a_number_that_has_no_varint_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match="varint"):
        VARINT[number]


def test_a_tag_says_the_wire_type() -> None:
    written = Response(id="r", parallel_tool_calls=True).SerializeToString()
    flag = tag(Response.PARALLEL_TOOL_CALLS_FIELD_NUMBER, NUMBER) + VARINT[1]
    assert field(tag(Response.ID_FIELD_NUMBER), b"r") + flag == written


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 70_000])
def test_a_message_is_cut_where_each_of_its_elements_ends(size: int) -> None:
    each = [
        ConverseResponse(events=[ServerEvent(stream_id="x" * length)]).SerializeToString()
        for length in (size, 0, 5, size)
    ]
    assert repeated(b"".join(each)) == each
    assert repeated(b"") == []
