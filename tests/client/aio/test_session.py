"""Conversations over lines that break, age and forget: what is sent, when and how often."""

import asyncio
from typing import Any

import pytest
from msgspec import Raw

from tests.client.aio.connections import ours
from tests.client.aio.sessions import (
    LINES,
    QUICK,
    Peer,
    Server,
    items_of,
    refusal,
    said,
    session_with,
)
from tests.client.relay import Relay
from tests.client.servicer import Speaker
from tieline import events, requests
from tieline.errors import BadRequest, RateLimited, ServerError, Unavailable
from tieline_client._replay import Backoff, Policy
from tieline_client.aio import Session, connect_session, tool_output
from tieline_client.errors import ConnectionClosed, ConnectionLost, TurnState
from tieline_client.transports import Options


def answering(server: Server, *texts: str) -> Any:
    """A line on which each create is answered by the next text; it stays open."""

    async def script(peer: Peer) -> None:
        for text in texts:
            create = await server.create(peer)
            number = len(server.creates)
            await peer.send(*Speaker(create, f"r{number}").answer(text))
        await peer.gone()

    return script


def served(*lines: tuple[str, ...], **members: Any) -> Server:
    """A server whose lines answer with these texts."""
    server = Server(**members)
    server.scripts = tuple(answering(server, *texts) for texts in lines)
    return server


@pytest.mark.parametrize("kind", LINES)
async def test_pf_05_only_what_is_new_is_sent_where_settings_and_history_allow(kind: str) -> None:
    """PF-05, all five turns: same settings, other tools, an edited history, a new conversation."""
    server = served(("one", "two", "three", "four", "five"))
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]

    async with session_with(server, kind=kind) as session:
        first = session.conversation(instructions="be brief")
        for text in ("a", "b"):
            await (await first.create(input=text)).response()
        await (await first.create(input="c", tools=tools)).response()
        first.items[0] = Raw(b'{"type":"message","role":"user","content":"A"}')
        await (await first.create(input="d", tools=tools)).response()
        await (await session.conversation().create(input="e")).response()
    assert [create.previous_response_id for create in server.creates] == [
        None,
        "r1",
        "r2",
        None,
        None,
    ]
    assert [said(create) for create in server.creates] == [
        ["a"],
        ["b"],
        ["c"],
        ["A", "one", "b", "two", "c", "three", "d"],
        ["e"],
    ]
    assert [bytes(create.instructions) for create in server.creates[:4]] == [b'"be brief"'] * 4
    offered = [bytes(create.tools) != b"null" for create in server.creates]
    assert offered == [False, False, True, True, False]
    assert server.dials == 1


def forgetting(server: Server, times: int) -> Any:
    async def script(peer: Peer) -> None:
        await peer.send(*Speaker(await server.create(peer), "r1").answer("one"))
        for _ in range(times):
            create = await server.create(peer)
            await peer.send(refusal("previous_response_not_found", create))
        await answering(server, "two")(peer)

    return script


@pytest.mark.parametrize("kind", LINES)
async def test_st_01_a_forgotten_response_costs_one_full_input_and_nothing_else(kind: str) -> None:
    """ST-01: the second create has no previous id and all that was said."""
    server = Server()
    server.scripts = (forgetting(server, 1),)

    async with session_with(server, kind=kind) as session:
        conversation = session.conversation()
        await (await conversation.create(input="one?")).response()
        assert (await (await conversation.create(input="two?")).result()).text == "two"
    assert [create.previous_response_id for create in server.creates] == [None, "r1", None]
    assert [said(create) for create in server.creates[1:]] == [["two?"], ["one?", "one", "two?"]]
    keys = [create.idempotency_key for create in server.creates]
    assert len(set(keys)) == 3
    assert server.dials == 1


@pytest.mark.parametrize("kind", LINES)
async def test_st_01_a_second_refusal_is_raised(kind: str) -> None:
    server = Server()
    server.scripts = (forgetting(server, 2),)

    async with session_with(server, kind=kind) as session:
        conversation = session.conversation()
        await (await conversation.create(input="one?")).response()
        with pytest.raises(BadRequest) as caught:
            await (await conversation.create(input="two?")).response()
        assert caught.value.code == "previous_response_not_found"
        # The refused input is not part of what was said.
        assert (await (await conversation.create(input="three?")).result()).text == "two"
    assert len(server.creates) == 4
    assert said(server.creates[3]) == ["one?", "one", "three?"]


@pytest.mark.parametrize("kind", LINES)
async def test_er_03_transient_errors_before_the_response_are_retried(kind: str) -> None:
    """ER-03: code null and server_is_overloaded, as frames, with max_retries=2."""
    server = Server()

    async def script(peer: Peer) -> None:
        await peer.send(refusal(None, await server.create(peer)))
        await peer.send(refusal("server_is_overloaded", await server.create(peer)))
        await answering(server, "well")(peer)

    server.scripts = (script,)
    policy = Policy(backoff=Backoff(max_retries=2, first=0.001))

    async with session_with(server, kind=kind, policy=policy) as session:
        assert (await (await session.create(input="a")).result()).text == "well"
    assert [said(create) for create in server.creates] == [["a"]] * 3


@pytest.mark.parametrize("kind", LINES)
async def test_er_03_max_retries_is_honoured(kind: str) -> None:
    server = Server()

    async def script(peer: Peer) -> None:
        while True:
            await peer.send(refusal(None, await server.create(peer)))

    server.scripts = (script,)

    policy = Policy(backoff=Backoff(max_retries=2, first=0.001))
    async with session_with(server, kind=kind, policy=policy) as session:
        with pytest.raises(ServerError):
            await (await session.create(input="a")).response()
    assert len(server.creates) == 3


@pytest.mark.parametrize("kind", LINES)
async def test_er_03_nothing_is_retried_once_the_response_has_begun(kind: str) -> None:
    server = Server()

    async def script(peer: Peer) -> None:
        speaker = Speaker(await server.create(peer))
        await peer.send(speaker.created(), speaker.failed("server_error", "broken"))
        await peer.gone()

    server.scripts = (script,)

    async with session_with(server, kind=kind) as session:
        with pytest.raises(ServerError, match="broken"):
            await (await session.create(input="a")).response()
    assert len(server.creates) == 1


@pytest.mark.parametrize(("asked", "patience"), [(0.01, 60.0), (5.0, 1.0)])
async def test_er_03_a_server_that_names_a_wait_gets_it_or_is_not_waited_for(
    asked: float, patience: float
) -> None:
    server = Server()
    times: list[float] = []

    async def script(peer: Peer) -> None:
        create = await server.create(peer)
        times.append(asyncio.get_running_loop().time())
        await peer.send(refusal("rate_limit_exceeded", create, retry_after=asked))
        await answering(server, "well")(peer)

    server.scripts = (script,)
    policy = Policy(backoff=Backoff(first=0.0, patience=patience))

    async with session_with(server, kind="grpc", policy=policy) as session:
        if asked > patience:
            with pytest.raises(RateLimited):
                await (await session.create(input="a")).response()
            return
        assert (await (await session.create(input="a")).result()).text == "well"
        assert asyncio.get_running_loop().time() - times[0] >= asked


@pytest.mark.parametrize("kind", LINES)
async def test_rc_01_a_line_at_its_age_limit_is_followed_by_one_with_the_full_input(
    kind: str,
) -> None:
    """RC-01: four turns with store=False; the limit meets the third."""
    server = Server()

    async def aging(peer: Peer) -> None:
        for text in ("one", "two"):
            create = await server.create(peer)
            await peer.send(*Speaker(create, text).answer(text))
        await peer.send(refusal("websocket_connection_limit_reached", await server.create(peer)))

    server.scripts = (aging, answering(server, "three", "four"))

    async with session_with(server, kind=kind) as session:
        conversation = session.conversation(store=False)
        texts = [
            (await (await conversation.create(input=text)).result()).text
            for text in ("a", "b", "c", "d")
        ]
        assert texts == ["one", "two", "three", "four"]
    assert server.dials == 2
    assert [said(create) for create in server.creates] == [
        ["a"],
        ["b"],
        ["c"],
        ["a", "one", "b", "two", "c"],
        ["d"],
    ]
    assert [create.previous_response_id for create in server.creates] == [
        None,
        "one",
        "two",
        None,
        "r4",
    ]


@pytest.mark.parametrize("kind", LINES)
async def test_rc_01_an_old_line_gets_no_new_work(kind: str) -> None:
    """The session rotates by itself: here at once, so that each turn has its own connection."""
    server = served(("one",), ("two",), ("three",))
    policy = Policy(max_age=0.0)

    async with session_with(server, kind=kind, policy=policy) as session:
        conversation = session.conversation(store=False)
        for text in ("a", "b", "c"):
            await (await conversation.create(input=text)).response()
    assert server.dials == 3
    assert [len(items_of(create)) for create in server.creates] == [1, 3, 5]
    assert {create.previous_response_id for create in server.creates} == {None}


@pytest.mark.parametrize("kind", LINES)
async def test_a_stored_response_is_continued_by_id_on_another_line(kind: str) -> None:
    server = served(("one",), ("two",))

    async with session_with(server, kind=kind, policy=Policy(max_age=0.0)) as session:
        conversation = session.conversation()
        for text in ("a", "b"):
            await (await conversation.create(input=text)).response()
    assert [create.previous_response_id for create in server.creates] == [None, "r1"]


@pytest.mark.parametrize("kind", LINES)
async def test_a_line_that_goes_away_ends_its_turn_and_gets_no_other(kind: str) -> None:
    """SessionGoingAway: the running turn ends on the old line, the next has a new one."""
    server = Server()
    go_on = asyncio.Event()

    async def leaving(peer: Peer) -> None:
        speaker = Speaker(await server.create(peer))
        away = events.SessionGoingAway(reason="server_draining", seconds=5.0)
        await peer.send(speaker.created(), away, *speaker.open_text())
        await go_on.wait()
        await peer.send(speaker.delta("old"), *speaker.close_text("old"), speaker.completed())
        await peer.gone()

    server.scripts = (leaving, answering(server, "new"))

    async with session_with(server, kind=kind) as session:
        running = await session.create(input="a")
        async for event in running:
            if isinstance(event, events.ContentPartAdded):
                break
        other = await (await session.create(input="b")).result()
        go_on.set()
        assert (other.text, (await running.result()).text) == ("new", "old")
    assert server.dials == 2


@pytest.mark.parametrize("kind", LINES)
async def test_rc_05_a_dead_line_is_noticed_before_it_is_lent(kind: str) -> None:
    """RC-05: the connection breaks between two turns: one more dial, and nothing is lost."""
    server = served(("one",), ("two",))

    async with (
        server.serving(kind) as address,
        Relay(address) as relay,
        connect_session(f"{kind}://{relay.address}", policy=QUICK) as session,
    ):
        conversation = session.conversation()
        await (await conversation.create(input="a")).response()
        connection = session.connection
        assert connection is not None
        relay.reset()
        if kind == "grpc":
            # The library hears of it in a thread of its own.
            await asyncio.wait((connection._reader,))
        assert (await (await conversation.create(input="b")).result()).text == "two"
    assert server.dials == 2
    assert len(server.creates) == 2


@pytest.mark.parametrize("kind", LINES)
async def test_rc_06_closing_the_session_ends_all_that_waits(kind: str) -> None:
    """RC-06: a reader, and a turn that waits for a server which says nothing."""
    server = Server()

    async def script(peer: Peer) -> None:
        speaker = Speaker(await server.create(peer))
        await peer.send(speaker.created(), *speaker.open_text(), speaker.delta("par"))
        await peer.gone()

    server.scripts = (script,)

    async with server.serving(kind) as address:
        session = Session(f"{kind}://{address}", policy=QUICK)
        streams = [
            await session.conversation().create(input="a"),
            await session.conversation(lane="x").create(input="b"),
        ]
        readers = [asyncio.create_task(stream.response()) for stream in streams]
        await asyncio.sleep(0)
        async with asyncio.timeout(Options().close_timeout):
            await session.close()
            ends = await asyncio.gather(*readers, return_exceptions=True)
        assert all(isinstance(end, Exception) for end in ends)
        with pytest.raises(ConnectionClosed):
            await session.create(input="c")


async def test_lb_03_a_slow_reader_of_a_session_gets_every_delta() -> None:
    """LB-03: 5,000 deltas are there before the first is read; none is dropped, none merged."""
    server = Server()

    async def script(peer: Peer) -> None:
        speaker = Speaker(await server.create(peer))
        opened = [speaker.created(), *speaker.open_text()]
        deltas = [speaker.delta("x") for _ in range(5000)]
        await peer.send(*opened, *deltas, *speaker.close_text("x" * 5000), speaker.completed())
        await peer.gone()

    server.scripts = (script,)

    async with session_with(server, kind="ws", options=Options(merge="never")) as session:
        stream = await session.create(input="a")
        await asyncio.sleep(0.3)
        count = 0
        async for event in stream:
            count += isinstance(event, events.OutputTextDelta)
        assert (count, stream.text) == (5000, "x" * 5000)


async def test_a_conversation_has_one_turn_at_a_time() -> None:
    server = served(("one", "two"))

    async with session_with(server, kind="grpc") as session:
        conversation = session.conversation()
        stream = await conversation.create(input="a")
        with pytest.raises(TurnState):
            await conversation.create(input="b")
        await stream.response()
        assert (await (await conversation.create(input="b")).result()).text == "two"


async def test_what_was_added_goes_with_the_next_turn() -> None:
    server = served(("one", "two"))

    async with session_with(server, kind="grpc") as session:
        conversation = session.conversation()
        await (await conversation.create(input="a")).response()
        conversation.add("b")
        await (await conversation.create(input="c")).response()
        assert conversation.latest == "r2"
        assert len(conversation.items) == 5
    assert said(server.creates[1]) == ["b", "c"]


async def test_an_edited_history_goes_whole_without_ids_of_the_other_line() -> None:
    """Ids name what a server has stored; reasoning without its sealed content is only an id."""
    server = served(("one", "two"))

    async with session_with(server, kind="grpc") as session:
        conversation = session.conversation(store=False)
        await (await conversation.create(input="a")).response()
        conversation.items.insert(0, Raw(b'{"type":"reasoning","id":"rs_1","summary":[]}'))
        await (await conversation.create(input="b")).response()
    assert said(server.creates[1]) == ["a", "one", "b"]
    assert not any("id" in item for item in items_of(server.creates[1]))


async def test_a_server_without_our_extensions_gets_no_key() -> None:
    server = served(("one",), extensions=None)

    async with session_with(server, kind="ws") as session:
        assert (await (await session.create(input="a")).result()).text == "one"
    assert server.creates[0].idempotency_key is None


async def test_a_conversation_that_starts_after_a_response_is_whole_from_there_on() -> None:
    server = Server()
    server.scripts = (forgetting(server, 1),)

    async with session_with(server, kind="grpc") as session:
        conversation = session.conversation(previous_response_id="r0")
        await (await conversation.create(input="one?")).response()
        await (await conversation.create(input="two?")).response()
    assert [create.previous_response_id for create in server.creates] == ["r0", "r1", "r0"]


async def test_held_turns_are_one_response_in_a_conversation() -> None:
    """The items lie as the chain has them: call, output, answer."""
    server = Server()

    async def script(peer: Peer) -> None:
        speaker = Speaker(await server.create(peer))
        await peer.send(speaker.created(), *speaker.call("f", "{}", "c1"), speaker.done())
        append = await peer.receive()
        assert isinstance(append, requests.Append)
        await peer.send(*speaker.text("done"), speaker.completed())
        await answering(server, "two")(peer)

    server.scripts = (script,)

    async with session_with(server, kind="grpc") as session:
        conversation = session.conversation()
        stream = await conversation.create(input="a", append=True)
        await stream.response()
        assert stream.held
        assert not stream.ended
        await stream.append([tool_output(stream.calls[0], "out")])
        assert (await stream.result()).text == "done"
        assert stream.ended
        await (await conversation.create(input="b")).response()
        types = [item["type"] for item in items_of(requests.Create(input=_all(conversation)))]
        expected = ["message", "function_call", "function_call_output", "message"]
        assert types == [*expected, "message", "message"]
    assert server.creates[1].previous_response_id == "r1"


def _all(conversation: Any) -> Raw:
    return Raw(b"[" + b",".join(bytes(item) for item in conversation.items) + b"]")


@pytest.mark.parametrize("kind", LINES)
async def test_a_session_that_is_ready_has_its_line(kind: str) -> None:
    server = served(("one",))

    async with session_with(server, kind=kind) as session:
        assert session.connection is None
        connection = await session.ready()
        assert session.connection is connection
        assert await connection.extensions() == {"idempotency_key", "resumable"}
        await (await session.create(input="a")).response()
    assert server.dials == 1


async def test_rc_06_closing_the_session_ends_a_dial() -> None:
    """RC-06: a peer that accepts and says nothing."""

    accepted, closed = asyncio.Event(), asyncio.Event()

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        await closed.wait()
        writer.close()

    listener = await asyncio.start_server(silent, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()
    async with listener:
        session = Session(f"ws://{host}:{port}", options=Options(connect_timeout=600.0))
        turn = asyncio.create_task(session.create(input="a"))
        await accepted.wait()
        async with asyncio.timeout(Options().close_timeout):
            await session.close()
            with pytest.raises(ConnectionClosed):
                await turn
        closed.set()
    assert ours() == []


async def test_rc_06_closing_the_session_ends_a_wait() -> None:
    """RC-06: a turn that is to be tried again in a minute does not hold up the end."""
    server = Server()
    refused = asyncio.Event()

    async def script(peer: Peer) -> None:
        create = await server.create(peer)
        await peer.send(refusal("server_is_overloaded", create, retry_after=50.0))
        refused.set()
        await peer.gone()

    server.scripts = (script,)

    async with server.serving("ws") as address:
        session = Session(f"ws://{address}")
        stream = await session.create(input="a")
        reader = asyncio.create_task(stream.response())
        await refused.wait()
        async with asyncio.timeout(Options().close_timeout):
            await session.close()
            with pytest.raises((Unavailable, ConnectionClosed, ConnectionLost)):
                await reader


async def test_after_a_steer_the_successor_stands_for_the_conversation() -> None:
    server = Server()

    async def script(peer: Peer) -> None:
        create = await server.create(peer)
        speaker = Speaker(create, "r1")
        await peer.send(speaker.created(), *speaker.open_text())
        steer = await peer.receive()
        assert isinstance(steer, requests.Steer)
        ref = events.SteerRef(previous_response_id="r1", id="steer_1")
        await peer.send(speaker.event(events.SteerAccepted, steer=ref), speaker.incomplete())
        successor = Speaker(create, "r2")
        await peer.send(
            successor.created(echo=False), *successor.text("steered"), successor.completed()
        )
        await answering(server, "on")(peer)

    server.scripts = (script,)

    async with session_with(server, kind="grpc") as session:
        conversation = session.conversation()
        stream = await conversation.create(input="a")
        async for event in stream:
            if isinstance(event, events.ContentPartAdded) and stream.response_id == "r1":
                await stream.steer("be quick")
        assert (stream.response_id, stream.text) == ("r2", "steered")
        assert (conversation.latest, conversation.items) == ("r2", [])
        await (await conversation.create(input="b")).response()
    assert server.creates[1].previous_response_id == "r2"
    assert said(server.creates[1]) == ["b"]
