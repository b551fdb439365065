"""How many bytes of history all lines may keep: the bounds, and who goes first."""

from tieline.items import Message, encode
from tieline_server.core.budget import Budget, Place
from tieline_server.core.history import ChainNode


class Connections:
    """Stands for the lines: lets a lane's chain go when it is told to."""

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


def link(size: int) -> ChainNode:
    empty = len(encode(Message(role="user", content="")).raw)
    return ChainNode(None, (encode(Message(role="user", content="x" * (size - empty))),), turn=1)


def test_within_the_bounds_nothing_goes() -> None:
    lines = Connections(Budget(owner=1000, total=1000))
    lines.rest("a", "ann", 600)
    assert lines.budget.make_room("ann", 400)
    assert lines.gone == []


def test_as_many_go_as_must() -> None:
    lines = Connections(Budget(owner=1000))
    for lane in ("a", "b", "c", "d"):
        lines.rest(lane, "ann", 250)
    assert lines.budget.make_room("ann", 300)
    assert lines.gone == ["a", "b"]
    assert (lines.budget.size, lines.budget.evicted) == (500, 2)


def test_one_owner_never_pushes_out_another_by_its_own_bound() -> None:
    lines = Connections(Budget(owner=1000))
    lines.rest("b", "bob", 900)
    lines.rest("a", "ann", 900)
    assert not lines.budget.make_room("ann", 2000)
    assert lines.gone == ["a"]


def test_the_bound_of_all_takes_the_oldest_first_whoever_asks() -> None:
    lines = Connections(Budget(total=1000))
    lines.rest("b", "bob", 400)
    lines.rest("a", "ann", 400)
    assert lines.budget.make_room("ann", 300)
    assert lines.gone == ["b"]


def test_a_chain_that_something_else_holds_is_passed_over() -> None:
    lines = Connections(Budget(owner=1000))
    lines.rest("a", "ann", 500)
    lines.rest("b", "ann", 400)
    lines.budget.hold("ann", lines.chains["a"][1])
    assert lines.budget.make_room("ann", 400)
    assert lines.gone == ["b"]
    assert not lines.budget.make_room("ann", 600)


def test_a_chain_that_moves_to_another_lane_is_the_last_to_go_from_there() -> None:
    lines = Connections(Budget(owner=1000))
    for lane in ("a", "b"):
        lines.rest(lane, "ann", 500)
    lines.budget.move(lines.place("a"), lines.place("c"))
    lines.chains["c"] = lines.chains.pop("a")
    assert lines.budget.make_room("ann", 500)
    assert lines.gone == ["b"]
    assert lines.budget.make_room("ann", 1000)
    assert lines.gone == ["b", "c"]


def test_an_owner_without_chains_leaves_nothing_behind() -> None:
    budget = Budget()
    chain = link(100)
    budget.hold("ann", chain)
    budget.release("ann", chain)
    assert (budget.size, budget.held_by("ann"), budget._owners) == (0, 0, {})
