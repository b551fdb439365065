"""Chains in memory: shared links count once, and the bounds hold."""

from tests.support.store_contract import saved
from tieline_server.core.history import Saved
from tieline_server.storage.sql.recent import Chain, RecentChains


def chain(record: Saved) -> Chain:
    return Chain(record.tip.segment, record.input_from)


def size(record: Saved) -> int:
    return sum(len(item.raw) for item in record.tip.segment.items_of_chain())


def test_past_the_count_the_chain_that_was_not_used_for_longest_goes() -> None:
    recent = RecentChains(most=2)
    for number in range(2):
        recent.add(number, chain(saved(f"resp_{number}")))
    assert recent.find(0) is not None
    recent.add(2, chain(saved("resp_2")))
    assert [recent.find(number) is not None for number in range(3)] == [True, False, True]


def test_past_the_bytes_chains_go_and_one_that_is_too_big_is_not_held_at_all() -> None:
    small = saved("resp_small")
    recent = RecentChains(max_bytes=2 * size(small))
    for number in range(3):
        recent.add(number, chain(saved("resp_small")))
    assert len(recent) == 2
    recent.add(3, chain(saved("resp_big", text="x" * 10_000)))
    assert len(recent) == 0
    assert recent.size == 0


def test_a_node_that_is_added_again_counts_once_and_one_that_is_unknown_is_not_there() -> None:
    record = saved("resp_1")
    recent = RecentChains()
    for _ in range(3):
        recent.add(1, chain(record))
    assert recent.size == size(record)
    assert recent.find(2) is None
    recent.drop(2)
    recent.drop(1)
    assert recent.size == 0
