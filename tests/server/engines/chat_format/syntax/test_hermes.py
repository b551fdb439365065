"""Hermes, Qwen and others in ChatML: what such a model is shown, and what is read of it."""

from tests.support import chat_templates
from tests.support.chat_family import CALLS, OUTPUTS, ChatFamily

HERMES = ChatFamily(chat_templates.HERMES)

LOOK = '<tool_call>\n{"name": "look", "arguments": {"at":"x"}}\n</tool_call>'
SHELL = '<tool_call>\n{"name": "shell", "arguments": {"input": "echo \\"a\\""}}\n</tool_call>'


def test_calls_are_shown_between_tags_in_one_message() -> None:
    assert HERMES.shown(CALLS) == [f"<|im_start|>assistant\n{LOOK}\n{SHELL}<|im_end|>\n"]


def test_calls_are_read_from_the_form_that_they_are_shown_in() -> None:
    assert HERMES.heard(f"{LOOK}\n{SHELL}") == [("look", '{"at":"x"}'), ("shell", 'echo "a"')]


def test_text_may_come_before_a_call_and_is_text_without_one() -> None:
    assert HERMES.heard(f"Well, {LOOK}") == [("text", "Well, "), ("look", '{"at":"x"}')]
    assert HERMES.heard("Well, <tool>") == [("text", "Well, <tool>")]


def test_outputs_that_follow_each_other_are_shown_in_one_message_of_the_user() -> None:
    first = '<tool_response>\na "b"\n</tool_response>'
    second = "<tool_response>\nc\n</tool_response>"
    assert HERMES.shown(OUTPUTS, after=CALLS) == [
        f"<|im_start|>user\n{first}\n{second}<|im_end|>\n"
    ]
