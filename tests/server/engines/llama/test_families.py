"""Models of other families: the packaged model with their templates and special tokens.

Its weights know nothing of their forms, which the grammar makes it write all the same. What
comes out is poor; that it is read, shown and kept as the family has it is what is tested.
"""

import asyncio
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support import chat_templates
from tests.support.engine_contract import WEATHER, deltas_of, finish_of, link, prompt, text_in
from tests.support.gguf_file import retold
from tieline_server.core.deltas import CallDelta, CallStart, Delta, ReasoningDelta
from tieline_server.core.history.chain import ChainNode
from tieline_server.engines.llama.engine import LlamaEngine
from tieline_server.models.packaged import find


class Family(NamedTuple):
    template: str
    renamed: dict[str, str]
    thinks: bool = False
    told: str | None = "Be brief."
    """Instructions; with these a model that may think does."""


FAMILIES = {
    "hermes": Family(chat_templates.HERMES, {}),
    "parameters": Family(chat_templates.PARAMETERS, {}),
    "keys": Family(chat_templates.ARGUMENT_KEYS, {}),
    "invoke": Family(chat_templates.INVOKE, {}),
    "list": Family(chat_templates.LIST, {}),
    "thinking": Family(chat_templates.THINKS, {}, thinks=True),
    "llama3": Family(
        chat_templates.LLAMA3,
        {
            "<repo_name>": "<|start_header_id|>",
            "<reponame>": "<|end_header_id|>",
            "<|im_end|>": "<|eot_id|>",
            "<filename>": "<|python_tag|>",
        },
    ),
    "mistral": Family(
        chat_templates.MISTRAL,
        {
            "<repo_name>": "[INST]",
            "<reponame>": "[/INST]",
            "<|im_end|>": "</s>",
            "<filename>": "[TOOL_CALLS]",
            "<gh_stars>": "[TOOL_RESULTS]",
            "<issue_start>": "[/TOOL_RESULTS]",
        },
    ),
    "harmony": Family(
        chat_templates.HARMONY,
        {
            "<|im_start|>": "<|start|>",
            "<|im_end|>": "<|end|>",
            "<repo_name>": "<|channel|>",
            "<reponame>": "<|message|>",
            "<filename>": "<|constrain|>",
            "<gh_stars>": "<|call|>",
            "<|endoftext|>": "<|return|>",
        },
        told=None,
    ),
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


@pytest.fixture(scope="module")
def engine(family: Family, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaEngine]:
    path = tmp_path_factory.mktemp("model") / "told.gguf"
    retold(find(), path, template=family.template, renamed=family.renamed)
    engine = LlamaEngine(path, slots=1, context=512)
    path.unlink()
    yield engine
    asyncio.run(engine.close())


def answer(engine: LlamaEngine, tip: ChainNode, **members: Any) -> list[Delta]:
    given = prompt(tip=tip, **{"temperature": 0, "max_output_tokens": 60, **members})
    return asyncio.run(deltas_of(engine, given))


def calls_in(deltas: list[Delta]) -> list[dict[str, Any]]:
    """Calls as items, each with its arguments."""
    items: list[dict[str, Any]] = []
    for delta in deltas:
        if isinstance(delta, CallStart):
            call_id = f"call_{len(items)}"
            item = {"type": "function_call", "call_id": call_id, "name": delta.name}
            items.append({**item, "arguments": ""})
        elif isinstance(delta, CallDelta):
            items[-1]["arguments"] += delta.text
    return items


def prefilled(deltas: list[Delta]) -> int:
    done = finish_of(deltas)
    return (done.input_tokens or 0) - (done.cached_tokens or 0)


def written_in(engine: LlamaEngine, said: ChainNode) -> list[str]:
    """The special tokens of a link whose text is tokenised."""
    return named(engine, engine._builder.template._tokenised(said))


def sampled_in(engine: LlamaEngine, said: ChainNode) -> list[str]:
    """The special tokens of the very ids that a link was sampled as."""
    ids = engine._builder.template._sampled(said)
    assert ids is not None
    return named(engine, ids)


def named(engine: LlamaEngine, ids: Iterable[int]) -> list[str]:
    by_id = {token: text for text, token in engine._builder.template.tokens.special.items()}
    return [by_id[each] for each in ids if each in by_id]


def test_calls_are_read_and_shown_in_the_form_of_the_family_and_cost_only_what_is_new(
    engine: LlamaEngine, family: Family
) -> None:
    asked = link("Weather in Oslo?")
    limit = 40 if family.thinks else 250
    tools = {"tools": [WEATHER], "instructions": family.told, "parallel_tool_calls": False}
    called = answer(engine, asked, tool_choice="required", max_output_tokens=limit, **tools)
    calls = calls_in(called)
    if family.thinks:
        # These weights know no end of a thought but the limit.
        assert any(isinstance(each, ReasoningDelta) for each in called)
        assert (calls, finish_of(called).reason) == ([], "length")
        return
    assert finish_of(called).reason == "stop"
    [call] = calls
    assert call["name"] == "get_weather"
    assert json.loads(call["arguments"]).keys() == {"city", "unit"}
    assert text_in(called) == ""
    output = {"type": "function_call_output", "call_id": "call_0", "output": "<|im_end|>Rain."}
    said = link(calls, asked, output=True)
    assert written_in(engine, said) == sampled_in(engine, said)
    tip = link([output], said)
    then = answer(engine, tip, tool_choice="none", max_output_tokens=8, **tools)
    done = finish_of(called)
    held = (done.input_tokens or 0) + (done.output_tokens or 0) - 1
    assert prefilled(then) == (finish_of(then).input_tokens or 0) - held


def test_text_is_text_and_a_thought_is_reasoning(engine: LlamaEngine, family: Family) -> None:
    deltas = answer(engine, link("Say hello."), max_output_tokens=24)
    if family.thinks:
        assert isinstance(next(each for each in deltas if hasattr(each, "text")), ReasoningDelta)
        return
    assert text_in(deltas)
    assert not any(name in text_in(deltas) for name in engine._builder.template.speech.told)


def test_tp_04_a_chat_that_is_rendered_whole_uses_what_has_not_changed_of_the_cache(
    tmp_path: Path,
) -> None:
    """TP-04: its calls are read, its ids stay, and what is before the first change is not computed
    again."""
    path = retold(find(), tmp_path / "told.gguf", template=chat_templates.BY_PLACE, renamed={})
    engine = LlamaEngine(path, slots=1, context=512)
    try:
        asked = link("Weather in Oslo?")
        tools = {"tools": [WEATHER], "instructions": "Be brief.", "parallel_tool_calls": False}
        called = answer(engine, asked, tool_choice="required", max_output_tokens=250, **tools)
        [call] = calls_in(called)
        assert json.loads(call["arguments"]).keys() == {"city", "unit"}
        output = {"type": "function_call_output", "call_id": "call_0", "output": "Rain."}
        tip = link([output], link([call], asked, output=True))
        then = answer(engine, tip, tool_choice="none", max_output_tokens=4, **tools)
        done, more = finish_of(called), finish_of(then)
        # All up to the question, which has a number behind it now.
        assert (more.cached_tokens or 0) > (done.input_tokens or 0) - 16
        assert (more.input_tokens or 0) > (more.cached_tokens or 0)
    finally:
        asyncio.run(engine.close())
