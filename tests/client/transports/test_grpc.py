"""The gRPC transport against a real gRPC server."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.client.servicer import Peer, Script, Speaker, echoing, forever, serving
from tieline import events, requests
from tieline.errors import (
    ERRORS,
    ApiError,
    AuthenticationError,
    BadRequest,
    RateLimited,
    RequestTooLarge,
)
from tieline_client.errors import ConnectionLost, ConnectTimeout, ProtocolViolation
from tieline_client.transports import Endpoint, Options
from tieline_client.transports.grpc import UNTOLD_LIMIT, GrpcTransport, open_plain


def endpoint(address: str, *, api_key: str | None = None, **options: Any) -> Endpoint:
    host, _, port = address.rpartition(":")
    return Endpoint(
        scheme="grpc", host=host, port=int(port), api_key=api_key, options=Options(**options)
    )


@asynccontextmanager
async def transport_to(script: Script, **options: Any) -> AsyncIterator[GrpcTransport]:
    async with serving(script) as address:
        transport = await open_plain(endpoint(address, **options))
        try:
            yield transport
        finally:
            await transport.close()


async def test_the_first_message_says_what_the_client_can_take_and_comes_at_once() -> None:
    """GR-05: a proxy that waits for the first message gets it without anyone asking for a turn."""
    got: list[requests.Request | None] = []

    async def script(peer: Peer) -> None:
        got.append(await peer.receive())
        await peer.send(events.Heartbeat(phase="idle"))
        await peer.gone()

    async with transport_to(script, max_receive_bytes=5_000_000, merge="never") as transport:
        await transport.receive()
    assert got == [
        requests.SessionStart(
            max_receive_bytes=5_000_000,
            merge="never",
            extensions=["heartbeat", "limits", "timing"],
        )
    ]


async def test_all_events_of_a_message_come_in_their_order() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(*(events.Heartbeat(phase=str(number)) for number in range(5)))

    async with transport_to(script) as transport:
        got = await transport.receive()
        assert [event.phase for event in got if isinstance(event, events.Heartbeat)] == [*"01234"]
        assert await transport.receive() == ()


async def test_a_message_without_events_is_not_the_end() -> None:
    async def script(peer: Peer) -> None:
        await peer.send()
        await peer.send(events.Heartbeat(phase="idle"))

    async with transport_to(script) as transport:
        assert await transport.receive() == [events.Heartbeat(phase="idle")]


async def test_requests_go_out_in_the_order_in_which_they_were_sent() -> None:
    got: list[str | None] = []
    complete = asyncio.Event()

    async def script(peer: Peer) -> None:
        for _ in range(20):
            got.append((await peer.create()).event_id)
        complete.set()

    async with transport_to(script) as transport:
        await asyncio.gather(
            *(transport.send(requests.Create(event_id=str(number))) for number in range(20))
        )
        await complete.wait()
    assert got == [str(number) for number in range(20)]


async def test_a_sender_that_gives_up_does_not_harm_the_line() -> None:
    """Cancelling a write of grpc.aio would cancel the stream with all its lanes."""

    async with transport_to(echoing) as transport:
        for number in range(50):
            task = asyncio.create_task(transport.send(requests.Create(event_id=str(number))))
            await asyncio.sleep(0)
            task.cancel()
        await transport.send(requests.Create(event_id="last"))
        while True:
            event = (await transport.receive())[0]
            if isinstance(event, events.ResponseCreated) and event.event_id == "last":
                return


async def test_a_silent_client_says_that_it_lives() -> None:
    """GR-05: heartbeats go both ways, so that a proxy sees data from this side too."""
    beats = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.receive()
        for _ in range(3):
            assert isinstance(await peer.receive(), requests.ClientHeartbeat)
        beats.set()
        await peer.gone()

    async with transport_to(script, heartbeat=0.02):
        await beats.wait()


async def test_the_key_goes_with_the_headers() -> None:
    got: dict[str, str] = {}

    async def script(peer: Peer) -> None:
        got.update(peer.context.invocation_metadata())

    async with transport_to(script, api_key="sk-1") as transport:
        assert await transport.receive() == ()
    assert got["authorization"] == "Bearer sk-1"


async def test_a_refused_connection_is_told_at_once() -> None:
    async with serving(forever) as address:
        pass
    with pytest.raises(ConnectionLost, match=r"^cannot connect to .*refused"):
        await open_plain(endpoint(address))


async def test_a_server_that_does_not_answer_is_a_connect_timeout_and_harms_no_other_line() -> None:
    # The kernel accepts, and nobody speaks.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConnectTimeout, match=r"0\.05 s"):
            await open_plain(endpoint(f"127.0.0.1:{port}", connect_timeout=0.05))
    async with serving(echoing) as address:
        transport = await open_plain(endpoint(address))
        await transport.send(requests.Create())
        assert isinstance((await transport.receive())[0], events.ResponseCreated)
        await transport.close()


async def test_another_grpc_service_is_told_apart() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        with pytest.raises(ConnectionLost, match=r"does not serve tieline\.v1"):
            await open_plain(endpoint(f"127.0.0.1:{port}"))
    finally:
        await server.stop(None)


@pytest.mark.parametrize(
    "code",
    [
        "invalid_request",
        "invalid_api_key",
        "permission_denied",
        "response_not_found",
        "lane_busy",
        "request_too_large",
        "rate_limit_exceeded",
        "cancelled",
        "server_error",
        "server_draining",
        "deadline_exceeded",
    ],
)
async def test_a_status_with_details_is_the_error_that_it_states(code: str) -> None:
    """GR-07: the same class, code and status as the error has on every other transport."""

    async def script(peer: Peer) -> None:
        await peer.send(events.Heartbeat(phase="idle"))
        await peer.abort(ApiError.of(code, "why", retry_after=2.5))

    async with transport_to(script) as transport:
        await transport.receive()
        with pytest.raises(ApiError, match="why") as caught:
            await transport.receive()
        error = caught.value
        assert type(error) is type(ApiError.of(code, "why"))
        assert (error.code, error.status) == (code, ERRORS[code].status)
        assert error.retry_after == 2.5


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, AuthenticationError),
        (grpc.StatusCode.INVALID_ARGUMENT, BadRequest),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, RateLimited),
        (grpc.StatusCode.UNAVAILABLE, ConnectionLost),
        (grpc.StatusCode.INTERNAL, ConnectionLost),
        (grpc.StatusCode.UNKNOWN, ConnectionLost),
        (grpc.StatusCode.CANCELLED, ConnectionLost),
    ],
)
async def test_a_bare_status_is_an_error_where_only_a_peer_can_mean_it(
    code: grpc.StatusCode, kind: type[Exception]
) -> None:
    """GR-07: a proxy's status, and one of a broken connection."""

    async def script(peer: Peer) -> None:
        await peer.send(events.Heartbeat(phase="idle"))
        await peer.context.abort(code, "why")

    async with transport_to(script) as transport:
        await transport.receive()
        with pytest.raises(kind, match="why"):
            await transport.receive()


async def test_a_refusal_of_the_stream_is_told_by_open() -> None:
    async def script(peer: Peer) -> None:
        await peer.abort(ApiError.of("invalid_api_key", "no"))

    async def test(transport: GrpcTransport) -> None:
        with pytest.raises(AuthenticationError):
            await transport.receive()

    async with serving(script) as address:
        try:
            transport = await open_plain(endpoint(address))
        except AuthenticationError:
            return
        # Headers may come before the status: then the first read tells.
        await test(transport)
        await transport.close()


async def test_the_reason_of_the_end_survives_a_write_that_meets_it() -> None:
    """The library would replace it by INTERNAL (grpc#36066)."""

    async def script(peer: Peer) -> None:
        await peer.create()
        await peer.abort(ApiError.of("invalid_api_key", "no"))

    for _ in range(20):
        async with transport_to(script) as transport:

            async def write() -> None:
                while await transport.send(requests.Create()):
                    pass

            writer = asyncio.create_task(write())
            with pytest.raises(AuthenticationError):
                await transport.receive()
            writer.cancel()
            await asyncio.wait((writer,))


async def test_bytes_that_are_no_message_are_a_violation() -> None:
    async def handler(_: Any, context: Any) -> None:
        await context.write(b"\xff\xff\xff")
        await context.read()

    class Handler(grpc.GenericRpcHandler):
        def service(self, handler_call_details: Any) -> Any:
            return grpc.stream_stream_rpc_method_handler(handler)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    transport = await open_plain(endpoint(f"127.0.0.1:{port}"))
    try:
        with pytest.raises(ProtocolViolation):
            await transport.receive()
    finally:
        await transport.close()
        await server.stop(None)


async def test_a_request_beyond_the_servers_limit_is_not_sent() -> None:
    async with transport_to(echoing) as transport:
        transport.limit(1000)
        with pytest.raises(RequestTooLarge, match="1000"):
            await transport.send(requests.Create(model="x" * 1000))
        await transport.send(requests.Create(event_id="small"))
        assert isinstance((await transport.receive())[0], events.ResponseCreated)


async def test_cn_12_a_large_message_waits_until_the_server_has_said_what_it_takes() -> None:
    """Sent before, it would end the stream of a server that takes less."""

    async with transport_to(echoing) as transport:
        large = requests.Create(model="x" * (UNTOLD_LIMIT + 1))
        sending = asyncio.ensure_future(transport.send(large))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not sending.done()
        transport.limit(UNTOLD_LIMIT)
        with pytest.raises(RequestTooLarge, match=str(UNTOLD_LIMIT)):
            await sending
        transport.limit(2 * UNTOLD_LIMIT)
        assert await transport.send(large)


async def test_a_message_beyond_our_limit_is_told() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(events.Heartbeat(phase="x" * 10_000))

    async with transport_to(script, max_receive_bytes=1000) as transport:
        with pytest.raises(RequestTooLarge):
            await transport.receive()


async def test_after_the_end_requests_are_known_not_to_be_sent_and_hang_nobody() -> None:
    async def script(_: Peer) -> None:
        return

    async with transport_to(script) as transport:
        assert await transport.receive() == ()
        assert [await transport.send(requests.Create()) for _ in range(5)] == [False] * 5


async def test_goodbye_comes_before_the_half_close() -> None:
    got: list[requests.Request | None] = []

    async def script(peer: Peer) -> None:
        while True:
            got.append(await peer.receive())
            if got[-1] is None:
                return

    async with transport_to(script) as transport:
        await transport.finish()
        assert await transport.receive() == ()
    assert got[1:] == [requests.SessionEnd(), None]


async def test_close_ends_the_writer_and_tells_the_server() -> None:
    cancelled = asyncio.Event()

    async def script(peer: Peer) -> None:
        try:
            await peer.send(*Speaker(await peer.create()).answer("x"))
            await forever(peer)
        finally:
            cancelled.set()

    async with serving(script) as address:
        before = asyncio.all_tasks()
        transport = await open_plain(endpoint(address))
        await transport.send(requests.Create())
        await transport.receive()
        await transport.close()
        await transport.close()
        await cancelled.wait()
        assert not [
            task.get_name()
            for task in asyncio.all_tasks() - before
            if task.get_name().startswith("tieline")
        ]


async def test_the_librarys_options_can_be_set_and_win() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(events.Heartbeat(phase="x" * 10_000))

    async with transport_to(script, channel={"grpc.max_receive_message_length": 1000}) as transport:
        with pytest.raises(RequestTooLarge):
            await transport.receive()
