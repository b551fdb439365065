"""What survives when history is folded away.

In any case: system and developer messages, tools that came with the input or were found, calls
that wait for their outputs, the last user message, and what has come since the model last spoke
together with the calls that it answers. Then, newest first, user messages, and after them
whatever else there is room for; an output never stays without its call. Sizes are bytes of JSON.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from tieline import items
from tieline.items import AdditionalTools, Item, Message, Opened
from tieline_server.core.create.tools import BRINGING
from tieline_server.core.deltas import Accepted, Delta, Finish, UsageCounter
from tieline_server.core.history.sealed import is_user

TAIL: Final = 32 * 1024
"""Room for what is neither fixed nor a user message, in a window that a client asks for."""

MOST_ROOM: Final = 1024 * 1024
"""Room for what is not fixed, however high the threshold."""

MOST: Final = 2 * 1024 * 1024
"""What a compaction item in a turn may hold: its event fits every client (grpc: 3 MiB)."""


class Plan(Struct, frozen=True, kw_only=True):
    """What stays of a context, in order, and what goes.

    ``place`` is where among ``kept`` the last folded item stood.
    """

    kept: tuple[Item, ...]
    folded: tuple[Item, ...]
    place: int = 0

    @property
    def folded_size(self) -> int:
        """Bytes of what goes."""
        return _size(self.folded)

    def gains_by(self, text: str) -> bool:
        """Whether a summary says something, and is shorter than what it stands for."""
        return 0 < len(text.encode()) < self.folded_size

    def with_summary(self, text: str) -> tuple[Item, ...]:
        """What is kept, with a summary where the folded part ended."""
        summary = Message(role="assistant", content=f"Summary of what came before: {text}")
        return (*self.kept[: self.place], items.encode(summary), *self.kept[self.place :])


class Fold(Struct, frozen=True, kw_only=True):
    """A context that was folded: what a turn goes on with, and how its summary's sampling ended."""

    items: tuple[Item, ...]
    finish: Finish | None = None


def plan(context: Sequence[Item], *, room: int, users: int | None = None) -> Plan:
    """Chooses what stays.

    ``users`` is the part of ``room`` that user messages may take; None keeps all of them, beside
    the room.
    """
    keep = _fixed(context)
    said = [at for at, item in enumerate(context) if is_user(item) and at not in keep]
    # A window that a client asks for keeps all that users said, one in a turn keeps to its room.
    if users is None:
        keep.update(said)
    else:
        newest = _newest(context, said, users)
        keep |= newest
        room -= _size(context[at] for at in newest)
    rest = [at for at, item in enumerate(context) if not is_user(item) and at not in keep]
    keep |= _newest(context, rest, room)
    # Last: an output may have been chosen for its size whose call was not.
    keep -= _orphans(context, keep)
    gone = [at for at in range(len(context)) if at not in keep]
    return Plan(
        kept=tuple(context[at] for at in sorted(keep)),
        folded=tuple(context[at] for at in gone),
        place=sum(at < gone[-1] for at in keep) if gone else 0,
    )


def plan_within(context: Sequence[Item], *, tokens: int, threshold: int, tail: bool) -> Plan | None:
    """What stays where a context of so many ``tokens`` has passed ``threshold``: half of it.

    With ``tail`` false only what is fixed and user messages stay. None where nothing can go.
    """
    # Half the threshold, in bytes: the context itself says how many bytes a token has here.
    target = _size(context) * threshold // (2 * max(tokens, 1))
    room = min(MOST_ROOM, max(0, target - _size(context[at] for at in _fixed(context))))
    chosen = plan(context, room=room if tail else 0, users=room // 2)
    return chosen if chosen.folded and _size(chosen.kept) <= MOST else None


def window_of(kept: Sequence[Item]) -> tuple[list[Item], Opened]:
    """``kept`` as a client gets it: the user messages, and what one item behind them stands for."""
    users: list[Item] = []
    rest: list[Item] = []
    behind: list[int] = []
    for item in kept:
        if is_user(item):
            users.append(item)
        else:
            rest.append(item)
            behind.append(len(users))
    return users, Opened(items=tuple(rest), behind=tuple(behind), users=len(users))


def without_open_calls(context: Sequence[Item]) -> tuple[Item, ...]:
    """``context`` without the calls that wait for an output: what a model can be asked about."""
    waiting = _open_calls(context)
    return tuple(item for at, item in enumerate(context) if at not in waiting)


def count(counter: UsageCounter, step: Iterable[Delta]) -> None:
    """Counts what an engine says of a summary, which is no output of a response."""
    for delta in step:
        if type(delta) is Accepted:
            counter.accept(delta)
        elif type(delta) is not Finish:
            counter.count((delta,))


def _fixed(context: Sequence[Item]) -> set[int]:
    """Places of what stays in any case."""
    since = len(context)
    # What the client said since the model spoke is what the next answer is about.
    while since and _is_from_client(context[since - 1]):
        since -= 1
    bringing = {at for at, item in enumerate(context) if item.type in BRINGING}
    answered = {context[at].answers for at in {*bringing, *range(since, len(context))}} - {None}
    fixed = _open_calls(context) | bringing | set(range(since, len(context)))
    last_said = -1
    for at, item in enumerate(context):
        if _is_instruction(item) or (item.opens is not None and item.opens in answered):
            fixed.add(at)
        elif is_user(item):
            last_said = at
    return fixed | ({last_said} if last_said >= 0 else set())


def _open_calls(context: Sequence[Item]) -> set[int]:
    waiting: dict[str, int] = {}
    for at, item in enumerate(context):
        if item.opens is not None:
            waiting[item.opens] = at
        elif item.answers is not None:
            waiting.pop(item.answers, None)
    return set(waiting.values())


def _is_instruction(item: Item) -> bool:
    view = item.view
    if isinstance(view, Message):
        return view.role in ("system", "developer")
    return isinstance(view, AdditionalTools)


def _is_from_client(item: Item) -> bool:
    return is_user(item) or item.answers is not None or _is_instruction(item)


def _newest(context: Sequence[Item], places: Sequence[int], room: int) -> set[int]:
    """The last ``places`` that fit."""
    fitting: set[int] = set()
    for at in reversed(places):
        room -= len(context[at].raw)
        if room < 0:
            break
        fitting.add(at)
    return fitting


def _orphans(context: Sequence[Item], keep: set[int]) -> set[int]:
    """Kept outputs whose call goes."""
    calls = {context[at].opens for at in keep}
    answers = ((at, context[at].answers) for at in keep)
    return {at for at, call_id in answers if call_id is not None and call_id not in calls}


def _size(some: Iterable[Item]) -> int:
    return sum(len(item.raw) for item in some)
