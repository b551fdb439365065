"""One turn whose line breaks: what is sent again, what is resumed, and what is raised."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from tests.client.aio.sessions import (
    LINES,
    QUICK,
    Peer,
    Server,
    items_of,
    refusal,
    session_with,
)
from tests.client.relay import Relay
from tests.client.servicer import Speaker
from tests.client.web import serving
from tieline import events, requests
from tieline.errors import ApiError, BadRequest, Conflict, ServerError, Unavailable
from tieline.events import Event
from tieline_client._replay import Policy
from tieline_client.aio import Session, SessionStream, connect_session, tool_output
from tieline_client.errors import (
    IncompleteStream,
    NotSent,
    OutcomeUnknown,
    TurnState,
)
from tieline_client.transports import Options

BARE = Policy(idempotent=False, backoff=QUICK.backoff)
"""No keys: nothing can be asked again, or resumed."""


async def collect(stream: SessionStream, got: list[Event] | None = None) -> list[Event]:
    """The events to the end; in ``got`` those before an error, too."""
    got = [] if got is None else got
    async for event in stream:
        got.append(event)
    return got


def numbers(got: list[Event]) -> list[Any]:
    return [event.sequence_number for event in got]


async def reading(peer: Peer, kind: type[Any]) -> Any:
    """The next request, which is of this class."""
    request = await peer.receive()
    assert isinstance(request, kind), request
    return request


async def quiet(peer: Peer) -> None:
    """A line on which nothing is said."""
    await peer.gone()


class Cut:
    """A response that is cut after its first events, and can be resumed for the rest."""

    def __init__(self, text: str = "partial and the rest") -> None:
        self.text = text
        self.resumes: list[requests.Resume] = []
        self.server = Server(self.first, self.second)
        self.said: list[Event] = []
        self.cut_at = 5

    async def first(self, peer: Peer) -> None:
        speaker = Speaker(await self.server.create(peer))
        self.said = speaker.answer(*self.text.split())
        await peer.send(*self.said[: self.cut_at])

    async def second(self, peer: Peer) -> None:
        resume = await reading(peer, requests.Resume)
        self.resumes.append(resume)
        after = -1 if resume.after is None else resume.after
        await peer.send(*self.said[after + 1 :])
        await peer.gone()


@pytest.mark.parametrize("kind", LINES)
async def test_rc_04_1_what_never_left_is_sent_again(kind: str) -> None:
    """RC-04 (1): the connection breaks under the create, before a byte of it is written."""
    server = Server()

    async def script(peer: Peer) -> None:
        await peer.send(*Speaker(await server.create(peer)).answer("well"))
        await peer.gone()

    server.scripts = (quiet, script)

    async with session_with(server, kind=kind, policy=BARE) as session:
        leased = await session._pool.take()
        transport: Any = leased.connection._transport
        # As when the system says so now: the reader has not heard of it yet.
        if kind == "grpc":
            transport._call.cancel()
        else:
            transport._traffic.abort()
        assert leased.connection.alive
        assert (await (await session.create(input="a")).result()).text == "well"
    assert (server.dials, len(server.creates)) == (2, 1)


async def test_rc_04_1_dialling_is_free_and_bounded() -> None:
    """RC-04 (1): a server that is overloaded gets each attempt, and then the caller is told."""
    dials = 0

    async def refuse(_: web.Request) -> web.StreamResponse:
        nonlocal dials
        dials += 1
        return web.json_response({"error": {"message": "full"}}, status=503)

    async with (
        serving(refuse) as address,
        connect_session(f"ws://{address}", policy=BARE) as session,
    ):
        with pytest.raises(Unavailable):
            await session.create(input="a")
    assert dials == 1 + BARE.backoff.max_retries


async def test_rc_04_1_a_server_that_is_not_there_leaves_nothing_unknown() -> None:
    listener = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    await listener.wait_closed()
    async with connect_session(f"grpc://127.0.0.1:{port}", policy=QUICK) as session:
        with pytest.raises(NotSent):
            await session.create(input="a")


@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("answered", [True, False])
async def test_rc_04_2_an_unanswered_create_goes_again_under_its_key_alone(
    kind: str, answered: bool
) -> None:
    """RC-04 (2): the very same request, so that the server finds the first one."""
    server = Server()

    async def silent(peer: Peer) -> None:
        await server.create(peer)

    async def script(peer: Peer) -> None:
        create = await server.create(peer)
        # The answer may still name the create that it was made for, or the second one.
        speaker = Speaker(server.creates[0] if answered else create)
        await peer.send(*speaker.answer("once"))
        await peer.gone()

    server.scripts = (silent, script)

    async with session_with(server, kind=kind) as session:
        conversation = session.conversation()
        assert (await (await conversation.create(input="a")).result()).text == "once"
    first, second = server.creates
    assert first == second
    assert first.idempotency_key


@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("why", ["no key", "server without keys"])
async def test_rc_04_2_without_a_key_the_outcome_is_unknown(kind: str, why: str) -> None:
    server = Server(extensions=() if why == "server without keys" else ("idempotency_key",))

    async def silent(peer: Peer) -> None:
        await server.create(peer)

    server.scripts = (silent,)

    async with session_with(
        server, kind=kind, policy=BARE if why == "no key" else QUICK
    ) as session:
        conversation = session.conversation()
        with pytest.raises(OutcomeUnknown):
            await (await conversation.create(input="a")).response()
        assert conversation.items == []
    assert len(server.creates) == 1


@pytest.mark.parametrize("kind", LINES)
async def test_rc_04_2_the_caller_may_take_the_risk(kind: str) -> None:
    server = Server()

    async def silent(peer: Peer) -> None:
        await server.create(peer)

    async def script(peer: Peer) -> None:
        await peer.send(*Speaker(await server.create(peer)).answer("twice"))
        await peer.gone()

    server.scripts = (silent, script)

    policy = Policy(idempotent=False, replay_unsafe=True, backoff=QUICK.backoff)
    async with session_with(server, kind=kind, policy=policy) as session:
        assert (await (await session.create(input="a")).result()).text == "twice"
    assert len(server.creates) == 2


@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("cut_at", [1, 4, 5, 8])
async def test_rc_04_3_and_4_a_response_that_had_begun_is_resumed(kind: str, cut_at: int) -> None:
    """RC-04 (3), (4): after created, after deltas, after the text: every event comes once."""
    cut = Cut()
    cut.cut_at = cut_at

    async with session_with(cut.server, kind=kind) as session:
        stream = await session.create(input="a")
        got = await collect(stream)
        assert numbers(got) == list(range(len(cut.said)))
        assert stream.text == cut.text.replace(" ", "")
        assert (await stream.response()).usage is not None
        assert stream.ended
    assert [(resume.response_id, resume.after) for resume in cut.resumes] == [("r1", cut_at - 1)]
    assert len(cut.server.creates) == 1


@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("number", [2, 4, 5])
async def test_rc_10_an_end_in_failure_is_heard_whatever_its_number_and_never_made_good_by_another(
    kind: str, number: int
) -> None:
    """RC-10: a process that dies has written down less than it has said."""
    cut = Cut()

    async def failed(peer: Peer) -> None:
        await reading(peer, requests.Resume)
        speaker = Speaker(cut.server.creates[0])
        await peer.send(replace(speaker.failed("server_error", "died"), sequence_number=number))
        await peer.gone()

    cut.server.scripts = (cut.first, failed)

    async with session_with(cut.server, kind=kind) as session:
        stream = await session.create(input="a")
        got: list[Event] = []
        with pytest.raises(ServerError, match="died"):
            await collect(stream, got)
        assert numbers(got) == [0, 1, 2, 3, 4, number]
        assert (got[-1].type, stream.ended) == ("response.failed", True)
        with pytest.raises(ServerError):
            await stream.response()
    assert len(cut.server.creates) == 1


@pytest.mark.parametrize("kind", LINES)
async def test_rc_04_a_resumable_create_without_a_key_is_resumed_as_well(kind: str) -> None:
    cut = Cut()

    async with session_with(cut.server, kind=kind, policy=BARE) as session:
        stream = await session.create(input="a", resumable=True)
        assert (await stream.result()).text == cut.text.replace(" ", "")


@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("cut_at", [1, 5])
async def test_rc_10_what_cannot_be_resumed_is_raised_with_its_part(kind: str, cut_at: int) -> None:
    """RC-10, RC-04 (3), (4): never a result, never sent again."""
    cut = Cut()
    cut.cut_at = cut_at

    async with session_with(cut.server, kind=kind, policy=BARE) as session:
        conversation = session.conversation()
        stream = await conversation.create(input="a")
        with pytest.raises(IncompleteStream) as caught:
            await collect(stream)
        assert caught.value.response_id == "r1"
        assert caught.value.text == ("" if cut_at == 1 else "partialand")
        with pytest.raises(IncompleteStream):
            await stream.response()
        assert (stream.ended, conversation.items) == (True, [])
    assert len(cut.server.creates) == 1
    assert cut.resumes == []


@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("code", ["response_not_found", "not_resumable"])
async def test_rc_10_a_refused_resume_raises_the_part_and_why(kind: str, code: str) -> None:
    cut = Cut()

    async def refusing(peer: Peer) -> None:
        resume = await reading(peer, requests.Resume)
        await peer.send(refusal(code, resume))
        await peer.gone()

    cut.server.scripts = (cut.first, refusing)

    async with session_with(cut.server, kind=kind) as session:
        with pytest.raises(IncompleteStream) as caught:
            await collect(await session.create(input="a"))
        assert caught.value.text == "partialand"
        assert isinstance(caught.value.__cause__, ApiError)
        assert caught.value.__cause__.code == code
    assert len(cut.server.creates) == 1


@pytest.mark.parametrize("kind", LINES)
async def test_rc_04_a_busy_lane_is_waited_for(kind: str) -> None:
    """The server may not have noticed yet that the old line is gone."""
    cut = Cut()

    async def second(peer: Peer) -> None:
        await peer.send(refusal("lane_busy", await reading(peer, requests.Resume)))
        await cut.second(peer)

    cut.server.scripts = (cut.first, second)

    async with session_with(cut.server, kind=kind) as session:
        assert len(await collect(await session.create(input="a"))) == len(cut.said)


@pytest.mark.parametrize("kind", LINES)
async def test_rc_04_a_response_that_is_cut_at_every_event_comes_whole(kind: str) -> None:
    """Retries are counted from the last progress on."""
    cut = Cut("a b c d e f g h i j k l")

    async def one_more(peer: Peer) -> None:
        resume = await reading(peer, requests.Resume)
        cut.resumes.append(resume)
        assert resume.after is not None
        await peer.send(cut.said[resume.after + 1])

    cut.cut_at = 1
    cut.server.scripts = (cut.first, one_more)

    async with session_with(cut.server, kind=kind) as session:
        got = await collect(await session.create(input="a"))
        assert numbers(got) == list(range(len(cut.said)))
    assert len(cut.resumes) == len(cut.said) - 1


@pytest.mark.parametrize("kind", LINES)
async def test_rc_06_a_half_open_peer_is_left_and_its_response_resumed(kind: str) -> None:
    """RC-06: nobody says that the connection is gone; pings without an answer do."""
    cut = Cut()
    held = asyncio.Event()

    async def first(peer: Peer) -> None:
        await cut.first(peer)
        await held.wait()

    cut.server.scripts = (first, cut.second)
    options = Options(keepalive=0.1, keepalive_timeout=0.1)

    async with (
        cut.server.serving(kind) as address,
        Relay(address) as relay,
        connect_session(f"{kind}://{relay.address}", policy=QUICK, options=options) as session,
    ):
        stream = await session.create(input="a")
        got = []
        async with asyncio.timeout(20):
            async for event in stream:
                got.append(event)
                if len(got) == cut.cut_at:
                    relay.forget()
        assert numbers(got) == list(range(len(cut.said)))
        held.set()


@pytest.mark.parametrize("kind", LINES)
async def test_a_response_that_was_resumed_elsewhere_ends_here_with_a_typed_error(
    kind: str,
) -> None:
    cut = Cut()

    async def first(peer: Peer) -> None:
        await cut.first(peer)
        error = ApiError.of("resumed_elsewhere", "no")
        detail = events.ErrorDetail.of(error)
        await peer.send(events.ErrorEvent(sequence_number=5, status=409, error=detail))
        await peer.gone()

    cut.server.scripts = (first,)

    async with session_with(cut.server, kind=kind) as session:
        stream = await session.create(input="a")
        with pytest.raises(Conflict) as caught:
            await collect(stream)
        assert caught.value.code == "resumed_elsewhere"
        assert stream.text == "partialand"
        assert stream.ended
    assert cut.resumes == []


# Held turns.


class Rollout:
    """A held turn on one line and what follows on others; ``taken``: the append got through."""

    def __init__(self) -> None:
        self.server = Server()
        self.speaker: Speaker | None = None
        self.events: list[Event] = []
        self.appends: list[requests.Append] = []
        self.resumes: list[requests.Resume] = []

    def say(self, *said: Event) -> list[Event]:
        self.events += said
        return list(said)

    async def hold(self, peer: Peer) -> None:
        """Up to the hold."""
        self.speaker = speaker = Speaker(await self.server.create(peer))
        said = self.say(speaker.created(), *speaker.call("f", "{}", "c1"), speaker.done())
        await peer.send(*said)

    async def replay(self, peer: Peer) -> None:
        """What comes after the number of a resume."""
        resume = await reading(peer, requests.Resume)
        self.resumes.append(resume)
        await peer.send(*self.events[(resume.after or 0) + 1 :])

    async def append(self, peer: Peer) -> requests.Append:
        append: requests.Append = await reading(peer, requests.Append)
        self.appends.append(append)
        return append

    def finish(self) -> list[Event]:
        assert self.speaker is not None
        return self.say(*self.speaker.text("done"), self.speaker.completed())


async def answered(session: Session, before: Callable[[], Awaitable[None]] | None = None) -> str:
    """A rollout with one call, answered after ``before``."""
    stream = await session.create(input="a", append=True, store=False)
    await stream.response()
    assert stream.held
    if before is not None:
        await before()
    await stream.append([tool_output(stream.calls[0], "out")])
    return (await stream.result()).text


def gone(session: Session) -> Callable[[], Awaitable[None]]:
    async def wait() -> None:
        connection = session.connection
        assert connection is not None
        await asyncio.wait((connection._reader,))

    return wait


@pytest.mark.parametrize("kind", LINES)
async def test_rc_04_a_held_turn_is_resumed_and_appended_to(kind: str) -> None:
    """The line breaks while the tool runs: the output is sent once, on the new line."""
    rollout = Rollout()

    async def second(peer: Peer) -> None:
        await rollout.replay(peer)
        await rollout.append(peer)
        await peer.send(*rollout.finish())
        await peer.gone()

    rollout.server.scripts = (rollout.hold, second)

    async with session_with(rollout.server, kind=kind) as session:
        assert await answered(session, gone(session)) == "done"
    assert len(rollout.server.creates) == len(rollout.appends) == 1
    # The hold itself is asked for again: it shows that the turn is where it was.
    assert [resume.after for resume in rollout.resumes] == [4]


@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("when", ["lost", "taken", "goes on", "ended"])
async def test_rc_04_an_append_without_an_answer_is_taken_once(kind: str, when: str) -> None:
    """The line breaks after the append was sent, which the server had got or not."""
    rollout = Rollout()

    async def first(peer: Peer) -> None:
        await rollout.hold(peer)
        await rollout.append(peer)

    async def second(peer: Peer) -> None:
        speaker = rollout.speaker
        assert speaker is not None
        rest = [*speaker.text("done"), speaker.completed()]
        rollout.say(*(rest if when == "ended" else rest[:2] if when == "goes on" else []))
        await rollout.replay(peer)
        if when in ("lost", "taken"):
            append = await rollout.append(peer)
            if when == "taken":
                await peer.send(refusal("response_not_active", append))
        await peer.send(*(rest[2:] if when == "goes on" else [] if when == "ended" else rest))
        await peer.gone()

    rollout.server.scripts = (first, second)

    async with session_with(rollout.server, kind=kind) as session:
        assert await answered(session) == "done"
    assert len(rollout.server.creates) == len(rollout.resumes) == 1
    first_append, *others = rollout.appends
    assert [append.input for append in others] == [first_append.input] * len(others)


@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("why", ["expired", "never kept"])
async def test_rc_04_outputs_of_a_turn_that_is_gone_go_into_a_new_response(
    kind: str, why: str
) -> None:
    """They were never sent: nothing can happen twice, and no tool runs again."""
    rollout = Rollout()

    async def second(peer: Peer) -> None:
        if why == "expired":
            await peer.send(refusal("response_not_found", await reading(peer, requests.Resume)))
        speaker = Speaker(await rollout.server.create(peer), "r2")
        await peer.send(*speaker.answer("anew"))
        await peer.gone()

    rollout.server.scripts = (rollout.hold, second)

    policy = QUICK if why == "expired" else BARE
    async with session_with(rollout.server, kind=kind, policy=policy) as session:
        assert await answered(session, gone(session)) == "anew"
    again = rollout.server.creates[1]
    assert again.append is True
    assert again.previous_response_id is None
    assert [item["type"] for item in items_of(again)] == [
        "message",
        "function_call",
        "function_call_output",
    ]


@pytest.mark.parametrize("kind", LINES)
async def test_rc_04_an_append_without_an_answer_is_not_repeated_where_nothing_is_kept(
    kind: str,
) -> None:
    rollout = Rollout()

    async def first(peer: Peer) -> None:
        await rollout.hold(peer)
        await rollout.append(peer)

    rollout.server.scripts = (first,)

    async with session_with(rollout.server, kind=kind, policy=BARE) as session:
        with pytest.raises(IncompleteStream):
            await answered(session)
    assert len(rollout.server.creates) == 1


@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("code", ["response_not_found", "response_not_active"])
async def test_a_held_turn_that_was_attached_to_is_fetched_before_it_is_answered(
    kind: str, code: str
) -> None:
    """An attach moves nothing: the lane that holds the turn is still another line's."""
    rollout = Rollout()

    async def silent(peer: Peer) -> None:
        await rollout.server.create(peer)

    async def second(peer: Peer) -> None:
        await rollout.hold(peer)
        await peer.send(refusal(code, await rollout.append(peer)))
        await peer.gone()

    async def third(peer: Peer) -> None:
        await rollout.replay(peer)
        await rollout.append(peer)
        await peer.send(*rollout.finish())
        await peer.gone()

    rollout.server.scripts = (silent, second, third)

    async with session_with(rollout.server, kind=kind) as session:
        assert await answered(session) == "done"
    assert len(rollout.resumes) == 1


async def test_a_refused_append_leaves_the_turn_held() -> None:
    rollout = Rollout()

    async def script(peer: Peer) -> None:
        await rollout.hold(peer)
        await peer.send(refusal("tool_call_not_found", await rollout.append(peer)))
        await rollout.append(peer)
        await peer.send(*rollout.finish())
        await peer.gone()

    rollout.server.scripts = (script,)

    async with session_with(rollout.server, kind="grpc") as session:
        stream = await session.create(input="a", append=True)
        with pytest.raises(TurnState):
            await stream.append([])
        call = (await stream.result()).calls[0]
        await stream.append([tool_output(call, "no")])
        with pytest.raises(BadRequest):
            await stream.response()
        assert stream.held
        await stream.append([tool_output(call, "yes")])
        assert (await stream.result()).text == "done"


# Ends by us.


@pytest.mark.parametrize("kind", LINES)
async def test_a_lost_response_is_cancelled_by_its_id_from_another_line(kind: str) -> None:
    cut = Cut()
    cancels: asyncio.Queue[requests.Cancel] = asyncio.Queue()

    async def second(peer: Peer) -> None:
        cancels.put_nowait(await reading(peer, requests.Cancel))
        await peer.gone()

    cut.server.scripts = (cut.first, second)

    async with session_with(cut.server, kind=kind) as session:
        stream = await session.create(input="a")
        await gone(session)()
        await stream.aclose()
        assert stream.over
        assert (await cancels.get()).response_id == "r1"
        await session._pool.close()
    assert cancels.empty()


async def test_leaving_the_block_cancels_a_turn_that_runs() -> None:
    server = Server()
    cancels: asyncio.Queue[requests.Cancel] = asyncio.Queue()

    async def script(peer: Peer) -> None:
        await peer.send(Speaker(await server.create(peer)).created())
        cancels.put_nowait(await reading(peer, requests.Cancel))
        await peer.gone()

    server.scripts = (script,)

    async with session_with(server, kind="grpc") as session:
        async with await session.create(input="a") as stream:
            await stream.__anext__()
        assert await collect(stream) == []
        # It is not waited for by who leaves.
        assert (await cancels.get()).response_id == "r1"
