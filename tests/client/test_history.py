"""What a turn sends of a conversation."""

import json
from typing import Any

import pytest
from msgspec import Raw

from tieline_client._history import History, Plan


def item(text: str, **members: Any) -> Raw:
    said = {"type": "message", "role": "user", "content": text, **members}
    return Raw(json.dumps(said).encode())


def call(call_id: str, status: str = "completed") -> Raw:
    said = {"type": "function_call", "id": f"fc_{call_id}", "call_id": call_id, "status": status}
    return Raw(json.dumps(said).encode())


def words(plan: Plan) -> list[str]:
    return [each.get("content", each["type"]) for each in json.loads(bytes(plan.input))]


def after(*turns: tuple[str, str], root: str | None = None) -> History:
    history = History(root)
    for number, (asked, answered) in enumerate(turns, 1):
        history.rest(f"r{number}", [item(asked)], [item(answered, role="assistant", id="m")])
    return history


def test_the_first_turn_is_the_whole_conversation() -> None:
    plan = History().plan([item("a")], remembered=True)
    assert (words(plan), plan.previous_response_id, plan.whole) == (["a"], None, True)


def test_what_comes_after_the_latest_response_is_sent_with_its_id() -> None:
    plan = after(("a", "1"), ("b", "2")).plan([item("c")], remembered=True)
    assert (words(plan), plan.previous_response_id, plan.whole) == (["c"], "r2", False)


@pytest.mark.parametrize("why", ["another line", "forgotten", "edited", "shortened", "inserted"])
def test_everything_is_sent_where_the_id_is_worth_nothing(why: str) -> None:
    history = after(("a", "1"))
    if why == "forgotten":
        history.forget()
    elif why == "edited":
        history.items[0] = item("A")
    elif why == "shortened":
        del history.items[1]
    elif why == "inserted":
        history.items.insert(0, item("0"))
    plan = history.plan([item("b")], remembered=why != "another line")
    assert (plan.previous_response_id, plan.whole) == (None, True)
    expected = {"edited": ["A", "1"], "shortened": ["a"], "inserted": ["0", "a", "1"]}
    assert words(plan) == [*expected.get(why, ["a", "1"]), "b"]


def test_an_item_that_was_added_at_the_end_is_new() -> None:
    history = after(("a", "1"))
    history.items.append(item("b"))
    plan = history.plan([item("c")], remembered=True)
    assert (words(plan), plan.previous_response_id) == (["b", "c"], "r1")


def test_an_edit_that_changes_nothing_costs_nothing() -> None:
    history = after(("a", "1"))
    history.items[0] = item("a")
    assert history.plan([], remembered=True).previous_response_id == "r1"


def test_after_a_root_everything_is_what_came_after_it() -> None:
    history = after(("a", "1"), root="r0")
    plan = history.whole([item("b")])
    assert (words(plan), plan.previous_response_id, plan.whole) == (["a", "1", "b"], "r0", True)
    first = History("r0").plan([item("a")], remembered=True)
    assert (first.previous_response_id, first.whole) == ("r0", True)


def test_a_restart_knows_nothing_but_its_response() -> None:
    history = after(("a", "1"))
    history.restart("r9")
    plan = history.plan([item("b")], remembered=True)
    assert (words(plan), plan.previous_response_id, plan.whole) == (["b"], "r9", True)


def test_calls_of_a_cut_response_count_only_when_they_are_whole() -> None:
    """wire.md 4.4.4: an unfinished call is not in the chain, partial text is."""
    history = History()
    partial = item("par", role="assistant", status="incomplete")
    history.rest("r1", [item("a")], [partial, call("c1"), call("c2", "in_progress")])
    assert words(history.whole([])) == ["a", "par", "function_call"]


def test_sc_16_an_incomplete_call_of_one_that_was_not_cut_counts() -> None:
    """A value in it has reached a bound of the server's: it is in the chain, to be answered."""
    history = History()
    history.rest("r1", [item("a")], [call("c1", "incomplete")], cut=False)
    assert words(history.whole([])) == ["a", "function_call"]


def test_ids_and_bare_reasoning_stay_with_the_server_that_made_them() -> None:
    reasoning = {"type": "reasoning", "id": "rs", "summary": []}
    sealed = {**reasoning, "encrypted_content": "x"}
    history = History()
    output = [Raw(json.dumps(each).encode()) for each in (reasoning, sealed)]
    history.rest("r1", [], [*output, call("c1")])
    reference = Raw(b'{"type":"item_reference","id":"m"}')
    sent = json.loads(bytes(history.whole([reference]).input))
    assert [each["type"] for each in sent] == ["reasoning", "function_call", "item_reference"]
    assert [each.get("id") for each in sent] == [None, None, "m"]
