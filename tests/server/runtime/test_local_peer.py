"""A process as its peers see it, and a lane of one whose turns run in the other."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import msgspec
import pytest
from msgspec import UNSET

from tests.support.core import append_of, output, user
from tests.support.runtime import PATIENCE, Answer, Stage, hello, looker, mute, until
from tieline import events
from tieline.errors import ApiError
from tieline.requests import Cancel, Create, Request, Resume, SessionEnd
from tieline_server.core.values import Principal
from tieline_server.peers import Peer, RemoteLane
from tieline_server.runtime import ConnectionDriver, LocalPeer


class OnePeer:
    """Every response of another process is at this peer."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def peer_of(self, response_id: str) -> Peer | None:
        """The only peer."""
        return self._peer

    def others(self) -> Sequence[Peer]:
        """The only peer."""
        return (self._peer,)


def pair(answer: Answer) -> tuple[Stage, Stage]:
    """Two processes of which the first knows the second."""
    near, far = Stage(hello), Stage(answer)
    peer = LocalPeer(far.services)
    near.services = msgspec.structs.replace(near.services, peers=OnePeer(peer))
    near.services.running.connections.clear()
    near.driver = near.open()
    return near, far


async def close(*stages: Stage) -> None:
    """Ends both processes."""
    for stage in stages:
        await stage.driver.close()
    for stage in stages:
        await stage.services.running.close()
        assert stage.services.running.connections == set()
        assert stage.services.budget.size == 0


class TestRemoteLanes:
    async def test_a_held_turn_of_a_peer_is_resumed_and_answered_in_one_breath(self) -> None:
        near, far = pair(looker)
        far.create(resumable=True, append=True)
        done = await far.until(events.ResponseDone)
        await far.driver.close()
        call = msgspec.json.decode(done.response.output[0])
        near.resume(done.response.id, done.sequence_number, stream_id="a")
        near.driver.receive(append_of(output(call["call_id"]), stream_id="a"))
        last = await near.until(events.ResponseCompleted)
        assert (last.response.id, last.stream_id) == (done.response.id, "a")
        first = done.sequence_number + 1
        assert near.numbers == list(range(first, first + len(near.seen)))
        assert (far.engine.finished, near.engine.finished) == (2, 0)
        await close(near, far)

    async def test_the_lane_goes_on_there_and_others_go_on_here(self) -> None:
        near, far = pair(hello)
        far.create(resumable=True)
        response_id = (await far.until(events.ResponseCompleted)).response.id
        await far.driver.close()
        near.resume(response_id, stream_id="a")
        near.create("more", stream_id="a", previous_response_id=response_id)
        assert (await near.until(events.ResponseCompleted)).response.id == response_id
        second = (await near.until(events.ResponseCompleted)).response
        assert second.previous_response_id == response_id
        near.driver.receive(append_of(user("and more"), stream_id="a"))
        third = (await near.until(events.ResponseCompleted)).response
        assert third.previous_response_id == second.id
        assert (len(far.engine.prompts), len(near.engine.prompts)) == (3, 0)
        near.create("here", stream_id="b")
        await near.until(events.ResponseCompleted)
        assert len(near.engine.prompts) == 1
        await close(near, far)

    async def test_a_cancel_on_the_lane_ends_the_turn_there(self) -> None:
        near, far = pair(mute)
        far.create(resumable=True)
        response_id = (await far.until(events.ResponseInProgress)).response.id
        near.resume(response_id, 1)
        await far.until(events.ErrorEvent)
        near.driver.receive(Cancel())
        last = await near.until(events.ResponseIncomplete)
        assert last.response.status == "cancelled"
        await close(near, far)

    async def test_a_connection_that_goes_leaves_the_turn_there_to_be_resumed_again(self) -> None:
        near, far = pair(mute)
        far.create(resumable=True)
        response_id = (await far.until(events.ResponseInProgress)).response.id
        near.resume(response_id)
        await near.until(events.ResponseInProgress)
        await near.driver.close()
        assert far.records == []
        far.resume(response_id, stream_id="x")
        await far.until(events.ResponseInProgress)
        await close(near, far)

    async def test_a_client_that_says_goodbye_hears_the_end_and_the_connection_closes(self) -> None:
        near, far = pair(hello)
        far.create(resumable=True)
        response_id = (await far.until(events.ResponseCompleted)).response.id
        near.resume(response_id, stream_id="a")
        await near.until(events.ResponseCompleted)
        near.driver.half_close()
        await near.until()
        assert near.driver.error is None
        await close(near, far)

    @pytest.mark.parametrize(
        ("goodbye", "code"),
        [
            (lambda driver: driver.receive(SessionEnd()), "invalid_event"),
            (lambda driver: driver.drain(PATIENCE * 2), "server_draining"),
            (lambda driver: driver.age(), "websocket_connection_limit_reached"),
        ],
    )
    async def test_after_a_goodbye_nothing_new_begins_on_the_lane_and_the_connection_closes(
        self, goodbye: Callable[[ConnectionDriver], None], code: str
    ) -> None:
        near, far = pair(hello)
        far.create(resumable=True)
        response_id = (await far.until(events.ResponseCompleted)).response.id
        near.resume(response_id, stream_id="a")
        await near.until(events.ResponseCompleted)
        goodbye(near.driver)
        near.create("more", stream_id="a")
        assert (await near.until(events.ErrorEvent)).error.code == code
        await near.until()
        assert len(far.engine.prompts) == 1
        await close(near, far)

    async def test_a_connection_that_says_goodbye_while_the_lane_is_forwarded_closes_as_well(
        self,
    ) -> None:
        near, far = pair(hello)
        far.create(resumable=True)
        response_id = (await far.until(events.ResponseCompleted)).response.id
        near.resume(response_id, stream_id="a")
        near.driver.drain(PATIENCE * 2)
        await near.until(events.ResponseCompleted)
        await near.until()
        await close(near, far)

    async def test_nothing_goes_on_there_for_one_who_may_ask_no_more(self) -> None:
        allowed = [Principal()]

        def authenticate() -> Principal:
            if not allowed:
                raise ApiError.of("invalid_api_key", "No.")
            return allowed[0]

        near, far = pair(mute)
        near.authenticate = authenticate
        near.services.running.connections.clear()
        near.driver = near.open()
        far.create(resumable=True)
        response_id = (await far.until(events.ResponseInProgress)).response.id
        near.resume(response_id, stream_id="a")
        await near.until(events.ResponseInProgress)
        allowed.clear()
        near.create("more", stream_id="a")
        assert (await near.until(events.ErrorEvent)).error.code == "invalid_api_key"
        await near.driver.close()
        async with asyncio.timeout(PATIENCE):
            await far.booked.wait()
        assert [record.outcome for record, _ in far.records] == ["cancelled"]
        await close(near, far)

    async def test_an_error_there_names_the_request_here(self) -> None:
        near, far = pair(mute)
        far.create(resumable=True)
        created = await far.until(events.ResponseInProgress)
        (turn,) = far.driver.connection._lanes.turns()
        assert turn.log is not None
        turn.log.drop()
        near.resume(created.response.id, event_id="e", stream_id="a")
        refused = await near.until(events.ErrorEvent)
        assert (refused.error.code, refused.error.event_id) == ("not_resumable", "e")
        assert refused.stream_id == "a"
        await close(near, far)

    async def test_what_neither_has_is_not_found(self) -> None:
        near, far = pair(mute)
        near.resume("resp_x")
        assert (await near.until(events.ErrorEvent)).error.code == "response_not_found"
        near.create()
        await near.until(events.ResponseCompleted)
        await close(near, far)


class Ends:
    """A lane that takes no creates, and ends when it has to, with an error or without."""

    def __init__(self, remote: RemoteLane, error: ApiError | None) -> None:
        self._remote = remote
        self._error = error
        self.creates = 0
        self.ends = asyncio.Event()

    def send(self, request: Request, principal: Principal) -> None:
        """Passes on what is no create."""
        self.creates += isinstance(request, Create)
        if not isinstance(request, Create):
            self._remote.send(request, principal)

    async def events(self) -> AsyncGenerator[Sequence[events.Event], None]:
        """What has come, then the end."""
        async with aclosing(self._remote.events()) as batches:
            yield await anext(batches)
        await self.ends.wait()
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        """Drops the connection there."""
        await self._remote.close()


class Ending(LocalPeer):
    """A peer that ends while it has creates which it has not begun."""

    error: ApiError | None = None
    lane: Ends

    async def resume(self, resume: Resume, principal: Principal, *, transport: str) -> RemoteLane:
        """Moves the turn as ever."""
        self.lane = Ends(await super().resume(resume, principal, transport=transport), self.error)
        return self.lane


class TestLostCreates:
    @staticmethod
    async def ask(error: ApiError | None) -> tuple[Stage, Stage]:
        """Two creates on a lane elsewhere, whose process then ends."""
        near, far = pair(hello)
        peer = Ending(far.services)
        peer.error = error
        near.services.running.connections.clear()
        near.replace(peers=OnePeer(peer))
        far.create(resumable=True)
        response_id = (await far.until(events.ResponseCompleted)).response.id
        near.resume(response_id, stream_id="a")
        await near.until(events.ResponseCompleted)
        for name in ("one", "two"):
            near.create(name, event_id=name, stream_id="a")
        assert peer.lane.creates == 2
        peer.lane.ends.set()
        return near, far

    async def test_each_create_that_a_process_took_along_hears_an_error(self) -> None:
        near, far = await self.ask(ApiError.of("server_error", "Gone."))
        errors = [await near.until(events.ErrorEvent) for _ in range(3)]
        assert [each.error.event_id for each in errors] == [UNSET, "one", "two"]
        assert {(each.error.code, each.stream_id) for each in errors} == {("server_error", "a")}
        await close(near, far)

    async def test_a_create_that_a_lane_elsewhere_never_began_runs_here(self) -> None:
        near, far = await self.ask(None)
        for name in ("one", "two"):
            assert (await near.until(events.ResponseCreated)).event_id == name
            await near.until(events.ResponseCompleted)
        assert (len(near.engine.prompts), len(far.engine.prompts)) == (2, 1)
        await close(near, far)


class TestHome:
    async def test_what_is_anothers_is_like_what_is_not_there(self) -> None:
        far = Stage(mute)
        far.create(resumable=True)
        response_id = (await far.until(events.ResponseInProgress)).response.id
        peer = LocalPeer(far.services)
        ann = Principal(owner="ann")
        for owner, named in (("ann", response_id), ("local", "resp_x")):
            assert await peer.cancel(owner, named) is None
            assert await peer.look(owner, named) is None
            with pytest.raises(ApiError) as unread:
                await anext(peer.follow(owner, named, after=None))
            assert unread.value.code == "response_not_found"
        with pytest.raises(ApiError) as unmoved:
            await peer.resume(Resume(response_id=response_id), ann, transport="test")
        assert unmoved.value.code == "response_not_found"
        seen = await peer.look("local", response_id)
        assert seen is not None
        assert seen.status == "in_progress"
        cut = await peer.cancel("local", response_id)
        assert cut is not None
        assert cut.status == "cancelled"
        await until(lambda: far.engine.stopped == 1)
        await peer.forget("local", response_id)
        assert await peer.look("local", response_id) is None
        await close(far)

    async def test_a_response_that_was_deleted_leaves_its_key_free(self) -> None:
        stage = Stage(hello)
        stage.create(idempotency_key="k")
        first = (await stage.until(events.ResponseCompleted)).response.id
        await LocalPeer(stage.services).forget("local", first)
        stage.create(idempotency_key="k")
        second = (await stage.until(events.ResponseCompleted)).response.id
        assert second != first
        await close(stage)

    async def test_its_metrics_are_what_it_has_counted(self) -> None:
        stage = Stage(hello)
        assert await LocalPeer(stage.services).metrics() == b""
        peer = LocalPeer(stage.services, metrics=lambda: b"turns 1")
        assert await peer.metrics() == b"turns 1"
        await close(stage)
