"""Client events and the refusals of their members."""

import pytest
from msgspec import UNSET, Raw

from tieline import requests
from tieline.errors import ApiError
from tieline.requests import ABSENT, EVENT_ID, Create


def test_a_create_keeps_free_form_members_as_text() -> None:
    create = requests.decode(b'{"type":"response.create","input":[ 1 ],"tools":[{"a": 1}]}', Create)
    assert (create.input, create.tools) == (Raw(b"[ 1 ]"), Raw(b'[{"a": 1}]'))
    assert create.text == ABSENT


def test_no_input_differs_from_an_empty_one() -> None:
    assert requests.decode(b'{"type":"response.create"}', Create).input is UNSET
    assert requests.decode(b'{"type":"response.create","input":[]}', Create).input == Raw(b"[]")


def test_null_means_absent() -> None:
    raw = b'{"type":"response.create","model":null,"tools":null,"temperature":null}'
    assert requests.decode(raw, Create) == Create()


@pytest.mark.parametrize(
    ("member", "code"),
    [
        ('"temperature":2.5', "decimal_above_max_value"),
        ('"temperature":-0.5', "decimal_below_min_value"),
        ('"top_p":"hot"', "invalid_type"),
        ('"max_output_tokens":0', "integer_below_min_value"),
        ('"top_logprobs":21', "integer_above_max_value"),
        ('"safety_identifier":"' + "x" * 129 + '"', "string_above_max_length"),
        ('"metadata":{"a":1}', "invalid_type"),
        ('"store":"yes"', "invalid_type"),
        ('"include":{}', "invalid_type"),
    ],
)
def test_a_wrong_member_is_refused_by_name_in_openai_s_words(member: str, code: str) -> None:
    raw = f'{{"type":"response.create",{member}}}'.encode()
    with pytest.raises(ApiError) as caught:
        requests.decode(raw, Create)
    error = caught.value
    name = member.split('"')[1]
    assert (error.status, error.code) == (400, code)
    assert (error.param or "").startswith(name)
    assert "`" not in error.message


def test_more_than_16_metadata_pairs_are_refused() -> None:
    pairs = ",".join(f'"k{number}":"v"' for number in range(17))
    with pytest.raises(ApiError) as caught:
        requests.decode(f'{{"type":"response.create","metadata":{{{pairs}}}}}'.encode(), Create)
    assert (caught.value.code, caught.value.param) == ("array_above_max_length", "metadata")


def test_broken_json_is_refused() -> None:
    with pytest.raises(ApiError) as caught:
        requests.decode(b"{", Create)
    assert caught.value.code == "invalid_json"


def test_each_class_has_a_type_of_its_own() -> None:
    assert {kind.__struct_config__.tag for kind in requests.CLASSES} == requests.BY_TYPE.keys()
    assert len(requests.BY_TYPE) == len(requests.CLASSES)
    assert requests.Opaque(name="response.inject", raw=Raw(b"{}")).type == "response.inject"
    assert Create().type == "response.create"


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ('"metadata":{"' + "k" * 65 + '":"v"}', "metadata"),
        ('"event_id":"' + "e" * (EVENT_ID + 1) + '"', "event_id"),
    ],
)
def test_a_name_of_the_clients_has_a_longest_length(members: str, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        requests.decode(b"{" + members.encode() + b"}", Create)
    assert (refused.value.code, refused.value.param) == ("string_above_max_length", param)
    assert refused.value.message.startswith(f"Invalid '{param}'")
