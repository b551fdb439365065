"""What a line remembers: the latest response of each lane, within its bounds."""

import pytest

from tests.support.core import Lockstep, output
from tieline.errors import RateLimited
from tieline.items import Message, encode
from tieline_server.core.budget import Budget
from tieline_server.core.history import ChainHead, ChainNode
from tieline_server.core.latest_responses import LatestResponses
from tieline_server.core.limits import Limits


def link(size: int, parent: ChainNode | None = None) -> ChainNode:
    """A link of so many bytes of JSON."""
    empty = len(encode(Message(role="user", content="")).raw)
    item = encode(Message(role="user", content="x" * (size - empty)))
    assert len(item.raw) == size
    return ChainNode(parent, (item,), turn=1)


def tip(
    response_id: str, size: int = 100, *, owner: str = "local", after: ChainHead | None = None
) -> ChainHead:
    parent = after.segment if after else None
    return ChainHead(response_id, link(size, parent), owner=owner, settings=None)


class Heir:
    """Has chains whose lines are gone, each on a lane of its own."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.chains: dict[str, ChainHead] = {}

    def forget_lane(self, lane: str | None) -> None:
        """The budget needs its room."""
        chain = self.chains.pop(lane or "")
        self.budget.leave((self, lane))
        self.budget.release(chain.owner, chain.segment)


class TestLatest:
    def test_a_lane_has_its_latest_response_only(self) -> None:
        memory = LatestResponses()
        first, second = tip("r1"), tip("r2")
        memory.advance("a", first)
        assert memory.latest("a") is memory.find("r1") is first
        memory.advance("a", second)
        assert memory.latest("a") is second
        assert memory.find("r1") is None

    def test_a_response_that_comes_to_another_lane_is_no_longer_the_first_ones_latest(self) -> None:
        memory = LatestResponses()
        first = tip("r1")
        again = ChainHead("r1", first.segment, owner=first.owner, settings=None)
        memory.advance("a", first)
        memory.advance("b", again)
        assert (memory.latest("a"), memory.latest("b")) == (None, again)
        assert memory.find("r1") is again
        memory.advance("b", again)
        assert memory.latest("b") is again
        memory.advance("b", tip("r2"))
        memory.advance("a", tip("r3"))
        memory.clear()
        assert memory.size == 0

    def test_lanes_do_not_touch_each_other(self) -> None:
        memory = LatestResponses()
        memory.advance(None, tip("r1"))
        memory.advance("a", tip("r2"))
        memory.forget_lane("a")
        assert memory.find("r1") is not None
        assert memory.latest("a") is None

    def test_evict_takes_the_parent_of_its_own_lane_only(self) -> None:
        """wire.md 4.4.2: a failed fork on another lane leaves the parent alone."""
        memory = LatestResponses()
        memory.advance("a", tip("r1"))
        memory.evict("b", "r1")
        memory.evict("a", "other")
        assert memory.find("r1") is not None
        memory.evict("a", "r1")
        assert memory.find("r1") is None
        assert memory.latest("a") is None

    @pytest.mark.parametrize("lane", [None, "a"])
    def test_forget_finds_the_lane_by_itself(self, lane: str | None) -> None:
        memory = LatestResponses()
        memory.advance(lane, tip("r1"))
        memory.forget("local", "unknown")
        memory.forget("someone else", "r1")
        assert memory.find("r1") is not None
        memory.forget("local", "r1")
        assert memory.find("r1") is memory.latest(lane) is None


class TestSize:
    def test_chains_that_share_links_count_them_once(self) -> None:
        memory = LatestResponses()
        first = tip("r1", 1000)
        memory.advance("a", first)
        memory.advance("b", tip("r2", 100, after=first))
        memory.advance("c", tip("r3", 200, after=first))
        assert memory.size == 1300

    def test_a_turn_of_the_lane_adds_what_is_new(self) -> None:
        memory = LatestResponses()
        first = tip("r1", 1000)
        memory.advance("a", first)
        memory.advance("a", tip("r2", 100, after=first))
        assert memory.size == 1100

    def test_what_ends_frees_its_bytes_everywhere(self) -> None:
        budget = Budget()
        one, other = LatestResponses(budget), LatestResponses(budget)
        one.advance("a", tip("r1", 1000))
        other.advance("a", tip("r2", 500, owner="ann"))
        assert (budget.size, budget.held_by("local"), budget.held_by("ann")) == (1500, 1000, 500)
        one.clear()
        assert (one.size, budget.size, budget.held_by("local")) == (0, 500, 0)
        other.clear()
        assert (budget.size, budget.evicted) == (0, 0)

    def test_what_is_passed_on_counts_where_it_is_and_shared_links_stay(self) -> None:
        budget = Budget()
        line, heir = LatestResponses(budget), Heir(budget)
        first = tip("r1", 1000)
        fork = tip("r2", 300, after=first)
        line.advance("a", first)
        line.advance("b", fork)
        heir.chains["r1"] = line.pass_on("a", heir, "r1")
        assert (line.latest("a"), line.find("r1")) == (None, None)
        assert heir.chains == {"r1": first}
        assert (line.size, budget.size) == (1300, 1300)
        line.clear()
        assert (line.size, budget.size) == (0, 1000)
        heir.forget_lane("r1")
        assert (budget.size, budget.held_by("local")) == (0, 0)

    def test_what_is_passed_on_goes_from_its_heir_when_room_is_needed(self) -> None:
        budget = Budget(total=1000)
        line, heir = LatestResponses(budget), Heir(budget)
        line.advance("a", tip("r1", 600))
        heir.chains["r1"] = line.pass_on("a", heir, "r1")
        line.admit("ann", 700)
        assert (heir.chains, budget.size, budget.evicted) == ({}, 0, 1)

    def test_what_a_turn_works_on_counts(self) -> None:
        budget = Budget()
        memory = LatestResponses(budget)
        working = link(700)
        memory.hold("ann", working)
        assert (memory.size, budget.held_by("ann")) == (700, 700)
        memory.release("ann", working)
        assert (memory.size, budget.size) == (0, 0)


class TestBounds:
    def test_the_least_recently_used_lane_goes_first(self) -> None:
        memory = LatestResponses(most=1000)
        for lane in ("a", "b", "c"):
            memory.advance(lane, tip(f"r_{lane}", 300))
        memory.advance("a", tip("r_a2", 300))
        memory.admit("local", 200)
        assert memory.find("r_b") is None
        assert memory.find("r_c") is not None
        assert memory.find("r_a2") is not None

    def test_what_a_turn_continues_stays_and_the_turn_is_refused(self) -> None:
        memory = LatestResponses(most=1000)
        parent = tip("r1", 900)
        memory.advance("a", parent)
        memory.hold("local", link(300, parent.segment))
        with pytest.raises(RateLimited) as refused:
            memory.admit("local")
        assert refused.value.code == "memory_limit_exceeded"
        assert memory.find("r1") is parent

    def test_over_an_owners_bound_only_that_owners_chains_go(self) -> None:
        budget = Budget(owner=1000)
        one, other = LatestResponses(budget), LatestResponses(budget)
        other.advance("x", tip("r0", 900, owner="bob"))
        one.advance("a", tip("r1", 600, owner="ann"))
        other.advance("b", tip("r2", 300, owner="ann"))
        other.admit("ann", 200)
        assert one.find("r1") is None
        assert other.find("r2") is not None
        assert other.find("r0") is not None
        assert budget.evicted == 1

    def test_over_the_bound_of_all_the_oldest_chain_of_anyone_goes(self) -> None:
        budget = Budget(total=1000)
        memory = LatestResponses(budget)
        memory.advance("a", tip("r1", 400, owner="bob"))
        memory.advance("b", tip("r2", 400, owner="ann"))
        memory.admit("ann", 300)
        assert memory.find("r1") is None
        assert memory.find("r2") is not None

    def test_more_than_the_bound_itself_empties_nothing_that_is_in_use(self) -> None:
        budget = Budget(total=1000)
        memory = LatestResponses(budget)
        memory.advance("a", tip("r1", 400))
        memory.hold("local", link(10_000))
        with pytest.raises(RateLimited):
            memory.admit("local")
        assert memory.find("r1") is None


class TestOnAConnection:
    """The rules as a client meets them."""

    def test_a_lane_that_had_to_go_is_not_found_and_the_others_go_on(self) -> None:
        line = Lockstep(limits=Limits(connection_bytes=3000))
        big = "x" * 1000
        first = line.create(big, lane="a")
        line.answer(first)
        second = line.create(big, lane="b")
        line.answer(second)
        third = line.create(big, lane="c")
        line.answer(third)
        line.create("more", lane="a", previous_response_id=first)
        assert line.errors == [("previous_response_not_found", "previous_response_id")]
        fourth = line.create("more", lane="c", previous_response_id=third)
        line.answer(fourth)
        assert line.status(fourth) == ("completed", None)

    def test_input_beyond_the_bound_is_refused_and_the_line_lives_on(self) -> None:
        line = Lockstep(limits=Limits(connection_bytes=3000))
        line.create("x" * 4000)
        assert [code for code, _ in line.errors] == ["memory_limit_exceeded"]
        turn = line.create("hi")
        line.answer(turn)
        assert line.status(turn) == ("completed", None)
        assert line.line.memory.size < 1000

    def test_outputs_beyond_the_bound_leave_the_turn_held(self) -> None:
        line = Lockstep(limits=Limits(connection_bytes=3000))
        turn = line.create("go", append=True)
        (call,) = line.call(turn)
        line.append(output(call, "x" * 4000))
        assert [code for code, _ in line.errors] == ["memory_limit_exceeded"]
        line.append(output(call, "short"))
        line.answer(turn)
        assert line.status(turn) == ("completed", None)

    def test_whatever_happened_a_line_that_is_gone_holds_nothing(self) -> None:
        line = Lockstep()
        line.answer(line.create("one", lane="a"))
        line.create("two", lane="b")
        line.drop()
        line.line.memory.clear()
        assert line.line.memory.size == 0
