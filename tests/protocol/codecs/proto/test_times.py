"""Which numbers a point or a length of time can say, and how they are read."""

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from tests.support.field_kinds import leaves_alone, says
from tieline.codecs.proto.fields import Kind
from tieline.codecs.proto.times import Instant, Milliseconds, Seconds
from tieline.v1.events_pb2 import Error
from tieline.v1.requests_pb2 import ResponseCreate
from tieline.v1.responses_pb2 import Response

FIELDS: dict[str, tuple[Kind, Any, str]] = {
    "instant": (Instant(), Response, "created_at"),
    "seconds": (Seconds(), Error, "retry_after"),
    "milliseconds": (Milliseconds(), ResponseCreate, "timeout"),
}
SAID = {
    "instant": ["0", "1700000000", "1700000000.25", "1.5", "253402300799"],
    "seconds": ["0", "1.5", "0.1", "86400"],
    "milliseconds": ["0", "1", "1500", "31536000000"],
}
NOT_SAID = {
    "instant": ["-1", "253402300800", "1e-10", '"now"', "null", "true"],
    "seconds": ["-2", "1e-12", "315576000001", '"1s"', "null"],
    "milliseconds": ["1e-9", "2.5", "-1", "1e300", "null"],
}


@pytest.mark.parametrize(("name", "raw"), [(name, raw) for name in SAID for raw in SAID[name]])
def test_a_number_that_fits_is_said_and_read_again(name: str, raw: str) -> None:
    says(*FIELDS[name], raw.encode())


@pytest.mark.parametrize(
    ("name", "raw"), [(name, raw) for name in NOT_SAID for raw in NOT_SAID[name]]
)
def test_a_number_that_does_not_fit_leaves_the_field_alone(name: str, raw: str) -> None:
    leaves_alone(*FIELDS[name], raw.encode())


def test_a_length_of_time_is_a_float_of_seconds_or_whole_milliseconds_rounded_up() -> None:
    for seconds, nanos, as_seconds, as_milliseconds in (
        (5, 0, 5.0, 5000),
        (0, 1, 1e-9, 1),
        (1, 500_000_001, 1.500000001, 1501),
        (0, -5, -5e-9, 0),
    ):
        field = Duration(seconds=seconds, nanos=nanos)
        read = Seconds().load(field, "p")
        assert (read, type(read)) == (as_seconds, float)
        assert Milliseconds().load(field, "p") == as_milliseconds
