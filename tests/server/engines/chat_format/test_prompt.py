"""From a create to what a model samples from."""

from functools import cache
from typing import Any

import pytest
from msgspec import structs

from tests.support.engine_contract import WEATHER, link, prompt
from tieline_server.core.create.settings import SettingsCache
from tieline_server.core.effects import Prompt
from tieline_server.core.values import Work
from tieline_server.engines.base import EngineError
from tieline_server.engines.chat_format import gguf_metadata
from tieline_server.engines.chat_format.chat_template import ChatTemplate
from tieline_server.engines.chat_format.prompt import LANES, RESERVE, PromptBuilder
from tieline_server.models.packaged import find


@cache
def template() -> ChatTemplate:
    return ChatTemplate(gguf_metadata.read(find()))


def builder(context: int = 2048) -> PromptBuilder:
    return PromptBuilder(template(), context=context)


def system(text: str) -> list[int]:
    return template().message("system", text)


def user(text: str) -> list[int]:
    return template().message("user", text)


def ids_of(content: Any = "hi", **members: Any) -> list[int]:
    return builder().build(prompt(content, **members)).ids


def text_of(ids: list[int]) -> str:
    """The text of rendered ids, special tokens left out."""
    ranks = gguf_metadata.read(find()).ranks or {}
    by_id = {token: text for text, token in ranks.items()}
    return b"".join(by_id.get(each, b"") for each in ids).decode()


def test_instructions_are_the_system_message_and_the_answer_is_asked_for_last() -> None:
    assert ids_of(instructions="Be brief.") == [
        *system("Be brief."),
        *user("hi"),
        *template().opening,
    ]


def test_a_model_that_is_told_nothing_has_no_system_message() -> None:
    assert ids_of() == [*user("hi"), *template().opening]
    spoken = [{"role": "developer", "content": "x"}, {"role": "user", "content": "hi"}]
    assert ids_of(spoken) == [*system("x"), *user("hi"), *template().opening]


def test_tools_are_described_once_and_so_is_how_to_call_them() -> None:
    text = text_of(ids_of(instructions="Be brief.", tools=[WEATHER, {"type": "web_search"}]))
    assert text.startswith("system\nBe brief.\n\nYou have these tools:\n- get_weather(city: string")
    assert '{"name": its name, "arguments": {...}}' in text
    assert text.count("get_weather") == 1
    assert ids_of(tools=[{"type": "web_search"}]) == ids_of()


def test_what_a_lane_sends_again_is_neither_read_nor_rendered_again() -> None:
    built = builder()
    work = Work()
    recall = SettingsCache(work)
    members: dict[str, Any] = {
        "instructions": "Be brief.",
        "tools": [WEATHER],
        "tool_choice": "required",
    }
    tip = link("hi")
    first = built.build(prompt(tip=tip, work=work, recall=recall, **members))
    rendered = work.render
    assert rendered > tip.size
    second = built.build(prompt(tip=tip, work=work, recall=recall, **members))
    assert work.render == rendered
    assert second.constraint is first.constraint
    other = {**members, "tool_choice": "none"}
    third = built.build(prompt(tip=tip, work=work, recall=recall, **other))
    assert third.constraint is not first.constraint
    assert third.ids == first.ids


def test_the_prefaces_of_many_lanes_are_bounded() -> None:
    built = builder()
    tip = link("hi")
    for lane in range(LANES + 10):
        given = prompt(tip=tip)
        built.build(structs.replace(given, session=f"line/{lane}"))
    assert len(built._prefaces) == LANES


def test_settings_are_new_until_the_lane_has_sent_them() -> None:
    built = builder()
    given = prompt("hi", instructions="Be brief. " * 300, tools=[WEATHER])
    assert built.new_bytes(given) > 3_000
    built.build(given)
    assert built.new_bytes(given) == 0
    other = prompt("hi", instructions="Be long. " * 300)
    assert built.new_bytes(structs.replace(other, session=given.session)) > 2_700


def test_counting_gives_the_size_of_the_prompt() -> None:
    built = builder()
    each: dict[str, Any] = {"instructions": "Be brief.", "tools": [WEATHER]}
    for members in ({}, each):
        given = prompt("hi", **members)
        assert built.count(given) == len(built.build(given).ids)


def test_an_answer_is_limited_by_its_budget_and_by_the_context() -> None:
    size = len(ids_of())
    assert builder().build(prompt("hi")).max_tokens == 2048 - size
    limits: dict[str, Any] = {"max_output_tokens": 9}
    assert builder().build(prompt("hi", **limits)).max_tokens == 9
    assert builder().build(prompt("hi", budget=4, **limits)).max_tokens == 4
    assert builder().build(prompt("hi", max_output_tokens=9999)).max_tokens < 2048


def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused() -> None:
    size = len(ids_of())
    assert builder(size + 1).build(prompt("hi")).max_tokens == 1
    with pytest.raises(EngineError) as caught:
        builder(size).build(prompt("hi"))
    assert (caught.value.code, caught.value.status) == ("context_length_exceeded", 400)
    assert f"the input has {size} tokens" in caught.value.message


def test_truncation_leaves_out_the_oldest_links_and_keeps_room_for_the_answer() -> None:
    tip = link("x " * 300)
    for text in ("y " * 100, "z"):
        tip = link(text, tip)
    given = prompt(tip=tip, truncation="auto", instructions="S", max_output_tokens=20)
    ready = builder(256).build(given)
    assert ready.ids == [
        *system("S"),
        *user("y " * 100),
        *user("z"),
        *template().opening,
    ]
    assert ready.max_tokens == 20
    with pytest.raises(EngineError, match="context is 256 tokens"):
        builder(256).build(prompt("x " * 300, truncation="auto"))
    short = prompt("hi", truncation="auto")
    assert builder().build(short).max_tokens > RESERVE


def test_tools_that_came_with_the_input_can_be_required() -> None:
    tools = {"type": "additional_tools", "tools": [WEATHER]}
    first = link([tools])
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [WEATHER]}
    given = prompt(tip=link("hi", first), tools=[WEATHER], tool_choice=choice)
    assert callable_in(given) == ["get_weather"]
    assert callable_in(prompt(tip=link("hi", first))) == ["get_weather"]


def callable_in(given: Prompt) -> list[str | None]:
    calls = builder().build(given).constraint.calls
    return [frame.tool.name for frame in calls.frames] if calls else []


def test_a_schema_that_may_be_new_is_asked_about_beside_the_loop() -> None:
    built, recall = builder(), SettingsCache()
    options: dict[str, Any] = {"tools": [WEATHER], "recall": recall}
    given = prompt("hi", **options)
    assert built.heavy(given)
    built.build(given)
    assert not built.heavy(prompt("ho", **options))
    more = {"type": "additional_tools", "role": "developer", "tools": [WEATHER]}
    brought = link([more, {"type": "message", "role": "user", "content": "hi"}])
    assert built.heavy(prompt(tip=brought, **options))
    form = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}
    assert builder().heavy(prompt("hi", text=form))
    assert not builder().heavy(prompt("hi"))
