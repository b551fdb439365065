"""Client events as messages, and what a connection remembers of them."""

import math
from typing import Any

import pytest
from msgspec import UNSET, Raw

from tests.support.json_values import dumps, fixture, value
from tieline import requests
from tieline.codecs import json, proto
from tieline.errors import ApiError
from tieline.requests import Create, Request
from tieline.v1.events_pb2 import Heartbeat
from tieline.v1.items_pb2 import (
    CustomTool,
    FunctionTool,
    Item,
    ItemList,
    OpaqueItem,
    OpaqueTool,
    Tool,
    Unknown,
)
from tieline.v1.requests_pb2 import (
    OpaqueRequest,
    ResponseAppend,
    ResponseCancel,
    ResponseCreate,
    ResponseResume,
    SessionEnd,
)
from tieline.v1.service_pb2 import ConverseRequest

ROWS = fixture("requests")
SENT: list[Request] = [
    Create(),
    Create(model="m", input=Raw(b'"hi"'), stream_id="lane.2", event_id="evt-1"),
    Create(input=Raw(b"[]"), generate=False, store=False, metadata={}, include=[]),
    Create(
        tools=Raw(b'[{"type":"function","name":"f","parameters":{"z":1,"a":2}},{"type":"x"}]'),
        tool_choice=Raw(b'{"type":"function","name":"f"}'),
        instructions=Raw(b'"Be brief."'),
        text=Raw(b'{"format":{"type":"text"}}'),
        temperature=0.0,
        max_output_tokens=1,
        trace_context={"traceparent": "00-x"},
        client_metadata=Raw(b'{"a":"b"}'),
        append=True,
    ),
    Create(tool_choice=Raw(b'"none"'), instructions=Raw(b'["odd"]'), client_metadata=Raw(b"5")),
    requests.Append(input=Raw(b'[{"type":"item_reference","id":"m"}]'), response_id="resp_1"),
    requests.Cancel(event_id="evt-1"),
    requests.Resume(response_id="resp_1", after=7, stream_id="lane.2"),
    requests.Steer(previous_response_id="resp_1", input=Raw(b'"stop"')),
    requests.Processed(response_id="resp_1"),
    requests.SessionStart(max_receive_bytes=0, merge="never", extensions=["timing"]),
    requests.SessionEnd(stream_id="lane.2"),
    requests.ClientHeartbeat(),
    requests.ClientHeartbeat(phase=""),
]


def refusal(message: ConverseRequest) -> ApiError:
    with pytest.raises(ApiError) as caught:
        proto.decode_request(ConverseRequest.FromString(message.SerializeToString()))
    return caught.value


@pytest.mark.parametrize("request_", SENT, ids=lambda request_: request_.type)
def test_a_client_event_comes_back_as_itself(request_: Request) -> None:
    message = ConverseRequest.FromString(proto.encode_request(request_).SerializeToString())
    back = proto.decode_request(message)
    assert type(back) is type(request_)
    assert value(json.encode(back)) == value(json.encode(request_))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["json"]["type"])
def test_every_client_event_of_the_wire_has_its_arm_and_its_json_back(row: dict[str, Any]) -> None:
    raw = dumps(row["json"])
    message = proto.request_to_proto(raw)
    assert message.WhichOneof("message") == row["arm"]
    again = ConverseRequest.FromString(message.SerializeToString())
    assert value(proto.request_to_json(again)) == value(raw)


def test_a_class_without_an_arm_travels_as_its_json() -> None:
    message = proto.encode_request(requests.Processed(response_id="resp_1"))
    assert message.opaque.type == "response.processed"


def test_no_input_an_empty_list_and_text_differ() -> None:
    empty = ResponseCreate(input_items=ItemList())
    assert proto.from_create(ResponseCreate()).input is UNSET
    assert proto.from_create(empty).input == Raw(b"[]")
    assert proto.from_create(ResponseCreate(input_text="")).input == Raw(b'""')


def test_a_typed_tool_keeps_its_schema_as_it_came() -> None:
    schema = '{"type": "object", "properties": {"z": {}, "a": {}}}'
    tool = Tool(function=FunctionTool(name="f", parameters_json=schema))
    create = proto.from_create(ResponseCreate(tools=[tool]))
    assert schema.encode() in bytes(create.tools)


def test_an_opaque_arm_is_a_client_event_in_json_under_the_envelope_s_lane() -> None:
    message = ConverseRequest(
        opaque=OpaqueRequest(type="response.create", json='{"type":"response.create","model":"m"}'),
        stream_id="lane.2",
    )
    assert proto.decode_request(message) == Create(model="m", stream_id="lane.2")


@pytest.mark.parametrize("arm", [{"opaque": OpaqueRequest(json='{"type":"response.create"}')}, {}])
def test_an_envelope_is_judged_alike_beside_every_arm(arm: dict[str, Any]) -> None:
    message = ConverseRequest(**arm or {"response_create": ResponseCreate()}, event_id="e" * 513)
    error = refusal(message)
    assert (error.code, error.param) == ("string_above_max_length", "event_id")


def test_members_that_the_fields_cannot_say_are_judged_as_in_json() -> None:
    odd = ResponseCreate(
        model="m", unknown=Unknown(extra_json='{"zz":1,"temperature":0.5,"model":null}')
    )
    assert proto.from_create(odd) == Create(temperature=0.5, unknown=("zz",))


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        (ConverseRequest(), "invalid_event", "type"),
        (ConverseRequest(event_id="e", stream_id="x"), "invalid_event", "type"),
        (ConverseRequest(opaque=OpaqueRequest(type="t", json="{")), "invalid_json", None),
        (ConverseRequest(opaque=OpaqueRequest(json='{"type":"t"}')), "invalid_event", "type"),
        (ConverseRequest(opaque=OpaqueRequest()), "invalid_json", None),
    ],
)
def test_a_message_that_is_no_client_event_is_refused(
    message: ConverseRequest, code: str, param: str | None
) -> None:
    error = refusal(message)
    assert (error.status, error.code, error.param) == (400, code, param)


def test_an_arm_of_a_newer_client_is_refused() -> None:
    newer = ConverseRequest.FromString(b"\x62\x02\x08\x01")
    assert newer.WhichOneof("message") is None
    assert refusal(newer).code == "invalid_event"


DEEP = "[" * 300 + "]" * 300


@pytest.mark.parametrize(
    ("create", "code", "param"),
    [
        (ResponseCreate(text_json="{"), "invalid_json", "text"),
        (ResponseCreate(text_json='1,"store":true'), "invalid_json", "text"),
        (ResponseCreate(reasoning_json='"\\ud800"'), "invalid_json", "reasoning"),
        (ResponseCreate(prompt_json="[1e999]"), "invalid_json", "prompt"),
        (ResponseCreate(tool_choice_json=DEEP), "invalid_json", "tool_choice"),
        (ResponseCreate(unknown=Unknown(extra_json="[]")), "invalid_json", "unknown.extra_json"),
        (ResponseCreate(unknown=Unknown(extra_json="nope")), "invalid_json", "unknown.extra_json"),
        (ResponseCreate(tools=[Tool()]), "invalid_type", "tools[0]"),
        (
            ResponseCreate(
                tools=[Tool(function=FunctionTool(name="f", parameters_json='{}},{"type":"x"'))]
            ),
            "invalid_json",
            "tools[0].parameters",
        ),
        (ResponseCreate(input_items=ItemList(items=[Item()])), "invalid_type", "input[0]"),
        (
            ResponseCreate(input_items=ItemList(items=[Item(opaque=OpaqueItem(json="]"))])),
            "invalid_json",
            "input[0]",
        ),
        (ResponseCreate(temperature=math.nan), "invalid_value", "temperature"),
        (ResponseCreate(top_p=math.inf), "invalid_value", "top_p"),
        (ResponseCreate(temperature=2.5), "decimal_above_max_value", "temperature"),
        (ResponseCreate(max_output_tokens=0), "integer_below_min_value", "max_output_tokens"),
        (ResponseCreate(top_logprobs=21), "integer_above_max_value", "top_logprobs"),
        (ResponseCreate(unknown=Unknown(extra_json='{"top_p":"hot"}')), "invalid_type", "top_p"),
        (
            ResponseCreate(unknown=Unknown(extra_json='{"max_tool_calls":-1}')),
            "integer_below_min_value",
            None,
        ),
        (ResponseCreate(idempotency_key=""), "empty_string", "idempotency_key"),
        (
            ResponseCreate(metadata={str(number): "" for number in range(17)}),
            "array_above_max_length",
            "metadata",
        ),
    ],
)
def test_a_wrong_create_is_refused_with_the_member_to_blame(
    create: ResponseCreate, code: str, param: str | None
) -> None:
    error = refusal(ConverseRequest(response_create=create))
    assert (error.status, error.code) == (400, code)
    assert param is None or error.param == param


def _message(tools: int, text: str, lane: str = "") -> ConverseRequest:
    """A create with about 40 kB of tools and 1 kB of new input, as it arrives."""
    offered = [
        Tool(function=FunctionTool(name=f"f{n}", parameters_json=f'{{"d":"{"x" * 400}"}}'))
        for n in range(tools, tools + 80)
    ]
    create = ResponseCreate(
        model="m", input_text=text * 1000, tools=offered, instructions="i" * 9000
    )
    message = ConverseRequest(response_create=create)
    if lane:
        message.stream_id = lane
    return ConverseRequest.FromString(message.SerializeToString())


def create_of(request: Request) -> Create:
    assert isinstance(request, Create)
    return request


def test_the_work_of_turn_200_is_that_of_turn_5() -> None:
    decoder = proto.RequestDecoder()
    works = []
    first = create_of(decoder.decode(_message(0, "a")))
    for turn in range(200):
        before = decoder.work
        again = create_of(decoder.decode(_message(0, "b")))
        works.append(decoder.work - before)
        assert again.tools is first.tools
        assert again.instructions is first.instructions
        assert turn or works[0] < 1_200
    assert works[199] == works[4]


def test_what_is_remembered_does_not_hide_what_changed() -> None:
    decoder = proto.RequestDecoder()
    for tools, text in ((0, "a"), (0, "b"), (1, "b"), (0, "c")):
        message = _message(tools, text)
        assert decoder.decode(message) == proto.decode_request(message)
    message.response_create.tools[3].function.parameters_json = "{"
    with pytest.raises(ApiError):
        decoder.decode(message)


def test_lanes_with_other_tools_do_not_cost_each_other_their_memory() -> None:
    decoder = proto.RequestDecoder()
    for lane, tools in (("one", 0), ("two", 7), ("", 3)):
        decoder.decode(_message(tools, "a", lane))
    before = decoder.work
    for _ in range(3):
        for lane, tools in (("one", 0), ("two", 7), ("", 3), ("four", 3)):
            decoder.decode(_message(tools, "a", lane))
    assert decoder.work - before < 12 * 1_200


def test_json_in_the_opaque_arm_is_remembered_too() -> None:
    decoder = proto.RequestDecoder()
    raw = dumps({"type": "response.create", "tools": [{"type": "x" * 5000}], "input": "a"})
    message = ConverseRequest(opaque=OpaqueRequest(type="response.create", json=raw.decode()))
    decoder.decode(message)
    before = decoder.work
    decoder.decode(message)
    assert decoder.work - before < 100


@pytest.mark.parametrize("request_", SENT, ids=lambda request_: request_.type)
def test_the_encoder_of_a_connection_says_what_the_function_says(request_: Request) -> None:
    encoder = proto.RequestEncoder()
    for _ in range(2):
        message = ConverseRequest.FromString(encoder.encode(request_))
        assert message == proto.encode_request(request_)


def test_settings_that_a_client_repeats_are_built_once() -> None:
    encoder = proto.RequestEncoder()
    works = []
    for turn in range(20):
        create = create_of(proto.decode_request(_message(0, "a", f"lane{turn % 4}")))
        before = encoder.work
        assert len(encoder.encode(create)) > 40_000
        works.append(encoder.work - before)
    assert works[0] > 40_000
    assert max(works[1:]) < 1_200
    assert works[19] == works[15]


def test_every_arm_reads_with_and_without_members() -> None:
    arms = {
        "response_append": ResponseAppend(),
        "response_cancel": ResponseCancel(),
        "response_resume": ResponseResume(),
        "session_end": SessionEnd(),
        "heartbeat": Heartbeat(),
    }
    for name, arm in arms.items():
        message = ConverseRequest(**{name: arm})  # type: ignore[arg-type]
        assert proto.encode_request(proto.decode_request(message)) == message


def refused(message: ResponseCreate | ResponseAppend) -> ApiError:
    asked = (
        ConverseRequest(response_create=message)
        if isinstance(message, ResponseCreate)
        else ConverseRequest(response_append=message)
    )
    with pytest.raises(ApiError) as caught:
        proto.decode_request(asked)
    return caught.value


@pytest.mark.parametrize("kind", [ResponseCreate, ResponseAppend])
@pytest.mark.parametrize("text", ['{"type":"function","name":"f"}', ' ["f"]', '"auto"'])
def test_cn_20_json_in_a_field_of_words_is_told_the_field_that_takes_it(
    kind: type[ResponseCreate] | type[ResponseAppend], text: str
) -> None:
    error = refused(kind(tool_choice=text))
    assert (error.code, error.param) == ("invalid_value", "tool_choice")
    assert "'tool_choice_json'" in error.message


FIELDS = [
    (kind, field.name)
    for kind in (ResponseCreate, ResponseAppend)
    for field in kind.DESCRIPTOR.fields
    if field.name.endswith("_json")
]


@pytest.mark.parametrize(
    ("kind", "field"), FIELDS, ids=lambda each: getattr(each, "__name__", each)
)
def test_cn_20_text_that_is_no_json_is_told_its_field(
    kind: type[ResponseCreate] | type[ResponseAppend], field: str
) -> None:
    message = kind()
    setattr(message, field, "a word")
    error = refused(message)
    assert (error.code, error.param) == ("invalid_json", field.removesuffix("_json"))
    assert f"'{field}'" in error.message


@pytest.mark.parametrize(
    ("tool", "field"),
    [
        (Tool(function=FunctionTool(name="f", parameters_json="{")), "tools[0].parameters_json"),
        (Tool(custom=CustomTool(name="c", format_json="lark")), "tools[0].format_json"),
        (Tool(opaque=OpaqueTool(type="web_search")), "tools[0].opaque.json"),
    ],
)
def test_cn_20_so_is_that_of_a_tool(tool: Tool, field: str) -> None:
    error = refused(ResponseCreate(tools=[tool]))
    assert error.code == "invalid_json"
    assert f"'{field}'" in error.message


BROKEN: list[tuple[ResponseCreate, str, str]] = [
    (ResponseCreate(text_json='{"a":"x\\ud83d"}'), "text", "a lone surrogate at byte 7"),
    (ResponseCreate(tool_choice_json='{"type":NaN}'), "tool_choice", "NaN at byte 8"),
    (ResponseCreate(reasoning_json="\ufeff{}"), "reasoning", "a byte-order mark at byte 0"),
    (
        ResponseCreate(unknown=Unknown(extra_json='{"a":1e999}')),
        "unknown.extra_json",
        "a number beyond a double at byte 5",
    ),
    (ResponseCreate(prompt_json="["), "prompt", "it ends too soon, at byte 1"),
    (
        ResponseCreate(
            tools=[
                Tool(function=FunctionTool(name="f")),
                Tool(function=FunctionTool(name="g", parameters_json='{"a":tru}')),
            ]
        ),
        "tools[1].parameters",
        "a character that JSON does not have there at byte 5",
    ),
]


@pytest.mark.parametrize(("message", "param", "told"), BROKEN)
def test_in_04_json_in_a_field_is_told_with_its_byte_and_path(
    message: ResponseCreate, param: str, told: str
) -> None:
    with pytest.raises(ApiError) as refused:
        proto.from_create(message)
    assert (refused.value.code, refused.value.param) == ("invalid_json", param)
    assert refused.value.message.startswith(f"Invalid JSON: {told}")
