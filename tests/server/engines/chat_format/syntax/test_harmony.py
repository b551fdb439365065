"""gpt-oss: what such a model is shown, and what is read of it."""

from tests.support import chat_templates
from tests.support.chat_family import CALLS, OUTPUTS, ChatFamily

NAMES = ("start", "end", "return", "call", "channel", "constrain", "message")
HARMONY = ChatFamily(chat_templates.HARMONY, special=[f"<|{name}|>" for name in NAMES])

LOOK = '<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"at":"x"}'
SHELL = (
    '<|channel|>commentary to=functions.shell <|constrain|>json<|message|>{"input":"echo \\"a\\""}'
)
THOUGHT = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"


def test_a_call_is_shown_as_a_message_to_its_tool() -> None:
    for call, text in zip(CALLS, (LOOK, SHELL), strict=True):
        assert HARMONY.shown([call]) == [f"<|start|>assistant{text}<|call|>"]


def test_a_call_is_read_from_the_form_that_it_is_shown_in() -> None:
    assert HARMONY.heard(LOOK) == [("look", '{"at":"x"}')]
    assert HARMONY.heard(SHELL) == [("shell", 'echo "a"')]


def test_what_is_in_the_channel_analysis_is_a_thought_and_in_final_text() -> None:
    assert HARMONY.heard(f"{THOUGHT}<|channel|>final<|message|>ok") == [
        ("thought", "hm"),
        ("text", "ok"),
    ]
    assert HARMONY.heard(THOUGHT + LOOK) == [("thought", "hm"), ("look", '{"at":"x"}')]


def test_what_ends_an_answer_depends_on_what_it_is() -> None:
    special = HARMONY.template.speech.special
    ends = {special[name] for name in ("<|return|>", "<|call|>")}
    assert ends <= HARMONY.template.speech.ends


def test_an_output_is_shown_as_a_message_of_its_tool() -> None:
    tail = " to=assistant<|channel|>commentary<|message|>"
    assert HARMONY.shown(OUTPUTS, after=CALLS) == [
        f'<|start|>functions.look{tail}a "b"<|end|>',
        f"<|start|>functions.shell{tail}c<|end|>",
    ]
