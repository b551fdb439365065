"""Responses by their ids, also where they run in another process; and lists in pages."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec import structs

from tests.support.core import LOCAL
from tests.support.runtime import Stage, endless, hello
from tieline import events
from tieline.errors import ApiError
from tieline.responses import Response
from tieline_server.peers import Peer
from tieline_server.runtime import LocalPeer, Running, Services, heed_cancels, lasts, not_found
from tieline_server.storage.base import Cancellation, RunningResponse
from tieline_server.storage.memory import MemoryJournal, MemoryStore
from tieline_server.transports.response_lookup import (
    LONGEST_PAGE,
    PAGE,
    cancelled,
    deleted,
    find,
    find_whole,
    page_of,
    place_id,
)

OWNER = LOCAL.owner
LISTED = [(f"msg_{number}", number) for number in range(25)]


class OnePeer:
    """One peer, which any id may name."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def peer_of(self, response_id: str) -> Peer | None:
        """The peer."""
        return self._peer

    def others(self) -> Sequence[Peer]:
        """The peer."""
        return (self._peer,)


class Gone(LocalPeer):
    """A peer that has just died."""

    async def look(self, owner: str, response_id: str) -> Response | None:
        """Nobody answers."""
        raise ApiError.of("server_error", "gone")

    async def cancel(self, owner: str, response_id: str) -> Response | None:
        """Nobody answers."""
        raise ApiError.of("server_error", "gone")

    async def forget(self, owner: str, response_id: str) -> None:
        """Nobody answers."""
        raise ApiError.of("server_error", "gone")


class Shared(MemoryJournal):
    """The journal of several processes with one store."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(now=lambda: 0.0)
        self._store = store
        self._left: list[Cancellation] = []

    async def running(self, owner: str, response_id: str) -> RunningResponse | None:
        """What has begun and is not stored."""
        if await self._store.get(owner, response_id) is not None:
            return None
        return await super().running(owner, response_id)

    async def ask_cancel(self, wanted: Cancellation) -> None:
        """Leaves word."""
        self._left.append(wanted)

    async def asked_cancels(self) -> Sequence[Cancellation]:
        """The words left."""
        told, self._left = self._left, []
        return told


def beside(stage: Stage, peer: type[LocalPeer] | None = LocalPeer) -> Services:
    """Another process, with the same store; and the stage's own as its peer, or none."""
    other = structs.replace(stage.services, running=Running())
    if peer is None:
        return other
    return structs.replace(other, peers=OnePeer(peer(stage.services)))


def shared(stage: Stage) -> None:
    """Gives the stage a journal that other processes read."""
    store = stage.services.store
    assert isinstance(store, MemoryStore)
    stage.replace(journal=Shared(store))


async def begun(stage: Stage, *, store: bool) -> str:
    """A resumable response of the stage that has said something."""
    stage.create(resumable=True, store=store)
    made = (await stage.until(events.ResponseCreated)).response
    await stage.until(events.OutputTextDelta)
    return str(made.id)


async def close(stage: Stage) -> None:
    await stage.driver.close()
    await stage.services.running.close()


async def test_a_peer_says_how_its_response_stands_and_ends_it() -> None:
    stage = Stage(endless)
    services = beside(stage)
    made = await begun(stage, store=False)
    standing = await find(services, OWNER, made)
    assert (standing.id, standing.status) == (made, "in_progress")
    with pytest.raises(ApiError) as elsewhere:
        await find_whole(services, OWNER, made)
    assert elsewhere.value.code == "response_not_active"
    cut = await cancelled(services, OWNER, made)
    assert cut.status == "cancelled"
    assert await cancelled(services, OWNER, made) == cut
    assert await find(services, OWNER, made) == cut
    await deleted(services, OWNER, made)
    for ask in (find, find_whole, cancelled, deleted):
        with pytest.raises(ApiError) as gone:
            await ask(services, OWNER, made)
        assert gone.value.code == "response_not_found"
    assert len(stage.services.running.logs) == 0
    await close(stage)


@pytest.mark.parametrize("peer", [Gone, None])
async def test_where_a_process_cannot_be_asked_the_journal_knows(
    peer: type[LocalPeer] | None,
) -> None:
    stage = Stage(endless)
    shared(stage)
    services = beside(stage, peer)
    made = await begun(stage, store=True)
    kept = stage.kept(made)
    assert await lasts(kept)
    assert (await find(services, OWNER, made)).status in ("queued", "in_progress")
    hearing = asyncio.create_task(heed_cancels(stage.services))
    cut = await cancelled(services, OWNER, made)
    assert cut.status == "cancelled"
    hearing.cancel()
    await asyncio.wait([hearing])
    assert await find(services, OWNER, made) == cut
    assert (await find_whole(services, OWNER, made)).response == cut
    await deleted(services, OWNER, made)
    await close(stage)


async def test_who_does_not_own_it_finds_nothing_and_ends_nothing() -> None:
    stage = Stage(endless)
    shared(stage)
    for services in (stage.services, beside(stage), beside(stage, None)):
        made = await begun(stage, store=True)
        for ask in (find, find_whole, cancelled, deleted):
            with pytest.raises(ApiError) as unknown:
                await ask(services, "another", made)
            assert unknown.value.code == "response_not_found"
        assert not [record for record, _ in stage.records if record.response_id == made]
        assert (await cancelled(stage.services, OWNER, made)).status == "cancelled"
    await close(stage)


async def test_deleting_a_plain_response_that_runs_is_as_if_it_were_not_there() -> None:
    stage = Stage(endless)
    stage.create(store=True)
    made = (await stage.until(events.ResponseCreated)).response
    with pytest.raises(ApiError) as unknown:
        await deleted(stage.services, OWNER, made.id)
    assert unknown.value.code == "response_not_found"
    assert not stage.records
    await close(stage)


async def test_deleting_reaches_what_a_peer_remembers() -> None:
    stage = Stage(hello)
    shared(stage)
    services = beside(stage)
    stage.create(resumable=True, store=True)
    made = (await stage.until(events.ResponseCompleted)).response
    await deleted(services, OWNER, made.id)
    assert stage.services.running.logs.find(OWNER, made.id) is None
    stage.create(previous_response_id=made.id)
    error = (await stage.until(events.ErrorEvent)).error
    assert error.code == "previous_response_not_found"
    await close(stage)


def test_a_page_is_the_newest_first_unless_asked_otherwise() -> None:
    page = page_of(LISTED, limit=PAGE, order="desc", after=None)
    assert [value for _, value in page.entries] == list(range(24, 4, -1))
    assert (page.first_id, page.last_id, page.has_more) == ("msg_24", "msg_5", True)
    assert page_of(LISTED, limit=1, order="asc", after=None).entries == LISTED[:1]


def test_a_page_begins_behind_the_entry_that_is_named() -> None:
    page = page_of(LISTED, limit=LONGEST_PAGE, order="asc", after="msg_22")
    assert (page.entries, page.has_more) == (LISTED[23:], False)
    end = page_of(LISTED, limit=1, order="asc", after="msg_24")
    assert (list(end.entries), end.first_id, end.last_id, end.has_more) == ([], None, None, False)


@pytest.mark.parametrize(
    ("limit", "order", "after", "code"),
    [
        (0, "asc", None, "integer_below_min_value"),
        (101, "asc", None, "integer_above_max_value"),
        (1, "up", None, "invalid_value"),
        (1, "asc", "msg_x", "item_not_found"),
    ],
)
def test_a_page_that_cannot_be_is_refused(
    limit: int, order: str, after: str | None, code: str
) -> None:
    with pytest.raises(ApiError) as caught:
        page_of(LISTED, limit=limit, order=order, after=after)
    assert caught.value.code == code


def test_an_item_is_named_by_its_response_and_place() -> None:
    assert place_id("resp_7", 2) == "item_7_2"


def test_an_id_that_is_not_there_is_said_but_not_at_length() -> None:
    error = not_found("resp_" + "x" * 1000)
    assert error.status == 404
    assert len(error.message) < 200
