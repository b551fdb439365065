"""What workers ask one another crosses as it is."""

import pytest

from tests.support.event_samples import NUMBERED
from tests.support.scripted_peer import ScriptedTurn
from tieline import responses
from tieline.codecs import json
from tieline.errors import ApiError
from tieline.events import ErrorDetail, ErrorEvent, OutputTextDelta, RequestRefused
from tieline_server.core.values import Principal
from tieline_server.workers.framing import BrokenMessage, Decoder, pack
from tieline_server.workers.peer_messages import (
    ANSWERED,
    ASKED,
    BATCH,
    SAID,
    Answer,
    Batch,
    Cancel,
    ClientEvent,
    Ended,
    Follow,
    Forget,
    Heartbeat,
    Look,
    Metrics,
    Moved,
    Resume,
    answer_of,
    batches,
    error_of,
    events_in,
    principal_of,
    refused,
)

SAY = ClientEvent(b"{}", "ann", ("a",))
MESSAGES = [
    *((ASKED, each) for each in (Cancel("a", "b"), Look("a", "b"), Forget("a", "b"), Metrics())),
    *((ASKED, each) for each in (Follow("a", "b", None), Follow("a", "b", 0), Resume(SAY, "grpc"))),
    (SAID, SAY),
    *((ANSWERED, each) for each in (Answer(), Answer(b""), Moved(), Batch([b"{}"]), Heartbeat())),
    (ANSWERED, Ended()),
]


@pytest.mark.parametrize(("hears", "message"), MESSAGES, ids=lambda each: type(each).__name__)
def test_each_message_is_heard_as_it_was_said_and_by_no_other_side(
    hears: Decoder, message: object
) -> None:
    packet = pack(message)  # type: ignore[arg-type]  # each is a struct
    assert hears.unpack(packet) == message
    for other in {ASKED, SAID, ANSWERED} - {hears}:
        with pytest.raises(BrokenMessage):
            other.unpack(packet)


@pytest.mark.parametrize("kind", [ErrorEvent, RequestRefused])
def test_an_error_that_refuses_a_turn_comes_back_as_one(kind: type[ErrorEvent]) -> None:
    error = kind(sequence_number=0, status=400, error=ErrorDetail(code="invalid_value"))
    (batch,) = batches([*NUMBERED[:2], error])
    heard = ANSWERED.unpack(pack(batch))
    assert isinstance(heard, Batch)
    back = events_in(heard)
    assert [type(each) for each in back] == [*map(type, NUMBERED[:2]), kind]
    assert back[-1] == error


def test_an_error_comes_back_as_the_very_error() -> None:
    error = ApiError.of(
        "rate_limit_exceeded",
        "Slow down.",
        param="input",
        status=429,
        error_type="tokens",
        retry_after=1.5,
    )
    crossed = error_of(refused(error))
    for member in ("code", "message", "param", "status", "type", "retry_after"):
        assert getattr(crossed, member) == getattr(error, member)


def test_no_response_is_not_an_empty_one() -> None:
    response = ScriptedTurn("resp_1").snapshot()
    body = answer_of(response).body
    assert body is not None
    assert responses.decode(body) == response
    assert answer_of(None).body is None


@pytest.mark.parametrize(
    ("models", "expected"), [(None, None), ((), frozenset()), (("a", "b"), frozenset({"a", "b"}))]
)
def test_who_asks_is_told_with_what_it_may_use(
    models: tuple[str, ...] | None, expected: frozenset[str] | None
) -> None:
    assert principal_of(ClientEvent(b"{}", "ann", models)) == Principal(
        owner="ann", models=expected
    )


def delta(number: int, size: int) -> OutputTextDelta:
    """An event of about so many bytes."""
    return OutputTextDelta(
        sequence_number=number, item_id="", output_index=0, content_index=0, delta="x" * size
    )


def test_events_go_together_up_to_a_bound_and_a_large_one_alone() -> None:
    sizes = (BATCH, 10, BATCH, BATCH // 3, BATCH // 3)
    events = [delta(number, size) for number, size in enumerate(sizes)]
    found = [batch.events for batch in batches(events)]
    assert [len(each) for each in found] == [1, 1, 1, 2]
    assert [raw for each in found for raw in each] == [json.encode(event) for event in events]


def test_no_events_are_no_message() -> None:
    assert [*batches(())] == []
    assert [*batches(NUMBERED[:3])] == [Batch([json.encode(each) for each in NUMBERED[:3]])]
