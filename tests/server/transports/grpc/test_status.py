"""Errors over real sockets: in-band on a connection, a status with details where a call ends."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from tests.support.garbage import none_left
from tests.support.grpc_client import create, status_error
from tests.support.grpc_engine import MODEL, Step
from tests.support.grpc_harness import responses, run, serve
from tieline.errors import ApiError, NotFound, RequestTooLarge
from tieline.v1 import requests_pb2, service_pb2
from tieline.v1.events_pb2 import ENDING_REFUSED
from tieline_server.core.create.limits import Limits
from tieline_server.core.deltas import Accepted, TextDelta
from tieline_server.core.effects import Prompt
from tieline_server.engines.base import EngineError
from tieline_server.runtime import ConnectionDriver
from tieline_server.transports.grpc.status import MESSAGE_BYTES

CODES = [
    ("invalid_prompt", 400, grpc.StatusCode.INVALID_ARGUMENT),
    ("invalid_api_key", 401, grpc.StatusCode.UNAUTHENTICATED),
    ("permission_denied", 403, grpc.StatusCode.PERMISSION_DENIED),
    ("model_not_found", 404, grpc.StatusCode.NOT_FOUND),
    ("lane_busy", 409, grpc.StatusCode.ABORTED),
    ("request_too_large", 413, grpc.StatusCode.RESOURCE_EXHAUSTED),
    ("rate_limit_exceeded", 429, grpc.StatusCode.RESOURCE_EXHAUSTED),
    ("cancelled", 499, grpc.StatusCode.CANCELLED),
    ("server_error", 500, grpc.StatusCode.INTERNAL),
    ("engine_unavailable", 503, grpc.StatusCode.UNAVAILABLE),
    ("deadline_exceeded", 504, grpc.StatusCode.DEADLINE_EXCEEDED),
]


def refuses(error: Exception) -> Any:
    """An answer that refuses before it accepts."""

    async def answer(prompt: Prompt) -> AsyncGenerator[Step, None]:
        raise error
        yield []

    return answer


def asking(text: str = "hi") -> service_pb2.CreateRequest:
    body = requests_pb2.ResponseCreate(input_text=text, model=MODEL, store=False)
    return service_pb2.CreateRequest(response_create=body)


def details(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    """The detail messages of a status by their short name."""
    trailing = dict(error.trailing_metadata() or ())
    raw = trailing["grpc-status-details-bin"]
    assert isinstance(raw, bytes)
    found: dict[str, Any] = {}
    for packed in status_pb2.Status.FromString(raw).details:
        for kind in ("ErrorInfo", "RetryInfo", "BadRequest"):
            message = getattr(error_details_pb2, kind)()
            if packed.Unpack(message):
                found[kind] = message
    return found


@pytest.mark.parametrize(("code", "status", "wanted"), CODES, ids=[code for code, *_ in CODES])
async def test_gr_07_an_error_is_an_event_on_a_line_and_a_status_of_a_call(
    code: str, status: int, wanted: grpc.StatusCode
) -> None:
    failure = EngineError(code, "no", retry_after=2.0 if status == 429 else None)
    async with serve(refuses(failure)) as served:
        async with served.line() as line:
            await line.send(create("x"))
            (event,) = await line.until("error")
            assert event.error.error.code == code
            assert event.error.status == status
            assert event.ending == ENDING_REFUSED
            # The stream lives.
            await line.half_close()
            assert await line.rest() == []
        async with served.channel() as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await responses(channel).Create(asking())
        assert caught.value.code() is wanted
        info = details(caught.value)["ErrorInfo"]
        assert (info.domain, info.reason) == ("tieline", code.upper())
        error = status_error(caught.value.trailing_metadata())
        assert type(error) is type(ApiError.of(code, "no"))
        assert error is not None
        assert (error.code, error.status, error.message) == (code, status, "no")


async def test_a_wait_that_helps_travels_as_retry_info() -> None:
    busy = EngineError("rate_limit_exceeded", "later", retry_after=1.5)
    async with serve(refuses(busy)) as served, served.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await responses(channel).Create(asking())
        assert details(caught.value)["RetryInfo"].retry_delay.ToMilliseconds() == 1500


async def test_a_member_that_is_to_blame_travels_as_bad_request() -> None:
    async with serve() as served, served.channel() as channel:
        request = asking()
        request.response_create.top_p = 7.0
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await responses(channel).Create(request)
        (violation,) = details(caught.value)["BadRequest"].field_violations
        assert violation.field == "top_p"


async def test_every_status_carries_the_request_id() -> None:
    async with serve() as served, served.channel() as channel:
        call = responses(channel).Get(service_pb2.GetRequest(response_id="r"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        request_id = dict(await call.trailing_metadata())["x-request-id"]
        info = details(caught.value)["ErrorInfo"]
        assert info.metadata["request_id"] == request_id


@pytest.mark.parametrize("text", ["x" * 100_000, "\N{SNOWMAN}" * 50_000])
async def test_a_long_message_is_cut_so_that_the_status_arrives(text: str) -> None:
    failure = EngineError("invalid_prompt", text, param="p" * 50_000)
    async with serve(refuses(failure)) as served, served.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await responses(channel).Create(asking())
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        message = caught.value.details() or ""
        assert len(message.encode()) <= MESSAGE_BYTES + len("...")
        assert message.startswith(text[:10])


async def test_a_fault_of_ours_is_logged_and_the_caller_sees_a_fixed_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR):
        async with serve() as served, served.channel() as channel:

            async def broken(owner: str, response_id: str) -> None:
                raise RuntimeError("/etc/secret")

            served.services.store.get = broken  # type: ignore[method-assign]
            call = responses(channel).Get(service_pb2.GetRequest(response_id="r"))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.INTERNAL
            trailing = await call.trailing_metadata()
            shown = f"{caught.value.details()} {list(trailing)}"
            assert "secret" not in shown
            assert "RuntimeError" not in shown
            request_id = str(dict(trailing)["x-request-id"])
            assert request_id in caplog.text
            assert "/etc/secret" in caplog.text


async def test_a_malformed_request_of_a_call_is_invalid_argument() -> None:
    async with serve() as served, served.channel() as channel:
        method: Any = channel.unary_unary("/tieline.v1.ResponsesService/Create")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(b"\xff\xff")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        error = status_error(caught.value.trailing_metadata())
        assert error is not None
        assert error.code == "invalid_proto"


async def test_a_call_whose_deadline_passes_stops_its_engine() -> None:
    async def never(prompt: Prompt) -> AsyncGenerator[Step, None]:
        await asyncio.Event().wait()
        yield []

    async with serve(never) as served, served.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await responses(channel).Create(asking(), timeout=0.2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await served.until(lambda: served.engine.ended == 1, seconds=1.0)


async def test_a_deadline_of_the_callers_is_no_fault_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The library words a batch that failed as INTERNAL: no caller and no log may see that."""

    async def answer(prompt: Prompt) -> AsyncGenerator[Step, None]:
        yield [Accepted(input_tokens=1)]
        while True:
            yield [TextDelta("x" * 1000)]
            await asyncio.sleep(0)

    async def whole(stub: Any) -> grpc.StatusCode:
        call = stub.Create(asking(), timeout=0.2)
        return await call.code()  # type: ignore[no-any-return]

    async def stream(stub: Any, *, reads: bool) -> grpc.StatusCode:
        body = asking().response_create
        call = stub.Stream(service_pb2.StreamRequest(response_create=body), timeout=0.2)
        with suppress(grpc.aio.AioRpcError):
            while reads and await call.read() is not grpc.aio.EOF:
                pass
        return await call.code()  # type: ignore[no-any-return]

    async def line(stub: Any, *, reads: bool) -> grpc.StatusCode:
        call = stub.Converse(timeout=0.2)
        await call.write(create("x"))
        with suppress(grpc.aio.AioRpcError):
            while reads and await call.read() is not grpc.aio.EOF:
                pass
        return await call.code()  # type: ignore[no-any-return]

    with caplog.at_level(logging.WARNING):
        async with serve(answer) as served, served.channel() as channel:
            stub = responses(channel)
            codes = await asyncio.gather(
                whole(stub),
                *(how(stub, reads=reads) for how in (stream, line) for reads in (True, False)),
            )
            assert codes == [grpc.StatusCode.DEADLINE_EXCEEDED] * 5
            await served.until(lambda: served.engine.ended == 5)
    assert caplog.records == []


@pytest.mark.parametrize("refused", [{"input_text": "x" * 4096}, {"model": "nobody"}])
def test_a_call_that_is_refused_does_not_keep_its_request(refused: dict[str, Any]) -> None:
    async def main() -> None:
        limits = Limits(message_bytes=1024)
        async with serve(limits=limits) as served, served.channel() as channel:
            create = requests_pb2.ResponseCreate(**{"input_text": "x", "store": False, **refused})
            with pytest.raises(grpc.aio.AioRpcError):
                await responses(channel).Create(service_pb2.CreateRequest(response_create=create))

    with none_left(ConnectionDriver, NotFound, RequestTooLarge):
        run(main())
