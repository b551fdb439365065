"""What a turn opens before it runs: its input, and what a store gives back sealed."""

import msgspec
import pytest
from msgspec.structs import replace

from tests.support.core import LOCAL, SEALER, Lockstep, output, user, word
from tieline.items import Item, Opened, decode
from tieline.responses import Response
from tieline_server.core.history import sealed
from tieline_server.core.history.chain import ChainHead, ChainNode, Saved
from tieline_server.core.values import Principal

INCLUDE = ["reasoning.encrypted_content"]


def item(members: object) -> Item:
    return decode(msgspec.json.encode(members))


def folded(*some: object, whole: bool = True, owner: str = "local") -> Item:
    """A compaction item as a client has it."""
    opened = Opened(items=tuple(map(item, some)), whole=whole)
    made = sealed.history(opened, lambda content: SEALER.seal(owner, content), item_id="cmp_1")
    return replace(made, opened=None)


def thought(text: str) -> Item:
    body: dict[str, object] = {"id": "rs_1", "type": "reasoning", "summary": []}
    return item({**body, "encrypted_content": text})


def store(line: Lockstep, *some: Item) -> str:
    """A stored response as a store of another process gives it: nothing of it is open."""
    chain = ChainNode(None, tuple(some), turn=1)
    tip = ChainHead("resp_s", chain, owner="local", settings=None)
    response = Response(id="resp_s", status="completed")
    saved = Saved(response=response, head=tip, owner="local", input_from=None)
    line.stored["local", "resp_s"] = saved
    return "resp_s"


def context(line: Lockstep, turn: str) -> list[str]:
    return [word(each) for each in line.prompt(turn).chain.context()]


class TestInput:
    def test_a_create_is_run_on_what_its_items_hold(self) -> None:
        line = Lockstep()
        carried = msgspec.json.decode(folded(user("old")).raw)
        turn = line.create([carried, user("new")])
        assert context(line, turn) == ["user: old", "user: new"]
        raws = [each.raw for each in line.prompt(turn).chain.items]
        assert raws[0] == msgspec.json.encode(carried), "clients and stores have what was sent"

    def test_so_is_an_append(self) -> None:
        line = Lockstep()
        turn = line.create("hi", append=True)
        (call_id,) = line.call(turn, "look")
        carried = msgspec.json.decode(folded(user("more"), whole=False).raw)
        line.append(output(call_id), carried)
        assert context(line, turn)[-2:] == ["output done", "user: more"]

    def test_an_append_that_cannot_be_verified_leaves_the_turn_held(self) -> None:
        line = Lockstep()
        turn = line.create("hi", append=True)
        (call_id,) = line.call(turn, "look")
        line.append(output(call_id), {"type": "compaction", "encrypted_content": "x"})
        assert line.errors == [("invalid_encrypted_content", "input")]
        line.append(output(call_id))
        line.answer(turn)
        assert line.status(turn) == ("completed", None)

    def test_another_owners_item_is_refused_like_garbage(self) -> None:
        line = Lockstep()
        foreign = msgspec.json.decode(folded(user("old"), owner="ann").raw)
        line.create([foreign])
        line.create([{"type": "compaction", "encrypted_content": "x"}])
        first, second = line.error_events
        assert first.error == second.error
        mine = line.send(
            "response.create", model="m", store=False, input=[foreign],
            principal=Principal(owner="ann"),
        )  # fmt: skip
        assert context(line, mine) == ["user: old"]

    def test_a_reference_to_a_sealed_item_is_opened_as_well(self) -> None:
        line = Lockstep()
        store(line, folded(user("old")))
        turn = line.create([{"type": "item_reference", "id": "cmp_1"}, user("new")])
        assert context(line, turn) == ["user: old", "user: new"]


class TestStored:
    def test_a_chain_that_a_store_gives_back_is_opened(self) -> None:
        line = Lockstep()
        name = store(line, item(user("gone")), folded(user("old")), item(user("since")))
        turn = line.create("new", previous_response_id=name)
        assert context(line, turn) == ["user: old", "user: since", "user: new"]

    def test_one_that_no_key_opens_any_more_cannot_be_continued(self) -> None:
        line = Lockstep()
        name = store(line, item({"type": "compaction", "encrypted_content": "lost"}))
        line.create("new", previous_response_id=name)
        assert line.errors == [("invalid_encrypted_content", "input")]
        line.answer(line.create("other"))

    def test_a_thought_that_no_key_opens_any_more_is_left_out(self) -> None:
        line = Lockstep()
        turn = line.create("new", previous_response_id=store(line, thought("lost")))
        assert context(line, turn) == ["reasoning", "user: new"]


@pytest.mark.parametrize(("include", "asked"), [(INCLUDE, True), (None, False), ([], False)])
def test_thoughts_are_sealed_for_the_owner_where_the_create_asks(
    include: list[str] | None, asked: bool
) -> None:
    line = Lockstep()
    turn = line.create("hi", include=include)
    seal = line.turns[turn].output.seal
    assert (seal is not None) is asked
    if seal is not None:
        assert SEALER.open(LOCAL.owner, seal(b"x")) == b"x"
