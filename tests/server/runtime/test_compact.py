"""Compacted inputs: what a client gets for a longer history, what it holds, how it is booked."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.support.core import create_of, output, user, word
from tests.support.runtime import Answer, Stage, Step, hello, mute, raising, run, until
from tieline import events
from tieline.errors import ApiError
from tieline.items import Item
from tieline_server.compaction.compacted_input import Compacted
from tieline_server.core.deltas import Accepted, Finish, TextDelta
from tieline_server.core.effects import Prompt
from tieline_server.core.history import sealed
from tieline_server.core.history.compaction import TAIL
from tieline_server.core.values import Principal
from tieline_server.engines.base import EngineError
from tieline_server.runtime.compact import compact
from tieline_server.storage.base import Question

CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}


def says(text: str) -> dict[str, Any]:
    return {**user(text), "role": "assistant"}


HISTORY = [user("one"), says("1"), user("two")]


async def compacted(
    stage: Stage, history: list[Any] = HISTORY, *, mode: str = "keep-tail", **members: Any
) -> Compacted:
    services = replace(stage.services, compaction=mode)
    create = create_of(**{"model": "m", "input": history, **members})
    return await compact(services, Principal(), create, transport="test")


def held(stage: Stage, made: Compacted, owner: str = "local") -> list[str]:
    """What the compaction item of a compacted input stands for, in short."""
    opened = sealed.opened(replace(made.output[-1], opened=None), stage.services.sealer, owner)
    assert opened.opened is not None
    return [word(item) for item in opened.opened.items]


def staged(answer: Answer, test: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        stage = Stage(answer)
        try:
            await test(stage)
        finally:
            await stage.driver.close()

    run(main)


async def summing(prompt: Prompt) -> AsyncGenerator[Step, None]:
    """A summary of five tokens."""
    yield [Accepted(input_tokens=30, cached_tokens=10)]
    yield [TextDelta(" all of it ", 5)]
    yield [Finish()]


def test_user_messages_stay_and_the_rest_folds_into_one_item() -> None:
    async def test(stage: Stage) -> None:
        made = await compacted(stage)
        assert [item.type for item in made.output] == ["message", "message", "compaction"]
        assert [word(item) for item in made.output[:2]] == ["user: one", "user: two"]
        assert held(stage, made) == ["assistant: 1"]
        assert made.id.startswith("resp_")
        assert made.usage.input_tokens > 0
        assert stage.engine.prompts == [], "nothing is sampled"

    staged(hello, test)


def test_its_user_messages_are_whole_output_items_whatever_the_client_left_out() -> None:
    async def test(stage: Stage) -> None:
        parts = [{"type": "input_image", "image_url": "data:,"}]
        bare, full = {"role": "user", "content": "one"}, {**user("x"), "id": "u1", "content": parts}
        first, second, _ = (await compacted(stage, [bare, {**full, "odd": 1.50}])).output
        assert (first.id or "").startswith("msg_")
        assert msgspec.json.decode(first.raw) == {
            "type": "message", "id": first.id, "role": "user", "status": "completed",
            "content": [{"type": "input_text", "text": "one"}],
        }  # fmt: skip
        assert msgspec.json.decode(second.raw) == {**full, "status": "completed", "odd": 1.5}

    staged(hello, test)


def test_the_compacted_input_is_input_for_a_new_chain() -> None:
    async def test(stage: Stage) -> None:
        made = await compacted(stage)
        carried = [msgspec.json.decode(item.raw) for item in made.output]
        stage.create([*carried, user("three")])
        await stage.until(events.ResponseCompleted)
        shown: tuple[Item, ...] = stage.engine.prompts[0].chain.context()
        assert [word(item) for item in shown] == [
            "user: one", "assistant: 1", "user: two", "user: three",
        ]  # fmt: skip

    staged(hello, test)


def test_what_is_compacted_twice_holds_what_both_held() -> None:
    async def test(stage: Stage) -> None:
        made = await compacted(stage)
        carried = [msgspec.json.decode(item.raw) for item in made.output]
        again = await compacted(stage, [*carried, says("2"), user("three")])
        assert [item.type for item in again.output] == ["message"] * 3 + ["compaction"]
        assert held(stage, again) == ["assistant: 1", "assistant: 2"]

    staged(hello, test)


def test_of_the_rest_the_end_stays_as_far_as_there_is_room() -> None:
    async def test(stage: Stage) -> None:
        made = await compacted(stage, [user("one"), says("x" * TAIL), says("y"), user("two")])
        assert held(stage, made) == ["assistant: y"]

    staged(hello, test)


def test_a_call_that_waits_for_its_output_is_held() -> None:
    async def test(stage: Stage) -> None:
        for mode in ("keep-tail", "summary"):
            made = await compacted(stage, [user("one"), says("x" * TAIL), CALL], mode=mode)
            assert held(stage, made)[-1] == "call look"

    staged(summing, test)


def test_a_models_summary_takes_the_place_of_its_own_words() -> None:
    async def test(stage: Stage) -> None:
        made = await compacted(stage, [*HISTORY, CALL], mode="summary", tools=[])
        assert held(stage, made) == [
            "assistant: Summary of what came before: all of it", "call look",
        ]  # fmt: skip
        assert (made.usage.input_tokens, made.usage.output_tokens) == (30, 5)
        (prompt,) = stage.engine.prompts
        assert [word(item) for item in prompt.chain.context()[:-1]] == [
            "user: one", "assistant: 1", "user: two",
        ]  # fmt: skip
        assert prompt.settings.tool_choice.mode == "none"

    staged(summing, test)


def test_without_anything_to_summarise_the_model_is_not_asked() -> None:
    async def test(stage: Stage) -> None:
        made = await compacted(stage, [user("one")], mode="summary")
        assert held(stage, made) == []
        assert stage.engine.prompts == []

    staged(summing, test)


def test_a_model_that_says_nothing_leaves_the_tail() -> None:
    async def nothing(prompt: Prompt) -> AsyncGenerator[Step, None]:
        yield [Accepted(input_tokens=30), Finish()]

    async def test(stage: Stage) -> None:
        made = await compacted(stage, mode="summary")
        assert held(stage, made) == ["assistant: 1"]
        assert made.usage.input_tokens == 30

    staged(nothing, test)


@pytest.mark.parametrize("mode", ["keep-tail", "summary"])
def test_it_is_booked_once_as_what_it_used(mode: str) -> None:
    async def test(stage: Stage) -> None:
        made = await compacted(stage, mode=mode)
        ((record, transport),) = stage.records
        assert (record.response_id, record.kind, transport) == (made.id, "compaction", "test")
        assert (record.outcome, record.usage) == ("completed", made.usage)
        (total,) = await stage.ledger.usage(Question(owner="local"))
        assert total.input_tokens == made.usage.input_tokens

    staged(summing, test)


def test_one_whose_model_fails_is_booked_as_failed() -> None:
    error = EngineError("server_is_overloaded", "Later.")

    async def test(stage: Stage) -> None:
        with pytest.raises(ApiError) as refused:
            await compacted(stage, mode="summary")
        assert refused.value.code == "server_is_overloaded"
        ((record, _),) = stage.records
        assert (record.outcome, record.error_code) == ("failed", "server_is_overloaded")
        assert record.usage.input_tokens == 3

    staged(raising(error, accepted=True), test)


def test_one_that_nobody_waits_for_any_more_is_booked_as_what_it_used() -> None:
    async def test(stage: Stage) -> None:
        asked = asyncio.ensure_future(compacted(stage, mode="summary"))
        await until(lambda: stage.engine.steps == 1)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        ((record, _),) = stage.records
        assert (record.outcome, record.usage.input_tokens) == ("disconnected", 3)
        assert stage.engine.stopped == 1

    staged(mute, test)


def test_a_compacted_input_is_its_owners() -> None:
    async def test(stage: Stage) -> None:
        made = await compacted(stage)
        with pytest.raises(ApiError) as refused:
            held(stage, made, owner="somebody else")
        assert refused.value.code == "invalid_encrypted_content"

    staged(hello, test)


@pytest.mark.parametrize(
    ("members", "param"),
    [({"model": None}, "model"), ({"input": None, "model": "m"}, "input")],
)
def test_a_model_and_something_to_compact_are_required(members: dict[str, Any], param: str) -> None:
    async def test(stage: Stage) -> None:
        given = {"model": "m", "input": "hi", **members}
        create = create_of(**{name: value for name, value in given.items() if value is not None})
        with pytest.raises(ApiError) as refused:
            await compact(stage.services, Principal(), create, transport="test")
        assert refused.value.code == "missing_required_parameter"
        assert refused.value.param == param
        assert stage.records == []

    staged(hello, test)


def test_what_its_create_would_refuse_is_refused() -> None:
    async def test(stage: Stage) -> None:
        for history in ([output("nope")], [{"type": "compaction", "encrypted_content": "x"}]):
            with pytest.raises(ApiError) as refused:
                await compacted(stage, history)
            assert refused.value.param == "input"
        assert stage.records == []

    staged(hello, test)
