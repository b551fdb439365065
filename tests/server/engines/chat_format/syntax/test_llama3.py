"""Llama 3: what such a model is shown, and what is read of it."""

from tests.support import chat_templates
from tests.support.chat_family import CALLS, OUTPUTS, ChatFamily

LLAMA3 = ChatFamily(
    chat_templates.LLAMA3,
    special=["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"],
)

LOOK = '{"name": "look", "parameters": {"at":"x"}}'
SHELL = '{"name": "shell", "parameters": {"input": "echo \\"a\\""}}'


def test_calls_are_shown_as_json_with_parameters() -> None:
    head = "<|start_header_id|>assistant<|end_header_id|>\n\n"
    assert LLAMA3.shown(CALLS) == [f"{head}{LOOK}; {SHELL}<|eot_id|>"]


def test_calls_are_read_from_the_form_that_they_are_shown_in() -> None:
    assert LLAMA3.heard(f"{LOOK}; {SHELL}") == [("look", '{"at":"x"}'), ("shell", 'echo "a"')]


def test_the_python_tag_before_a_call_is_passed_over() -> None:
    assert LLAMA3.heard(f"<|python_tag|>{LOOK}") == [("look", '{"at":"x"}')]


def test_an_answer_that_begins_otherwise_is_text_to_its_end() -> None:
    assert LLAMA3.heard(f"So: {LOOK}") == [("text", f"So: {LOOK}")]


def test_each_output_is_shown_as_a_message_of_ipython() -> None:
    head = "<|start_header_id|>ipython<|end_header_id|>\n\n"
    assert LLAMA3.shown(OUTPUTS, after=CALLS) == [f'{head}a "b"<|eot_id|>', f"{head}c<|eot_id|>"]
