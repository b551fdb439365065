"""Chains of segments: forks, ids, open calls, values computed once, memory."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieline.items import Item, Opened, decode
from tieline_server.core.history.chain import ChainNode


def message(item_id: str, text: str = "hi") -> Item:
    return decode(msgspec.json.encode({"id": item_id, "role": "user", "content": text}))


def call(call_id: str) -> Item:
    body = {"type": "function_call", "id": "fc" + call_id, "call_id": call_id, "name": "f"}
    return decode(msgspec.json.encode(body))


def output(call_id: str) -> Item:
    body = {"type": "function_call_output", "call_id": call_id, "output": "x"}
    return decode(msgspec.json.encode(body))


def folded(item_id: str, *some: Item, whole: bool = True) -> Item:
    """A compaction item that is open."""
    return opened(closed(item_id), *some, whole=whole)


def closed(item_id: str) -> Item:
    body = {"type": "compaction", "id": item_id, "encrypted_content": "sealed"}
    return decode(msgspec.json.encode(body))


def opened(item: Item, *some: Item, whole: bool = True) -> Item:
    return msgspec.structs.replace(item, opened=Opened(items=some, whole=whole))


def link(parent: ChainNode | None, *items: Item) -> ChainNode:
    return ChainNode(parent, items, turn=parent.turn + 1 if parent else 1)


class TestChainNode:
    def test_a_link_knows_its_depth_its_turn_and_its_bytes(self) -> None:
        first = link(None, message("a"), message("b"))
        second = link(first, message("c"))
        assert (first.depth, second.depth) == (1, 2)
        assert second.turn == 2
        assert first.size == len(message("a").raw) * 2

    def test_path_and_items_run_from_the_first_link_to_this_one(self) -> None:
        first = link(None, message("a"))
        second = link(first, message("b"), message("c"))
        assert list(second.path()) == [first, second]
        assert [item.id for item in second.items_of_chain()] == ["a", "b", "c"]

    def test_an_unforked_run_has_one_index_and_a_fork_begins_its_own(self) -> None:
        """So that looking up an id costs nothing more on a long chain."""
        first = link(None, message("a"))
        second = link(first, message("b"))
        third = link(second, message("c"))
        fork = link(first, message("d"))
        assert first.branch is second.branch is third.branch
        assert fork.branch is not first.branch
        assert link(fork, message("e")).branch is fork.branch

    def test_a_link_aside_leaves_the_branch_to_what_really_follows(self) -> None:
        first = link(None, message("a"))
        aside = first.aside(output("1"))
        second = link(first, message("b"))
        assert aside.parent is first
        assert second.branch is first.branch
        assert second.find("a") is not None
        late = first.aside(output("2"))
        assert late.branch is not first.branch
        assert link(second, message("c")).branch is first.branch

    def test_find_sees_the_chain_and_nothing_beside_it(self) -> None:
        root = link(None, message("a"))
        left = link(root, message("b"))
        right = link(root, message("c"))
        assert left.find("a") is root.items[0]
        assert left.find("b") is left.items[0]
        assert left.find("c") is None
        assert right.find("b") is None
        assert root.find("b") is None, "what came after is not in the chain"

    def test_an_id_may_be_in_two_forks_as_two_items(self) -> None:
        root = link(None, message("a"))
        left, right = link(root, message("x", "left")), link(root, message("x", "right"))
        assert left.find("x") is left.items[0]
        assert right.find("x") is right.items[0]

    def test_open_calls_are_those_without_an_output_in_the_chain(self) -> None:
        asked = link(None, call("1"), call("2"))
        assert list(asked.open_calls) == ["1", "2"]
        half = link(asked, output("1"))
        assert list(half.open_calls) == ["2"]
        assert half.answered("1")
        assert not half.answered("2")
        assert not asked.answered("1")
        assert list(asked.open_calls) == ["1", "2"], "a link never changes"

    def test_a_fork_answers_a_call_for_itself_alone(self) -> None:
        asked = link(None, call("1"))
        answered, fork = link(asked, output("1")), link(asked, message("m"))
        assert answered.answered("1")
        assert not fork.answered("1")
        assert list(fork.open_calls) == ["1"]

    def test_a_call_id_is_not_mistaken_for_an_item_id(self) -> None:
        chain = link(link(None, call("1")), output("1"))
        assert chain.find("1") is None
        assert not link(None, message("1")).answered("1")

    def test_links_without_calls_share_one_mapping(self) -> None:
        asked = link(None, call("1"))
        assert link(asked, message("m")).open_calls is asked.open_calls


class TestShown:
    def test_a_link_without_seals_is_shown_as_it_is(self) -> None:
        head = link(link(None, message("a")), message("b"))
        assert head.shown is head.items
        assert [item.id for item in head.context()] == ["a", "b"]
        assert (head.restarts, head.closed, head.base) == (False, False, head.parent)

    def test_one_that_stands_for_all_before_it_begins_the_context(self) -> None:
        first = link(None, message("a"))
        second = link(first, message("b"), folded("cmp", message("c")), message("d"))
        head = link(second, message("e"))
        assert [item.id for item in head.context()] == ["c", "d", "e"]
        assert [item.id for item in head.items_of_chain()] == ["a", "b", "cmp", "d", "e"]
        assert second.base is None
        assert head.find("a") is not None, "an id of the chain stays taken"

    def test_values_are_derived_of_what_is_shown_from_there_on(self) -> None:
        def count(before: int, link: ChainNode) -> int:
            return before + len(link.shown)

        first = link(None, message("a"))
        assert first.derive("n", 0, count) == 1
        head = link(link(first, folded("cmp", message("b"), message("c"))), message("d"))
        assert head.derive("n", 0, count) == 3

    def test_folded_calls_wait_for_their_outputs_and_folded_outputs_count(self) -> None:
        head = link(
            link(None, call("0")), folded("cmp", call("1"), output("1"), call("2"), whole=True)
        )
        assert set(head.open_calls) == {"2"}
        assert head.answered("1")
        assert not link(head, output("2")).open_calls

    def test_its_size_is_that_of_what_is_kept_and_of_what_is_open(self) -> None:
        item = folded("cmp", message("a"))
        assert link(None, item).size == len(item.raw) + len(message("a").raw)


class TestReveal:
    def test_what_a_store_gives_back_is_opened_once_from_the_first_link_on(self) -> None:
        asked: list[str | None] = []

        def open_(item: Item) -> Item:
            asked.append(item.id)
            if item.sealed is None:
                return item
            return opened(item, call(item.id or ""), whole=item.id == "c2")

        first = link(None, message("a"))
        second = link(first, closed("c1"))
        third = link(second, message("b"))
        head = link(third, closed("c2"), output("c2"))
        assert (first.closed, second.closed, third.closed, head.closed) == (False, True, True, True)
        head.reveal(open_)
        head.reveal(open_)
        assert asked == ["c1", "b", "c2", None]
        assert set(third.open_calls) == {"c1"}
        assert not head.open_calls
        assert [item.id for item in head.context()] == ["fcc2", None]
        assert not head.closed

    def test_one_that_cannot_be_opened_stays_closed_and_is_tried_again(self) -> None:
        def broken(item: Item) -> Item:
            raise LookupError

        head = link(link(None, closed("c1")), message("b"))
        with pytest.raises(LookupError):
            head.reveal(broken)
        assert head.closed
        head.reveal(lambda item: opened(item, message("x")) if item.sealed else item)
        assert [item.id for item in head.context()] == ["x", "b"]


class TestDerive:
    def test_each_link_is_computed_once_whoever_asks(self) -> None:
        steps: list[ChainNode] = []

        def step(total: int, each: ChainNode) -> int:
            steps.append(each)
            return total + each.size

        root = link(None, message("a"))
        left, right = link(root, message("b")), link(root, message("c"), message("d"))
        assert left.derive("size", 0, step) == root.size + left.size
        assert right.derive("size", 0, step) == root.size + right.size
        assert left.derive("size", 0, step) == root.size + left.size
        assert steps == [root, left, right]

    def test_a_turn_pays_for_its_new_links_only(self) -> None:
        counted = 0

        def step(total: int, each: ChainNode) -> int:
            nonlocal counted
            counted += 1
            return total + 1

        head = link(None, message("0"))
        for number in range(1, 200):
            head = link(head, message(str(number)))
            before = counted
            assert head.derive("depth", 0, step) == head.depth
            assert counted - before == (2 if number == 1 else 1)

    def test_keys_do_not_meet(self) -> None:
        chain = link(None, message("a"))
        assert chain.derive("one", 0, lambda value, _: value + 1) == 1
        assert chain.derive("two", 10, lambda value, _: value + 1) == 11


def test_a_chain_of_5000_links_works_and_dies_without_recursion() -> None:
    head = link(None, call("0"))
    for number in range(1, 5000):
        head = link(head, message(str(number)))
    assert head.find("fc0") is not None
    assert head.derive("depth", 0, lambda value, _: value + 1) == 5000
    assert sum(1 for _ in head.items_of_chain()) == 5000
    del head
    gc.collect()


def test_5000_forks_of_forks_find_their_root() -> None:
    head = link(None, message("root"))
    for number in range(5000):
        link(head, message(f"left-{number}"))
        head = link(head, message(f"right-{number}"))
    assert head.find("root") is not None
    assert head.find("right-0") is not None
    assert head.find("left-4999") is None


class Naive:
    """The model: a chain is a list of items, copied at each link."""

    def __init__(self, items: list[Item]) -> None:
        self.items = items

    def find(self, item_id: str) -> Item | None:
        return next((item for item in self.items if item.id == item_id), None)

    def answered(self, call_id: str) -> bool:
        return any(item.answers == call_id for item in self.items)

    def open_calls(self) -> list[str]:
        opened = [item.opens for item in self.items if item.opens]
        return [call_id for call_id in opened if not self.answered(call_id)]


KEYS = [str(number) for number in range(4)]


def _allowed(chain: Naive, wanted: list[tuple[str, str]]) -> Iterator[Item]:
    """The wanted items that may follow: an id once, an output after its call."""
    made: dict[str, Callable[[str], Item]] = {"message": message, "call": call, "output": output}
    grown = Naive(list(chain.items))
    for kind, key in wanted:
        item = made[kind](key)
        known = grown.find(item.id) if item.id else None
        unasked = item.answers and item.answers not in grown.open_calls()
        if known is None and not unasked:
            grown.items.append(item)
            yield item


_items = st.lists(
    st.tuples(st.sampled_from(["message", "call", "output"]), st.sampled_from(KEYS)), max_size=3
)


@given(st.lists(st.tuples(st.integers(0, 50), _items), min_size=1, max_size=30))
def test_forks_of_forks_answer_like_a_copy(plan: list[tuple[int, list[tuple[str, str]]]]) -> None:
    """Whatever is forked from wherever, each chain knows exactly its own items."""
    chains: list[tuple[ChainNode | None, Naive]] = [(None, Naive([]))]
    for where, wanted in plan:
        parent, model = chains[where % len(chains)]
        new = tuple(_allowed(model, wanted))
        chains.append((link(parent, *new), Naive([*model.items, *new])))
    for segment, model in chains[1:]:
        assert segment is not None
        assert list(segment.items_of_chain()) == model.items
        assert list(segment.open_calls) == model.open_calls()
        for key in KEYS:
            assert segment.find(key) is model.find(key)
            assert segment.find("fc" + key) is model.find("fc" + key)
            assert segment.answered(key) == model.answered(key)


def test_an_item_id_never_passes_for_the_output_of_a_call() -> None:
    head = ChainNode(None, (decode(b'{"role":"user","id":"\\u0000c1"}'),), turn=1)
    assert head.find("\0c1") is not None
    assert not head.answered("c1")


RUN = ((171, 60, 264), (171, 300, 2000), (80, 5, 20), (400, 1500, 90), (171, 60, 8000))
"""Characters of what an agent says, of a call's arguments, of the call's output, turn by turn."""


def test_a_chain_takes_no_more_than_two_and_a_half_times_its_json() -> None:
    """Counted over 500 turns of an agent's real sizes."""
    given = [_turn(number, *RUN[number % len(RUN)]) for number in range(500)]
    size = sum(len(raw) for turn in given for raw in turn)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        head: ChainNode | None = None
        for number, raws in enumerate(given, 1):
            for raw in raws:
                # A copy, as a connection makes of what it receives.
                head = ChainNode(head, (decode(bytes(bytearray(raw))),), turn=number)
            assert head is not None
            head.derive("facts", 0, lambda total, link: total + link.size)
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert size < used <= 2.5 * size


def _turn(number: int, says: int, arguments: int, output: int) -> list[bytes]:
    call_id = f"call_{number:032x}"
    message: dict[str, Any] = {
        "id": f"msg_{number:048x}",
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "w" * says, "annotations": []}],
    }
    call = {
        "id": f"fc_{number:048x}",
        "type": "function_call",
        "status": "completed",
        "call_id": call_id,
        "name": "shell",
        "arguments": "a" * arguments,
    }
    done = {"type": "function_call_output", "call_id": call_id, "output": "o" * output}
    return [msgspec.json.encode(each) for each in (message, call, done)]
