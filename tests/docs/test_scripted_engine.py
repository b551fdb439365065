"""The examples of docs/scripted-engine.md do what the page says."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine_contract import link, prompt
from tieline_server.core.deltas import (
    CallDelta,
    CallStart,
    ItemEnd,
    ReasoningDelta,
    SummaryDelta,
    TextDelta,
)
from tieline_server.core.history.chain import ChainNode
from tieline_server.engines.base import EngineError
from tieline_server.engines.scripted import ScriptedEngine
from tieline_server.engines.scripted.script import parse

PAGE = (Path(__file__).parents[2] / "docs/scripted-engine.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(json|dialogue)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples() -> Iterator[tuple[str, str]]:
    """Each dialogue with the script above it."""
    script = ""
    for language, body in FENCE.findall(PAGE):
        if language == "json":
            script = body
        else:
            yield script, body


class Talk:
    """A conversation that is played from a page, line by line."""

    def __init__(self, script: str) -> None:
        self.engine = ScriptedEngine(parse(script.encode()))
        self.members: dict[str, Any] = {}
        self.tip: ChainNode | None = None
        self.calls: list[str] = []

    def say(self, lines: list[str]) -> list[str]:
        """Answers the user's or the tools' ``lines``."""
        items = [self._item(line[0], line[2:]) for line in lines]
        given = prompt(items, after=self.tip, model=self.engine.models()[0].id, **self.members)
        answer = Transcript()
        try:
            asyncio.run(answer.read(self.engine, given))
        except EngineError as error:
            answer.lines.append(f"error {error.status} {error.code}: {error.message}")
        self.tip = link(answer.items, given.chain, output=True)
        self.calls = [item["call_id"] for item in answer.items if "call_id" in item]
        return answer.lines

    def _item(self, sign: str, text: str) -> dict[str, Any]:
        if sign == ">":
            return {"role": "user", "content": text}
        call_id = self.calls.pop(0)
        return {"type": "function_call_output", "call_id": call_id, "output": text}


class Transcript:
    """An answer in the notation of the page, and as items for the history."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.items: list[dict[str, Any]] = []
        self._open = False

    async def read(self, engine: ScriptedEngine, given: Any) -> None:
        async for step in engine.sample(given):
            for delta in step:
                if isinstance(delta, CallStart):
                    self._begin(f"call {delta.name} ")
                    call = {"type": "function_call", "call_id": f"c{len(self.items)}"}
                    self.items.append({**call, "name": delta.name, "arguments": "{}"})
                elif isinstance(delta, TextDelta):
                    self._grow("message: ", delta.text)
                elif isinstance(delta, ReasoningDelta | SummaryDelta):
                    self._grow("reasoning: ", delta.text)
                elif isinstance(delta, CallDelta):
                    self.lines[-1] += delta.text
                elif isinstance(delta, ItemEnd):
                    self._open = False

    def _begin(self, head: str) -> None:
        self.lines.append(head)
        self._open = True

    def _grow(self, head: str, text: str) -> None:
        if not self._open:
            self._begin(head)
        self.lines[-1] += text


def turns(dialogue: str) -> Iterator[tuple[list[str], list[str]]]:
    """What is said to the engine, and what it answers, by turns."""
    said: list[str] = []
    answered: list[str] = []
    for line in dialogue.splitlines():
        if line[0] in "<>" and answered:
            yield said, answered
            said, answered = [], []
        (said if line[0] in "<>" else answered).append(line)
    yield said, answered


def test_the_page_has_examples() -> None:
    assert len(list(examples())) >= 5


@pytest.mark.parametrize(("script", "dialogue"), list(examples()))
def test_an_example_answers_what_the_page_says(script: str, dialogue: str) -> None:
    talk = Talk(script)
    if dialogue.startswith("= "):
        members, _, dialogue = dialogue.partition("\n")
        talk.members = json.loads(members[2:])
    for said, answered in turns(dialogue):
        assert talk.say(said) == answered


def test_the_page_names_every_key_of_the_format() -> None:
    from tieline_server.engines.scripted import script

    kinds = [script.Script, script.Rule, script.When, script.Pace, script.StatedUsage]
    kinds += script.Emission.__subclasses__()
    keys = {name for kind in kinds for name in kind.__struct_fields__}
    assert sorted(key for key in keys if f"`{key}`" not in PAGE) == []
    tags = {str(each.__struct_config__.tag) for each in script.Emission.__subclasses__()}
    assert sorted(tag for tag in tags if f"| `{tag}` |" not in PAGE) == []
