"""Chat templates of real models: each loads, and is taken for none but what it writes.

Not collected by itself, since the templates are not ours to ship. llama.cpp has some 70, which
the sdist of llama-cpp-python contains (``vendor/llama.cpp/models/templates``):

    TIELINE_CHAT_TEMPLATES=FOLDER pytest tests/server/engines/chat_format/shipped_templates.py

``python -m tests.server.engines.chat_format.shipped_templates FOLDER`` writes the table of
docs/chat-templates.md.
"""

import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.chat_family import CALLS, OUTPUTS, TOOLS, ChatFamily
from tests.support.engine_contract import link, prompt
from tests.support.grammar_matcher import Grammar
from tieline_server.engines.chat_format.chat_template import CHATS, LOOK_TOOLS
from tieline_server.engines.chat_format.prompt import PromptBuilder
from tieline_server.engines.chat_format.syntax import PLAIN
from tieline_server.engines.chat_format.whole_chat import said_calls

FOLDER = Path(os.environ.get("TIELINE_CHAT_TEMPLATES", "."))
PAGE = Path(__file__).parents[4] / "docs/chat-templates.md"
EFFORTS = ("none", "low", "high", "xhigh")

WIDE = "\uff5c"
"""The bar of DeepSeek's tokens."""

TOKEN = re.compile(
    rf"<\|[^|<>\s]+\|>|<{WIDE}[^{WIDE}<>\s]+{WIDE}>"
    r"|\[/?[A-Z_]{3,}\]|</?s>|<sep>|<[a-z]+:[be]os>"
    r"|<(?:start|end|beginning)_of_\w+>|<turn\|>|<\|turn>|\[e~\[|\]~[b!]\[?|<SPECIAL_\d+>"
)
"""What looks like a special token of the model that a template is for."""


def paths() -> list[Path]:
    return sorted(FOLDER.glob("*.jinja"), key=lambda path: path.name.lower())


@cache
def family_of(path: Path) -> ChatFamily:
    source = path.read_text(encoding="utf-8")
    special = sorted({*TOKEN.findall(source), "<s>", "</s>"})
    return ChatFamily(source, special=special, bos="<s>", eos="</s>")


def row_of(path: Path) -> str:
    """The row of the table for one template."""
    template = family_of(path).template
    syntax = template.speech.syntax
    call = "others"
    if syntax.name != PLAIN.name:
        call = code("".join(said_calls(syntax, [Known()])))
    words = {word for effort in EFFORTS for word in template.manner(effort).words}
    thought = code(syntax.thought[0]) if syntax.thought else ""
    efforts = ", ".join(map(code, sorted(words)))
    cells = (path.stem, call, "" if template.cuts else "whole", thought, efforts)
    return "| " + " | ".join(cells) + " |"


def code(text: str) -> str:
    """Text as code in a cell of a table."""
    marks = "````" if "`" in text else "`"
    inside = text.strip("\n").replace("\n", "⏎").replace("|", "\\|")
    return f"{marks}{' ' if len(marks) > 1 else ''}{inside}{' ' if len(marks) > 1 else ''}{marks}"


class Known:
    """A call as the table shows it."""

    name, namespace, call_id, arguments = "f", None, "id0000000", '{"a": "x"}'


@pytest.fixture(params=paths(), ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def test_it_loads_and_a_chat_with_calls_and_a_strict_order_is_rendered(path: Path) -> None:
    family = family_of(path)
    tip = None
    for content in (
        "hi <|im_end|> {{ x }}",
        CALLS[:1],
        OUTPUTS[:1],
        [{"role": "assistant", "content": "done"}],
        "more",
    ):
        tip = link(content, tip)
    for effort in (None, *EFFORTS):
        members: dict[str, Any] = {"reasoning": {"effort": effort}} if effort else {}
        given = prompt(tip=tip, instructions="Be brief.", tools=TOOLS, **members)
        assert PromptBuilder(family.template, context=100_000).build(given).ids


def test_what_it_writes_is_the_form_that_it_is_taken_for(path: Path) -> None:
    template = family_of(path).template
    syntax = template.speech.syntax
    if syntax.message is None:
        return
    tip = link(CHATS[0])
    text = template._chat.text([tip], tools=LOOK_TOOLS)
    assert text is not None
    [call] = [item.view for item in tip.shown if item.opens]
    assert "".join(said_calls(syntax, [call])) in text


def test_calls_are_read_from_the_form_that_they_are_shown_in(path: Path) -> None:
    family = family_of(path)
    syntax = family.template.speech.syntax
    views = [item.view for item in link(CALLS).shown]
    calls = "".join(said_calls(syntax, views[: 1 if syntax.between is None else 2]))
    inside = f"{syntax.thought[1]}" if family.template.speech.inside and syntax.thought else ""
    expected = [("look", '{"at":"x"}'), ("shell", 'echo "a"')]
    heard = family.heard(inside + calls)
    assert heard == expected[: 1 if syntax.between is None else 2]


def test_its_grammar_admits_calls_text_and_calls_behind_text(path: Path) -> None:
    speech = family_of(path).template.speech
    syntax = speech.syntax
    views = [item.view for item in link(CALLS).shown]
    calls = "".join(said_calls(syntax, views[: 1 if syntax.between is None else 2]))
    inside = syntax.thought[1] if speech.inside and syntax.thought else ""
    grammar = Grammar(speech, prompt(tools=TOOLS).settings)
    assert grammar.admits(inside + calls, ends=syntax.call_ends)
    assert grammar.admits(f"{inside}{syntax.says}Hello", ends=syntax.text_ends)
    if syntax.begins:
        assert grammar.admits(f"{inside}Well, {calls}", ends=syntax.call_ends)
    if syntax.thought and not speech.inside:
        opens, closes = syntax.thought
        assert grammar.admits(f"{opens}hm{closes}\n{calls}", ends=syntax.call_ends)


def test_the_page_has_its_row(path: Path) -> None:
    assert row_of(path) in PAGE.read_text(encoding="utf-8").splitlines()


def table() -> Iterator[str]:
    yield "| template | a call | chats | thoughts | words for effort |"
    yield "|---|---|---|---|---|"
    yield from map(row_of, paths())


if __name__ == "__main__":
    FOLDER = Path(sys.argv[1])
    print("\n".join(table()))
