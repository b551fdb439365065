"""A peer is a peer like any other: the same cases directly and over its socket."""

import asyncio
import json as json_text
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.event_samples import NUMBERED
from tests.support.scripted_peer import ScriptedPeer
from tieline.codecs.json import decode_request, encode
from tieline.errors import ApiError
from tieline.events import Event, OutputTextDelta
from tieline.requests import BY_TYPE, Cancel, Resume
from tieline_server.core.values import Principal
from tieline_server.peers import Peer
from tieline_server.workers.peer_socket import PeerSocket
from tieline_server.workers.worker_peer import WorkerPeer

ANN = Principal(owner="ann", models=frozenset({"a", "b"}))
BOB = Principal(owner="bob")
FIXTURES = Path(__file__).parents[2] / "protocol/fixtures/requests.json"
REQUESTS = [
    decode_request(json_text.dumps(row["json"]).encode())
    for row in json_text.loads(FIXTURES.read_text())
    if row["json"]["type"] in BY_TYPE
]


@pytest.fixture(params=["direct", "socket"])
def across(request: pytest.FixtureRequest) -> bool:
    """Whether there is a socket between."""
    return bool(request.param == "socket")


@asynccontextmanager
async def asked(
    scripted: ScriptedPeer, folder: Path, *, across: bool = True
) -> AsyncIterator[Peer]:
    """The scripted peer as another process would ask it, or as its own would."""
    if not across:
        yield scripted
        return
    served = PeerSocket(scripted, folder / "s.sock")
    await served.open()
    peer = WorkerPeer(folder / "s.sock")
    try:
        yield peer
    finally:
        peer.close()
        await served.close()


def delta(number: int, text: str = "x") -> Event:
    """One event of many."""
    return OutputTextDelta(
        sequence_number=number, item_id="msg_1", output_index=0, content_index=0, delta=text
    )


async def read(
    peer: Peer, response_id: str, after: int | None = None, *, into: list[Event] | None = None
) -> list[Event]:
    """All events that come of a response, to the end; also ``into`` a list as they come."""
    found: list[Event] = [] if into is None else into
    async for batch in peer.follow("ann", response_id, after=after):
        found += batch
    return found


async def code_of(work: Coroutine[Any, Any, object]) -> tuple[str, int, str | None]:
    """The error that something ends with."""
    with pytest.raises(ApiError) as caught:
        await work
    return caught.value.code, caught.value.status, caught.value.param


class TestEitherWay:
    async def test_a_turn_is_cancelled_looked_at_and_forgotten(
        self, tmp_path: Path, across: bool
    ) -> None:
        scripted = ScriptedPeer()
        scripted.turn("resp_1")
        async with asked(scripted, tmp_path, across=across) as peer:
            looked = await peer.look("ann", "resp_1")
            assert looked == scripted.turns["resp_1"].snapshot()
            cancelled = await peer.cancel("ann", "resp_1")
            assert cancelled is not None
            assert cancelled.status == "cancelled"
            assert await peer.cancel("ann", "resp_1") is None
            await peer.forget("ann", "resp_1")
            assert await peer.look("ann", "resp_1") is None
            assert await peer.metrics() == b"turns 0\n"

    async def test_what_is_anothers_is_like_what_does_not_exist(
        self, tmp_path: Path, across: bool
    ) -> None:
        scripted = ScriptedPeer()
        scripted.turn("resp_1")
        unknown = ("response_not_found", 404, "response_id")
        async with asked(scripted, tmp_path, across=across) as peer:
            for owner, named in (("bob", "resp_1"), ("ann", "resp_2")):
                assert await peer.look(owner, named) is None
                assert await peer.cancel(owner, named) is None
                await peer.forget(owner, named)
                following = aiter(peer.follow(owner, named, after=None))
                assert await code_of(anext(following)) == unknown  # type: ignore[arg-type]
                resume = Resume(response_id=named)
                who = Principal(owner=owner)
                work = peer.resume(resume, who, transport="grpc")
                assert await code_of(work) == unknown
        assert scripted.turns.keys() == {"resp_1"}

    async def test_every_event_comes_as_it_is(self, tmp_path: Path, across: bool) -> None:
        scripted = ScriptedPeer()
        scripted.turn("resp_1").add(NUMBERED, over=True)
        async with asked(scripted, tmp_path, across=across) as peer:
            found = await read(peer, "resp_1")
            assert found == list(NUMBERED)
            assert [*map(encode, found)] == [*map(encode, NUMBERED)]
            assert await read(peer, "resp_1", after=2) == list(NUMBERED[3:])

    async def test_events_are_followed_as_they_come(self, tmp_path: Path, across: bool) -> None:
        scripted = ScriptedPeer()
        turn = scripted.turn("resp_1")
        async with (
            asked(scripted, tmp_path, across=across) as peer,
            aclosing(peer.follow("ann", "resp_1", after=None)) as batches,
        ):
            for number in range(5):
                turn.add([delta(number)])
                assert await anext(batches) == [delta(number)]
            turn.add((), over=True)
            assert [batch async for batch in batches] == []

    async def test_a_reader_that_goes_leaves_nothing_behind(
        self, tmp_path: Path, across: bool
    ) -> None:
        scripted = ScriptedPeer()
        turn = scripted.turn("resp_1")
        turn.add([delta(0)])
        async with asked(scripted, tmp_path, across=across) as peer:
            async with aclosing(peer.follow("ann", "resp_1", after=None)) as batches:
                await anext(batches)
            await turn.until(lambda: turn.followers == 0)

    async def test_a_lane_speaks_and_hears_until_it_is_closed(
        self, tmp_path: Path, across: bool
    ) -> None:
        scripted = ScriptedPeer()
        turn = scripted.turn("resp_1")
        turn.add([delta(0), delta(1)])
        resume = Resume(response_id="resp_1", after=0, stream_id="lane", event_id="e")
        async with asked(scripted, tmp_path, across=across) as peer:
            lane = await peer.resume(resume, ANN, transport="websocket")
            events = aiter(lane.events())
            assert await anext(events) == [delta(1)]
            for request in REQUESTS:
                lane.send(request, BOB)
            while len(scripted.heard) <= len(REQUESTS):
                scripted.news.clear()
                await scripted.news.wait()
            assert scripted.heard == [(resume, ANN), *((request, BOB) for request in REQUESTS)]
            turn.add([delta(2)])
            assert await anext(events) == [delta(2)]
            await events.aclose()  # type: ignore[attr-defined]  # both are generators
            await lane.close()
            while not scripted.closed:
                scripted.news.clear()
                await scripted.news.wait()
            assert (scripted.transports, scripted.closed, turn.followers) == (["websocket"], 1, 0)


class TestSocket:
    async def test_a_slow_reader_leaves_events_where_the_turn_is(self, tmp_path: Path) -> None:
        scripted = ScriptedPeer()
        turn = scripted.turn("resp_1")
        turn.add([delta(number, "x" * 10_000) for number in range(2000)], over=True)
        async with (
            asked(scripted, tmp_path) as peer,
            aclosing(peer.follow("ann", "resp_1", after=None)) as batches,
        ):
            await anext(batches)
            before = -1
            while turn.taken != before:
                before = turn.taken
                for _ in range(100):
                    await asyncio.sleep(0)
            assert turn.taken < 200
            rest = [event async for batch in batches for event in batch]
            assert [event.sequence_number for event in rest] == list(range(1, 2000))

    async def test_a_large_event_crosses_alone(self, tmp_path: Path) -> None:
        scripted = ScriptedPeer()
        events = [delta(0), delta(1, "x" * 8_000_000), delta(2)]
        scripted.turn("resp_1").add(events, over=True)
        async with asked(scripted, tmp_path) as peer:
            assert await read(peer, "resp_1") == events

    async def test_a_fault_over_there_says_nothing_here(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        scripted = ScriptedPeer()
        scripted.broken = True
        async with asked(scripted, tmp_path) as peer:
            with pytest.raises(ApiError) as caught:
                await peer.look("ann", "resp_1")
            assert caught.value.code == "server_error"
            assert "secret" not in str(caught.value)
            scripted.broken = False
            assert await peer.look("ann", "resp_1") is None
        assert "a secret" in caplog.text

    async def test_calls_side_by_side_each_get_their_own_answer(self, tmp_path: Path) -> None:
        scripted = ScriptedPeer()
        ids = [f"resp_{number}" for number in range(100)]
        for each in ids:
            scripted.turn(each)
        async with asked(scripted, tmp_path) as peer:
            found = await asyncio.gather(*(peer.look("ann", each) for each in ids))
            assert [response and response.id for response in found] == ids


class TestGone:
    async def test_where_no_worker_listens_nothing_runs(self, tmp_path: Path) -> None:
        peer = WorkerPeer(tmp_path / "none.sock")
        assert await peer.look("ann", "resp_1") is None
        assert await peer.cancel("ann", "resp_1") is None
        await peer.forget("ann", "resp_1")
        unknown = ("response_not_found", 404, None)
        assert await code_of(read(peer, "resp_1")) == unknown
        resume = peer.resume(Resume(response_id="resp_1"), ANN, transport="grpc")
        assert await code_of(resume) == unknown
        assert (await code_of(peer.metrics()))[0] == "server_error"

    @pytest.mark.parametrize("how", ["follow", "resume"])
    async def test_a_stream_whose_other_side_ends_is_an_error_and_no_hang(
        self, tmp_path: Path, how: str
    ) -> None:
        scripted = ScriptedPeer()
        scripted.turn("resp_1").add([delta(0)])
        served = PeerSocket(scripted, tmp_path / "s.sock")
        await served.open()
        peer = WorkerPeer(tmp_path / "s.sock")
        if how == "follow":
            events = aiter(peer.follow("ann", "resp_1", after=None))
        else:
            resume = Resume(response_id="resp_1")
            lane = await peer.resume(resume, ANN, transport="grpc")
            events = aiter(lane.events())
        assert await anext(events) == [delta(0)]
        await served.close()
        with pytest.raises(ApiError) as caught:
            await anext(events)
        assert caught.value.code == "server_error"
        if how == "resume":
            lane.send(Cancel(response_id="resp_1"), ANN)
            await lane.close()
            await lane.close()
        assert not (tmp_path / "s.sock").exists()

    async def test_a_connection_that_waited_too_long_is_no_obstacle(self, tmp_path: Path) -> None:
        scripted = ScriptedPeer()
        peer = WorkerPeer(tmp_path / "s.sock")
        for _ in range(3):
            served = PeerSocket(scripted, tmp_path / "s.sock")
            await served.open()
            assert await peer.look("ann", "resp_1") is None
            await served.close()
        peer.close()

    async def test_one_that_hangs_is_given_up(self, tmp_path: Path) -> None:
        forever = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await forever.wait()
            writer.close()

        server = await asyncio.start_unix_server(silent, tmp_path / "s.sock")
        peer = WorkerPeer(tmp_path / "s.sock", patience=0.05, silence=0.05)
        calls = [
            peer.look("ann", "resp_1"),
            peer.metrics(),
            read(peer, "resp_1"),
            peer.resume(Resume(response_id="resp_1"), ANN, transport="grpc"),
        ]
        for call in calls:
            assert (await code_of(call))[0] == "server_error"
        forever.set()
        server.close()

    async def test_a_stream_that_is_cut_at_any_byte_gives_what_came_and_an_error(
        self, tmp_path: Path
    ) -> None:
        scripted = ScriptedPeer()
        events = [delta(number) for number in range(3)]
        scripted.turn("resp_1").add(events, over=True)
        whole: list[bytes] = []
        async with (
            asked(scripted, tmp_path),
            cutting(tmp_path, "s.sock", whole.append) as cut,
        ):
            peer = WorkerPeer(tmp_path / "cut.sock")
            cut(2**20)
            assert await read(peer, "resp_1") == events
            size = sum(map(len, whole))
            for place in range(size):
                cut(place)
                found: list[Event] = []
                assert (await code_of(read(peer, "resp_1", into=found)))[0] == "server_error"
                assert found == events[: len(found)]
                cut(place)
                resume = peer.resume(Resume(response_id="resp_2"), ANN, transport="grpc")
                assert (await code_of(resume))[0] in ("server_error", "response_not_found")


@asynccontextmanager
async def cutting(
    folder: Path, name: str, seen: Callable[[bytes], object]
) -> AsyncIterator[Callable[[int], None]]:
    """A way to a socket, at ``cut.sock``, that ends after so many bytes of answer."""
    left = [0]
    passing: set[asyncio.Task[None]] = set()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(folder / name)
        asking = asyncio.create_task(_ask(reader, back))
        try:
            while data := await there.read(65536):
                seen(data)
                data = data[: left[0]]
                left[0] -= len(data)
                writer.write(data)
                if not left[0]:
                    break
        finally:
            asking.cancel()
            back.close()
            writer.close()

    def pass_on_in_a_task(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passing.add(asyncio.create_task(pass_on(reader, writer)))

    def cut(place: int) -> None:
        left[0] = place

    server = await asyncio.start_unix_server(pass_on_in_a_task, folder / "cut.sock")
    try:
        yield cut
    finally:
        server.close()
        for task in passing:
            task.cancel()
        await asyncio.wait(passing)


async def _ask(reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        back.write(data)
    back.close()
