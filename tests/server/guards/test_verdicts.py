"""What is read of a chain: each item once, whoever asks and however the chain goes on."""

import asyncio
import gc
import tracemalloc
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.support.engine_contract import WEATHER, link, prompt
from tests.support.guards import Reader
from tieline.items import Item, Opened, decode_input
from tieline_server.core.effects import Prompt
from tieline_server.core.history.chain import ChainNode
from tieline_server.guards.base import Counts, Piece, Stage, Unchecked
from tieline_server.guards.verdicts import HEADS, LARGE, Verdicts, ask


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await main

    asyncio.run(bounded())


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def output(text: str) -> list[dict[str, str]]:
    return [{"type": "function_call_output", "call_id": "c", "output": text}]


def ending(tip: ChainNode, **members: Any) -> Prompt:
    return prompt(tip=tip, **members)


async def test_each_item_of_a_chain_of_200_turns_is_read_once() -> None:
    reader, counts = Reader(), Counts()
    verdicts = Verdicts(reader, counts)
    tip = None
    for turn in range(200):
        tip = link(f"question {turn}", tip)
        assert await verdicts.flagged(ending(tip)) is None
        tip = link(said(f"answer {turn}"), tip, output=True)
    assert reader.read == [f"question {turn}" for turn in range(200)]
    assert counts.checks == {("reader", "input"): 200}


async def test_an_appended_output_is_read_and_the_answers_around_it_are_not() -> None:
    reader = Reader()
    verdicts = Verdicts(reader, Counts())
    tip = link("ask")
    for leg in range(3):
        assert await verdicts.flagged(ending(tip)) is None
        tip = link(said(f"answer {leg}"), tip, output=True)
        tip = link(output(f"output {leg}"), tip, output=True)
    assert await verdicts.flagged(ending(tip)) is None
    assert reader.read == ["ask", "output 0", "output 1", "output 2"]


async def test_an_appended_output_is_read_where_a_fork_had_passed_the_answer_before_it() -> None:
    reader = Reader()
    verdicts = Verdicts(reader, Counts())
    tip = link("ask")
    assert await verdicts.flagged(ending(tip)) is None
    answer = link(said("answer"), tip, output=True)
    assert await verdicts.flagged(ending(link("fork", answer))) is None
    appended = link(output("bad"), answer, output=True)
    assert await verdicts.flagged(ending(appended)) == "input"


async def test_an_answer_that_no_guard_saw_on_its_way_out_is_read() -> None:
    reader = Reader()
    verdicts = Verdicts(reader, Counts())
    # Another model's turns, which has no guards; or a chain that a store gave back.
    chain = link(said("foreign"), link("one"), output=True)
    chain = link(said("also foreign"), link("two", chain), output=True)
    assert await verdicts.flagged(ending(link("three", chain))) is None
    assert reader.read == ["one", "foreign", "two", "also foreign", "three"]
    assert reader.calls == 1


async def test_forks_share_the_verdicts_of_what_they_share() -> None:
    reader = Reader()
    verdicts = Verdicts(reader, Counts())
    root = link("root")
    assert await verdicts.flagged(ending(root)) is None
    for name in ("left", "right"):
        assert await verdicts.flagged(ending(link(name, root))) is None
    assert reader.read == ["root", "left", "right"]


async def test_two_turns_that_need_the_same_links_read_have_them_read_once() -> None:
    reader = Reader()
    verdicts = Verdicts(reader, Counts())
    reader.gate.clear()
    root = link("root")
    asked = [
        asyncio.ensure_future(verdicts.flagged(ending(link(name, root))))
        for name in ("left", "right")
    ]
    await reader.signal.until(lambda: reader.waiting == 1)
    reader.gate.set()
    assert await asyncio.gather(*asked) == [None, None]
    assert reader.read == ["root", "left", "right"]


async def test_where_the_first_of_them_goes_away_the_other_has_the_links_read() -> None:
    reader = Reader()
    verdicts = Verdicts(reader, Counts())
    reader.gate.clear()
    root = link("root")
    first = asyncio.ensure_future(verdicts.flagged(ending(link("left", root))))
    await reader.signal.until(lambda: reader.waiting == 1)
    second = asyncio.ensure_future(verdicts.flagged(ending(link("right", root))))
    await asyncio.sleep(0)
    first.cancel()
    await reader.signal.until(lambda: reader.calls == 2)
    reader.gate.set()
    assert await second is None
    assert reader.read == ["root", "left", "root", "right"]


async def test_what_is_flagged_is_so_for_good_and_what_stands_before_it_is_not() -> None:
    reader, counts = Reader(), Counts()
    verdicts = Verdicts(reader, counts)
    root = link("root")
    bad = link("bad", root)
    behind = link("behind", bad)
    assert await verdicts.flagged(ending(behind)) == "input"
    assert await verdicts.flagged(ending(bad)) == "input"
    assert await verdicts.flagged(ending(link("again", behind))) == "input"
    assert await verdicts.flagged(ending(link("else", root))) is None
    assert reader.read == ["root", "bad", "behind", "else"]
    assert counts.hits == {("reader", "input"): 1}


async def test_what_could_not_be_read_has_no_verdict_and_is_read_next_time() -> None:
    reader, counts = Reader(), Counts()
    verdicts = Verdicts(reader, counts)
    reader.fails = True
    tip = link("one")
    with pytest.raises(Unchecked):
        await verdicts.flagged(ending(tip))
    assert tip.memo == {}
    reader.fails = False
    assert await verdicts.flagged(ending(tip)) is None
    assert counts.failures == {("reader", "input"): 1}


async def test_what_a_lenient_guard_could_not_be_asked_about_passes_for_good_and_is_counted() -> (
    None
):
    reader, counts = Reader(), Counts()
    reader.lenient = reader.fails = True
    verdicts = Verdicts(reader, counts)
    tip = link("bad")
    assert await verdicts.flagged(ending(tip)) is None
    reader.fails = False
    assert await verdicts.flagged(ending(link("good", tip))) is None
    assert counts.failures == {("reader", "input"): 1}
    assert reader.read == ["bad", "good"]


async def test_what_stands_before_a_compaction_is_not_read_and_what_it_holds_is() -> None:
    reader = Reader()
    verdicts = Verdicts(reader, Counts())
    (kept,) = decode_input(b'"kept"')
    item = Item(
        raw=b'{"type":"compaction","encrypted_content":"bad"}',
        type="compaction",
        opened=Opened(items=(kept,), whole=True),
    )
    folded = ChainNode(link("bad"), (item,), turn=2)
    assert await verdicts.flagged(ending(folded)) is None
    assert reader.read == ["kept"]


@pytest.mark.parametrize(("applies", "param"), [({"input"}, None), ({"input", "output"}, "input")])
async def test_a_guard_of_input_alone_leaves_out_what_models_write(
    applies: set[Stage], param: str | None
) -> None:
    verdicts = Verdicts(Reader(applies=frozenset(applies)), Counts())
    assert await verdicts.flagged(ending(link("go on", link(said("bad"))))) == param
    assert await verdicts.flagged(ending(link("bad"))) == "input"


async def test_instructions_and_tools_are_read_once_for_each_value_and_named() -> None:
    reader = Reader()
    verdicts = Verdicts(reader, Counts())
    bad = {**WEATHER, "description": "bad"}
    for _ in range(3):
        given = {"instructions": "be brief", "tools": [WEATHER]}
        assert await verdicts.flagged(ending(link("a"), **given)) is None
        assert await verdicts.flagged(ending(link("a"), instructions="bad")) == "instructions"
        assert await verdicts.flagged(ending(link("a"), tools=[bad])) == "tools"
    assert reader.read.count("be brief") == 1
    assert reader.read.count("bad") == 1
    assert reader.read.count("a") == 3
    for number in range(HEADS):
        await verdicts.flagged(ending(link("a"), instructions=f"{number}"))
    assert await verdicts.flagged(ending(link("a"), instructions="be brief")) is None
    assert reader.read.count("be brief") == 2


async def test_what_is_large_is_taken_apart_beside_the_loop_and_read_as_well() -> None:
    verdicts = Verdicts(Reader(), Counts())
    assert await verdicts.flagged(ending(link("x" * LARGE + "bad"))) == "input"


async def test_items_that_say_nothing_are_not_asked_about() -> None:
    reader, counts = Reader(), Counts()
    assert await Verdicts(reader, counts).flagged(ending(link([]))) is None
    empty = [{"role": "user", "content": ""}]
    assert await Verdicts(reader, counts).flagged(ending(link(empty))) is None
    assert await ask(reader, [], counts, ("reader", "input")) is None
    assert await ask(reader, [Piece("a")], counts, ("reader", "input")) is None
    assert (reader.calls, counts.checks) == (1, {("reader", "input"): 1})


def test_large_instructions_and_tools_are_read_once_and_not_kept_for_that() -> None:
    async def main() -> None:
        reader = Reader()
        verdicts = Verdicts(reader, Counts())
        tip = link("hi")
        for number in range(8):
            for _ in range(2):
                members = {"instructions": f"{number}" + "x" * 1_000_000, "tools": [WEATHER]}
                assert await verdicts.flagged(ending(tip, **members)) is None
        assert len(reader.read) == 2 * 8 + 1
        other = {**members, "tools": [{**WEATHER, "description": "bad"}]}
        assert await verdicts.flagged(ending(tip, **other)) == "tools"
        del other, members
        reader.read.clear()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        del verdicts
        gc.collect()
        assert before - tracemalloc.get_traced_memory()[0] < 500_000

    tracemalloc.start()
    try:
        run(main())
    finally:
        tracemalloc.stop()
