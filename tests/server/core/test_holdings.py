"""How many bytes of history something holds: checked against a walk of all that is held."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tieline.items import Compaction, Item, Message, Opened, encode
from tieline_server.core.history import ChainNode
from tieline_server.core.holdings import Holdings


def link(parent: ChainNode | None, words: int) -> ChainNode:
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
        links.append(link(links[parent % len(links)] if links and parent else None, words))
    holdings, held = Holdings(), list[ChainNode]()
    for deed, which in deeds:
        if deed == "hold" or not held:
            held.append(links[which % len(links)])
            holdings.hold(held[-1])
        elif deed == "grow":
            longer = link(held[which % len(held)], which % 4)
            held[which % len(held)] = longer
            holdings.grow(longer)
        else:
            holdings.release(held.pop(which % len(held)))
        every = {each for tip in held for each in tip.path()}
        assert holdings.size == sum(each.size for each in every)
        assert holdings.empty is not bool(held)
        for tip in held:
            followed = any(each.parent is tip for each in every)
            assert holdings.alone(tip) is (held.count(tip) == 1 and not followed)


def test_a_chain_that_is_opened_while_it_is_held_leaves_nothing_behind() -> None:
    """A store holds what it has read before a turn opens it (sealed items)."""
    sealed = encode(Compaction(id="cmp_1", encrypted_content="sealed"))
    tip = ChainNode(None, (sealed,), turn=1)

    def opened(item: Item) -> Item:
        inside = encode(Message(role="user", content="a word that was sealed"))
        return replace(item, opened=Opened(items=(inside,)))

    holdings = Holdings()
    holdings.hold(tip)
    tip.reveal(opened)
    assert tip.size > len(sealed.raw)
    holdings.release(tip)
    assert (holdings.size, holdings.empty) == (0, True)
