"""What is wrong with JSON from outside is said in OpenAI's words."""

from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta, Struct

from tieline.complaints import fault, invalid_value, missing, refusal
from tieline.errors import ApiError

Size = Literal["small", "large"]


class Part(Struct):
    """Stands for what a client sends."""

    name: str
    text: str | list[msgspec.Raw] = ""
    note: str | None = None
    size: Size | None = None
    key: Annotated[str, Meta(min_length=1)] | None = None
    tags: dict[str, int] = {}


def refused(raw: bytes, kind: Any, **place: Any) -> ApiError:
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


def test_a_word_that_is_on_no_list_is_told_with_the_list() -> None:
    known = {"size": ("small", "large")}
    error = refused(b'{"name":"n","size":"huge"}', Part, at="p", known=known)
    assert (error.code, error.param) == ("invalid_value", "p.size")
    assert error.message == "Invalid value: 'huge'. Supported values are: 'small' and 'large'."


def test_the_list_of_a_member_in_another_counts_before_that_of_its_name_alone() -> None:
    known = {"size": ("any",), "part.size": ("small", "large")}
    error = refused(b'{"name":"n","size":"huge"}', Part, at="input[3].part", known=known)
    assert error.message.endswith("'small' and 'large'.")


@pytest.mark.parametrize("value", ["Hunter2", "two words", "x" * 33, "", "sk-proj-ABC", "a\nb"])
def test_what_is_no_word_of_an_api_is_not_repeated(value: str) -> None:
    error = invalid_value("tier", value, ["default"])
    assert error.message == "Invalid value for 'tier'. The supported value is: 'default'."


def test_a_text_without_a_character_is_told_so() -> None:
    error = refused(b'{"name":"n","key":""}', Part)
    assert (error.code, error.param) == ("empty_string", "key")
    assert error.message == "Invalid 'key': an empty string."


def test_a_member_of_any_name_is_called_by_what_holds_it() -> None:
    error = refused(b'{"name":"n","tags":{"a":"secret"}}', Part)
    assert (error.code, error.param) == ("invalid_type", "tags")


def test_of_members_that_would_do_each_is_named() -> None:
    error = missing("image_url", "file_id")
    assert error.param == "image_url"
    assert error.message == "Missing required parameter: 'image_url' or 'file_id'."


FAULTS: list[tuple[bytes, str]] = [
    (b'\xef\xbb\xbf{"a":1}', "a byte-order mark at byte 0"),
    (b"\xff\xfe{\x00}\x00", "no UTF-8 at byte 0"),
    (b'{"a":"\xff"}', "no UTF-8 at byte 6"),
    (b'{"a":"\xed\xa0\x80"}', "no UTF-8 at byte 6"),
    (b'{"a":"\\ud83d"}', "a lone surrogate at byte 6"),
    (b'{"a":"x\\ud83dyyyyyyyyyyyy"}', "a lone surrogate at byte 7"),
    (b'{"a":"\\ud83d\\n"}', "a lone surrogate at byte 6"),
    (b'{"a":"\\ud83d\\u0041aa"}', "a lone surrogate at byte 6"),
    (b'{"a":"\\ud83d\\ud83d\\ude00"}', "a lone surrogate at byte 6"),
    (b'{"a":"xy\\ude00z"}', "a lone surrogate at byte 8"),
    (b'{"a":"\\\\ud83d\\ude00zzzz"}', "a lone surrogate at byte 13"),
    (b'{"a":NaN}', "NaN at byte 5"),
    (b'{"a":Infinity}', "Infinity at byte 5"),
    (b'{"a":-Infinity}', "-Infinity at byte 5"),
    (b'{"a":"x\x01"}', "a control character at byte 7"),
    (b'{"a":"x\n"}', "a control character at byte 7"),
    (b'{"a":', "it ends too soon, at byte 5"),
    (b'{"a":"text', "it ends too soon, at byte 10"),
    (b'{"a":"\\ud83d', "it ends too soon, at byte 12"),
    (b"", "it ends too soon, at byte 0"),
    (b'{"a":1} x', "text behind its end at byte 8"),
    (b"{}{}", "text behind its end at byte 2"),
    (b"{'a':1}", "a member without a quoted name at byte 1"),
    (b'{"a":1,}', "a comma with no member behind it at byte 7"),
    (b"[1,]", "a comma with no value behind it at byte 3"),
    (b'{"a":01}', "a number that is not written as JSON has it at byte 6"),
    (b'{"a":"\\x41"}', "an escape that JSON does not have at byte 6"),
    (b'{"a":"\\u12g4"}', "a \\u without four hexadecimal digits at byte 6"),
    (b'{"a" 1}', "a name without a colon behind it at byte 5"),
    (b'{"a":1 "b":2}', "a member without a comma or a brace behind it at byte 7"),
    (b"[1 2]", "a value without a comma or a bracket behind it at byte 3"),
    (b'{"a":tru}', "a character that JSON does not have there at byte 5"),
    (b'{"a":undefined}', "a character that JSON does not have there at byte 5"),
]


@pytest.mark.parametrize(("text", "told"), FAULTS)
def test_in_04_what_is_no_json_is_told_with_its_byte(text: bytes, told: str) -> None:
    with pytest.raises(msgspec.MsgspecError) as caught:
        msgspec.json.decode(text)
    assert fault(text, caught.value).startswith(told)


def test_in_04_nothing_of_the_text_is_repeated() -> None:
    for cut in range(1, 40):
        text = b'{"input": "hunter2 is the password, ok"'[:cut]
        with pytest.raises(msgspec.MsgspecError) as caught:
            msgspec.json.decode(text)
        assert "hunter2" not in fault(text, caught.value)
