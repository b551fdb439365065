"""Log probabilities reach a client whole, or not at all."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from tieline_server.engines.upstream.logprobs import given, paired

WHOLE: dict[str, Any] = {
    "token": "a",
    "bytes": [97],
    "logprob": -0.5,
    "top_logprobs": [{"token": "b", "bytes": [98], "logprob": -1.5}],
}


def read(*entries: Any, most: int | None = None) -> list[Any]:
    raws = [Raw(msgspec.json.encode(each)) for each in entries]
    return [msgspec.json.decode(each) for each in given(raws, most=most)]


def test_an_entry_that_is_whole_goes_as_it_came() -> None:
    raw = Raw(b'{"logprob": -5e-1, "token":"a","bytes":[97],"top_logprobs":[]}')
    assert given([raw]) == (raw,)


def test_members_of_a_servers_own_are_left_out() -> None:
    others = [{**WHOLE["top_logprobs"][0], "id": 7}]
    assert read({**WHOLE, "id": 5, "top_logprobs": others}) == [WHOLE]


def test_there_are_no_more_others_than_were_asked_for() -> None:
    assert read(WHOLE, most=1) == [WHOLE]
    assert read(WHOLE, most=0) == [{**WHOLE, "top_logprobs": []}]


@pytest.mark.parametrize(
    "missing", [{"bytes": None}, {"bytes": None, "top_logprobs": None}, {"top_logprobs": None}]
)
def test_what_can_be_known_is_filled_in(missing: dict[str, Any]) -> None:
    (entry,) = read({**WHOLE, **missing})
    assert entry["bytes"] == [97]
    assert entry["top_logprobs"] == ([] if "top_logprobs" in missing else WHOLE["top_logprobs"])


@pytest.mark.parametrize(
    "entry",
    [
        5,
        None,
        [],
        {},
        {**WHOLE, "token": 5},
        {**WHOLE, "logprob": None},
        {**WHOLE, "logprob": "x"},
    ],
)
def test_an_entry_that_says_nothing_is_left_out(entry: Any) -> None:
    assert read(entry, WHOLE) == [WHOLE]


@pytest.mark.parametrize("value", [b"NaN", b"-Infinity", b"Infinity", b"1e999", b"-1e999"])
def test_up_04_a_value_that_is_no_number_is_left_out_with_its_entry_alone(value: bytes) -> None:
    entry = msgspec.json.encode(WHOLE)
    for number, kept in ((b"-0.5", []), (b"-1.5", [{**WHOLE, "top_logprobs": []}])):
        (*said,) = map(msgspec.json.decode, given([Raw(entry.replace(number, value))]))
        assert said == kept


@pytest.mark.parametrize(
    "wrong", [{"bytes": [300]}, {"bytes": "no"}, {"top_logprobs": [5]}, {"top_logprobs": 5}]
)
def test_what_is_wrong_beside_the_value_is_as_if_absent(wrong: dict[str, Any]) -> None:
    (entry,) = read({**WHOLE, **wrong})
    assert (entry["bytes"], entry["logprob"]) == ([97], -0.5)
    assert entry["top_logprobs"] == ([] if "top_logprobs" in wrong else WHOLE["top_logprobs"])


def test_a_token_of_a_completion_has_its_value_and_the_likeliest_others() -> None:
    raw = paired("ü", -0.5, {"a": -3.0, "b": -1.0}, most=1)
    assert raw is not None
    assert msgspec.json.decode(raw) == {
        "token": "ü",
        "bytes": [195, 188],
        "logprob": -0.5,
        "top_logprobs": [{"token": "b", "bytes": [98], "logprob": -1.0}],
    }
    assert paired("ü", None, None, most=1) is None
