"""Which creates of a lane elsewhere have been answered."""

import pytest
from msgspec import UNSET

from tests.support.core import create_of
from tieline.errors import ApiError
from tieline.events import ErrorDetail, ErrorEvent, Event, RequestRefused, ResponseCreated
from tieline.requests import Cancel, Request
from tieline.responses import Response
from tieline_server.core.values import Principal
from tieline_server.runtime.forwarded_lane import ForwardedLane


class Sent:
    """A remote lane that notes what it is given."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def send(self, request: Request, principal: Principal) -> None:
        """Notes it."""
        self.requests.append(request)

    def events(self) -> object:
        """Nothing comes."""
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing to free."""


def created(response_id: str) -> Event:
    return ResponseCreated(sequence_number=0, response=Response(id=response_id))


def refused(event_id: str | None, kind: type[ErrorEvent] = RequestRefused) -> Event:
    detail = ErrorDetail.of(ApiError.of("invalid_request", "No."), event_id)
    return kind(sequence_number=0, stream_id=UNSET, status=400, error=detail)


@pytest.mark.parametrize(
    ("heard", "left"),
    [
        ([], ["one", "two", None]),
        ([created("resumed")], ["one", "two", None]),
        ([created("resp_1")], ["two", None]),
        ([refused("two")], ["one", None]),
        ([refused("another")], ["one", "two", None]),
        ([refused("one", ErrorEvent)], ["one", "two", None]),
        ([refused(None, ErrorEvent)], ["one", "two", None]),
        ([refused(None)], ["one", "two"]),
        ([created("resp_1"), refused("two"), created("resp_3"), created("resp_4")], []),
    ],
)
def test_a_create_is_answered_by_its_response_or_by_its_error(
    heard: list[Event], left: list[str | None]
) -> None:
    lane = ForwardedLane(Sent(), "resumed")  # type: ignore[arg-type]
    for name in ("one", "two", None):
        lane.send(create_of(model="m", input="hi", event_id=name), Principal())
    lane.heard(heard)
    assert [create.event_id for create, _ in lane.left()] == left
    assert lane.left() == []


def test_requests_go_without_the_name_that_the_lane_has_here() -> None:
    remote = Sent()
    lane = ForwardedLane(remote, "resumed")  # type: ignore[arg-type]
    lane.send(Cancel(stream_id="a", response_id="resp_1"), Principal())
    assert remote.requests == [Cancel(response_id="resp_1")]
    assert lane.left() == []
