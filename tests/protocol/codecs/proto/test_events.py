"""Events as messages, and as the bytes that a stream writes."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from tests.support.event_samples import CALL, MESSAGE, NUMBERED, TOOLS, USAGE, response
from tests.support.json_values import dumps, fixture, value
from tieline import events, responses
from tieline.codecs import json, proto
from tieline.errors import RESUMED_ELSEWHERE, ApiError
from tieline.events import Event, LifecycleEvent
from tieline.v1.events_pb2 import Ending, OpaqueEvent, OutputTextDelta, ServerEvent
from tieline.v1.items_pb2 import ContentPart, FunctionCall, Item, Unknown
from tieline.v1.service_pb2 import ConverseResponse, StreamResponse

ROWS = fixture("events")


def same(one: Event, other: Event) -> bool:
    """Whether two events are equal, raw members by their JSON rather than by their bytes."""
    return type(one) is type(other) and value(json.encode(one)) == value(json.encode(other))


def sent(event: Event) -> ServerEvent:
    (message,) = ConverseResponse.FromString(proto.encode_event(event)).events
    return message


def test_each_class_has_an_arm_and_each_arm_a_class() -> None:
    fields = ServerEvent.DESCRIPTOR.oneofs_by_name["event"].fields
    arms = {field.message_type.name for field in fields if field.message_type is not None}
    assert arms == {kind.__name__ for kind in events.CLASSES} | {"OpaqueEvent"}


def test_deltas_and_items_have_tags_of_one_byte() -> None:
    fields = ServerEvent.DESCRIPTOR.oneofs_by_name["event"].fields
    numbers = {field.message_type.name: field.number for field in fields if field.message_type}
    hot = {kind.__name__ for kind in events.MERGEABLE} | {"OutputItemAdded", "OutputItemDone"}
    assert all(numbers[name] < 16 for name in hot)


@pytest.mark.parametrize("event", NUMBERED, ids=lambda event: event.type)
def test_an_event_that_we_make_comes_back_as_itself(event: Event) -> None:
    assert same(proto.decode_event(sent(event)), event)


@pytest.mark.parametrize("event", NUMBERED, ids=lambda event: event.type)
def test_an_event_that_we_make_has_no_extras_and_reads_as_its_json(event: Event) -> None:
    message = sent(event)
    assert "unknown" not in str(message)
    assert value(proto.proto_to_json(message)) == value(json.encode(event))
    assert proto.json_to_proto(json.encode(event)) == message


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["json"]["type"])
def test_every_event_of_the_wire_has_its_arm_and_its_json_back(row: dict[str, Any]) -> None:
    raw = dumps(row["json"])
    message = proto.json_to_proto(raw)
    assert message.WhichOneof("event") == row["arm"]
    again = ServerEvent.FromString(message.SerializeToString())
    assert value(proto.proto_to_json(again)) == value(raw)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["json"]["type"])
def test_an_event_from_outside_means_the_same_over_both_codecs(row: dict[str, Any]) -> None:
    raw = dumps(row["json"])
    by_proto, by_json = proto.decode_event(proto.json_to_proto(raw)), json.decode_event(raw)
    assert same(by_proto, by_json)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"type":"response.output_text.delta","delta":"x","output_index":-1,"logprobs":{}}',
        b'{"type":"response.output_text.delta","sequence_number":2147483648}',
        b'{"type":"response.output_text.delta","sequence_number":1.0,"stream_id":null}',
        b'{"type":"response.created","response":{"temperature":0.70000000000000000001}}',
        b'{"type":"response.created","response":{"temperature":1e-400,"top_p":1E+2}}',
        b'{"type":"response.created","response":{"created_at":9007199254740993}}',
        b'{"type":"response.created","response":{"usage":{"input_tokens":18446744073709551616}}}',
        b'{"type":"response.created","response":{"object":"other","tools":null,"metadata":[]}}',
        b'{"type":"response.completed","output_omitted":false,"response":{"output":[null,5,{}]}}',
        b'{"type":"respons\\u0065.created","response":{"id":"\\ud83c\\udf3f\\u0000"}}',
        b'{"type":"error","error":null,"status":"400"}',
        b'{"type":"error","error":{"retry_after":1.0000000001}}',
        b'{"type":"response.created","response":{"created_at":-1,"completed_at":1.7e9}}',
        b'{"type":"response.created","response":{"status":"paused","reasoning":{"effort":null}}}',
        b'{"type":"response.created","response":{"text":{"format":{"type":"x"}},"reasoning":5}}',
        b'{"type":"response.in_progress","response":null}',
        b'{"type":"response.output_text.delta","response":{"id":"r"},"ending":3,"unknown":{}}',
        b'{"type":"tieline.heartbeat","phase":"dreaming"}',
        b'{"type":"tieline.session.going_away","seconds":1e300}',
        b'{"type":"response.output_item.added","item":"text","output_index":true}',
    ],
)
def test_odd_members_of_known_events_survive(raw: bytes) -> None:
    again = ServerEvent.FromString(proto.json_to_proto(raw).SerializeToString())
    assert value(proto.proto_to_json(again)) == value(raw)


@pytest.mark.parametrize("raw", [b"{", b'{"type":"x","a":1e999}', b'{"a":"\\ud800"}', b"[" * 9999])
def test_hostile_json_becomes_no_message(raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        proto.json_to_proto(raw)
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (ServerEvent(), "invalid_event"),
        (ServerEvent(opaque=OpaqueEvent(type="x", json="{")), "invalid_json"),
        (
            ServerEvent(output_text_delta=OutputTextDelta(unknown=Unknown(extra_json="[]"))),
            "invalid_json",
        ),
        (
            ServerEvent(output_text_delta=OutputTextDelta(unknown=Unknown(extra_json='{"a":1'))),
            "invalid_json",
        ),
        (ServerEvent(output_text_delta=OutputTextDelta(logprobs_json=['1,"x":2'])), "invalid_json"),
    ],
)
def test_a_message_that_says_no_json_is_refused(message: ServerEvent, code: str) -> None:
    for read in (proto.proto_to_json, proto.decode_event):
        with pytest.raises(ApiError) as caught:
            read(message)
        assert caught.value.code == code


def test_an_event_without_what_its_class_needs_is_opaque() -> None:
    message = ServerEvent()
    message.output_item_done.output_index = 1
    event = proto.decode_event(message)
    assert isinstance(event, events.Opaque)
    assert event.type == "response.output_item.done"


def test_an_opaque_arm_is_read_as_its_json() -> None:
    raw = json.encode(NUMBERED[11])
    message = ServerEvent(opaque=OpaqueEvent(type=NUMBERED[11].type, json=raw.decode()))
    assert proto.decode_event(message) == NUMBERED[11]


def test_an_opaque_event_travels_as_its_bytes() -> None:
    raw = b'{"type":"vendor:x", "a":1.50}'
    event = json.decode_event(raw)
    assert bytes(sent(event).opaque.json.encode()) == raw
    assert proto.decode_event(sent(event)) == event


def test_encoded_events_concatenate_on_both_streaming_calls() -> None:
    raw = b"".join(proto.encode_event(event) for event in NUMBERED)
    for kind in (ConverseResponse, StreamResponse):
        read = [proto.decode_event(message) for message in kind.FromString(raw).events]
        assert len(read) == len(NUMBERED)
        assert all(map(same, read, NUMBERED))


@pytest.mark.parametrize("event", NUMBERED, ids=lambda event: event.type)
def test_an_event_says_by_itself_whether_its_turn_goes_on(event: Event) -> None:
    endings: dict[type[Event], Ending.ValueType] = {
        events.ResponseDone: Ending.ENDING_HELD,
        events.ResponseCompleted: Ending.ENDING_COMPLETED,
        events.ResponseIncomplete: Ending.ENDING_INCOMPLETE,
        events.ResponseFailed: Ending.ENDING_FAILED,
    }
    expected = endings.get(type(event), Ending.ENDING_UNSPECIFIED)
    encoded = proto.EventEncoder().encode(event)
    for message in (sent(event), *ConverseResponse.FromString(encoded).events):
        assert message.ending == expected
        assert message.HasField("response") == isinstance(event, LifecycleEvent)


def test_the_error_that_refuses_a_create_ends_and_others_do_not() -> None:
    detail = events.ErrorDetail(code="model_not_found", message="No such model.")
    refused = events.RequestRefused(sequence_number=0, status=404, error=detail)
    other = events.ErrorEvent(sequence_number=0, status=404, error=detail)
    assert sent(refused).ending == Ending.ENDING_REFUSED
    assert sent(other).ending == Ending.ENDING_UNSPECIFIED
    assert sent(refused).error == sent(other).error
    assert json.encode(refused) == json.encode(other)
    assert proto.decode_event(sent(refused)) == refused
    assert proto.decode_event(sent(other)) == other


def test_a_reader_whose_response_has_moved_hears_no_more() -> None:
    detail = events.ErrorDetail(code=RESUMED_ELSEWHERE, message="It was resumed elsewhere.")
    moved = events.ErrorEvent(sequence_number=5, status=409, error=detail)
    assert sent(moved).ending == Ending.ENDING_READER_MOVED
    assert proto.json_to_proto(json.encode(moved)).ending == Ending.ENDING_READER_MOVED


def test_a_response_comes_back_as_itself() -> None:
    made = response(output=[MESSAGE], usage=USAGE, text=Raw(b'{"format":{"type":"text"}}'))
    back = proto.from_response(proto.to_response(made))
    assert value(responses.encode(back)) == value(responses.encode(made))


def test_an_odd_response_is_read_leniently() -> None:
    message = proto.to_response(response())
    message.unknown.extra_json = '{"status":5,"zz":1,"top_logprobs":3}'
    back = proto.from_response(message)
    assert (back.status, back.top_logprobs, back.id) == (None, 3, "resp_1")


def test_an_omitted_output_is_said_in_both_forms() -> None:
    event = events.ResponseCompleted(response=response(output=[MESSAGE]), sequence_number=3)
    for encode in (proto.encode_event, proto.EventEncoder().encode):
        (message,) = ConverseResponse.FromString(encode(event, output_omitted=True)).events
        assert message.response_completed.output_omitted
        assert not message.response.output
        assert value(proto.proto_to_json(message)) == value(
            json.encode(events.ResponseCompleted(response=response(), sequence_number=3))[:-1]
            + b',"output_omitted":true}'
        )
        back = proto.decode_event(message)
        assert isinstance(back, events.ResponseCompleted)
        assert value(responses.encode(back.response)) == value(responses.encode(response()))


def _turn(number: int, tools: Raw, lane: str) -> list[LifecycleEvent]:
    whole = response(id=f"resp_{number}", tools=tools)
    done = msgspec.structs.replace(whole, status="completed", output=[MESSAGE, CALL], usage=USAGE)
    return [
        events.ResponseCreated(response=whole, sequence_number=0, stream_id=lane),
        events.ResponseInProgress(response=whole, sequence_number=1, stream_id=lane),
        events.ResponseCompleted(response=done, sequence_number=2, stream_id=lane),
    ]


def test_the_decoder_of_a_connection_says_what_the_function_says() -> None:
    decoder = proto.EventDecoder()
    for event in (*NUMBERED, *NUMBERED):
        assert same(decoder.decode(sent(event)), event)
    for row in ROWS:
        message = proto.json_to_proto(dumps(row["json"]))
        assert same(decoder.decode(message), proto.decode_event(message))


def test_an_odd_lifecycle_event_is_judged_as_json_by_the_decoder_too() -> None:
    for raw in (
        b'{"type":"response.created"}',
        b'{"type":"response.created","response":null}',
        b'{"type":"response.created","response":{"id":5}}',
        b'{"type":"response.created","response":{"id":"r"},"zz":1}',
    ):
        message = proto.json_to_proto(raw)
        assert same(proto.EventDecoder().decode(message), json.decode_event(raw))


def test_settings_that_are_echoed_again_are_read_once() -> None:
    decoder = proto.EventDecoder()
    works, tools = [], []
    for number in range(20):
        before = decoder.work
        for event in _turn(number, TOOLS, f"lane{number % 4}"):
            read = decoder.decode(sent(event))
            assert isinstance(read, LifecycleEvent)
            tools.append(read.response.tools)
        works.append(decoder.work - before)
    assert all(one is tools[0] for one in tools)
    assert works[0] - works[1] > len(bytes(TOOLS))
    assert works[19] == works[15]


def test_items_and_parts_of_unknown_arms_are_refused() -> None:
    with pytest.raises(ApiError) as caught:
        proto.item_to_json(Item())
    assert (caught.value.code, caught.value.param) == ("invalid_type", "item")
    message = proto.item_to_proto(bytes(MESSAGE))
    message.message.parts.parts.append(ContentPart())
    with pytest.raises(ApiError) as caught:
        proto.item_to_json(message, param="input[3]")
    assert caught.value.param == "input[3].content[1]"


def test_a_typed_item_reads_as_an_item() -> None:
    message = Item(function_call=FunctionCall(call_id="c", name="f", arguments="{}"))
    item = proto.from_item(message)
    assert (item.type, item.opens) == ("function_call", "c")
    assert proto.to_item(item) == message


WARNED = events.ResponseCreated(
    sequence_number=0,
    response=responses.Response(id="resp_1", status="in_progress"),
    event_id="e",
    warnings=(
        events.RequestWarning(code="unknown_parameter", message="Unknown: 'ü'.", param="ü"),
        events.RequestWarning(code="unsupported_tool", message="No.", param="tools[0].type"),
    ),
)


@pytest.mark.parametrize("encode", [proto.encode_event, proto.EventEncoder().encode])
@pytest.mark.parametrize("decode", [proto.decode_event, proto.EventDecoder().decode])
def test_in_07_the_warnings_of_a_create_come_as_they_went(encode: Any, decode: Any) -> None:
    (message,) = ConverseResponse.FromString(encode(WARNED)).events
    assert [each.param for each in message.response_created.warnings] == ["ü", "tools[0].type"]
    assert same(decode(message), WARNED)
    assert decode(message).warnings == WARNED.warnings
    raw = proto.proto_to_json(message)
    assert same(json.decode_event(raw), WARNED)
    assert proto.json_to_proto(raw) == message


@pytest.mark.parametrize("warnings", ["[]", "null", "5", '["x"]', '[{"code":1}]', '[{"odd":1}]'])
def test_in_07_warnings_of_no_usual_shape_are_carried(warnings: str) -> None:
    raw = b'{"type":"response.created","response":{"id":"r"},"warnings":%b}' % warnings.encode()
    assert value(proto.proto_to_json(proto.json_to_proto(raw))) == value(raw)
