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


def store(driver: Lockstep, *some: Item) -> str:
    """A stored response as a store of another process gives it: nothing of it is open."""
    chain = ChainNode(None, tuple(some), turn=1)
    tip = ChainHead("resp_s", chain, owner="local", settings=None)
    response = Response(id="resp_s", status="completed")
    saved = Saved(response=response, head=tip, owner="local", input_from=None)
    driver.stored["local", "resp_s"] = saved
    return "resp_s"


def context(driver: Lockstep, turn: str) -> list[str]:
    return [word(each) for each in driver.prompt(turn).chain.context()]


class TestInput:
    def test_a_create_is_run_on_what_its_items_hold(self) -> None:
        driver = Lockstep()
        carried = msgspec.json.decode(folded(user("old")).raw)
        turn = driver.create([carried, user("new")])
        assert context(driver, turn) == ["user: old", "user: new"]
        raws = [each.raw for each in driver.prompt(turn).chain.items]
        assert raws[0] == msgspec.json.encode(carried), "clients and stores have what was sent"

    def test_so_is_an_append(self) -> None:
        driver = Lockstep()
        turn = driver.create("hi", append=True)
        (call_id,) = driver.call(turn, "look")
        carried = msgspec.json.decode(folded(user("more"), whole=False).raw)
        driver.append(output(call_id), carried)
        assert context(driver, turn)[-2:] == ["output done", "user: more"]

    def test_an_append_that_cannot_be_verified_leaves_the_turn_held(self) -> None:
        driver = Lockstep()
        turn = driver.create("hi", append=True)
        (call_id,) = driver.call(turn, "look")
        driver.append(output(call_id), {"type": "compaction", "encrypted_content": "x"})
        assert driver.errors == [("invalid_encrypted_content", "input")]
        driver.append(output(call_id))
        driver.answer(turn)
        assert driver.status(turn) == ("completed", None)

    def test_another_owners_item_is_refused_like_garbage(self) -> None:
        driver = Lockstep()
        foreign = msgspec.json.decode(folded(user("old"), owner="ann").raw)
        driver.create([foreign])
        driver.create([{"type": "compaction", "encrypted_content": "x"}])
        first, second = driver.error_events
        assert first.error == second.error
        mine = driver.send(
            "response.create", model="m", store=False, input=[foreign],
            principal=Principal(owner="ann"),
        )  # fmt: skip
        assert context(driver, mine) == ["user: old"]

    def test_a_reference_to_a_sealed_item_is_opened_as_well(self) -> None:
        driver = Lockstep()
        store(driver, folded(user("old")))
        turn = driver.create([{"type": "item_reference", "id": "cmp_1"}, user("new")])
        assert context(driver, turn) == ["user: old", "user: new"]


class TestStored:
    def test_a_chain_that_a_store_gives_back_is_opened(self) -> None:
        driver = Lockstep()
        name = store(driver, item(user("gone")), folded(user("old")), item(user("since")))
        turn = driver.create("new", previous_response_id=name)
        assert context(driver, turn) == ["user: old", "user: since", "user: new"]

    def test_one_that_no_key_opens_any_more_cannot_be_continued(self) -> None:
        driver = Lockstep()
        name = store(driver, item({"type": "compaction", "encrypted_content": "lost"}))
        driver.create("new", previous_response_id=name)
        assert driver.errors == [("invalid_encrypted_content", "input")]
        driver.answer(driver.create("other"))

    def test_a_thought_that_no_key_opens_any_more_is_left_out(self) -> None:
        driver = Lockstep()
        turn = driver.create("new", previous_response_id=store(driver, thought("lost")))
        assert context(driver, turn) == ["reasoning", "user: new"]


@pytest.mark.parametrize(("include", "asked"), [(INCLUDE, True), (None, False), ([], False)])
def test_thoughts_are_sealed_for_the_owner_where_the_create_asks(
    include: list[str] | None, asked: bool
) -> None:
    driver = Lockstep()
    turn = driver.create("hi", include=include)
    seal = driver.turns[turn].output.seal
    assert (seal is not None) is asked
    if seal is not None:
        assert SEALER.open(LOCAL.owner, seal(b"x")) == b"x"
