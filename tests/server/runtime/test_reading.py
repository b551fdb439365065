"""Events of a response for whoever asks: resumes on other lines, and further readers."""

import pytest

from tests.support.core import LOCAL
from tests.support.runtime import Stage, endless, hello, mute, run
from tieline import events
from tieline.errors import ApiError
from tieline_server.core.effects import Principal
from tieline_server.core.event_log import EventLogs
from tieline_server.journals.base import Begun
from tieline_server.journals.memory import MemoryJournal
from tieline_server.runtime import events_of


class Forgetful(MemoryJournal):
    """Whatever has begun has ended."""

    async def running(self, owner: str, response_id: str) -> Begun | None:
        """Nothing runs."""
        return None


class TestOwners:
    def test_a_line_that_begins_with_a_resume_has_the_owner_of_its_key(self) -> None:
        async def test() -> None:
            stage = Stage(mute, authenticate=lambda: Principal(owner="ann"))
            stage.create(resumable=True)
            response_id = (await stage.until(events.ResponseCreated)).response.id
            await stage.line.close()
            peer = stage.peer()
            peer.resume(response_id)
            assert (await peer.until(events.ResponseCreated)).response.id == response_id
            await peer.line.close()
            await stage.services.running.close()

        run(test)

    def test_anothers_response_is_exactly_like_one_that_is_not_there(self) -> None:
        owners = iter(["ann", "bob", "bob"])

        async def test() -> None:
            stage = Stage(mute, authenticate=lambda: Principal(owner=next(owners)))
            stage.create(resumable=True)
            response_id = (await stage.until(events.ResponseCreated)).response.id
            peer = stage.peer()
            told = []
            for named in (response_id, "resp_unknown"):
                peer.resume(named, event_id="e")
                error = (await peer.until(events.ErrorEvent)).error
                told.append((error.code, error.event_id, error.message.replace(named, "")))
            assert told[0] == told[1]
            assert told[0][:2] == ("response_not_found", "e")
            await peer.line.close()
            await stage.line.close()
            await stage.services.running.close()

        run(test)

    def test_au_02_a_key_that_is_revoked_resumes_nothing(self) -> None:
        async def test() -> None:
            stage = Stage(hello)

            def revoked() -> Principal:
                raise ApiError.of("invalid_api_key", "Incorrect API key provided.")

            stage.authenticate = revoked
            peer = stage.peer()
            peer.resume("resp_x", event_id="e")
            refused = await peer.until(events.ErrorEvent)
            assert (refused.status, refused.error.event_id) == (401, "e")
            assert peer.line.closed
            await peer.line.close()
            await stage.line.close()

        run(test)


async def read(stage: Stage, response_id: str, after: int | None = None) -> list[events.Event]:
    """All events behind one."""
    batches = events_of(stage.services, LOCAL.owner, response_id, after)
    return [event async for batch in batches for event in batch]


def test_a_number_behind_any_event_is_the_end() -> None:
    async def test() -> None:
        stage = Stage(hello)
        stage.create(resumable=True)
        ended = await stage.until(events.ResponseCompleted)
        assert await read(stage, ended.response.id, 2**80) == [ended]
        assert await read(stage, ended.response.id, 0) == stage.seen[1:]
        await stage.line.close()
        await stage.services.running.close()

    run(test)


def test_events_that_had_to_go_for_want_of_room_are_not_read_in_part() -> None:
    async def test() -> None:
        stage = Stage(hello)
        stage.create(resumable=True)
        made = (await stage.until(events.ResponseCompleted)).response
        kept = stage.services.running.kept.find(LOCAL.owner, made.id)
        assert kept is not None
        batches = events_of(stage.services, LOCAL.owner, made.id, None)
        kept.log.drop()
        assert kept.look() is None
        with pytest.raises(ApiError) as caught:
            await anext(batches)
        assert caught.value.code == "not_resumable"
        await stage.line.close()
        await stage.services.running.close()

    run(test)


def test_a_response_that_outgrows_its_room_runs_on_and_its_readers_are_told() -> None:
    async def test() -> None:
        stage = Stage(endless)
        stage.replace(logs=EventLogs(each=64 * 1024), journal=Forgetful(now=lambda: 0.0))
        stage.create(resumable=True, store=True)
        made = (await stage.until(events.ResponseCreated)).response
        kept = stage.services.running.kept.find(LOCAL.owner, made.id)
        assert kept is not None
        batches = events_of(stage.services, LOCAL.owner, made.id, None)
        await anext(batches)
        while kept.log.whole:
            await stage.until(events.OutputTextDelta)
        with pytest.raises(ApiError) as caught:
            await anext(batches)
        assert caught.value.code == "not_resumable"
        stage.services.running.cancel(LOCAL.owner, made.id)
        await stage.until(events.ResponseIncomplete)
        # What was written down of it ends before its end.
        stage.services.running.kept.forget(LOCAL.owner, made.id)
        with pytest.raises(ApiError) as caught:
            await read(stage, made.id)
        assert caught.value.code == "not_resumable"
        last = await read(stage, made.id, 2**31)
        assert [type(event) for event in last] == [events.ResponseIncomplete]
        await stage.line.close()
        await stage.services.running.close()

    run(test)
