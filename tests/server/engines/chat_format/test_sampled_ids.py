"""The very ids that an answer was sampled as."""

from typing import Any

from tests.support.engine_contract import link
from tieline_server.core.deltas import (
    CallDelta,
    CallStart,
    Delta,
    ItemEnd,
    ReasoningDelta,
    TextDelta,
)
from tieline_server.core.history.chain import ChainNode
from tieline_server.engines.chat_format.sampled_ids import KEPT, SampledIds

MEMORY = SampledIds()


def said(*steps: tuple[list[int] | None, list[Delta]]) -> ChainNode:
    """A link from which these ids were sampled, with the deltas that they completed."""
    tip = link("hi")
    sampled = MEMORY.begin(tip)
    for ids, deltas in steps:
        sampled.add(ids, deltas)
    return tip


def ids_of(tip: ChainNode, *items: Any) -> list[int] | None:
    found = MEMORY.find(link(list(items), tip, output=True))
    return None if found is None else list(found[1])


def message(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content}


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "c", "name": name, "arguments": arguments}


def test_what_was_said_whole_has_all_its_ids_with_the_one_that_ended_it() -> None:
    tip = said(([5], [TextDelta("a")]), ([6, 7], [TextDelta("é")]), ([2], []))
    assert ids_of(tip, message("aé")) == [5, 6, 7, 2]
    assert ids_of(tip, {"role": "assistant", "content": "aé"}) == [5, 6, 7, 2]


def test_tp_05_what_asked_for_an_answer_is_remembered_with_it() -> None:
    """TP-05: it differs by the effort."""
    tip = link("hi")
    for opening, word in (([1, 2], "a"), ([3], "b")):
        MEMORY.begin(tip, opening).add([9], [TextDelta(word)])
    for opening, word in (([1, 2], "a"), ([3], "b")):
        found = MEMORY.find(link([message(word)], tip, output=True))
        assert found is not None
        assert list(found[0].opening) == opening


def test_tp_04_what_is_around_text_is_told_from_it() -> None:
    """TP-04: a template that renders chats whole writes it itself."""
    steps: list[tuple[list[int] | None, list[Delta]]] = [
        ([7], []),
        ([5], [TextDelta("a")]),
        ([6], [TextDelta("b")]),
        ([2, 3], []),
    ]
    found = MEMORY.find(link([message("ab")], said(*steps), output=True))
    assert found is not None
    sampled, ids = found
    assert (list(ids), list(sampled.spoken(ids))) == ([7, 5, 6, 2, 3], [5, 6])


def test_a_message_that_was_cut_has_the_ids_up_to_there() -> None:
    tip = said(([5], [TextDelta("ab")]), ([6], [TextDelta("cd")]), ([2], []))
    assert ids_of(tip, message("ab")) == [5]
    assert ids_of(tip, message("abc")) is None
    assert ids_of(tip, message("abcde")) is None


def test_a_call_that_was_cut_is_left_out_with_its_ids() -> None:
    steps: list[tuple[list[int] | None, list[Delta]]] = [
        ([5], [TextDelta("ab")]),
        ([6], []),
        ([7], [CallStart(kind="function_call", name="f"), CallDelta("{")]),
    ]
    assert ids_of(said(*steps), message("ab")) == [5]
    assert ids_of(said(*steps), message("ab"), call("f", "{")) == [5, 6, 7]
    assert ids_of(said(*steps), message("ab"), call("g", "{")) is None


def test_several_items_of_one_kind_are_told_apart() -> None:
    tip = said(
        ([5], [TextDelta("a")]),
        ([6], [ReasoningDelta("hm"), TextDelta("b"), ItemEnd(), TextDelta("c")]),
    )
    assert ids_of(tip, message("a"), message("b"), message("c")) == [5, 6]
    assert ids_of(tip, message("ab"), message("c")) is None


def test_ids_that_nobody_knows_end_the_record() -> None:
    tip = said(([5], [TextDelta("a")]), (None, [TextDelta("b")]), ([7], [TextDelta("c")]))
    assert ids_of(tip, message("abc")) is None
    assert ids_of(tip, message("a")) == [5]


def test_what_is_no_answer_has_no_ids() -> None:
    tip = said(([5], [TextDelta("a")]))
    assert ids_of(tip, {"role": "user", "content": "a"}) is None
    assert ids_of(tip, message("a"), {"role": "user", "content": "b"}) is None
    assert MEMORY.find(link([message("a")])) is None
    assert ids_of(link("hi"), message("a")) is None


def test_of_several_answers_to_the_same_each_is_found_and_the_oldest_are_forgotten() -> None:
    tip = link("hi")
    for at in range(KEPT + 1):
        MEMORY.begin(tip).add([at], [TextDelta(f"answer {at}")])
    assert ids_of(tip, message("answer 0")) is None
    for at in range(1, KEPT + 1):
        assert ids_of(tip, message(f"answer {at}")) == [at]
