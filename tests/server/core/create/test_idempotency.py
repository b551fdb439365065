"""Which creates are the same one: digests of keys and of bodies."""

import json as plain
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw
from msgspec.structs import replace

from tests.support.core import create_of, user
from tests.support.json_values import dumps, fixture, value, values, variants
from tieline.codecs import json, proto
from tieline.errors import ApiError
from tieline.requests import Create
from tieline.v1.service_pb2 import ConverseRequest
from tieline_server.core.create.idempotency import body_digest, key_digest

CREATES = [row for row in fixture("requests") if row["json"]["type"] == "response.create"]

WAY: dict[str, Any] = {
    "client_metadata": Raw(b'{"a":"b"}'),
    "event_id": "evt-1",
    "idempotency_key": "another",
    "stream": True,
    "stream_id": "lane",
    "trace_context": {"traceparent": "00-x"},
    "unknown": ("zz",),
}
"""What concerns the way that a create comes, and not what it asks."""

MATTER: dict[str, Any] = {
    "append": True,
    "background": True,
    "context_management": Raw(b'[{"type":"compaction"}]'),
    "conversation": Raw(b'"conv_1"'),
    "frequency_penalty": 0.5,
    "generate": False,
    "include": ["reasoning.encrypted_content"],
    "input": Raw(b'"other"'),
    "instructions": Raw(b'"Be brief."'),
    "max_output_tokens": 7,
    "max_tool_calls": 7,
    "metadata": {"a": "b"},
    "model": "other",
    "parallel_tool_calls": False,
    "presence_penalty": 0.5,
    "previous_response_id": "resp_1",
    "prompt": Raw(b'{"id":"p"}'),
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "reasoning": Raw(b'{"effort":"low"}'),
    "resumable": True,
    "safety_identifier": "s",
    "service_tier": "flex",
    "store": False,
    "temperature": 0.5,
    "text": Raw(b'{"verbosity":"low"}'),
    "timeout_ms": 7,
    "tool_choice": Raw(b'"none"'),
    "tools": Raw(b"[]"),
    "top_logprobs": 1,
    "top_p": 0.5,
    "truncation": "auto",
    "user": "u",
}
"""Another value of every other member."""

BASE = create_of(model="m", input="hi", idempotency_key="k")


def shuffled(said: Any, turn: int) -> Any:
    """The same value with the members of its objects in another order."""
    if isinstance(said, dict):
        names = sorted(said, key=lambda name: (hash((name, turn)), name))
        return {name: shuffled(said[name], turn) for name in names}
    return [shuffled(inner, turn) for inner in said] if isinstance(said, list) else said


def tools(raw: bytes) -> bytes:
    """The digest of a create with free-form JSON in it."""
    return body_digest(Create(tools=Raw(raw)))


def test_every_member_either_matters_or_is_of_the_way() -> None:
    assert set(WAY) | set(MATTER) == set(Create.__struct_fields__)
    assert not set(WAY) & set(MATTER)


@pytest.mark.parametrize("name", sorted(WAY))
def test_what_is_of_the_way_changes_nothing(name: str) -> None:
    assert body_digest(replace(BASE, **{name: WAY[name]})) == body_digest(BASE)


@pytest.mark.parametrize("name", sorted(MATTER))
def test_another_value_of_a_member_that_matters_is_another_body(name: str) -> None:
    assert body_digest(replace(BASE, **{name: MATTER[name]})) != body_digest(BASE)


def test_no_two_members_stand_for_each_other() -> None:
    digests = {body_digest(replace(BASE, **{name: each})) for name, each in MATTER.items()}
    assert len(digests) == len(MATTER)


def test_a_member_that_is_null_is_one_that_is_not_there() -> None:
    given = create_of(model="m", input="hi", tools=None, temperature=None, metadata=None)
    assert body_digest(given) == body_digest(BASE)


def test_no_input_is_not_an_empty_one() -> None:
    assert body_digest(replace(BASE, input=UNSET)) != body_digest(replace(BASE, input=Raw(b"[]")))


@given(st.sampled_from(CREATES), st.integers(0, 9))
def test_members_come_in_any_order(row: dict[str, Any], turn: int) -> None:
    said, other = row["json"], shuffled(row["json"], turn)
    one, same = json.decode_request(dumps(said)), json.decode_request(dumps(other))
    assert isinstance(one, Create)
    assert isinstance(same, Create)
    assert body_digest(one) == body_digest(same)


@given(variants(CREATES))
def test_a_create_is_the_same_one_through_json_and_through_proto(raw: bytes) -> None:
    try:
        one = json.decode_request(raw)
        message = proto.encode_request(one)
        same = proto.decode_request(ConverseRequest.FromString(message.SerializeToString()))
    except ApiError:
        return
    if isinstance(one, Create):
        assert isinstance(same, Create)
        assert body_digest(one) == body_digest(same)


def test_an_item_without_a_type_is_a_message_over_all_transports() -> None:
    bare, typed = {"role": "user", "content": "hi"}, user("hi")
    one, same = create_of(input=[bare]), create_of(input=[typed])
    assert body_digest(one) == body_digest(same)


@given(values, values)
def test_free_form_json_is_the_same_where_its_values_are(one: Any, other: Any) -> None:
    left, right = dumps(one), dumps(other)
    assert (tools(left) == tools(right)) is (value(left) == value(right))
    spelled = plain.dumps(one, ensure_ascii=True, indent=1).encode()
    assert tools(left) == tools(spelled)


NUMBERS: list[tuple[bytes, ...]] = [
    (b"0", b"-0", b"0.0", b"-0.0e7", b"0e999999999", b"0E-9"),
    (b"1", b"1.0", b"10e-1", b"0.1E1", b"1e0", b"0.01e+2"),
    (b"-15", b"-1.5e1", b"-150e-1"),
    (b"100", b"1e2", b"1E+2", b"1e02"),
    (b"0.5", b"5e-1", b"0.50"),
    (b"18446744073709551615", b"18446744073709551615.0"),
    (b"18446744073709551616", b"1.8446744073709551616e19"),
    (b"-9223372036854775808", b"-9.223372036854775808e18"),
    (b"-9223372036854775809", b"-9223372036854775809.0"),
    (b"1e300", b"10.0e299", b"1" + b"0" * 300),
    (b"0.1234567890123456789012345678901",),
    (b"0.1234567890123456789012345678902",),
    (b"123456789012345678901234567890",),
    (b"123456789012345678901234567891",),
    (b"1e-9999999999999999999", b"10e-10000000000000000000"),
    (b"1e-400",),
]


def test_numbers_are_the_same_by_their_exact_value_however_they_are_written() -> None:
    digests = [{tools(b'{"n":[%s]}' % each) for each in same} for same in NUMBERS]
    assert [len(each) for each in digests] == [1] * len(NUMBERS)
    assert len(set.union(*digests)) == len(NUMBERS)


@pytest.mark.parametrize("spelled", [b"1", b"1.0", b"1e0"])
def test_a_number_with_a_type_is_the_same_however_it_is_written(spelled: bytes) -> None:
    raw = b'{"type":"response.create","temperature":%s}' % spelled
    create = json.decode_request(raw)
    assert isinstance(create, Create)
    assert body_digest(create) == body_digest(Create(temperature=1.0))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"true", b"1"),
        (b"0.5", b'"0.5"'),
        (b"0.5", b'{"\\u0000":"0.5"}'),
        (b"1e300", b'"1e300"'),
        (b"[1,2]", b"[2,1]"),
        (b"[]", b"{}"),
        (b'{"a":null}', b"{}"),
    ],
)
def test_what_only_looks_alike_is_not_the_same(one: bytes, other: bytes) -> None:
    assert tools(one) != tools(other)


def test_of_members_of_one_name_the_last_counts() -> None:
    assert tools(b'{"a":1,"a":2}') == tools(b'{"a":2}') != tools(b'{"a":1}')


def test_a_key_stands_for_its_owner_and_its_word_and_for_nothing_else() -> None:
    pairs = [("a", "k"), ("b", "k"), ("a", "l"), ("ak", ""), ("", "ak"), ('a","k', "")]
    assert len({key_digest(owner, key) for owner, key in pairs}) == len(pairs)
    assert key_digest("a", "k") == key_digest("a", "k")
    assert len(key_digest("a", "k")) == 32


def test_neither_digest_holds_what_it_stands_for() -> None:
    secret = "a secret that must not be kept"
    digests = key_digest("a", secret) + body_digest(create_of(input=secret))
    assert secret.encode() not in digests
    assert len(digests) == 64
    assert msgspec.json.encode(secret) not in digests


@pytest.mark.parametrize(
    ("one", "same"),
    [
        (f"1e-{'0' * 5000}1", "0.1"),
        (f"2e+{'0' * 5000}3", "2000"),
        (f"1e-{'9' * 5000}", f"1e-{'9' * 5000}"),
    ],
)
def test_an_exponent_of_thousands_of_digits_is_a_number_like_any_other(one: str, same: str) -> None:
    digests = [
        body_digest(replace(BASE, input=Raw(f'[{{"x":{number}}}]'.encode())))
        for number in (one, same)
    ]
    assert digests[0] == digests[1]
