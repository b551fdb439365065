"""One JSON object, split into an envelope and an arm, and joined again."""

import pytest

from tests.support.json_values import value
from tieline.codecs.proto.events import BRIDGE
from tieline.codecs.proto.requests import BRIDGE as REQUEST_BRIDGE
from tieline.errors import ApiError
from tieline.v1.events_pb2 import HEARTBEAT_PHASE_HELD, Heartbeat, ServerEvent


def test_envelope_members_are_beside_the_arm() -> None:
    message = BRIDGE.to_proto(b'{"type":"tieline.heartbeat","phase":"held","stream_id":"a"}')
    assert message == ServerEvent(stream_id="a", heartbeat=Heartbeat(phase=HEARTBEAT_PHASE_HELD))


def test_an_envelope_member_of_another_type_stays_with_the_arm() -> None:
    raw = b'{"type":"tieline.heartbeat","phase":"held","stream_id":7,"sequence_number":null}'
    message = BRIDGE.to_proto(raw)
    assert not message.HasField("stream_id")
    assert value(message.heartbeat.unknown.extra_json) == value(
        b'{"stream_id":7,"sequence_number":null}'
    )
    assert value(BRIDGE.to_json(message)) == value(raw)


@pytest.mark.parametrize("raw", [b"[1]", b"null", b'"x"', b"{}", b'{"type":7}', b'{"type":"x"}'])
def test_what_has_no_known_type_is_carried_whole(raw: bytes) -> None:
    for bridge in (BRIDGE, REQUEST_BRIDGE):
        message = bridge.to_proto(raw)
        assert message.opaque.json.encode() == raw == bridge.to_json(message)


def test_an_arm_without_members_is_still_that_arm() -> None:
    message = REQUEST_BRIDGE.to_proto(b'{"type":"tieline.session.end"}')
    assert message.WhichOneof("message") == "session_end"
    assert REQUEST_BRIDGE.to_json(message) == b'{"type":"tieline.session.end"}'


def test_no_arm_is_no_event() -> None:
    with pytest.raises(ApiError) as caught:
        BRIDGE.to_json(ServerEvent(stream_id="a"))
    assert caught.value.code == "invalid_event"
