"""The JSON codec: what it reads, what it carries, and what it refuses."""

import contextlib
import gc
from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw, structs

from tests.support.event_samples import NUMBERED
from tests.support.json_values import dumps, fixture, value
from tieline import events, requests
from tieline.codecs import json
from tieline.errors import ApiError
from tieline.events import Event

DEEP = b"[" * json.MAX_DEPTH + b"]" * json.MAX_DEPTH
BRACKETS_IN_TEXT = b'["' + b"[{" * 600 + b'"]'


def refusal(raw: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        json.decode_request(raw)
    return caught.value


@pytest.mark.parametrize(
    "raw",
    [
        b"{}",
        DEEP,
        BRACKETS_IN_TEXT,
        b"[" + b"9" * 308 + b"]",
        b'["' + b"9" * 400 + b'"]',
        b"[1.7976931348623157e308, 1e-400, -0.0, 123456789012345678901234567890]",
        '["\U0001f33f", "\\ud83c\\udf3f", "\u2028\x85"]'.encode(),
        b"[" + b"[]," * 999 + b"[]]",
    ],
)
def test_sound_json_passes(raw: bytes) -> None:
    json.check(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"nope",
        b"[1,]",
        b"{} {}",
        b"[NaN]",
        b"[01]",
        b'["\x01"]',
        b'["\xff"]',
        b'["\xed\xa0\x80"]',
        b'["\\ud800"]',
        b'["\\ud800\\u0041"]',
        b'["\\udc00"]',
        b'{"\\ud800":1}',
        b"[1e309]",
        b"[-1e309]",
        b"[" + b"9" * 309 + b"]",
        b"[" + b"9" * 5000 + b"]",
        b'{"a":"' + b"[" * 700 + b'","b":-' + b"1" * 700 + b"}",
        b"[" + DEEP + b"]",
        b'{"a":' * 257 + b"1" + b"}" * 257,
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_hostile_json_is_refused(raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        json.check(raw, param="p")
    error = caught.value
    assert (error.status, error.code, error.param) == (400, "invalid_json", "p")


@pytest.mark.parametrize("event", NUMBERED, ids=lambda event: event.type)
def test_an_event_that_we_make_reads_as_itself(event: Event) -> None:
    assert json.decode_event(json.encode(event)) == event


@pytest.mark.parametrize("row", fixture("events"), ids=lambda row: row["json"]["type"])
def test_every_event_of_the_wire_is_read_by_its_type(row: dict[str, Any]) -> None:
    event = json.decode_event(dumps(row["json"]))
    kind = events.BY_TYPE.get(row["json"]["type"], events.Opaque)
    assert type(event) is kind
    assert event.type == row["json"]["type"]


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (b'{"type":"vendor:x","sequence_number":null}', "vendor:x"),
        (b'{"type":"response.output_item.added","output_index":0,"item":null}', None),
        (b'{"type":"response.output_item.done","output_index":0}', None),
        (b'{"type":"response.output_text.delta","delta":5}', None),
        (b'{"type":"response.created","response":[]}', None),
        (b'{"type":5}', ""),
        (b"{}", ""),
        (b"[1]", ""),
        (b"null", ""),
    ],
)
def test_an_event_that_fits_no_class_is_opaque(raw: bytes, name: str | None) -> None:
    event = json.decode_event(raw)
    assert isinstance(event, events.Opaque)
    assert bytes(event.raw) == raw == json.encode(event)
    assert event.type == (msgspec.json.decode(raw)["type"] if name is None else name)


def test_a_wrong_member_that_no_class_needs_does_not_hide_the_event() -> None:
    raw = (
        b'{"type":"response.completed","sequence_number":null,"response":{"id":"r","output":null,'
        b'"status":"completed","usage":{"input_tokens":3,"output_tokens":null}}}'
    )
    event = json.decode_event(raw)
    assert isinstance(event, events.ResponseCompleted)
    assert (event.response.id, event.response.status, event.response.output) == (
        "r",
        "completed",
        [],
    )
    assert event.response.usage is not None
    assert event.response.usage.input_tokens == 3


@pytest.mark.parametrize(
    "raw",
    [
        b'{"type":"error","sequence_number":7,"code":"c","message":"m","param":"p"}',
        b'{"type":"error","sequence_number":7,"error":{"code":"c","message":"m","param":"p"}}',
        b'{"type":"error","sequence_number":7,"status":"?","error":{"code":"c","message":"m",'
        b'"param":"p","event_id":5}}',
    ],
)
def test_the_flat_the_nested_and_the_odd_error_read_alike(raw: bytes) -> None:
    detail = events.ErrorDetail(code="c", message="m", param="p")
    assert json.decode_event(raw) == events.ErrorEvent(sequence_number=7, error=detail)


@pytest.mark.parametrize("raw", [b"", b"{", b"[" * 100_000, b'{"type":"\xff"}', b'{"a":1'])
def test_an_event_that_is_no_json_is_refused(raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        json.decode_event(raw)
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize("row", fixture("requests"), ids=lambda row: row["json"]["type"])
def test_every_client_event_is_read_by_its_type(row: dict[str, Any]) -> None:
    kind = requests.BY_TYPE.get(row["json"]["type"])
    if kind is None:
        assert refusal(dumps(row["json"])).code == "invalid_event"
    else:
        assert type(json.decode_request(dumps(row["json"]))) is kind


def test_an_encoded_client_event_has_no_empty_members_and_reads_as_itself() -> None:
    create = requests.Create(model="m", input=Raw(b'"hi"'), store=False, tools=Raw(b"[]"))
    raw = json.encode(create)
    assert value(raw) == value(
        b'{"type":"response.create","model":"m","input":"hi","store":false,"tools":[]}'
    )
    assert json.decode_request(raw) == create


def test_an_opaque_client_event_is_its_own_bytes() -> None:
    raw = b'{ "type":"response.inject" }'
    assert json.encode(requests.Opaque(name="response.inject", raw=Raw(raw))) == raw


@pytest.mark.parametrize(
    ("raw", "code", "param"),
    [
        (b"{", "invalid_json", None),
        (b'{"type":"response.create","input":"\\ud800"}', "invalid_json", None),
        (b'{"type":"response.create","input":1e999}', "invalid_json", "input"),
        (b'{"type":"response.create","zz":"\xff"}', "invalid_json", "zz"),
        (b'{"type":"response.create","zz":' + DEEP + b"}", "invalid_json", "zz"),
        (b'{"type":"response.create","tools":' + b"[" * 9999, "invalid_json", None),
        (b"[]", "invalid_event", "type"),
        (b'"response.create"', "invalid_event", "type"),
        (b'{"input":"x"}', "invalid_event", "type"),
        (b'{"type":null}', "invalid_event", "type"),
        (b'{"type":["response.create"]}', "invalid_event", "type"),
        (b'{"type":"response.frobnicate"}', "invalid_event", "type"),
        (b'{"type":"tieline.opaque"}', "invalid_event", "type"),
        (b'{"type":"response.create","temperature":"hot"}', "invalid_type", "temperature"),
        (b'{"type":"response.create","top_p":7}', "decimal_above_max_value", "top_p"),
        (b'{"type":"response.cancel","response_id":5}', "invalid_type", "response_id"),
    ],
)
def test_a_wrong_client_event_is_refused_with_its_code(
    raw: bytes, code: str, param: str | None
) -> None:
    error = refusal(raw)
    assert (error.status, error.code, error.param) == (400, code, param)


def test_of_equal_names_the_last_counts() -> None:
    request = json.decode_request(
        b'{"type":"x","model":5,"type":"response.create","model":"a","tools":[1],"tools":[2]}'
    )
    assert request == requests.Create(model="a", tools=Raw(b"[2]"))


@pytest.mark.parametrize("name", json.FREE)
@pytest.mark.parametrize("other", [b"", b',"unknown":1'], ids=["alone", "beside an unknown one"])
def test_a_free_form_member_is_carried_as_it_came_and_refused_when_it_is_not_sound(
    name: str, other: bytes
) -> None:
    text = b'{"type":"response.create","%b":%b%b}'
    sound = json.decode_request(text % (name.encode(), b"[ 1 ]", other))
    odd = ("unknown",) if other else UNSET
    assert sound == structs.replace(requests.Create(unknown=odd), **{name: Raw(b"[ 1 ]")})
    with pytest.raises(ApiError) as caught:
        json.decode_request(text % (name.encode(), b"[1e400]", other))
    assert (caught.value.code, caught.value.param) == ("invalid_json", name)


@pytest.mark.parametrize("number", [b"9" * 400, b"1e400"])
@pytest.mark.parametrize(
    "name", ["max_output_tokens", "max_tool_calls", "timeout_ms", "top_logprobs", "unknown"]
)
def test_a_number_beyond_a_double_is_refused_in_any_member(name: str, number: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        json.decode_request(b'{"type":"response.create","%b":%b}' % (name.encode(), number))
    assert (caught.value.code, caught.value.param) == ("invalid_json", name)


def test_null_members_are_absent() -> None:
    raw = b'{"type":"response.create","tools":null,"input":null,"reasoning":null,"store":null}'
    assert json.decode_request(raw) == requests.Create()


def _create(tools: bytes, text: str, lane: str | None = None) -> bytes:
    named = f'"stream_id":"{lane}",'.encode() if lane else b""
    return b'{"type":"response.create",%s"input":"%s","tools":%s}' % (named, text.encode(), tools)


def test_tools_that_come_again_cost_nothing_and_are_the_same_object() -> None:
    decoder = json.RequestDecoder()
    tools = dumps([{"type": "function", "name": f"f{number}"} for number in range(500)])
    first = decoder.decode(_create(tools, "one"))
    before = decoder.work
    again = decoder.decode(_create(tools, "two"))
    assert isinstance(first, requests.Create)
    assert isinstance(again, requests.Create)
    assert again.tools is first.tools
    assert before > len(tools)
    assert decoder.work - before < 100


def test_what_is_remembered_does_not_hide_what_changed() -> None:
    decoder = json.RequestDecoder()
    for tools in (b"[1]", b"[2]", b"[1]", b"[1e400]"):
        if tools == b"[1e400]":
            with pytest.raises(ApiError):
                decoder.decode(_create(tools, "x"))
        else:
            assert decoder.decode(_create(tools, "x")) == json.decode_request(_create(tools, "x"))


def test_each_lane_has_its_own_memory_and_shares_what_is_equal() -> None:
    decoder = json.RequestDecoder()
    a, b = (dumps([{"type": "function", "name": name * 400}]) for name in "ab")
    decoder.decode(_create(a, "x", "one"))
    decoder.decode(_create(b, "x", "two"))
    before = decoder.work
    for _ in range(3):
        decoder.decode(_create(a, "x", "one"))
        decoder.decode(_create(b, "x", "two"))
        decoder.decode(_create(b, "x", "three"))
    assert decoder.work - before < 9 * 60


def test_a_body_of_http_is_a_create_whatever_type_it_names() -> None:
    decoder = json.RequestDecoder()
    create = decoder.create(b'{"type":"response.cancel","model":"m","input":"hi","new":1}')
    assert (create.type, create.model) == ("response.create", "m")
    assert decoder.work > 0


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"[]", "invalid_type"),
        (b"1", "invalid_type"),
    ],
)
def test_a_body_that_is_no_object_is_refused(raw: bytes, code: str) -> None:
    with pytest.raises(ApiError) as caught:
        json.RequestDecoder().create(raw)
    assert caught.value.code == code


def test_brackets_in_strings_are_no_levels() -> None:
    json.check(b'["' + b"[{" * 1000 + b'\\"["]')
    json.check(b"[" + b'{"a":[]},' * 1000 + b"1]")
    with pytest.raises(ApiError, match="nests deeper"):
        json.check(b'{"a":"]]]","b":' + DEEP + b"}")


@pytest.mark.parametrize("end", [b"[]]", b"["])
def test_a_large_text_is_checked_without_the_collector_which_then_runs_again(end: bytes) -> None:
    collected = []
    gc.callbacks.append(lambda phase, info: collected.append(phase))
    try:
        with contextlib.suppress(ApiError):
            json.check(b"[" + b"[]," * 100_000 + end)
        assert collected == []
        assert gc.isenabled()
    finally:
        gc.callbacks.pop()


MANY = json.MAX_VALUES


@pytest.mark.parametrize(
    "more",
    [
        b"[" + b"1," * MANY + b"1]",
        b"[" + b"[]," * MANY + b"[]]",
        b"[" + b'"a",' * MANY + b'"b"]',
        b"[" + b'"\\\\",' * MANY + b'"b"]',
        b'["\\""' + b',"a\\"[{,"' * MANY + b"]",
        b"{" + b",".join(b'"%d":0' % index for index in range(MANY)) + b"}",
    ],
    ids=["numbers", "arrays", "strings", "backslashes", "quotes", "members"],
)
def test_more_values_than_any_history_needs_are_refused_unread(more: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        json.decode_request(b'{"type":"response.create","metadata":%b}' % more)
    assert caught.value.code == "invalid_json"
    assert caught.value.message == f"Invalid JSON: it holds more than {MANY} values."
    with pytest.raises(ApiError, match="more than"):
        json.RequestDecoder().create(b'{"other":%b}' % more)


def test_as_many_values_as_are_allowed_are_read() -> None:
    # The object, its type and the array are the other three.
    most = b'{"type":"response.create","x":[' + b"1," * (MANY - 4) + b"1]}"
    assert isinstance(json.decode_request(most), requests.Create)
    with pytest.raises(ApiError, match="more than"):
        json.decode_request(most.replace(b"1,", b"1,1,", 1))


@pytest.mark.parametrize("text", [b"a, [b], {c}, ", b'\\", ', b"\\\\,[{", b'[,\\\\\\"'])
def test_commas_and_brackets_in_text_are_no_values(text: bytes) -> None:
    raw = b'{"type":"response.create","input":"%b","model":"m"}' % (text * MANY)
    create = json.decode_request(raw)
    assert isinstance(create, requests.Create)
    assert isinstance(create.input, Raw)
    assert bytes(create.input) == b'"%b"' % (text * MANY)


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b'{"input":"a\\ud83d"}', "a lone surrogate at byte 11"),
        (
            b'{"input":"' + b"x" * 70_000 + b'\\ud800 and so on, and on"}',
            "a lone surrogate at byte 70010",
        ),
        (b'{"tools":[{"a":"\\ud83d\\u0041 and so on"}]}', "a lone surrogate at byte 16"),
        (b'{"temperature":-Infinity}', "-Infinity at byte 15"),
        (b'{"temperature":1e999}', "a number beyond a double at byte 15"),
        (b'{"a":"1e999", "input":["1e999",1e999]}', "a number beyond a double at byte 31"),
        (b'{"input":' + b"9" * 400 + b"}", "a number beyond a double at byte 9"),
        (b'{"input":"a\xff"}', "no UTF-8 at byte 11"),
        (
            b'{"a":"[[", "input":' + b"[" * 300 + b"]" * 300 + b"}",
            "it nests deeper than 256 levels at byte 274",
        ),
        (b"[" * 100_000, "it nests deeper than 256 levels at byte 256"),
        (b'\xef\xbb\xbf{"input":1}', "a byte-order mark at byte 0"),
        (b'{"store":tru}', "a character that JSON does not have there at byte 9"),
        (b'{"input":"x"', "it ends too soon, at byte 12"),
        (b"", "it ends too soon, at byte 0"),
    ],
    ids=lambda value: str(value[:40]),
)
def test_in_04_a_fault_is_told_by_its_byte_in_the_whole_text(raw: bytes, told: str) -> None:
    for read in (json.RequestDecoder().create, json.RequestDecoder().decode):
        with pytest.raises(ApiError) as refused:
            read(raw)
        assert (refused.value.status, refused.value.code) == (400, "invalid_json")
        assert refused.value.message.startswith(f"Invalid JSON: {told}")
        assert "and so on" not in refused.value.message


def test_in_07_what_a_create_does_not_know_is_told_and_is_no_member_of_it() -> None:
    raw = (
        b'{"type":"response.create","model":"m","tempratur":1,"":2,"stream_options":{},"unknown":3}'
    )
    create = json.decode_request(raw)
    assert create == requests.Create(model="m", unknown=("tempratur", "", "unknown"))
    assert json.encode(create) == b'{"type":"response.create","model":"m"}'
