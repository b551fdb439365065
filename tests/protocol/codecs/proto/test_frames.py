"""Protobuf's framing, against protobuf itself."""

import pytest

from tieline.codecs.proto.frames import field, varint
from tieline.v1.events_pb2 import OpaqueEvent, ServerEvent


@pytest.mark.parametrize("number", [0, 1, 127, 128, 4095, 4096, 16383, 16384, 2**32 - 1])
def test_a_number_is_written_as_protobuf_writes_it(number: int) -> None:
    written = ServerEvent(sequence_number=number).SerializeToString()
    assert b"\x08" + varint(number) == written


@pytest.mark.parametrize("size", [0, 1, 127, 128, 70_000])
def test_a_field_is_framed_as_protobuf_frames_it(size: int) -> None:
    body = OpaqueEvent(type="x" * size).SerializeToString()
    number = ServerEvent.DESCRIPTOR.fields_by_name["opaque"].number
    assert ServerEvent.FromString(field(number, body)).opaque.type == "x" * size
