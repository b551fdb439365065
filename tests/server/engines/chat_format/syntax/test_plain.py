"""A model whose template knows no tools: what it is shown, and what is read of it."""

from tests.support.chat_family import CALLS, OUTPUTS, ChatFamily
from tests.support.gguf_file import CHATML
from tieline_server.core.create.tools import parse_tools

PLAIN = ChatFamily(CHATML)

LOOK = '{"name":"look","arguments":{"at":"x"}}'
SHELL = '{"name":"shell","input":"echo \\"a\\""}'

TOLD = """\
You have these tools:
- f()
To use one, answer only with JSON: {"name": its name, "arguments": {...}}"""


def test_calls_are_shown_as_json_a_line_each() -> None:
    assert PLAIN.shown(CALLS) == [f"<|im_start|>assistant\n{LOOK}\n{SHELL}<|im_end|>\n"]


def test_calls_are_read_from_the_form_that_they_are_shown_in() -> None:
    assert PLAIN.heard(f"{LOOK}\n{SHELL}") == [("look", '{"at":"x"}'), ("shell", 'echo "a"')]


def test_the_first_letter_tells_a_call_from_text() -> None:
    assert PLAIN.heard(f" {LOOK}") == [("text", f" {LOOK}")]


def test_each_output_is_shown_as_a_message_of_the_user() -> None:
    assert PLAIN.shown(OUTPUTS, after=CALLS) == [
        '<|im_start|>user\n<tool_response>\na "b"\n</tool_response><|im_end|>\n',
        "<|im_start|>user\n<tool_response>\nc\n</tool_response><|im_end|>\n",
    ]


def test_the_system_message_says_which_tools_there_are_and_how_to_call_them() -> None:
    offered = parse_tools(b'[{"type":"function","name":"f"}]').offered
    assert PLAIN.template.head(None, offered) == PLAIN.template.message("system", TOLD)
