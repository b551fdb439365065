"""What docs/chat-templates.md says of chat templates is what the code has.

Its table of templates is compared where these are
(tests/server/engines/chat_format/shipped_templates.py).
"""

import re
from pathlib import Path

from tests.support import chat_templates
from tests.support.chat_family import ChatFamily
from tieline_server.engines.chat_format.constrain import Speech
from tieline_server.engines.chat_format.effort import BUDGET, BUDGETS, NAMED, NAMES, OFF, SWITCHES
from tieline_server.engines.chat_format.parameters import MOST
from tieline_server.engines.chat_format.syntax.base import ID_LETTERS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "chat-templates.md").read_text(encoding="utf-8")
NUMBERS = {8: "eight", 9: "nine"}


def cells(first: str) -> list[str]:
    """The cells of the row that begins so."""
    [row] = [line for line in PAGE.splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


def test_the_page_of_the_engine_leads_to_it() -> None:
    assert "(chat-templates.md)" in (DOCS / "llama-engine.md").read_text(encoding="utf-8")


def test_efforts_are_what_the_page_says() -> None:
    efforts = cells("word")
    assert efforts == [*NAMES] == [*BUDGETS]
    switched = cells(", ".join(f"`{word}`" for word in SWITCHES))
    assert switched == ["off" if effort in OFF else "on" for effort in efforts]
    named = cells(", ".join(f"`{word}`" for word in NAMED))
    assert [re.findall("`([^`]+)`", cell) for cell in named] == [
        [*names] for names in NAMES.values()
    ]
    budgets = cells(f"`{BUDGET}`")
    assert [int(cell.replace(",", "")) for cell in budgets] == [*BUDGETS.values()]


def test_numbers_of_the_page_are_those_of_the_code() -> None:
    assert f"up to {NUMBERS[MOST]} parameters of any name" in PAGE
    assert f"any {NUMBERS[ID_LETTERS]} letters or a digit" in PAGE


def test_each_template_has_a_row_and_those_that_are_rendered_whole_say_so() -> None:
    rows = PAGE.partition("| template |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(rows) == 70
    assert [row.count(" | whole | ") for row in rows].count(1) > 1


def test_forms_of_the_page_are_those_that_there_are() -> None:
    named = {
        "JSON": chat_templates.HERMES,
        "parameters": chat_templates.PARAMETERS,
        "gpt-oss": chat_templates.HARMONY,
        "others": chat_templates.UNKNOWN,
    }
    names = {"JSON": "json", "gpt-oss": "harmony", "others": "plain"}
    for form, template in named.items():
        assert cells(form)
        speech: Speech = ChatFamily(template, special=["<|call|>"]).template.speech
        assert speech.syntax.name == names.get(form, form)
