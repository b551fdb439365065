"""Who gets which slot."""

from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieline_server.engines.llama.slots import Seat, Slots, Want, shared


class Lanes:
    """Lanes that ask one after the other, each going on where it was."""

    def __init__(self, slots: int) -> None:
        self.slots = Slots(slots)
        self.chains: dict[str, list[int]] = {}
        self._ids = count(1000)

    def turn(self, lane: str, *, like: Sequence[int] = (), owner: str = "me") -> tuple[int, int]:
        """One whole turn: its slot, and how many ids of the chain were in it."""
        chain = [*(self.chains.get(lane) or like), *self._new()]
        kept = {slot.number: slot.kept for slot in self.slots._slots}
        self.slots.wait(Want(lane=lane, owner=owner, ids=chain))
        seated = self.slots.seat()
        assert seated is not None
        seat = seated[1]
        warm = 0 if seat.fresh else shared(kept[seat.number], chain)
        self.chains[lane] = [*chain, *self._new()]
        self.slots.free(seat.number, self.chains[lane])
        return seat.number, warm

    def _new(self) -> list[int]:
        return [next(self._ids) for _ in range(10)]


def seat(slots: Slots) -> Seat | None:
    """Where the next in line goes."""
    seated = slots.seat()
    return seated[1] if seated else None


PREFACE = list(range(100))


def test_each_lane_has_a_slot_of_its_own_and_goes_back_to_it() -> None:
    lanes = Lanes(4)
    first = {lane: lanes.turn(lane, like=PREFACE) for lane in "abcd"}
    assert sorted(number for number, _ in first.values()) == [0, 1, 2, 3]
    for turn in range(1, 4):
        for lane in "dbca":
            assert lanes.turn(lane) == (first[lane][0], 100 + 20 * turn)


def test_the_least_recently_used_slot_is_given_away() -> None:
    lanes = Lanes(3)
    for lane in "abcab":
        lanes.turn(lane)
    number, warm = lanes.turn("d")
    assert (number, warm) == (2, 0)
    assert lanes.turn("a") == (0, 40)
    assert lanes.turn("c") == (1, 0)


def test_a_chain_that_comes_by_another_lane_goes_where_its_past_is() -> None:
    lanes = Lanes(3)
    number, _ = lanes.turn("http 1")
    lanes.turn("other")
    assert lanes.turn("http 2", like=lanes.chains["http 1"]) == (number, 20)


def test_a_lane_that_goes_on_with_another_chain_goes_where_that_ones_past_is() -> None:
    lanes = Lanes(3)
    lanes.turn("a")
    lanes.turn("b")
    lanes.chains["a"] = lanes.chains["b"]
    assert lanes.turn("a") == (1, 20)
    lanes.chains["a"] = []
    assert lanes.turn("a") == (0, 0)


def test_a_fork_from_further_back_takes_no_slot_while_one_is_unused() -> None:
    lanes = Lanes(2)
    lanes.turn("a")
    before = lanes.chains["a"]
    lanes.turn("a")
    assert lanes.turn("fork", like=before) == (1, 0)
    assert lanes.turn("a") == (0, 40)
    assert lanes.turn("fork") == (1, 40)


def test_with_every_slot_in_use_a_fork_goes_where_it_gains_more_than_is_lost() -> None:
    lanes = Lanes(2)
    lanes.turn("old")
    lanes.turn("a", like=PREFACE)
    before = lanes.chains["a"]
    lanes.turn("a")
    assert lanes.turn("fork", like=before) == (1, 120)
    assert lanes.turn("stranger") == (0, 0)


def test_what_another_owner_left_is_never_used() -> None:
    lanes = Lanes(1)
    lanes.turn("a", owner="me")
    slots = lanes.slots
    slots.wait(Want(lane="a", owner="you", ids=[*lanes.chains["a"], 1]))
    assert seat(slots) == Seat(number=0, fresh=True)
    slots.free(0, [1])
    slots.wait(Want(lane="b", owner="you", ids=[1, 2]))
    assert seat(slots) == Seat(number=0, fresh=False)


def test_an_answer_that_never_came_to_the_cache_leaves_it_as_it_was() -> None:
    lanes = Lanes(1)
    lanes.turn("a", owner="me")
    slots = lanes.slots
    for _ in range(2):
        slots.wait(Want(lane="b", owner="you", ids=[1]))
        assert seat(slots) == Seat(number=0, fresh=True)
        slots.free(0, [])
    assert lanes.turn("a", owner="me") == (0, 20)


def test_who_left_the_queue_is_passed_over() -> None:
    slots = Slots(1)
    first, second = (Want(lane=lane, owner="me", ids=[1]) for lane in "ab")
    slots.wait(first)
    slots.wait(second)
    assert slots.leave(first)
    assert not slots.leave(first)
    assert (slots.seat() or (None,))[0] is second
    assert not slots.leave(second)
    assert slots.seat() is None


def test_a_lane_waits_for_the_slot_that_its_cancelled_answer_is_about_to_leave() -> None:
    slots = Slots(2)
    first, again, other = (Want(lane=lane, owner="me", ids=[1]) for lane in "aab")
    for want in (first, again, other):
        slots.wait(want)
    assert seat(slots) == Seat(number=0, fresh=False)
    assert not slots.leave(first)
    assert (slots.seat() or (None,))[0] is other
    assert slots.seat() is None
    slots.free(0, [1, 2])
    assert slots.seat() == (again, Seat(number=0, fresh=False))


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(["ask", "free", "leave"]), st.integers(0, 7))),
)
def test_the_longest_waiting_is_always_next_and_no_slot_is_taken_twice(
    size: int, steps: list[tuple[str, int]]
) -> None:
    slots = Slots(size)
    waiting: list[Want] = []
    taken: dict[int, Want] = {}
    for what, which in steps:
        if what == "ask":
            waiting.append(Want(lane=str(which), owner=str(which % 2), ids=[which, which]))
            slots.wait(waiting[-1])
        elif what == "leave" and waiting:
            assert slots.leave(waiting.pop(which % len(waiting)))
        elif what == "free" and which in taken:
            slots.free(which, taken.pop(which).ids)
        while (seated := slots.seat()) is not None:
            want, seat = seated
            assert want is waiting.pop(0)
            assert seat.number not in taken
            taken[seat.number] = want
        assert not waiting or len(taken) == size


@pytest.mark.parametrize(
    ("first", "second", "common"),
    [([], [1], 0), ([1], [2], 0), ([1, 2], [1, 2], 2), ([1, 2, 3], [1, 2, 4, 5], 2)],
)
def test_what_two_prompts_share_is_counted_from_the_start(
    first: list[int], second: list[int], common: int
) -> None:
    assert shared(first, second) == shared(second, first) == common
