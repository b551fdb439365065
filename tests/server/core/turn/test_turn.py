"""What a turn holds, and its response as clients see it at one moment."""

import pytest

from tests.support.core import TEN, Lockstep
from tieline.errors import ApiError
from tieline.items import Message, encode
from tieline_server.core.deltas import Finish, TextDelta
from tieline_server.core.effects import Discard, Keep
from tieline_server.core.history.chain import ChainHead, ChainNode
from tieline_server.core.turn.turn import TurnHoldings


def test_while_it_runs_it_has_no_usage_and_no_end() -> None:
    driver = Lockstep()
    turn = driver.create("hi", temperature=0.5)
    driver.say(turn, TEN, TextDelta("a"))
    seen = driver.turns[turn].snapshot("in_progress")
    assert (seen.id, seen.status, seen.temperature) == (turn, "in_progress", 0.5)
    assert (seen.usage, seen.completed_at, seen.error, seen.incomplete_details) == (None,) * 4


def test_it_names_what_it_continues_also_where_the_create_did_not() -> None:
    driver = Lockstep()
    first = driver.create("hi")
    driver.answer(first)
    second = driver.append({"role": "user", "content": "more"})
    driver.answer(second)
    assert driver.turns[second].snapshot("completed").previous_response_id == first


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed", "cancelled"])
def test_reason_and_error_belong_to_their_own_status(status: str) -> None:
    driver = Lockstep()
    turn = driver.turns[driver.create("hi")]
    turn.reason, turn.failure = "deadline", ApiError.of("server_error", "no")
    seen = turn.snapshot(status)
    assert (seen.incomplete_details is not None) == (status == "incomplete")
    assert (seen.error is not None) == (status == "failed")
    assert seen.usage is not None


def test_a_snapshot_does_not_change_with_its_turn() -> None:
    driver = Lockstep()
    turn = driver.create("hi")
    driver.say(turn, TEN, TextDelta("a"))
    before = driver.turns[turn].snapshot("in_progress")
    driver.say(turn, Finish())
    assert before.output == []
    assert len(driver.turns[turn].snapshot("completed").output) == 1


WORD = encode(Message(role="user", content="w"))
SIZE = len(WORD.raw)


def link(parent: ChainNode | None = None, words: int = 1) -> ChainNode:
    return ChainNode(parent, (WORD,) * words, turn=1)


def test_only_the_last_place_of_a_turn_counts() -> None:
    driver = Lockstep().connection
    holdings = TurnHoldings(driver, "r1", "ann")
    first = holdings.move(link())
    holdings.move(link(first, 2))
    assert driver.memory.size == 3 * SIZE
    holdings.leave()
    holdings.leave()
    assert driver.memory.size == 0


def test_what_a_turn_held_its_lane_holds_at_the_end() -> None:
    driver = Lockstep().connection
    holdings = TurnHoldings(driver, "r1", "ann")
    tip = ChainHead("r1", holdings.move(link()), owner="ann", settings=None)
    holdings.rest("a", tip)
    holdings.leave()
    assert driver.memory.size == SIZE
    assert driver.memory.latest("a") is tip
    driver.memory.clear()
    assert driver.memory.size == 0


def test_a_lane_may_rest_on_another_chain_than_the_turn_held() -> None:
    driver = Lockstep().connection
    holdings = TurnHoldings(driver, "r1", "ann")
    holdings.move(link())
    holdings.rest("a", ChainHead("r1", link(words=4), owner="ann", settings=None))
    holdings.leave()
    assert driver.memory.size == 4 * SIZE


def test_items_are_handed_over_once_and_in_order() -> None:
    driver = Lockstep().connection
    holdings = TurnHoldings(driver, "r1", "ann")
    parent = link()
    said = [encode(Message(role="user", content=each)) for each in "abc"]
    holdings.keep([], after=parent)
    assert (driver.effects, holdings.kept) == ([], False)
    holdings.keep(said[:1], after=parent)
    holdings.keep_output(said[1:2], after=parent)
    holdings.keep_output(said[1:2], after=parent)
    holdings.keep_output(said[1:3], after=parent)
    assert driver.effects == [Keep("r1", "ann", parent, (each,)) for each in said]
    holdings.linked()
    holdings.keep_output(said[:1], after=parent)
    assert driver.effects[-1] == Keep("r1", "ann", parent, (said[0],))


def test_what_was_handed_over_is_taken_back_once() -> None:
    driver = Lockstep().connection
    holdings = TurnHoldings(driver, "r1", "ann")
    holdings.discard()
    assert driver.effects == []
    holdings.keep([WORD], after=None)
    holdings.discard()
    holdings.discard()
    assert driver.effects[1:] == [Discard("r1", "ann")]
