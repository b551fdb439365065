"""The input that stands for a longer history: ``POST /v1/responses/compact``, ``Compact``.

User messages stay; one compaction item behind them holds, sealed, what else is needed
to go on. The client carries it: nothing is kept here, and it is the input of a new chain
on any transport (wire.md 5).
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct

from tieline import ids, items
from tieline.errors import ApiError
from tieline.items import Item, Message
from tieline.requests import Create
from tieline.responses import Usage
from tieline_server.compaction.summaries import longest_of
from tieline_server.core.history import compaction, sealed
from tieline_server.core.history.compaction import TAIL, Plan

Summarise = Callable[[tuple[Item, ...], int], Awaitable[str]]
"""What the model says about a context, in at most so many tokens."""

_members: Final = msgspec.json.Decoder(dict[str, Raw])


class Compacted(Struct, frozen=True, kw_only=True):
    """A compacted input: it begins a new chain, unchanged, before the chain's new items."""

    id: str
    created_at: int
    output: list[Item]
    usage: Usage


def check(create: Create) -> None:
    """Raises :class:`ApiError` where a request names no model, or nothing to compact."""
    missing = None
    if create.model is None:
        missing = "model"
    elif create.input is UNSET and create.previous_response_id is None:
        missing = "input"
    if missing is not None:
        raise ApiError.of(
            "missing_required_parameter", f"Missing required parameter: '{missing}'.", param=missing
        )


async def kept_of(context: tuple[Item, ...], summarise: Summarise | None) -> tuple[Item, ...]:
    """What is kept of a context: a summary where that is shorter, else its end."""
    if summarise is not None:
        lean = compaction.plan(context, room=0)
        if lean.folded:
            text = await summarise(context, longest_of(lean))
            if lean.gains_by(text):
                return lean.with_summary(text)
    chosen: Plan = compaction.plan(context, room=TAIL)
    return chosen.kept


def sealed_input(
    kept: tuple[Item, ...], *, seal: Callable[[bytes], str], new_id: Callable[[str], str]
) -> list[Item]:
    """The user messages of what is kept, and one sealed item for the rest."""
    users, rest = compaction.window_of(kept)
    item = sealed.history(rest, seal, item_id=new_id(ids.COMPACTION))
    return [*(_whole(user, new_id) for user in users), item]


def _whole(user: Item, new_id: Callable[[str], str]) -> Item:
    """A user message with all members of an output item: a client may have left some out."""
    members: dict[str, Any] = dict(_members.decode(user.raw))
    head = {"type": "message", "id": user.id or new_id(ids.MESSAGE)}
    view = user.view
    if isinstance(view, Message) and isinstance(view.content, str):
        members["content"] = [{"type": "input_text", "text": view.content}]
    return items.decode(msgspec.json.encode({**members, **head, "status": "completed"}))
