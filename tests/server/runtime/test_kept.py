"""Responses that can be found by their ids while they run, and what is left of them after."""

import asyncio

from tests.support.core import LOCAL
from tests.support.runtime import Failing, Stage, endless, hello, loop_turns, run, until
from tieline import events
from tieline.requests import Resume
from tieline_server.journals.memory import MemoryJournal


class TestRunning:
    """While the turn runs."""

    def test_a_response_runs_until_its_end_is_durable(self) -> None:
        async def test() -> None:
            store = Failing()
            stage = Stage(hello, store=store)
            stage.create(resumable=True, store=True)
            made = (await stage.until(events.ResponseCreated)).response
            store.gate.clear()
            await stage.until(events.OutputItemDone)
            kept = stage.services.running.kept.find(LOCAL.owner, made.id)
            assert kept is not None
            standing = kept.look()
            assert standing is not None
            assert (standing.status, standing.completed_at) == ("in_progress", None)
            assert standing.usage is not None
            assert (standing.usage.input_tokens, len(standing.output)) == (3, 1)
            waiting = asyncio.create_task(kept.over())
            await loop_turns()
            assert not waiting.done()
            store.gate.set()
            ended = (await stage.until(events.ResponseCompleted)).response
            assert kept.look() == ended
            await waiting
            await kept.over()
            found = kept.find()
            assert found is not None
            assert found.input_from is None
            await stage.line.close()
            await stage.services.running.close()

        run(test)

    def test_what_will_never_be_stored_leaves_nothing_in_the_journal(self) -> None:
        async def test() -> None:
            journal = Noting()
            stage = Stage(hello, store=Failing(put=True))
            stage.replace(journal=journal)
            stage.create(resumable=True, store=True, previous_response_id="resp_no")
            await stage.until(events.ErrorEvent)
            await until(lambda: len(journal.ended) == 1)
            stage.create(resumable=True, store=True)
            await stage.until(events.ResponseFailed)
            await until(lambda: len(journal.ended) == 2)
            assert journal.ended == [record.response_id for record, _ in stage.records]
            stage.create(resumable=True, store=False)
            await stage.until(events.ResponseCompleted)
            await stage.line.close()
            assert len(journal.ended) == 2
            await stage.services.running.close()

        run(test)


class TestReaders:
    """Those that read a response of elsewhere."""

    def test_a_further_reader_moves_nothing(self) -> None:
        async def test() -> None:
            stage = Stage(endless)
            stage.create(resumable=True)
            made = (await stage.until(events.ResponseCreated)).response
            other = stage.open()
            other.read(Resume(response_id=made.id, after=0))
            other.half_close()
            await other.wait()
            first = other.next_event()
            assert isinstance(first, events.ResponseInProgress)
            assert not other.runs(made.id)
            assert stage.line.runs(made.id)
            await other.close()
            assert stage.line.runs(made.id)
            await stage.line.close()
            await stage.services.running.close()

        run(test)

    def test_a_cancel_by_id_means_the_response_and_not_who_reads_it(self) -> None:
        async def test() -> None:
            stage = Stage(endless)
            stage.create(resumable=True)
            made = (await stage.until(events.ResponseCreated)).response
            readers = [stage.open() for _ in range(8)]
            for reader in readers:
                reader.read(Resume(response_id=made.id))
                reader.half_close()
            cut = await stage.services.running.end(LOCAL.owner, made.id)
            assert cut is not None
            assert cut.status == "cancelled"
            heard = (await stage.until(events.ResponseIncomplete)).response
            assert heard == cut
            for reader in readers:
                while not reader.closed:
                    reader.take(1000)
                    await reader.wait()
                assert reader.error is None
                await reader.close()
            await stage.line.close()
            await stage.services.running.close()

        run(test)


class Noting(MemoryJournal):
    """Notes which responses it was told to forget."""

    def __init__(self) -> None:
        super().__init__(now=lambda: 0.0)
        self.ended: list[str] = []

    def end(self, owner: str, response_id: str) -> None:
        """As the journal's own."""
        self.ended.append(response_id)
        super().end(owner, response_id)
