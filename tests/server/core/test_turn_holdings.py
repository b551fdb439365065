"""What a running turn holds outside of itself."""

from tieline.items import Message, encode
from tieline_server.core.effects import Discard, Effect, Keep
from tieline_server.core.history import ChainHead, ChainNode
from tieline_server.core.holdings import LatestResponses
from tieline_server.core.limits import Share
from tieline_server.core.turn_holdings import TurnHoldings


class Connection:
    """What a turn's standing needs of its line."""

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.memory = LatestResponses()
        self.queued = Share()


WORD = encode(Message(role="user", content="w"))
SIZE = len(WORD.raw)


def link(parent: ChainNode | None = None, words: int = 1) -> ChainNode:
    return ChainNode(parent, (WORD,) * words, turn=1)


def test_only_the_last_place_of_a_turn_counts() -> None:
    line = Connection()
    standing = TurnHoldings(line, "r1", "ann")
    first = standing.move(link())
    standing.move(link(first, 2))
    assert line.memory.size == 3 * SIZE
    standing.leave()
    standing.leave()
    assert line.memory.size == 0


def test_what_a_turn_held_its_lane_holds_at_the_end() -> None:
    line = Connection()
    standing = TurnHoldings(line, "r1", "ann")
    tip = ChainHead("r1", standing.move(link()), owner="ann", settings=None)
    standing.rest("a", tip)
    standing.leave()
    assert line.memory.size == SIZE
    assert line.memory.latest("a") is tip
    line.memory.clear()
    assert line.memory.size == 0


def test_a_lane_may_rest_on_another_chain_than_the_turn_held() -> None:
    line = Connection()
    standing = TurnHoldings(line, "r1", "ann")
    standing.move(link())
    standing.rest("a", ChainHead("r1", link(words=4), owner="ann", settings=None))
    standing.leave()
    assert line.memory.size == 4 * SIZE


def test_items_are_handed_over_once_and_in_order() -> None:
    line = Connection()
    standing = TurnHoldings(line, "r1", "ann")
    parent = link()
    said = [encode(Message(role="user", content=each)) for each in "abc"]
    standing.keep([], after=parent)
    assert (line.effects, standing.kept) == ([], False)
    standing.keep(said[:1], after=parent)
    standing.keep_output(said[1:2], after=parent)
    standing.keep_output(said[1:2], after=parent)
    standing.keep_output(said[1:3], after=parent)
    assert line.effects == [Keep("r1", "ann", parent, (each,)) for each in said]
    standing.linked()
    standing.keep_output(said[:1], after=parent)
    assert line.effects[-1] == Keep("r1", "ann", parent, (said[0],))


def test_what_was_handed_over_is_taken_back_once() -> None:
    line = Connection()
    standing = TurnHoldings(line, "r1", "ann")
    standing.discard()
    assert line.effects == []
    standing.keep([WORD], after=None)
    standing.discard()
    standing.discard()
    assert line.effects[1:] == [Discard("r1", "ann")]
