"""Which answer gets which slot of the runtime.

A slot keeps the KV cache of the last prompt and answer that it had. What a slot keeps is worth
nothing to an answer that does not begin in the same way, so who goes where decides what has to be
computed:

1. The job that has waited longest goes next: a cheaper one does not overtake it. Only a
   lane whose last answer is about to leave its slot (a cancel) waits for that very slot.
2. A lane goes back to its own slot, or, where that is better, to one that has nothing but its
   chain's past: a chain may come by another lane (each HTTP request has one of its own), and
   nothing is lost there.
3. Otherwise a slot that was not used yet. A fork from further back starts anew there, and both
   chains stay warm from then on.
4. With every slot in use, the one that was used least recently is given away, unless another one
   would give more than is lost there: a long common beginning with a short tail behind it.

What one owner left in a slot is never used for another (``Seat.fresh``): how fast an answer comes
would tell what the other's prompt was.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

NOTHING: Final[Sequence[int]] = ()


class Want(Struct, frozen=True, kw_only=True, eq=False):
    """An answer that needs a slot: who asks, and the ids of its prompt."""

    lane: str
    owner: str
    ids: Sequence[int]


class Seat(Struct, frozen=True, kw_only=True):
    """The slot that an answer gets."""

    number: int
    fresh: bool
    """Whether it must begin with an empty cache."""


class _Slot:
    __slots__ = ("ending", "guest", "kept", "lane", "number", "owner", "used")

    def __init__(self, number: int) -> None:
        self.number = number
        self.guest: Want | None = None
        """Whose answer runs in it; the rest is about what is in its cache."""
        self.ending = False
        """Whether that answer was told to end."""
        self.lane: str | None = None
        self.owner: str | None = None
        self.kept: Sequence[int] = NOTHING
        self.used = 0
        """When it was last taken, counted in answers; 0 for never."""


class Slots:
    """``count`` slots and who waits for one. Pure: it decides, and nothing happens by itself."""

    def __init__(self, count: int) -> None:
        self._slots = [_Slot(number) for number in range(count)]
        self._waiting: deque[Want] = deque()
        self._taken = 0

    def wait(self, want: Want) -> None:
        """``want`` joins the queue; :meth:`seat` is called next."""
        self._waiting.append(want)

    def leave(self, want: Want) -> bool:
        """``want`` leaves the queue; False where it was not (or no longer) in it.

        One that has a slot keeps it until it is freed, which is now expected soon.
        """
        for slot in self._slots:
            slot.ending = slot.ending or slot.guest is want
        try:
            self._waiting.remove(want)
        except ValueError:
            return False
        return True

    def seat(self) -> tuple[Want, Seat] | None:
        """The next job and its slot; None while no job waits or no slot is free."""
        free = [slot for slot in self._slots if slot.guest is None]
        if not free:
            return None
        ending = {
            (slot.guest.lane, slot.guest.owner)
            for slot in self._slots
            if slot.guest and slot.ending
        }
        want = next((each for each in self._waiting if (each.lane, each.owner) not in ending), None)
        if want is None:
            return None
        self._waiting.remove(want)
        slot = _choose(free, want)
        fresh = slot.owner is not None and slot.owner != want.owner
        self._taken += 1
        slot.guest, slot.ending, slot.used = want, False, self._taken
        return want, Seat(number=slot.number, fresh=fresh)

    def free(self, number: int, kept: Sequence[int]) -> None:
        """The answer in this slot is over, and ``kept`` is in its cache; :meth:`seat` is next.

        With nothing kept the answer never came as far as the cache, which is as it was.
        """
        slot = self._slots[number]
        guest, slot.guest = slot.guest, None
        assert guest is not None, "only a slot that was taken can be freed"
        if kept:
            slot.lane, slot.owner, slot.kept = guest.lane, guest.owner, kept


def _choose(free: Sequence[_Slot], want: Want) -> _Slot:
    common = {slot.number: _common(slot, want) for slot in free}
    whole = [slot for slot in free if 0 < len(slot.kept) == common[slot.number]]
    own = [slot for slot in free if slot.lane == want.lane and slot.owner == want.owner]
    if own or whole:
        return max([*own, *whole], key=lambda slot: common[slot.number])
    oldest = min(free, key=lambda slot: slot.used)
    if not oldest.used:
        return oldest

    def gain(slot: _Slot) -> int:
        lost = 0 if slot is oldest else len(slot.kept) - common[slot.number]
        return common[slot.number] - lost

    # Of equals the first one of `max` wins, and that is the oldest.
    return max(sorted(free, key=lambda slot: slot.used), key=gain)


def _common(slot: _Slot, want: Want) -> int:
    return shared(slot.kept, want.ids) if slot.owner == want.owner else 0


def shared(first: Sequence[int], second: Sequence[int]) -> int:
    """How many ids the two have in common from the start.

    >>> shared([1, 2, 3, 4], [1, 2, 9])
    2
    """
    low, high = 0, min(len(first), len(second))
    # By halves: comparing slices is hundreds of times faster than comparing ids in a loop.
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
