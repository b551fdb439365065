"""JSON -> proto -> JSON gives equal JSON, whatever came in (docs/protocol.md#what-is-accepted)."""

from collections.abc import Callable
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from tests.support.json_values import dumps, fixture, value, values, variants
from tieline.codecs import json, proto
from tieline.errors import ApiError
from tieline.requests import Request
from tieline.v1 import events_pb2, items_pb2, service_pb2

EVENTS: Final = fixture("events")
ITEMS: Final = fixture("items")
REQUESTS: Final = fixture("requests")


def event_again(raw: bytes) -> bytes:
    sent = proto.json_to_proto(raw).SerializeToString()
    return proto.proto_to_json(events_pb2.ServerEvent.FromString(sent))


def item_again(raw: bytes) -> bytes:
    sent = proto.item_to_proto(raw).SerializeToString()
    return proto.item_to_json(items_pb2.Item.FromString(sent))


def request_again(raw: bytes) -> bytes:
    sent = proto.request_to_proto(raw).SerializeToString()
    return proto.request_to_json(service_pb2.ConverseRequest.FromString(sent))


@given(variants(EVENTS))
def test_any_variant_of_any_event_survives(raw: bytes) -> None:
    assert value(event_again(raw)) == value(raw)


@given(variants(ITEMS))
def test_any_variant_of_any_item_survives(raw: bytes) -> None:
    assert value(item_again(raw)) == value(raw)


@given(variants(REQUESTS))
def test_any_variant_of_any_client_event_survives(raw: bytes) -> None:
    assert value(request_again(raw)) == value(raw)


@given(values)
def test_any_json_value_survives_as_event_item_and_client_event(said: object) -> None:
    raw = dumps(said)
    for again in (event_again, item_again, request_again):
        assert value(again(raw)) == value(raw)


def outcome(read: Callable[[], Request]) -> object:
    """What a client event means: its members, or the code of its refusal."""
    try:
        request = read()
    except ApiError as error:
        return error.code
    return type(request), value(json.encode(request))


@given(variants(REQUESTS))
def test_any_client_event_means_the_same_over_both_codecs(raw: bytes) -> None:
    message = proto.request_to_proto(raw)
    by_proto = outcome(lambda: proto.decode_request(message))
    assert by_proto == outcome(lambda: json.decode_request(raw))


@given(variants(EVENTS))
def test_any_event_is_read_alike_over_both_codecs(raw: bytes) -> None:
    by_proto, by_json = proto.decode_event(proto.json_to_proto(raw)), json.decode_event(raw)
    assert by_proto.type == by_json.type
    assert by_proto.sequence_number == by_json.sequence_number


def status(read: Callable[[bytes], object], raw: bytes) -> int:
    try:
        read(raw)
    except ApiError as error:
        return error.status
    return 200


@given(
    st.binary(max_size=60)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=60).map(str.encode)
)
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    reads = (json.decode_event, json.decode_request, event_again, request_again, item_again)
    assert {status(read, raw) for read in reads} <= {200, 400}
