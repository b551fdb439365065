"""What a load client reads out of an event: four members, whatever else there is."""

import msgspec
import pytest

from tests.support.event_samples import SAMPLES
from tieline import events
from tieline.codecs.json import encode
from tieline_bench.clients import Seen
from tieline_bench.clients.json_event import seen


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: str(event.type))
def test_every_event_that_a_server_encodes_is_seen_by_its_type(event: events.Event) -> None:
    response = getattr(event, "response", None)
    delta = getattr(event, "delta", "")
    found = seen(encode(event))
    item = msgspec.json.decode(encode(event)).get("item", {})
    call_id = item.get("call_id", "") if event.type == "response.output_item.done" else ""
    assert found == Seen(event.type, delta, response.id if response is not None else "", call_id)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_it_reads_from_whatever_holds_the_bytes(kind: type) -> None:
    data = b'{"sequence_number":4,"delta":"\\ud83d\\ude00","type":"response.output_text.delta"}'
    assert seen(kind(data)) == Seen("response.output_text.delta", "\U0001f600")


def test_a_response_without_an_id_or_none_at_all_is_no_id() -> None:
    assert seen(
        b'{"type":"response.created","response":{"id":"resp_1","output":[{"id":"x"}]}}'
    ) == Seen("response.created", response_id="resp_1")
    assert seen(b'{"type":"response.created","response":{}}').response_id == ""
    assert seen(b'{"type":"error","response":null,"error":{"id":"e"}}').response_id == ""


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"delta":"x"}', b'{"type":7}'])
def test_what_is_no_event_is_never_taken_for_one(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        seen(data)
