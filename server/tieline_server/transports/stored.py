"""Stored responses as every transport shows them: found, cancelled, their input in pages."""

from collections.abc import Sequence
from typing import Final, Generic, TypeVar

from msgspec import Struct

from tieline import items
from tieline.errors import ApiError
from tieline.ids import RESPONSE
from tieline.items import Item
from tieline.responses import Response
from tieline_server.core.effects import Saved
from tieline_server.core.history import Segment
from tieline_server.runtime import Services

PAGE: Final = 20
"""Items on a page where the caller names no limit."""

LONGEST_PAGE: Final = 100

E = TypeVar("E")


def not_found(response_id: str) -> ApiError:
    """No such response, or another owner's: the two look alike."""
    return ApiError.of("response_not_found", f"Response with id '{response_id[:128]}' not found.")


async def find(services: Services, owner: str, response_id: str) -> Saved:
    """A stored response of the owner; raises :class:`ApiError` 404."""
    saved = await services.store.get(owner, response_id)
    if saved is None:
        raise not_found(response_id)
    return saved


async def deleted(services: Services, owner: str, response_id: str) -> None:
    """Forgets a stored response, in the store and on every line; raises :class:`ApiError` 404.

    What continues it keeps what it inherited.
    """
    if not await services.store.delete(owner, response_id):
        raise not_found(response_id)
    services.running.forget(owner, response_id)


async def cancelled(services: Services, owner: str, response_id: str) -> Response:
    """Ends a turn of the owner, whichever line it runs on; one that has ended stays so.

    Raises :class:`ApiError` 404.
    """
    response = services.running.cancel(owner, response_id)
    return response or (await find(services, owner, response_id)).response


def input_items(saved: Saved) -> list[Item]:
    """The items of a response's own links that it did not make itself, oldest first."""
    own: list[Segment] = []
    link: Segment | None = saved.tip.segment
    while link is not None and link is not saved.input_from:
        own.append(link)
        link = link.parent
    made = {items.decode(raw).id for raw in saved.response.output}
    return [
        item
        for segment in reversed(own)
        for item in segment.items
        if item.id is None or item.id not in made
    ]


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
        raise ApiError.of(
            "invalid_value",
            f"Invalid value: '{order[:64]}'. Supported values are: 'asc' and 'desc'.",
            param="order",
        )
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
