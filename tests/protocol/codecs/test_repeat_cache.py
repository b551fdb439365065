"""What a connection remembers of each lane."""

from tieline.codecs.repeat_cache import MAX_LANES, RepeatCache


def test_only_an_equal_saying_is_recalled() -> None:
    memory = RepeatCache[int]()
    memory.keep("a", "tools", b"x", 1)
    assert memory.recall("a", "tools", b"x") == 1
    assert memory.recall("a", "tools", b"y") is None
    assert memory.recall("a", "text", b"x") is None


def test_a_lane_keeps_its_own_beside_others() -> None:
    memory = RepeatCache[int]()
    memory.keep("a", "tools", b"x", 1)
    memory.keep("b", "tools", b"y", 2)
    assert memory.recall("a", "tools", b"x") == 1
    assert memory.recall("b", "tools", b"y") == 2


def test_a_new_lane_shares_the_latest_and_then_owns_it() -> None:
    memory = RepeatCache[int]()
    memory.keep("a", "tools", b"x", 1)
    assert memory.recall("b", "tools", b"x") == 1
    memory.keep("a", "tools", b"y", 2)
    assert memory.recall("b", "tools", b"x") == 1


def test_a_flood_of_lane_names_is_bounded() -> None:
    memory = RepeatCache[int]()
    for number in range(10 * MAX_LANES):
        memory.keep(number, "tools", number, number)
    kept = [n for n in range(10 * MAX_LANES) if memory.recall(n, "tools", n) is not None]
    assert 0 < len(kept) <= MAX_LANES
