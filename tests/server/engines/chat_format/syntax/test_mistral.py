"""Mistral, the older form and the later one: what is shown, and what is read."""

import pytest

from tests.support import chat_templates
from tests.support.chat_family import CALLS, OUTPUTS, ChatFamily

SPECIAL = ["[INST]", "[/INST]", "</s>", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]
OLDER = ChatFamily(chat_templates.MISTRAL, special=SPECIAL)
LATER = ChatFamily(chat_templates.MISTRAL + "{# [ARGS] #}", special=[*SPECIAL, "[ARGS]"])

LIST = (
    '[TOOL_CALLS][{"name": "look", "arguments": {"at":"x"}}, '
    '{"name": "shell", "arguments": {"input": "echo \\"a\\""}}]'
)
ROW = '[TOOL_CALLS]look[ARGS]{"at":"x"}[TOOL_CALLS]shell[ARGS]{"input": "echo \\"a\\""}'

in_each_form = pytest.mark.parametrize(
    ("family", "calls"), [(OLDER, LIST), (LATER, ROW)], ids=["a list", "each by itself"]
)


@in_each_form
def test_calls_are_shown_behind_their_tag(family: ChatFamily, calls: str) -> None:
    assert family.shown(CALLS) == [f"{calls}</s>"]


@in_each_form
def test_calls_are_read_from_the_form_that_they_are_shown_in(
    family: ChatFamily, calls: str
) -> None:
    assert family.heard(calls) == [("look", '{"at":"x"}'), ("shell", 'echo "a"')]


@in_each_form
def test_text_may_come_before_calls(family: ChatFamily, calls: str) -> None:
    assert [kind for kind, _ in family.heard(f"Well, {calls}")] == ["text", "look", "shell"]


def test_an_output_is_shown_as_json_in_the_older_form_and_as_text_in_the_later() -> None:
    assert OLDER.shown(OUTPUTS, after=CALLS) == [
        '[TOOL_RESULTS]{"content": "a \\"b\\""}[/TOOL_RESULTS]',
        '[TOOL_RESULTS]{"content": "c"}[/TOOL_RESULTS]',
    ]
    assert LATER.shown(OUTPUTS, after=CALLS) == [
        '[TOOL_RESULTS]a "b"[/TOOL_RESULTS]',
        "[TOOL_RESULTS]c[/TOOL_RESULTS]",
    ]
