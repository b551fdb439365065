"""One line driven for real: tasks, timers, back-pressure, a store, and an engine of the test's."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec
import pytest

from tests.support.core import append_of, output, user, words
from tests.support.garbage import none_left
from tests.support.runtime import (
    SECRET,
    Answer,
    Failing,
    Stage,
    Step,
    endless,
    hello,
    looker,
    loop_turns,
    mute,
    raising,
    run,
    silent,
    until,
)
from tieline import events
from tieline.codecs.json import encode
from tieline.errors import ApiError
from tieline.requests import Cancel, SessionStart
from tieline_server.core.create.limits import Limits
from tieline_server.core.deltas import Accepted, CallDelta, CallStart, Delta, Finish, TextDelta
from tieline_server.core.effects import Prompt
from tieline_server.core.values import Principal, UsageRecord
from tieline_server.engines.base import EngineError
from tieline_server.runtime import SERVER_ERROR, ConnectionDriver


class TestTurns:
    async def test_a_create_is_sampled_sent_and_observed(self) -> None:
        stage = Stage(hello)
        stage.create()
        completed = await stage.until(events.ResponseCompleted)
        assert stage.types[:2] == ["created", "in_progress"]
        assert [event.sequence_number for event in stage.seen] == list(range(len(stage.seen)))
        ((record, transport),) = stage.records
        assert (record.response_id, record.outcome) == (completed.response.id, "completed")
        assert transport == "test"
        assert "validate" in record.times.phases()
        assert completed.response.completed_at >= completed.response.created_at
        await stage.driver.close()
        assert (stage.engine.finished, stage.engine.stopped) == (1, 0)
        assert stage.driver._jobs == {}, "what is done is not kept"

    async def test_completed_at_is_the_time_of_the_end_not_of_the_create(self) -> None:
        stage = Stage(hello)
        ticks = itertools.count(1_700_000_000)
        stage.services = msgspec.structs.replace(stage.services, now=lambda: next(ticks))
        await stage.driver.close()
        stage.driver = stage.open()
        stage.create()
        response = (await stage.until(events.ResponseCompleted)).response
        assert response.completed_at > response.created_at
        await stage.driver.close()

    async def test_a_held_turn_frees_its_engine_and_samples_anew_after_the_append(self) -> None:
        stage = Stage(looker)
        stage.create(append=True)
        done = await stage.until(events.ResponseDone)
        await until(lambda: stage.engine.finished == 1)
        call = msgspec.json.decode(done.response.output[0])
        stage.driver.receive(append_of(output(call["call_id"])))
        completed = await stage.until(events.ResponseCompleted)
        assert completed.response.id == done.response.id
        assert len(completed.response.output) == 2
        assert (stage.engine.finished, stage.engine.stopped) == (2, 0)
        await stage.driver.close()

    async def test_generate_false_has_the_engine_prepare_and_say_nothing(self) -> None:
        stage = Stage(hello)
        stage.create("hi", generate=False)
        completed = await stage.until(events.ResponseCompleted)
        assert stage.types == ["created", "in_progress", "completed"]
        assert completed.response.usage.input_tokens > 0
        assert completed.response.usage.output_tokens == 0
        assert stage.engine.prompts == []
        assert [prompt.settings.generate for prompt in stage.engine.warmed] == [False]
        assert stage.records[0][0].kind == "prewarm"
        await stage.driver.close()

    async def test_sr_04_a_stored_response_is_there_when_its_terminal_event_is(self) -> None:
        stage = Stage(hello)
        stage.create(store=True)
        completed = await stage.until(events.ResponseCompleted)
        saved = await stage.services.store.get("local", completed.response.id)
        assert saved is not None
        assert saved.response == completed.response
        assert len(stage.records) == 1
        await stage.driver.close()
        stage.driver = stage.open()
        stage.create("again", previous_response_id=completed.response.id)
        await stage.until(events.ResponseCompleted)
        tip = stage.engine.prompts[-1].chain
        assert len(list(tip.items_of_chain())) == 3
        await stage.driver.close()

    async def test_items_that_the_input_names_come_from_the_store(self) -> None:
        stage = Stage(hello)
        stage.create([{**user("one"), "id": "msg_1"}], store=True)
        await stage.until(events.ResponseCompleted)
        unknown = {"type": "item_reference", "id": "msg_x"}
        known = {"type": "item_reference", "id": "msg_1"}
        stage.create([unknown])
        assert (await stage.until(events.ErrorEvent)).error.code == "item_not_found"
        stage.create([known, user("two")])
        await stage.until(events.ResponseCompleted)
        assert words(stage.engine.prompts[-1].chain) == ["user: one", "user: two"]
        await stage.driver.close()

    async def test_the_work_of_a_connection_is_counted_in_one_place(self) -> None:
        stage = Stage(hello)
        stage.create("x" * 1000)
        await stage.until(events.ResponseCompleted)
        assert stage.driver.work is stage.engine.prompts[0].work
        assert stage.driver.work.validate > 1000
        await stage.driver.close()

    async def test_merging_is_a_matter_of_the_line(self) -> None:
        async def answer(prompt: Prompt) -> AsyncGenerator[Step, None]:
            yield [Accepted(), *[TextDelta("x")] * 100, Finish()]

        for merge, expected in ((True, 12), (False, 100)):
            stage = Stage(answer, merge=merge)
            stage.create()
            await until(lambda stage=stage: bool(stage.records))  # type: ignore[misc]
            await stage.until(events.ResponseCompleted)
            assert stage.types.count("output_text.delta") == expected
            await stage.driver.close()


class TestStops:
    """CN-01: the engine is stopped exactly once, whoever stops it and whenever."""

    @pytest.mark.parametrize("when", [silent, mute, endless])
    @pytest.mark.parametrize("how", ["cancel", "by id", "drop", "close"])
    async def test_cn_01_the_engine_is_stopped_exactly_once(self, when: Answer, how: str) -> None:
        stage = Stage(when)
        stage.create()
        await until(lambda: len(stage.engine.prompts) == 1)
        if when is not silent:
            await stage.until(events.ResponseInProgress)
        response_id = stage.engine.prompts[0].response_id
        if how == "cancel":
            stage.driver.receive(Cancel())
        elif how == "by id":
            cut = stage.services.running.cancel("local", response_id)
            assert cut is not None
            assert (cut.id, cut.status) == (response_id, "cancelled")
        elif how == "drop":
            stage.driver.drop()
        if how in ("cancel", "by id"):
            last = await stage.until(events.ResponseIncomplete)
            assert last.response.status == "cancelled"
            await until(lambda: stage.engine.stopped == 1)
        await stage.driver.close()
        assert (stage.engine.stopped, stage.engine.finished) == (1, 0)
        ((record, _),) = stage.records
        assert record.outcome == ("disconnected" if how in ("drop", "close") else "cancelled")

    async def test_one_that_was_not_even_started_is_never_asked(self) -> None:
        stage = Stage(hello)
        stage.create()
        stage.driver.drop()
        await stage.driver.close()
        assert stage.engine.prompts == []
        assert len(stage.records) == 1

    async def test_a_turn_that_ends_in_the_middle_of_a_step_stops_its_engine(self) -> None:
        async def answer(prompt: Prompt) -> AsyncGenerator[Step, None]:
            call: list[Delta] = [CallStart(kind="function_call", name="look"), CallDelta("{}")]
            yield [Accepted(), *call, *call, *call]
            raise AssertionError("it is not asked for more")

        stage = Stage(answer)
        stage.create(max_tool_calls=2)
        last = await stage.until(events.ResponseIncomplete)
        assert last.response.incomplete_details.reason == "max_tool_calls"
        await until(lambda: stage.engine.stopped == 1)
        await stage.driver.close()
        assert stage.engine.steps == 1

    async def test_nobody_cancels_what_is_anothers_or_over(self) -> None:
        stage = Stage(mute)
        stage.create()
        created = await stage.until(events.ResponseCreated)
        running = stage.services.running
        assert running.cancel("other", created.response.id) is None
        assert running.cancel("local", "resp_unknown") is None
        assert stage.engine.stopped == 0
        await stage.driver.close()
        assert running.cancel("local", created.response.id) is None
        assert running.connections == set()

    async def test_a_slow_end_of_the_first_sampling_does_not_touch_the_second(self) -> None:
        """An engine may fail while it is being closed, after the append has already come."""
        release = asyncio.Event()

        async def answer(prompt: Prompt) -> AsyncGenerator[Step, None]:
            first = prompt.chain.items[-1].answers is None
            try:
                async with aclosing(looker(prompt)) as steps:
                    async for step in steps:
                        yield step
            finally:
                if first:
                    await release.wait()
                    raise RuntimeError(SECRET)

        stage = Stage(answer)
        stage.create(append=True)
        done = await stage.until(events.ResponseDone)
        call = msgspec.json.decode(done.response.output[0])
        stage.driver.receive(append_of(output(call["call_id"])))
        release.set()
        await stage.until(events.ResponseCompleted)
        await stage.driver.close()
        assert [record.outcome for record, _ in stage.records] == ["completed"]


class TestFailures:
    @pytest.mark.parametrize("accepted", [False, True])
    @pytest.mark.parametrize("error", [RuntimeError(SECRET), KeyError(SECRET), RecursionError()])
    def test_what_an_engine_raises_never_reaches_the_client(
        self, error: Exception, accepted: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def test() -> None:
            stage = Stage(raising(error, accepted=accepted))
            stage.create()
            if accepted:
                failed = await stage.until(events.ResponseFailed)
                assert failed.response.error.message == SERVER_ERROR
            else:
                refused = await stage.until(events.ErrorEvent)
                assert (refused.status, refused.error.message) == (500, SERVER_ERROR)
            assert not any(SECRET.encode() in encode(event) for event in stage.seen)
            await stage.driver.close()
            ((record, _),) = stage.records
            assert (record.outcome, record.error_code) == (
                "failed" if accepted else "refused",
                "server_error",
            )

        run(test)
        assert any(record.exc_info for record in caplog.records), "it is in the log"

    @pytest.mark.parametrize("accepted", [False, True])
    async def test_what_an_engine_says_to_the_client_does(self, accepted: bool) -> None:
        error = EngineError.of("context_length_exceeded", "Too long by 7 tokens.")
        stage = Stage(raising(error, accepted=accepted))
        stage.create()
        if accepted:
            shown = (await stage.until(events.ResponseFailed)).response.error
        else:
            shown = (await stage.until(events.ErrorEvent)).error
        assert (shown.code, shown.message) == (error.code, error.message)
        await stage.driver.close()

    @pytest.mark.parametrize("accepted", [False, True])
    async def test_an_engine_that_ends_without_a_finish_has_failed(self, accepted: bool) -> None:
        async def answer(prompt: Prompt) -> AsyncGenerator[Step, None]:
            if accepted:
                yield [Accepted(), TextDelta("half")]

        stage = Stage(answer)
        stage.create()
        if accepted:
            failed = await stage.until(events.ResponseFailed)
            assert failed.response.error.code == "server_error"
        else:
            assert (await stage.until(events.ErrorEvent)).status == 500
        await stage.driver.close()

    async def test_a_model_whose_engine_is_gone_is_a_server_error(self) -> None:
        stage = Stage(hello)
        stage.services = msgspec.structs.replace(stage.services, engines={})
        await stage.driver.close()
        stage.driver = stage.open()
        stage.create()
        assert (await stage.until(events.ErrorEvent)).error.message == SERVER_ERROR
        await stage.driver.close()

    async def test_a_failed_commit_is_response_failed(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        stage = Stage(hello, store=Failing(put=True))
        stage.create(store=True)
        failed = await stage.until(events.ResponseFailed)
        assert failed.response.error.code == "server_error"
        assert "completed" not in stage.types
        assert not any(SECRET.encode() in encode(event) for event in stage.seen)
        await stage.driver.close()
        assert any(record.exc_info for record in caplog.records)

    async def test_a_close_that_is_cancelled_still_saves_books_and_lets_go(self) -> None:
        """A peer that goes while its line is being closed has the closing cancelled."""

        booked: list[UsageRecord] = []
        store = Failing(add_usage=booked.append)
        stage = Stage(hello, store=store)
        store.gate.clear()
        stage.create(store=True)
        await until(lambda: stage.engine.finished == 1)
        closing = asyncio.create_task(stage.driver.close())
        await loop_turns()
        closing.cancel()
        await loop_turns()
        store.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert [row.outcome for row in booked] == ["completed"]
        assert [record.outcome for record, _ in stage.records] == ["completed"]
        assert stage.services.budget.size == 0

    async def test_a_store_that_cannot_be_asked_is_a_server_error(self) -> None:
        stage = Stage(hello, store=Failing(get=True))
        stage.create(previous_response_id="resp_x")
        refused = await stage.until(events.ErrorEvent)
        assert (refused.status, refused.error.message) == (500, SERVER_ERROR)
        stage.create("the line lives")
        await stage.until(events.ResponseCompleted)
        await stage.driver.close()

    async def test_a_count_that_fails_is_a_server_error(self) -> None:
        async def count(prompt: Prompt) -> int:
            raise RuntimeError(SECRET)

        stage = Stage(hello)
        stage.engine.count = count  # type: ignore[method-assign]
        stage.create(generate=False)
        assert (await stage.until(events.ErrorEvent)).error.message == SERVER_ERROR
        await stage.driver.close()


class TestWaiting:
    async def test_who_waits_is_not_woken_for_what_was_sent_in_its_stead(self) -> None:
        stage = Stage(hello)
        sent: list[events.Event] = []

        def send() -> bool:
            sent.extend(stage.driver.take(64))
            return not isinstance(sent[-1], events.ResponseCompleted)

        stage.create()
        stage.driver.take(64)
        async with asyncio.timeout(10):
            await stage.driver.wait(send)
        assert isinstance(sent[-1], events.ResponseCompleted)
        assert len(sent) > 2
        await stage.driver.close()

    async def test_what_fails_to_send_fails_whoever_waits(self) -> None:
        stage = Stage(hello)

        def send() -> bool:
            raise ConnectionResetError("the peer is gone")

        stage.create()
        stage.driver.take(64)
        with pytest.raises(ConnectionResetError):
            await stage.driver.wait(send)
        await stage.driver.close()

    def test_what_failed_to_send_keeps_nobody(self) -> None:
        class Gone(ConnectionResetError):
            pass

        async def test() -> None:
            stage = Stage(hello)

            def send() -> bool:
                raise Gone

            stage.create()
            stage.driver.take(64)
            with contextlib.suppress(Gone):
                await stage.driver.wait(send)
            await stage.driver.close()

        with none_left(Gone):
            run(test)

    def test_whoever_is_cancelled_as_it_closes_a_connection_does_not_keep_it(self) -> None:
        async def test() -> None:
            async def dawdles(prompt: Prompt) -> AsyncGenerator[Step, None]:
                yield [Accepted(input_tokens=1)]
                try:
                    await asyncio.Event().wait()
                finally:
                    closing.cancel()
                    await asyncio.sleep(0)

            stage = Stage(dawdles)
            stage.create()
            await stage.until(events.ResponseInProgress)
            closing = asyncio.create_task(stage.driver.close())
            with contextlib.suppress(asyncio.CancelledError):
                await closing
            assert closing.cancelled()

        with none_left(asyncio.CancelledError):
            run(test)

    async def test_a_connection_whose_peer_was_sent_away_goes_at_once(self) -> None:
        def stranger() -> Principal:
            raise ApiError.of("invalid_api_key", "No.")

        stage = Stage(hello, authenticate=stranger)
        with none_left(ConnectionDriver):
            client = stage.client()
            client.create()
            await client.until(None)
            assert client.driver.error is not None
            await client.driver.close()
            del client
        await stage.driver.close()


class TestBackPressure:
    async def test_a_slow_reader_pauses_the_engine_and_nothing_is_lost(self) -> None:
        stage = Stage(endless, limits=Limits(outbox=8))
        stage.create()
        unsent = stage.driver.connection.outgoing
        await until(lambda: unsent.unsent(None) >= 8)
        await loop_turns()
        paused_at = stage.engine.steps
        await loop_turns()
        assert stage.engine.steps == paused_at
        assert unsent.unsent(None) <= 8 + 1
        for _ in range(100):
            event = await stage.until(events.OutputTextDelta)
        assert stage.engine.steps > paused_at
        assert event.delta == "99 "
        stage.driver.receive(Cancel())
        await stage.driver.close()
        assert stage.engine.stopped == 1

    async def test_one_slow_lane_does_not_pause_another(self) -> None:
        async def answer(prompt: Prompt) -> AsyncGenerator[Step, None]:
            lane = prompt.session.rpartition("/")[2]
            async with aclosing((endless if lane == "slow" else hello)(prompt)) as steps:
                async for step in steps:
                    yield step

        stage = Stage(answer, limits=Limits(outbox=16))
        stage.create(stream_id="slow")
        await until(lambda: stage.driver.connection.outgoing.unsent("slow") >= 16)
        stage.create(stream_id="quick")
        await until(lambda: len(stage.records) == 1)
        assert stage.records[0][0].lane == "quick"
        await stage.driver.close()

    async def test_a_paused_engine_can_be_cancelled(self) -> None:
        stage = Stage(endless, limits=Limits(outbox=4))
        stage.create()
        await until(lambda: stage.driver.connection.outgoing.unsent(None) >= 4)
        await loop_turns()
        stage.driver.receive(Cancel())
        await until(lambda: stage.engine.stopped == 1)
        last = await stage.until(events.ResponseIncomplete)
        assert last.response.status == "cancelled"
        await stage.driver.close()


class TestKeys:
    async def test_au_02_who_asks_is_checked_at_each_create_and_append_only(self) -> None:
        asked: list[int] = []

        def authenticate() -> Principal:
            asked.append(1)
            return Principal(models=frozenset({"m"}))

        stage = Stage(hello, authenticate=authenticate)
        stage.driver.receive(SessionStart())
        stage.driver.receive(Cancel())
        assert len(asked) == 0
        stage.create(model="stubborn")
        assert (await stage.until(events.ErrorEvent)).error.code == "response_not_found"
        refused = await stage.until(events.ErrorEvent)
        assert (refused.status, refused.error.code) == (403, "model_not_allowed")
        stage.create()
        await stage.until(events.ResponseCompleted)
        stage.driver.receive(append_of(user("more")))
        await stage.until(events.ResponseCompleted)
        assert len(asked) == 3
        await stage.driver.close()

    async def test_au_02_a_403_leaves_the_connection_alive(self) -> None:
        answers = [ApiError.of("permission_denied", "Not now."), None]

        def authenticate() -> Principal:
            if (error := answers.pop(0)) is not None:
                raise error
            return Principal()

        stage = Stage(hello, authenticate=authenticate)
        stage.create(event_id="e")
        refused = await stage.until(events.ErrorEvent)
        assert (refused.status, refused.error.event_id) == (403, "e")
        stage.create()
        await stage.until(events.ResponseCompleted)
        await stage.driver.close()

    @pytest.mark.parametrize("running", [endless, mute, silent])
    async def test_au_02_a_401_ends_the_connection_with_all_that_runs_on_it(
        self, running: Answer
    ) -> None:
        valid = [True, False]

        def authenticate() -> Principal:
            if valid.pop(0):
                return Principal()
            raise ApiError.of("invalid_api_key", "Incorrect API key provided.")

        stage = Stage(running, authenticate=authenticate)
        stage.create(stream_id="a")
        await until(lambda: len(stage.engine.prompts) == 1)
        stage.create(stream_id="b", event_id="e")
        assert stage.driver.closed, "at once"
        await stage.until()
        last = stage.seen[-1]
        assert isinstance(last, events.ErrorEvent)
        assert (last.status, last.error.event_id, last.stream_id) == (401, "e", "b")
        assert stage.driver.error is not None
        assert stage.driver.error.code == "invalid_api_key"
        await stage.driver.close()
        assert stage.engine.stopped == 1
        assert stage.records[0][0].outcome == "disconnected"


class TestTime:
    async def test_created_does_not_wait_for_ever_for_the_engine(self) -> None:
        stage = Stage(silent, limits=Limits(announce_after=0.001))
        stage.create()
        await stage.until(events.ResponseInProgress)
        assert stage.types == ["created", "in_progress"]
        assert stage.driver.phase() == "prefill"
        await stage.driver.close()

    async def test_a_deadline_ends_the_turn_and_its_engine(self) -> None:
        stage = Stage(mute)
        stage.create(timeout_ms=5)
        last = await stage.until(events.ResponseIncomplete)
        assert last.response.incomplete_details.reason == "deadline"
        await until(lambda: stage.engine.stopped == 1)
        await stage.driver.close()

    async def test_a_held_turn_times_out(self) -> None:
        stage = Stage(looker, limits=Limits(held_timeout=0.005, announce_after=60))
        stage.create(append=True)
        last = await stage.until(events.ResponseIncomplete)
        assert last.response.incomplete_details.reason == "held_timeout"
        await stage.driver.close()

    @pytest.mark.parametrize("how", ["cancel", "by id", "drop", "half_close", "create", "saved"])
    async def test_an_end_is_booked_at_the_moment_it_came(self, how: str) -> None:
        store = Failing()
        store.gate.clear()
        stage = Stage(hello if how == "saved" else looker, store=store)
        now = [1000.0]
        stage.services = msgspec.structs.replace(stage.services, clock=lambda: now[0])
        await stage.driver.close()
        stage.driver = stage.open()
        stage.create(append=True, store=how == "saved")
        wanted = events.OutputItemDone if how == "saved" else events.ResponseDone
        await stage.until(wanted)
        now[0] += 7.0
        ends: dict[str, Callable[[], object]] = {
            "cancel": lambda: stage.driver.receive(Cancel()),
            "by id": lambda: stage.services.running.cancel(
                "local", stage.engine.prompts[0].response_id
            ),
            "drop": stage.driver.drop,
            "half_close": stage.driver.half_close,
            "create": stage.create,
            "saved": store.gate.set,
        }
        ends[how]()
        await until(lambda: len(stage.records) == 1)
        record = stage.records[0][0]
        assert (record.times.started_at, record.times.ended_at) == (1000.0, 1007.0)
        await stage.driver.close()

    async def test_the_nearer_of_two_deadlines_comes_first(self) -> None:
        stage = Stage(mute)
        stage.create(timeout_ms=3_600_000, stream_id="far")
        stage.create(timeout_ms=5, stream_id="near")
        last = await stage.until(events.ResponseIncomplete)
        assert last.stream_id == "near"
        await stage.driver.close()


class TestEnds:
    async def test_half_close_lets_what_runs_end_and_then_closes(self) -> None:
        stage = Stage(hello)
        stage.create()
        stage.driver.half_close()
        assert not stage.driver.closed
        await stage.until()
        assert stage.types[-1] == "completed"
        assert stage.driver.error is None
        await stage.driver.close()

    async def test_an_idle_connection_that_is_half_closed_wakes_who_waits(self) -> None:
        stage = Stage(hello)
        waiting = asyncio.create_task(stage.until())
        await loop_turns(3)
        stage.driver.half_close()
        await waiting
        await stage.driver.close()

    async def test_drain_says_so_and_ends_what_is_left_in_time(self) -> None:
        stage = Stage(mute)
        stage.create()
        await stage.until(events.ResponseInProgress)
        stage.driver.drain(0.005)
        await stage.until(events.SessionGoingAway)
        last = await stage.until(events.ResponseIncomplete)
        assert last.response.incomplete_details.reason == "server_draining"
        await stage.until()
        await stage.driver.close()
        assert stage.engine.stopped == 1

    async def test_a_rejected_message_is_answered_and_the_connection_lives(self) -> None:
        stage = Stage(hello)
        stage.driver.reject(ApiError.of("invalid_proto", "Not a message."), event_id="e")
        refused = await stage.until(events.ErrorEvent)
        assert (refused.error.code, refused.error.event_id) == ("invalid_proto", "e")
        stage.create()
        await stage.until(events.ResponseCompleted)
        await stage.driver.close()

    async def test_close_is_idempotent_and_waits_for_what_is_being_saved(self) -> None:
        store = Failing()
        store.gate.clear()
        stage = Stage(hello, store=store)
        stage.create(store=True)
        await stage.until(events.OutputItemDone)
        closing = asyncio.create_task(stage.driver.close())
        await loop_turns()
        assert not closing.done()
        store.gate.set()
        await closing
        await stage.driver.close()
        assert len(store) == 1
        assert [record.outcome for record, _ in stage.records] == ["completed"]

    async def test_a_wait_that_is_cancelled_leaves_the_connection_usable(self) -> None:
        """The server's heartbeat interrupts its wait."""

        stage = Stage(hello)
        waiting = asyncio.create_task(stage.driver.wait())
        await loop_turns(3)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        stage.create()
        await stage.until(events.ResponseCompleted)
        await stage.driver.close()
