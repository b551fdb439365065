"""Responses by their ids as every transport shows them: found, deleted, their input in pages.

One that runs is found as one that has ended, wherever it runs: in this process, in a peer,
or in a process that only the journal tells of.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final, Generic, TypeVar

from msgspec import Struct

from tieline import items
from tieline.complaints import invalid_value
from tieline.errors import ApiError
from tieline.ids import RESPONSE
from tieline.items import Item
from tieline.responses import Response
from tieline_server.core.create.settings import INCLUDE
from tieline_server.core.history.chain import Saved
from tieline_server.peers import Peer
from tieline_server.runtime import PATIENCE, Services, cancel, forget, not_found
from tieline_server.storage.base import RunningResponse, own_items

PAGE: Final = 20
"""Items on a page where the caller names no limit."""

LONGEST_PAGE: Final = 100

RUNNING: Final = frozenset({"queued", "in_progress"})
"""How a response stands that has not ended."""

POLL: Final = 0.05
"""Seconds between two looks whether that process has heard it."""

logger: Final = logging.getLogger(__name__)

E = TypeVar("E")


def check_include(names: Iterable[str]) -> None:
    """Refuses a word that ``include`` of a look-up cannot have; raises :class:`ApiError` 400."""
    for name in names:
        if name not in INCLUDE:
            raise invalid_value("include", name, INCLUDE)


async def find(services: Services, owner: str, response_id: str) -> Response:
    """A response of the owner as it stands; raises :class:`ApiError` 404."""
    kept = services.running.logs.find(owner, response_id)
    response = None if kept is None else kept.look()
    if response is None:
        response = await _at_peer(services, owner, response_id)
    if response is not None:
        return response
    # In this order: what ends between the two questions is stored by the second one.
    begun = await services.journal.running(owner, response_id)
    if begun is not None:
        return begun.response
    return (await _stored(services, owner, response_id)).response


async def find_whole(services: Services, owner: str, response_id: str) -> Saved:
    """The same with its chain; raises :class:`ApiError` 404, or 409 while that is elsewhere."""
    kept = services.running.logs.find(owner, response_id)
    saved = None if kept is None else kept.find()
    saved = saved or await services.store.get(owner, response_id)
    if saved is not None:
        return saved
    response = await find(services, owner, response_id)
    saved = await services.store.get(owner, response_id)
    if saved is not None:
        return saved
    if response.status not in RUNNING:
        raise not_found(response_id)
    raise ApiError.of(
        "response_not_active",
        f"Response '{response.id}' runs in another process; its input can be read once it has "
        "ended.",
    )


async def deleted(services: Services, owner: str, response_id: str) -> None:
    """Forgets a response, in the store and on every connection of every process.

    One that runs is cancelled first. What continues it keeps what it inherited. Raises
    :class:`ApiError` 404.
    """
    if not await services.store.delete(owner, response_id):
        await find(services, owner, response_id)
        ended = await cancelled(services, owner, response_id)
        if ended.status in RUNNING:
            raise ApiError.of("server_error", "The response could not be ended in time.")
        await services.store.delete(owner, response_id)
    forget(services, owner, response_id)
    for peer in services.peers.others():
        await _forget(peer, owner, response_id)


async def cancelled(services: Services, owner: str, response_id: str) -> Response:
    """Ends a turn of the owner, wherever it runs; one that has ended stays so.

    Raises :class:`ApiError` 404.
    """
    found = await cancel(services, owner, response_id)
    if found is None:
        return await find(services, owner, response_id)
    return await _heard(services, found) if isinstance(found, RunningResponse) else found


async def _heard(services: Services, begun: RunningResponse) -> Response:
    """Waits until the process that cannot be asked has heard of the cancel, or for ``PATIENCE``."""
    owner, response_id = begun.owner, begun.response.id
    until = services.clock() + PATIENCE
    while (standing := await services.journal.running(owner, response_id)) is not None:
        if services.clock() > until:
            return standing.response
        await asyncio.sleep(POLL)
    return (await _stored(services, owner, response_id)).response


async def _stored(services: Services, owner: str, response_id: str) -> Saved:
    saved = await services.store.get(owner, response_id)
    if saved is None:
        raise not_found(response_id)
    return saved


async def _at_peer(services: Services, owner: str, response_id: str) -> Response | None:
    """As the peer has it in which it runs, where that can be asked."""
    peer = services.peers.peer_of(response_id)
    if peer is None:
        return None
    try:
        return await peer.look(owner, response_id)
    except ApiError:
        _gone(response_id)
        return None


async def _forget(peer: Peer, owner: str, response_id: str) -> None:
    try:
        await peer.forget(owner, response_id)
    except ApiError:
        # It forgets everything as it goes.
        _gone(response_id)


def _gone(response_id: str) -> None:
    logger.warning("a peer did not answer", extra={"response_id": response_id})


def input_items(saved: Saved) -> list[Item]:
    """The items of a response's own that it did not make itself, oldest first."""
    made = {items.decode(raw).id for raw in saved.response.output}
    return [item for item in own_items(saved) if item.id is None or item.id not in made]


def place_id(response_id: str, index: int) -> str:
    """The id under which an item is listed that came without one, so that a page can follow it.

    >>> place_id("resp_7", 0)
    'item_7_0'
    """
    return f"item_{response_id.removeprefix(RESPONSE)}_{index}"


class Page(Struct, Generic[E], frozen=True, kw_only=True):
    """Some of a list's entries, each with its id."""

    entries: Sequence[tuple[str, E]]
    has_more: bool

    @property
    def first_id(self) -> str | None:
        """The first entry's id, or None on an empty page."""
        return self.entries[0][0] if self.entries else None

    @property
    def last_id(self) -> str | None:
        """The last entry's id, or None on an empty page."""
        return self.entries[-1][0] if self.entries else None


def page_of(
    listed: Sequence[tuple[str, E]], *, limit: int, order: str, after: str | None
) -> Page[E]:
    """The page of ``listed`` (oldest first) that is asked for; raises :class:`ApiError` 400."""
    if not 1 <= limit <= LONGEST_PAGE:
        code = "integer_below_min_value" if limit < 1 else "integer_above_max_value"
        raise ApiError.of(code, f"Invalid 'limit': expected 1 to {LONGEST_PAGE}.", param="limit")
    if order not in ("asc", "desc"):
        raise invalid_value("order", order, ("asc", "desc"))
    ordered = listed if order == "asc" else listed[::-1]
    start = 0 if after is None else _behind([entry_id for entry_id, _ in ordered], after)
    chosen = ordered[start : start + limit]
    return Page(entries=chosen, has_more=start + limit < len(ordered))


def _behind(ids: list[str], item_id: str) -> int:
    if item_id not in ids:
        raise ApiError.of(
            "item_not_found", f"Item with id '{item_id[:128]}' not found.", param="after"
        )
    return ids.index(item_id) + 1
