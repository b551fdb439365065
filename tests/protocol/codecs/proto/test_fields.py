"""Which JSON values a typed field can say, and that no other one is bent to fit."""

from typing import Any

import pytest
from msgspec import Raw

from tests.support.field_kinds import leaves_alone, says
from tieline.codecs.proto.fields import (
    FLAG,
    JSON_TEXT,
    JSON_TEXTS,
    REAL,
    TEXT,
    TEXTS,
    AsRaw,
    Choice,
    Kind,
    Mapped,
    Whole,
)
from tieline.errors import ApiError
from tieline.v1.events_pb2 import (
    Error,
    Heartbeat,
    HeartbeatPhase,
    OutputTextDelta,
    SessionStarted,
    Timing,
)
from tieline.v1.items_pb2 import FunctionTool, TextPart
from tieline.v1.requests_pb2 import SessionStart
from tieline.v1.responses_pb2 import Response

FIELDS: dict[str, tuple[Kind, Any, str]] = {
    "text": (TEXT, Error, "message"),
    "flag": (FLAG, FunctionTool, "strict"),
    "real": (REAL, Response, "temperature"),
    "whole 31": (Whole(31), OutputTextDelta, "output_index"),
    "whole 64": (Whole(64), SessionStart, "max_receive_bytes"),
    "choice": (Choice(HeartbeatPhase.DESCRIPTOR), Heartbeat, "phase"),
    "json": (JSON_TEXT, TextPart, "annotations_json"),
    "jsons": (JSON_TEXTS, OutputTextDelta, "logprobs_json"),
    "texts": (TEXTS, SessionStarted, "extensions"),
    "texts by name": (Mapped(str), Response, "metadata"),
    "counts by name": (Mapped(int), Timing, "phases"),
}
SAID = {
    "text": ['"a"', '""', '"\\u0000\\ud83c\\udf3f"'],
    "flag": ["true", "false"],
    "real": ["0.7", "1", "-0.0", "1e3", "1.7976931348623157e308", "0.1234567890123456", "5E-1"],
    "whole 31": ["0", "2147483647"],
    "choice": ['"held"', '"prefill"', '""'],
    "whole 64": ["18446744073709551615"],
    "json": ["null", "[1, 2.50]", '"x"'],
    "jsons": ["[]", '[null,{"a": 1.50}]'],
    "texts": ["[]", '["a",""]'],
    "texts by name": ["{}", '{"a":"b"}'],
    "counts by name": ["{}", '{"a":0,"b":18446744073709551615}'],
}
NOT_SAID = {
    "text": ["null", "1", "[]", "{}"],
    "flag": ["null", "0", '"true"'],
    "real": [
        "null",
        '"1"',
        "true",
        "0.70000000000000000001",
        "1e-400",
        "9007199254740993",
    ],
    "choice": ['"dreaming"', '"HELD"', '"unspecified"', "3", "null"],
    "whole 31": ["-1", "2147483648", "1.5", "1.0", "true", '"1"', "null"],
    "whole 64": ["18446744073709551616", "-1"],
    "json": [],
    "jsons": ["null", "{}", '"[]"'],
    "texts": ["null", "[1]", '["a",null]', "{}"],
    "texts by name": ["null", "[]", '{"a":1}', '{"a":null}'],
    "counts by name": ['{"a":-1}', '{"a":1.5}', '{"a":18446744073709551616}'],
}
CASES = [(name, raw) for name in SAID for raw in SAID[name]]
MISFITS = [(name, raw) for name in NOT_SAID for raw in NOT_SAID[name]]


@pytest.mark.parametrize(("name", "raw"), CASES)
def test_a_value_that_fits_is_said_and_read_again(name: str, raw: str) -> None:
    says(*FIELDS[name], raw.encode())


@pytest.mark.parametrize(("name", "raw"), MISFITS)
def test_a_value_that_does_not_fit_leaves_the_field_alone(name: str, raw: str) -> None:
    leaves_alone(*FIELDS[name], raw.encode())


def test_a_typed_field_can_stand_for_raw_json() -> None:
    kind, message = AsRaw(TEXT), Error()
    assert kind.write(message, "message", Raw(b'"a\\u00e9"'))
    assert message.message == "aé"
    assert kind.read(message.message, "p") == Raw('"aé"'.encode())
    assert not kind.write(message, "message", Raw(b"5"))


@pytest.mark.parametrize("text", ["", "{", "1,2", '"\\ud800"', "[1e999]", "[" * 400])
def test_broken_json_in_a_field_is_refused_by_its_name(text: str) -> None:
    for read, field in ((JSON_TEXT.load, text), (JSON_TEXTS.load, ["1", text])):
        with pytest.raises(ApiError) as caught:
            read(field, "p")
        assert caught.value.code == "invalid_json"
        assert caught.value.param in ("p", "p[1]")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_in_json_is_refused(number: float) -> None:
    with pytest.raises(ApiError) as caught:
        REAL.load(number, "temperature")
    assert (caught.value.code, caught.value.param) == ("invalid_value", "temperature")
