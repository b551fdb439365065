"""Chains in memory: what is counted, what goes over a bound, what a connection remembers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.core import Lockstep, output
from tieline.errors import RateLimited
from tieline.items import Compaction, Item, Message, Opened, encode
from tieline_server.core.create.limits import Limits
from tieline_server.core.history.chain import ChainHead, ChainNode
from tieline_server.core.history.holdings import Budget, Holdings, LatestResponses, Place


def link(size: int, parent: ChainNode | None = None) -> ChainNode:
    """A link of so many bytes of JSON."""
    empty = len(encode(Message(role="user", content="")).raw)
    item = encode(Message(role="user", content="x" * (size - empty)))
    assert len(item.raw) == size
    return ChainNode(parent, (item,), turn=1)


def behind(parent: ChainNode | None, words: int) -> ChainNode:
    items = tuple(encode(Message(role="user", content="w")) for _ in range(words))
    return ChainNode(parent, items, turn=1)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), min_size=1, max_size=12),
    st.lists(
        st.tuples(st.sampled_from(["hold", "grow", "release"]), st.integers(0, 30)), max_size=30
    ),
)
def test_the_size_is_that_of_all_links_that_are_held(
    tree: list[tuple[int, int]], deeds: list[tuple[str, int]]
) -> None:
    links: list[ChainNode] = []
    for parent, words in tree:
        links.append(behind(links[parent % len(links)] if links and parent else None, words))
    holdings, held = Holdings(), list[ChainNode]()
    for deed, which in deeds:
        if deed == "hold" or not held:
            held.append(links[which % len(links)])
            holdings.hold(held[-1])
        elif deed == "grow":
            longer = behind(held[which % len(held)], which % 4)
            held[which % len(held)] = longer
            holdings.grow(longer)
        else:
            holdings.release(held.pop(which % len(held)))
        every = {each for head in held for each in head.path()}
        assert holdings.size == sum(each.size for each in every)
        assert holdings.empty is not bool(held)
        for head in held:
            followed = any(each.parent is head for each in every)
            assert holdings.alone(head) is (held.count(head) == 1 and not followed)


def test_a_chain_that_is_opened_while_it_is_held_leaves_nothing_behind() -> None:
    """A store holds what it has read before a turn opens it (sealed items)."""
    sealed = encode(Compaction(id="cmp_1", encrypted_content="sealed"))
    head = ChainNode(None, (sealed,), turn=1)

    def opened(item: Item) -> Item:
        inside = encode(Message(role="user", content="a word that was sealed"))
        return replace(item, opened=Opened(items=(inside,)))

    holdings = Holdings()
    holdings.hold(head)
    head.reveal(opened)
    assert head.size > len(sealed.raw)
    holdings.release(head)
    assert (holdings.size, holdings.empty) == (0, True)


class Connections:
    """Stands for the connections: lets a lane's chain go when it is told to."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.chains: dict[str | None, tuple[str, ChainNode]] = {}
        self.gone: list[str | None] = []

    def rest(self, lane: str, owner: str, size: int) -> None:
        """A lane's latest is a chain of so many bytes."""
        chain = link(size)
        self.chains[lane] = (owner, chain)
        self.budget.hold(owner, chain)
        self.budget.rest(self.place(lane), owner, chain)

    def place(self, lane: str | None) -> Place:
        return (self, lane)

    def forget_lane(self, lane: str | None) -> None:
        owner, chain = self.chains.pop(lane)
        self.budget.leave(self.place(lane))
        self.budget.release(owner, chain)
        self.gone.append(lane)


def test_within_the_bounds_nothing_goes() -> None:
    connections = Connections(Budget(owner=1000, total=1000))
    connections.rest("a", "ann", 600)
    assert connections.budget.make_room("ann", 400)
    assert connections.gone == []


def test_as_many_go_as_must() -> None:
    connections = Connections(Budget(owner=1000))
    for lane in ("a", "b", "c", "d"):
        connections.rest(lane, "ann", 250)
    assert connections.budget.make_room("ann", 300)
    assert connections.gone == ["a", "b"]
    assert (connections.budget.size, connections.budget.evicted) == (500, 2)


def test_one_owner_never_pushes_out_another_by_its_own_bound() -> None:
    connections = Connections(Budget(owner=1000))
    connections.rest("b", "bob", 900)
    connections.rest("a", "ann", 900)
    assert not connections.budget.make_room("ann", 2000)
    assert connections.gone == ["a"]


def test_the_bound_of_all_takes_the_oldest_first_whoever_asks() -> None:
    connections = Connections(Budget(total=1000))
    connections.rest("b", "bob", 400)
    connections.rest("a", "ann", 400)
    assert connections.budget.make_room("ann", 300)
    assert connections.gone == ["b"]


def test_a_chain_that_something_else_holds_is_passed_over() -> None:
    connections = Connections(Budget(owner=1000))
    connections.rest("a", "ann", 500)
    connections.rest("b", "ann", 400)
    connections.budget.hold("ann", connections.chains["a"][1])
    assert connections.budget.make_room("ann", 400)
    assert connections.gone == ["b"]
    assert not connections.budget.make_room("ann", 600)


def test_a_chain_that_moves_to_another_lane_is_the_last_to_go_from_there() -> None:
    connections = Connections(Budget(owner=1000))
    for lane in ("a", "b"):
        connections.rest(lane, "ann", 500)
    connections.budget.move(connections.place("a"), connections.place("c"))
    connections.chains["c"] = connections.chains.pop("a")
    assert connections.budget.make_room("ann", 500)
    assert connections.gone == ["b"]
    assert connections.budget.make_room("ann", 1000)
    assert connections.gone == ["b", "c"]


def test_an_owner_without_chains_leaves_nothing_behind() -> None:
    budget = Budget()
    chain = link(100)
    budget.hold("ann", chain)
    budget.release("ann", chain)
    assert (budget.size, budget.held_by("ann"), budget._owners) == (0, 0, {})


def head(
    response_id: str, size: int = 100, *, owner: str = "local", after: ChainHead | None = None
) -> ChainHead:
    parent = after.node if after else None
    return ChainHead(response_id, link(size, parent), owner=owner, settings=None)


class Heir:
    """Has chains whose connections are gone, each on a lane of its own."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.chains: dict[str, ChainHead] = {}

    def forget_lane(self, lane: str | None) -> None:
        """The budget needs its room."""
        chain = self.chains.pop(lane or "")
        self.budget.leave((self, lane))
        self.budget.release(chain.owner, chain.node)


class TestLatest:
    def test_a_lane_has_its_latest_response_only(self) -> None:
        memory = LatestResponses()
        first, second = head("r1"), head("r2")
        memory.advance("a", first)
        assert memory.latest("a") is memory.find("r1") is first
        memory.advance("a", second)
        assert memory.latest("a") is second
        assert memory.find("r1") is None

    def test_a_response_that_comes_to_another_lane_is_no_longer_the_first_ones_latest(self) -> None:
        memory = LatestResponses()
        first = head("r1")
        again = ChainHead("r1", first.node, owner=first.owner, settings=None)
        memory.advance("a", first)
        memory.advance("b", again)
        assert (memory.latest("a"), memory.latest("b")) == (None, again)
        assert memory.find("r1") is again
        memory.advance("b", again)
        assert memory.latest("b") is again
        memory.advance("b", head("r2"))
        memory.advance("a", head("r3"))
        memory.clear()
        assert memory.size == 0

    def test_lanes_do_not_touch_each_other(self) -> None:
        memory = LatestResponses()
        memory.advance(None, head("r1"))
        memory.advance("a", head("r2"))
        memory.forget_lane("a")
        assert memory.find("r1") is not None
        assert memory.latest("a") is None

    def test_evict_takes_the_parent_of_its_own_lane_only(self) -> None:
        """wire.md 4.4.2: a failed fork on another lane leaves the parent alone."""
        memory = LatestResponses()
        memory.advance("a", head("r1"))
        memory.evict("b", "r1")
        memory.evict("a", "other")
        assert memory.find("r1") is not None
        memory.evict("a", "r1")
        assert memory.find("r1") is None
        assert memory.latest("a") is None

    @pytest.mark.parametrize("lane", [None, "a"])
    def test_forget_finds_the_lane_by_itself(self, lane: str | None) -> None:
        memory = LatestResponses()
        memory.advance(lane, head("r1"))
        memory.forget("local", "unknown")
        memory.forget("someone else", "r1")
        assert memory.find("r1") is not None
        memory.forget("local", "r1")
        assert memory.find("r1") is memory.latest(lane) is None


class TestSize:
    def test_chains_that_share_links_count_them_once(self) -> None:
        memory = LatestResponses()
        first = head("r1", 1000)
        memory.advance("a", first)
        memory.advance("b", head("r2", 100, after=first))
        memory.advance("c", head("r3", 200, after=first))
        assert memory.size == 1300

    def test_a_turn_of_the_lane_adds_what_is_new(self) -> None:
        memory = LatestResponses()
        first = head("r1", 1000)
        memory.advance("a", first)
        memory.advance("a", head("r2", 100, after=first))
        assert memory.size == 1100

    def test_what_ends_frees_its_bytes_everywhere(self) -> None:
        budget = Budget()
        one, other = LatestResponses(budget), LatestResponses(budget)
        one.advance("a", head("r1", 1000))
        other.advance("a", head("r2", 500, owner="ann"))
        assert (budget.size, budget.held_by("local"), budget.held_by("ann")) == (1500, 1000, 500)
        one.clear()
        assert (one.size, budget.size, budget.held_by("local")) == (0, 500, 0)
        other.clear()
        assert (budget.size, budget.evicted) == (0, 0)

    def test_what_is_passed_on_counts_where_it_is_and_shared_links_stay(self) -> None:
        budget = Budget()
        memory, heir = LatestResponses(budget), Heir(budget)
        first = head("r1", 1000)
        fork = head("r2", 300, after=first)
        memory.advance("a", first)
        memory.advance("b", fork)
        heir.chains["r1"] = memory.pass_on("a", heir, "r1")
        assert (memory.latest("a"), memory.find("r1")) == (None, None)
        assert heir.chains == {"r1": first}
        assert (memory.size, budget.size) == (1300, 1300)
        memory.clear()
        assert (memory.size, budget.size) == (0, 1000)
        heir.forget_lane("r1")
        assert (budget.size, budget.held_by("local")) == (0, 0)

    def test_what_is_passed_on_goes_from_its_heir_when_room_is_needed(self) -> None:
        budget = Budget(total=1000)
        memory, heir = LatestResponses(budget), Heir(budget)
        memory.advance("a", head("r1", 600))
        heir.chains["r1"] = memory.pass_on("a", heir, "r1")
        memory.admit("ann", 700)
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
            memory.advance(lane, head(f"r_{lane}", 300))
        memory.advance("a", head("r_a2", 300))
        memory.admit("local", 200)
        assert memory.find("r_b") is None
        assert memory.find("r_c") is not None
        assert memory.find("r_a2") is not None

    def test_what_a_turn_continues_stays_and_the_turn_is_refused(self) -> None:
        memory = LatestResponses(most=1000)
        parent = head("r1", 900)
        memory.advance("a", parent)
        memory.hold("local", link(300, parent.node))
        with pytest.raises(RateLimited) as refused:
            memory.admit("local")
        assert refused.value.code == "memory_limit_exceeded"
        assert memory.find("r1") is parent

    def test_over_an_owners_bound_only_that_owners_chains_go(self) -> None:
        budget = Budget(owner=1000)
        one, other = LatestResponses(budget), LatestResponses(budget)
        other.advance("x", head("r0", 900, owner="bob"))
        one.advance("a", head("r1", 600, owner="ann"))
        other.advance("b", head("r2", 300, owner="ann"))
        other.admit("ann", 200)
        assert one.find("r1") is None
        assert other.find("r2") is not None
        assert other.find("r0") is not None
        assert budget.evicted == 1

    def test_over_the_bound_of_all_the_oldest_chain_of_anyone_goes(self) -> None:
        budget = Budget(total=1000)
        memory = LatestResponses(budget)
        memory.advance("a", head("r1", 400, owner="bob"))
        memory.advance("b", head("r2", 400, owner="ann"))
        memory.admit("ann", 300)
        assert memory.find("r1") is None
        assert memory.find("r2") is not None

    def test_more_than_the_bound_itself_empties_nothing_that_is_in_use(self) -> None:
        budget = Budget(total=1000)
        memory = LatestResponses(budget)
        memory.advance("a", head("r1", 400))
        memory.hold("local", link(10_000))
        with pytest.raises(RateLimited):
            memory.admit("local")
        assert memory.find("r1") is None


class TestOnAConnection:
    """The rules as a client meets them."""

    def test_a_lane_that_had_to_go_is_not_found_and_the_others_go_on(self) -> None:
        driver = Lockstep(limits=Limits(connection_bytes=3000))
        big = "x" * 1000
        first = driver.create(big, lane="a")
        driver.answer(first)
        second = driver.create(big, lane="b")
        driver.answer(second)
        third = driver.create(big, lane="c")
        driver.answer(third)
        driver.create("more", lane="a", previous_response_id=first)
        assert driver.errors == [("previous_response_not_found", "previous_response_id")]
        fourth = driver.create("more", lane="c", previous_response_id=third)
        driver.answer(fourth)
        assert driver.status(fourth) == ("completed", None)

    def test_input_beyond_the_bound_is_refused_and_the_connection_lives_on(self) -> None:
        driver = Lockstep(limits=Limits(connection_bytes=3000))
        driver.create("x" * 4000)
        assert [code for code, _ in driver.errors] == ["memory_limit_exceeded"]
        turn = driver.create("hi")
        driver.answer(turn)
        assert driver.status(turn) == ("completed", None)
        assert driver.connection.memory.size < 1000

    def test_outputs_beyond_the_bound_leave_the_turn_held(self) -> None:
        driver = Lockstep(limits=Limits(connection_bytes=3000))
        turn = driver.create("go", append=True)
        (call,) = driver.call(turn)
        driver.append(output(call, "x" * 4000))
        assert [code for code, _ in driver.errors] == ["memory_limit_exceeded"]
        driver.append(output(call, "short"))
        driver.answer(turn)
        assert driver.status(turn) == ("completed", None)

    def test_whatever_happened_a_connection_that_is_gone_holds_nothing(self) -> None:
        driver = Lockstep()
        driver.answer(driver.create("one", lane="a"))
        driver.create("two", lane="b")
        driver.drop()
        driver.connection.memory.clear()
        assert driver.connection.memory.size == 0
