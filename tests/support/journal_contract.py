"""What every journal must do, with the store beside it: a test class says how to open both."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from msgspec import Struct
from msgspec.structs import replace

from tests.support.store_contract import booked, saved
from tieline.responses import Response, Usage
from tieline_server.core.history.chain import Saved
from tieline_server.storage.base import (
    Cancellation,
    Claim,
    Entry,
    Journal,
    ResponseStore,
    RunningResponse,
)

USED = Usage.of(input=10, cached=4, output=2, reasoning=1)


class Opened(Struct, frozen=True):
    """A journal and its store."""

    journal: Journal
    store: ResponseStore
    pass_: Callable[[float], None]
    """Lets seconds pass, on every clock."""

    async def flush(self) -> None:
        """Changes are made in their order: what was left before is made when this returns."""
        await self.store.delete("nobody", "resp_none")


def begun(
    response_id: str, *, owner: str = "ann", after: str | None = None, usage: Usage | None = None
) -> RunningResponse:
    """A response that runs."""
    response = Response(
        id=response_id, status="in_progress", previous_response_id=after, usage=usage
    )
    return RunningResponse(
        response=response, owner=owner, model="m", transport="test", started_at=1_000_000.0
    )


def named(number: int) -> bytes:
    """The event of a number."""
    return f'{{"type":"e",\n"sequence_number":{number}}}'.encode()


def entry(response_id: str, first: int, count: int, *, owner: str = "ann") -> Entry:
    """So many events from a number on; the response has used as many tokens as it has events."""
    usage = Usage.of(input=10, cached=0, output=first + count, reasoning=0)
    return Entry(
        response_id=response_id,
        owner=owner,
        first=first,
        events=tuple(map(named, range(first, first + count))),
        standing=begun(response_id, owner=owner, usage=usage),
    )


def claim(
    response_id: str,
    *,
    key: bytes = b"k" * 16,
    body: bytes = b"b" * 16,
    owner: str = "ann",
    stored: bool = True,
) -> Claim:
    """A claim of ann's one key."""
    return Claim(owner=owner, key=key, body=body, response_id=response_id, stored=stored)


def ended(response_id: str, *, terminal: int, owner: str = "ann") -> Saved:
    """A response as it is put that was begun."""
    return replace(saved(response_id, owner=owner), terminal=terminal)


async def put(opened: Opened, record: Saved) -> None:
    """Puts a record, with its usage record."""
    await opened.store.put(record, booked(record))


async def replayed(
    journal: Journal, response_id: str, *, after: int = -1, most: int = 100, owner: str = "ann"
) -> list[bytes] | None:
    """All events after a number, asked for as a reader does."""
    found: list[bytes] = []
    while part := await journal.events(owner, response_id, after=after + len(found), most=most):
        assert len(part) <= most
        found += part
    return found if part is not None else None


def numbers(*between: int) -> list[bytes]:
    """The events of these numbers: from one up to another."""
    return [named(number) for number in range(*between)]


class JournalContract:
    """The tests; ``opened`` makes an empty journal."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Opened]:
        raise NotImplementedError
        yield

    async def test_a_response_runs_from_its_begin_until_it_is_put(self) -> None:
        async with self.opened() as opened:
            journal = opened.journal
            first = begun("resp_1", after="resp_0")
            await journal.begin(first)
            found = await journal.running("ann", "resp_1")
            assert found is not None
            assert replace(found.response, usage=None) == first.response
            assert (found.owner, found.model, found.transport) == ("ann", "m", "test")
            assert found.started_at == first.started_at
            assert await opened.store.get("ann", "resp_1") is None
            await put(opened, ended("resp_1", terminal=0))
            assert await journal.running("ann", "resp_1") is None
            stored = await opened.store.get("ann", "resp_1")
            assert stored is not None
            assert (stored.response.status, stored.terminal) == ("completed", 0)

    async def test_what_was_not_begun_is_put_without_a_terminal_number_and_has_no_events(
        self,
    ) -> None:
        async with self.opened() as opened:
            await put(opened, saved("resp_1"))
            stored = await opened.store.get("ann", "resp_1")
            assert stored is not None
            assert stored.terminal is None
            assert await opened.journal.events("ann", "resp_1", after=-1, most=9) is None

    async def test_a_running_response_is_as_its_last_entry_says(self) -> None:
        async with self.opened() as opened:
            journal = opened.journal
            await journal.begin(begun("resp_1"))
            journal.log(entry("resp_1", 0, 3))
            journal.log(entry("resp_1", 3, 4))
            await opened.flush()
            found = await journal.running("ann", "resp_1")
            assert found is not None
            assert found.response.usage is not None
            assert found.response.usage.output_tokens == 7

    async def test_events_are_read_from_any_number_on_while_it_runs_and_after(self) -> None:
        async with self.opened() as opened:
            journal = opened.journal
            await journal.begin(begun("resp_1"))
            assert await journal.events("ann", "resp_1", after=-1, most=9) == []
            for first in range(0, 40, 4):
                journal.log(entry("resp_1", first, 4))
                if first % 8:
                    await opened.flush()
            await put(opened, ended("resp_1", terminal=40))
            for after in (-1, 0, 2, 3, 4, 17, 38):
                for most in (1, 3, 100):
                    found = await replayed(journal, "resp_1", after=after, most=most)
                    assert found == numbers(after + 1, 40)
            for after in (39, 40, 41, 2**31, 2**63, 2**80):
                assert await journal.events("ann", "resp_1", after=after, most=9) == []
            beginning = await journal.events("ann", "resp_1", after=-(2**80), most=2)
            assert beginning == numbers(2)

    async def test_events_that_follow_a_gap_are_not_shown(self) -> None:
        async with self.opened() as opened:
            journal = opened.journal
            await journal.begin(begun("resp_1"))
            journal.log(entry("resp_1", 0, 3))
            journal.log(entry("resp_1", 5, 3))
            await opened.flush()
            journal.log(entry("resp_1", 8, 3))
            await opened.flush()
            assert await replayed(journal, "resp_1") == numbers(3)

    async def test_events_of_an_unknown_or_another_owners_response_are_none(self) -> None:
        async with self.opened() as opened:
            journal = opened.journal
            await journal.begin(begun("resp_1"))
            journal.log(entry("resp_1", 0, 3))
            await opened.flush()
            for owner, response_id in (("bob", "resp_1"), ("ann", "resp_2"), ("ann", "r\x00é")):
                assert await journal.events(owner, response_id, after=-1, most=9) is None
                assert await journal.running(owner, response_id) is None
            await put(opened, ended("resp_1", terminal=3))
            assert await journal.events("bob", "resp_1", after=-1, most=9) is None

    async def test_two_owners_may_run_responses_of_the_same_id(self) -> None:
        async with self.opened() as opened:
            journal = opened.journal
            for owner, count in (("ann", 3), ("bob", 5)):
                await journal.begin(begun("resp_1", owner=owner))
                journal.log(entry("resp_1", 0, count, owner=owner))
            await opened.flush()
            journal.end("ann", "resp_1")
            await opened.flush()
            assert await replayed(journal, "resp_1") is None
            assert await replayed(journal, "resp_1", owner="bob") == numbers(5)

    async def test_what_was_ended_is_gone_whole_and_late_entries_come_to_nothing(self) -> None:
        async with self.opened() as opened:
            journal = opened.journal
            await journal.claim(claim("resp_1"))
            await journal.begin(begun("resp_1"))
            journal.log(entry("resp_1", 0, 3))
            await opened.flush()
            journal.end("ann", "resp_1")
            journal.log(entry("resp_1", 3, 3))
            await opened.flush()
            assert await journal.running("ann", "resp_1") is None
            assert await journal.events("ann", "resp_1", after=-1, most=9) is None
            again = claim("resp_2")
            assert await journal.claim(again) == again

    async def test_to_end_a_response_that_is_stored_or_unknown_changes_nothing(self) -> None:
        async with self.opened() as opened:
            journal = opened.journal
            await journal.begin(begun("resp_1"))
            journal.log(entry("resp_1", 0, 3))
            await put(opened, ended("resp_1", terminal=3))
            journal.end("ann", "resp_1")
            journal.end("ann", "resp_none")
            await opened.flush()
            assert await replayed(journal, "resp_1") == numbers(3)

    async def test_a_deleted_response_takes_its_events_and_claims_with_it(self) -> None:
        async with self.opened() as opened:
            journal = opened.journal
            mine = claim("resp_1")
            await journal.claim(mine)
            await journal.begin(begun("resp_1"))
            journal.log(entry("resp_1", 0, 3))
            await put(opened, ended("resp_1", terminal=3))
            assert await journal.claim(claim("resp_2")) == mine
            assert await opened.store.delete("bob", "resp_1") is False
            assert await replayed(journal, "resp_1") == numbers(3)
            assert await opened.store.delete("ann", "resp_1") is True
            assert await journal.events("ann", "resp_1", after=-1, most=9) is None
            again = claim("resp_2")
            assert await journal.claim(again) == again

    async def test_a_key_belongs_to_the_first_who_claims_it(self) -> None:
        async with self.opened() as opened:
            journal = opened.journal
            first = claim("resp_1")
            assert await journal.claim(first) == first
            assert await journal.claim(first) == first
            assert await journal.claim(claim("resp_2", body=b"other")) == first
            others = [claim("resp_3", owner="bob"), claim("resp_4", key=b"another key")]
            for other in others:
                assert await journal.claim(other) == other

    async def test_of_many_who_claim_a_key_at_once_one_holds_it(self) -> None:
        async with self.opened() as opened:
            wanted = [claim(f"resp_{number}", stored=number % 2 == 0) for number in range(20)]
            found = await asyncio.gather(*map(opened.journal.claim, wanted))
            assert len(set(found)) == 1
            assert found[0] in wanted

    async def test_a_claim_ends_at_its_time_or_at_once_and_only_itself(self) -> None:
        async with self.opened() as opened:
            journal = opened.journal
            first = claim("resp_1", stored=False)
            await journal.claim(first)
            journal.expire(replace(first, body=b""), at=1_000_000.0 + 120)
            await opened.flush()
            opened.pass_(119)
            assert await journal.claim(claim("resp_2")) == first
            opened.pass_(2)
            second = claim("resp_2", stored=False)
            assert await journal.claim(second) == second
            journal.expire(first, at=None)
            assert await journal.claim(claim("resp_3")) == second
            journal.expire(replace(second, body=b"", stored=True), at=None)
            third = claim("resp_3")
            assert await journal.claim(third) == third

    async def test_a_claim_of_a_stored_response_holds_as_long_as_the_response(self) -> None:
        async with self.opened() as opened:
            journal = opened.journal
            first = claim("resp_1")
            await journal.claim(first)
            await journal.begin(begun("resp_1"))
            opened.pass_(10_000)
            assert await journal.claim(claim("resp_2")) == first
            await put(opened, ended("resp_1", terminal=0))
            opened.pass_(10_000)
            assert await journal.claim(claim("resp_2")) == first

    async def test_a_word_to_cancel_is_told_once_and_only_for_a_while(self) -> None:
        async with self.opened() as opened:
            journal = opened.journal
            assert list(await journal.asked_cancels()) == []
            wanted = [
                Cancellation(owner="ann", response_id="resp_1"),
                Cancellation(owner="bob", response_id="resp_1"),
            ]
            for each in wanted:
                await journal.ask_cancel(each)
            assert list(await journal.asked_cancels()) == wanted
            assert list(await journal.asked_cancels()) == []
            await journal.ask_cancel(wanted[0])
            assert list(await journal.asked_cancels()) == wanted[:1]
            await journal.ask_cancel(wanted[1])
            opened.pass_(11)
            assert list(await journal.asked_cancels()) == []

    async def test_what_a_running_response_continues_is_not_evicted(self) -> None:
        async with self.opened() as opened:
            await self.keep(opened, "resp_parent")
            await opened.journal.begin(begun("resp_run", after="resp_parent"))
            opened.journal.log(entry("resp_run", 0, 3))
            await self.crowd(opened)
            assert await there(opened.store, "resp_parent", "resp_0") == [True, False]
            assert await replayed(opened.journal, "resp_run") == numbers(3)
            await put(opened, ended("resp_run", terminal=3))
            await self.crowd(opened)
            assert await there(opened.store, "resp_parent", "resp_run") == [False, False]
            assert await replayed(opened.journal, "resp_run") is None

    async def keep(self, opened: Opened, response_id: str) -> None:
        """One response that was begun, has events and a claim, and is stored."""
        await opened.journal.claim(claim(response_id, key=response_id.encode()))
        await opened.journal.begin(begun(response_id))
        opened.journal.log(entry(response_id, 0, 5))
        await put(opened, ended(response_id, terminal=5))

    async def crowd(self, opened: Opened) -> None:
        """Stores twice as many responses as the store may hold: ten."""
        for number in range(20):
            opened.pass_(1)
            await self.keep(opened, f"resp_{number}")
        await self.swept(opened)

    async def swept(self, opened: Opened) -> None:
        """Until what is past the bounds has gone."""


async def there(store: ResponseStore, *response_ids: str) -> Sequence[bool]:
    """Which of ann's responses are stored."""
    return [await store.get("ann", each) is not None for each in response_ids]
