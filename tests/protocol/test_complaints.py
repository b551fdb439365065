"""What is wrong with JSON from outside is said in OpenAI's words."""

from typing import Any

import msgspec
import pytest
from msgspec import Struct

from tieline.complaints import refusal
from tieline.errors import ApiError


class Part(Struct):
    """Stands for what a client sends."""

    name: str
    text: str | list[msgspec.Raw] = ""
    note: str | None = None


def refused(raw: bytes, kind: Any, **place: str) -> ApiError:
    with pytest.raises(msgspec.MsgspecError) as caught:
        msgspec.json.decode(raw, type=kind)
    return refusal(caught.value, **place)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"name":1}', "Invalid type for 'input[3].name': expected a string, got an integer."),
        (
            b'{"name":"n","text":1}',
            "Invalid type for 'input[3].text': expected a string or an array, got an integer.",
        ),
        (
            b'{"name":"n","note":[]}',
            "Invalid type for 'input[3].note': expected a string, got an array.",
        ),
        (b"null", "Invalid type for 'input[3]': expected an object, got null."),
    ],
)
def test_a_member_of_the_wrong_type_is_named_with_what_it_should_be(
    raw: bytes, message: str
) -> None:
    error = refused(raw, Part, at="input[3]")
    assert (error.status, error.code, error.message) == (400, "invalid_type", message)
    assert message.startswith(f"Invalid type for '{error.param}'")


def test_what_is_wrong_as_a_whole_is_called_what_it_is() -> None:
    error = refused(b"[1]", Part)
    assert error.message == "Invalid type for the message: expected an object, got an array."
    assert error.param is None


@pytest.mark.parametrize(("at", "param"), [("tools[1]", "tools[1].name"), ("", "name")])
def test_a_member_that_is_missing_is_named_and_has_a_code_of_its_own(at: str, param: str) -> None:
    error = refused(b"{}", Part, at=at)
    assert (error.status, error.code, error.param) == (400, "missing_required_parameter", param)
    assert error.message == f"Missing required parameter: '{param}'."


def test_what_is_no_json_is_told_so() -> None:
    error = refused(b"{", Part, at="input[3]", what="item")
    assert (error.code, error.param) == ("invalid_json", "input[3]")
    assert error.message == "The item is not valid JSON."
