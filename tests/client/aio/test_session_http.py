"""Sessions over HTTP, and from WebSocket to HTTP for what is too large."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from tests.client import web as scripted
from tests.client.aio.connections import ours
from tests.client.aio.sessions import QUICK, said
from tests.client.servicer import Speaker
from tests.client.web import SocketPeer, StreamPeer
from tieline import requests
from tieline.errors import RequestTooLarge
from tieline.events import Event
from tieline_client._replay import Policy
from tieline_client.aio import Session, connect_session
from tieline_client.errors import IncompleteStream, NotSent, OutcomeUnknown
from tieline_client.transports import Options

BARE = Policy(idempotent=False, backoff=QUICK.backoff)

Answer = Callable[[StreamPeer], Awaitable[None]]


class Server:
    """Answers posts in their order, gets of a response, and what it is."""

    def __init__(
        self, *answers: Answer, extensions: tuple[str, ...] = ("idempotency_key",)
    ) -> None:
        self.answers = list(answers)
        self.extensions = extensions
        self.gets: list[Answer] = []
        self.posts: list[StreamPeer] = []
        self.queries: list[dict[str, str]] = []
        self.cancels: list[str] = []
        self.asked = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.sockets = 0
        self.on_socket: Callable[[SocketPeer], Awaitable[None]] | None = None
        self.socket_limit = 1024 * 1024

    @property
    def creates(self) -> list[requests.Create]:
        return [peer.create for peer in self.posts]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/capabilities"):
            return web.json_response({"extensions": {"http": list(self.extensions)}})
        if request.path.endswith("/cancel"):
            self.cancels.append(request.path.split("/")[-2])
            self.cancelled.set()
            return web.json_response({})
        if request.headers.get("upgrade") == "websocket":
            self.sockets += 1
            return await self.upgrade(request)
        peer = StreamPeer(request, await request.read())
        if request.method == "GET":
            self.queries.append(dict(request.query))
            self.asked.set()
            await self.gets.pop(0)(peer)
        else:
            self.posts.append(peer)
            await self.answers.pop(0)(peer)
        return peer.response

    async def upgrade(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(max_msg_size=self.socket_limit)
        await socket.prepare(request)
        assert self.on_socket is not None
        await self.on_socket(SocketPeer(socket, request))
        return socket

    @asynccontextmanager
    async def session(
        self, scheme: str = "http", policy: Policy = QUICK, options: Options | None = None
    ) -> AsyncIterator[Session]:
        async with scripted.serving(self.handle) as address:
            url = f"{scheme}://{address}"
            async with connect_session(url, policy=policy, options=options) as session:
                async with asyncio.timeout(20):
                    yield session
            assert ours() == []


def answering(text: str, response_id: str = "r1") -> Answer:
    async def answer(peer: StreamPeer) -> None:
        await peer.send(*Speaker(peer.create, response_id).answer(text))

    return answer


async def dropping(peer: StreamPeer) -> None:
    """Reads the request and breaks the connection."""
    assert peer.request.transport is not None
    peer.request.transport.abort()


def cutting(said: list[Event], count: int) -> Answer:
    async def answer(peer: StreamPeer) -> None:
        said[:] = Speaker(peer.create, "r1").answer("par", "tial")
        await peer.send(*said[:count])
        await dropping(peer)

    return answer


def test_a_conversation_over_http_sends_what_the_store_does_not_have() -> None:
    server = Server(*(answering(text, text) for text in ("one", "two", "three", "four")))

    async def main() -> None:
        async with server.session() as session:
            stored, other = session.conversation(), session.conversation(store=False)
            for conversation in (stored, other):
                for text in ("a", "b"):
                    await (await conversation.create(input=text)).response()

    asyncio.run(main())
    assert [create.previous_response_id for create in server.creates] == [None, "one", None, None]
    assert [said(create) for create in server.creates] == [["a"], ["b"], ["a"], ["a", "three", "b"]]


@pytest.mark.parametrize("count", [1, 4])
async def test_rc_04_a_response_over_http_is_resumed_by_get(count: int) -> None:
    """RC-04 (3), (4), RC-09: the cursor goes to the server, and every event comes once."""
    events: list[Event] = []
    server = Server(cutting(events, count))

    async def rest(peer: StreamPeer) -> None:
        after = int(server.queries[-1]["starting_after"])
        await peer.send(*events[after + 1 :])

    server.gets = [rest]

    async with server.session() as session:
        stream = await session.create(input="a")
        numbers = [event.sequence_number async for event in stream]
        assert numbers == list(range(len(events)))
        assert (stream.text, stream.ended) == ("partial", True)
    assert server.queries == [{"stream": "true", "starting_after": str(count - 1)}]
    assert len(server.posts) == 1


async def test_rc_10_a_refused_resume_over_http_raises_the_part_at_once() -> None:
    events: list[Event] = []
    server = Server(cutting(events, 5))

    async def refuse(peer: StreamPeer) -> None:
        error = {"error": {"code": "response_not_found", "message": "no"}}
        peer.response = web.json_response(error, status=404)

    server.gets = [refuse]

    async with server.session() as session:
        with pytest.raises(IncompleteStream) as caught:
            await (await session.create(input="a")).response()
        assert (caught.value.text, caught.value.response_id) == ("partial", "r1")
    assert len(server.queries) == 1


@pytest.mark.parametrize("way", ["reset", "FIN"])
async def test_rc_10_a_cut_stream_without_a_resume_is_never_a_result(way: str) -> None:
    """RC-10 (a), (b): with the partial text and the response's id."""
    events: list[Event] = []

    async def cut(peer: StreamPeer) -> None:
        events[:] = Speaker(peer.create, "r1").answer("par", "tial")
        await peer.send(*events[:5])
        if way == "reset":
            await dropping(peer)

    server = Server(cut)

    async with server.session(policy=BARE) as session:
        with pytest.raises(IncompleteStream) as caught:
            await (await session.create(input="a")).response()
        assert (caught.value.text, caught.value.response_id) == ("partial", "r1")
    assert server.queries == []


async def test_rc_04_2_an_unanswered_post_goes_again_under_its_key() -> None:
    server = Server(dropping, answering("once"))

    async with server.session() as session:
        assert (await (await session.create(input="a")).result()).text == "once"
    first, second = server.posts
    assert first.body == second.body
    key = first.request.headers["idempotency-key"]
    assert key == second.request.headers["idempotency-key"]


@pytest.mark.parametrize("why", ["no key", "server without keys"])
async def test_rc_04_2_without_a_key_that_the_server_knows_the_outcome_is_unknown(why: str) -> None:
    server = Server(dropping, extensions=("cancel",))

    async with server.session(policy=BARE if why == "no key" else QUICK) as session:
        with pytest.raises(OutcomeUnknown):
            await (await session.create(input="a")).response()
    assert len(server.posts) == 1


async def test_rc_04_1_a_server_that_is_not_there_got_nothing() -> None:
    listener = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    await listener.wait_closed()
    async with connect_session(f"http://127.0.0.1:{port}", policy=QUICK) as session:
        with pytest.raises(NotSent):
            await (await session.create(input="a")).response()


async def test_er_03_transient_refusals_over_http_are_retried() -> None:
    def refusing(status: int) -> Answer:
        async def refuse(peer: StreamPeer) -> None:
            error = {"error": {"message": "m"}}
            peer.response = web.json_response(error, status=status)

        return refuse

    server = Server(refusing(500), refusing(503), refusing(429), answering("well"))

    async with server.session() as session:
        assert (await (await session.create(input="a")).result()).text == "well"
    assert len(server.posts) == 4


async def test_a_lost_response_over_http_is_cancelled_by_its_id() -> None:
    events: list[Event] = []
    server = Server(cutting(events, 5))

    async def hang(peer: StreamPeer) -> None:
        await peer.write(b": \n\n")
        await peer.gone()

    server.gets = [hang]

    async with server.session() as session:
        stream = await session.create(input="a")
        for _ in range(5):
            await stream.__anext__()
        reader = asyncio.create_task(stream.__anext__())
        await server.asked.wait()
        await stream.cancel()
        await server.cancelled.wait()
        reader.cancel()
        await asyncio.wait((reader,))
    assert server.cancels == ["r1"]


# What is too large for a frame.


async def socket_turns(peer: SocketPeer) -> None:
    """Answers creates on a socket by their words."""
    count = 0
    while isinstance(create := await peer.receive(), requests.Create):
        count += 1
        await peer.send(*Speaker(create, f"ws{count}").answer("by socket"))


IMAGE = "x" * (1536 * 1024)


@pytest.mark.parametrize("store", [None, False])
async def test_lb_01_what_is_too_large_for_a_frame_goes_over_http_at_once(
    store: bool | None,
) -> None:
    """LB-01: one frame is tried, at most; later small turns use the socket again."""
    server = Server(*(answering("by post", f"http{number}") for number in range(1, 4)))
    server.on_socket = socket_turns

    async with server.session("ws") as session:
        conversation = session.conversation(store=store)
        texts = [
            (await (await conversation.create(input=text)).result()).text
            for text in ("small", IMAGE, "small")
        ]
        # Over HTTP nothing is remembered that is not stored: all of it goes again.
        again = "by socket" if store is None else "by post"
        assert texts == ["by socket", "by post", again]
        # What a frame can take is known now: no other one is tried.
        assert (await (await session.create(input=IMAGE)).result()).text == "by post"
        assert (await (await session.create(input="small")).result()).text == "by socket"
        assert server.sockets == 2
    first = server.creates[0]
    assert first.previous_response_id == ("ws1" if store is None else None)
    assert len(said(first)) == (1 if store is None else 3)


async def test_lb_01_what_is_too_large_for_http_as_well_is_told() -> None:
    async def refuse(peer: StreamPeer) -> None:
        error = {"error": {"code": "request_too_large", "message": "m"}}
        peer.response = web.json_response(error, status=413)

    server = Server(refuse)
    server.on_socket = socket_turns

    async with server.session("ws") as session:
        with pytest.raises(RequestTooLarge):
            await (await session.create(input=IMAGE)).response()
        assert (await (await session.create(input="small")).result()).text == "by socket"
    assert (server.sockets, len(server.posts)) == (2, 1)


async def test_lb_01_a_turn_that_is_held_open_cannot_go_over_http() -> None:
    server = Server()
    server.on_socket = socket_turns

    async with server.session("ws") as session:
        with pytest.raises(RequestTooLarge):
            await (await session.create(input=IMAGE, append=True)).response()
    assert (server.sockets, server.posts) == (1, [])


async def test_lb_01_a_limit_that_is_known_costs_no_attempt() -> None:
    server = Server(answering("by post"))
    server.socket_limit = 64 * 1024 * 1024

    server.on_socket = socket_turns
    async with server.session("ws") as session:
        huge = "x" * (16 * 1024 * 1024)
        assert (await (await session.create(input=huge)).result()).text == "by post"
    assert len(server.posts) == 1
