"""What calls of one request share: their errors, their end, their trace context."""

import pytest
from msgspec import UNSET

from tests.support.runtime import Stage, hello, raising
from tieline import events
from tieline.errors import ApiError
from tieline.requests import Cancel, Create, SessionStart
from tieline_server.engines.base import EngineError
from tieline_server.transports.live_calls import LiveConnection, error_of, final_answer, next_event
from tieline_server.transports.stream import traced


def test_an_in_band_error_becomes_the_exception_of_its_status() -> None:
    error = ApiError.of("queue_full", "Wait.", param="input", retry_after=2.0)
    event = events.ErrorEvent(status=error.status, error=events.ErrorDetail.of(error))
    back = error_of(event)
    assert type(back) is type(error)
    assert (back.code, back.message, back.param) == ("queue_full", "Wait.", "input")
    assert (back.status, back.type, back.retry_after) == (429, "rate_limit_error", 2.0)


def test_an_error_without_members_is_the_servers() -> None:
    event = events.ErrorEvent(status=UNSET, error=events.ErrorDetail(code=None))
    assert (error_of(event).code, error_of(event).status) == ("server_error", 500)


async def test_an_answer_is_the_response_with_its_phases_where_they_were_asked_for() -> None:
    stage = Stage(hello)
    stage.driver.receive(SessionStart(extensions=["timing"]))
    stage.create()
    answer = await final_answer(LiveConnection(stage.driver))
    assert answer.response.status == "completed"
    assert answer.phases["total"] > 0
    stage.create()
    await stage.driver.close()


@pytest.mark.parametrize("accepted", [False, True])
async def test_what_came_instead_of_a_response_is_raised(accepted: bool) -> None:
    stage = Stage(raising(EngineError.of("engine_unavailable", "No."), accepted=accepted))
    stage.create()
    with pytest.raises(ApiError) as caught:
        await final_answer(LiveConnection(stage.driver))
    assert (caught.value.code, caught.value.status) == ("engine_unavailable", 503)
    await stage.driver.close()


async def test_a_line_that_was_ended_raises_why() -> None:
    stage = Stage(hello)
    live = LiveConnection(stage.driver)
    live.end(ApiError.of("server_draining", "Bye."))
    with pytest.raises(ApiError) as caught:
        await next_event(live)
    assert caught.value.code == "server_draining"
    await stage.driver.close()


def test_a_requests_own_trace_context_comes_first() -> None:
    ours, theirs = {"traceparent": "a"}, {"traceparent": "b"}
    assert traced(Create(), ours).trace_context == ours
    assert traced(Create(trace_context=theirs), ours).trace_context == theirs
    assert traced(Create(), None).trace_context is None
    assert traced(Cancel(), ours).trace_context is None
