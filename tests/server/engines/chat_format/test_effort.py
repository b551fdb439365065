"""``reasoning.effort`` in the words of a template."""

from typing import Any

import pytest

from tests.support import chat_templates
from tests.support.chat_family import ChatFamily
from tests.support.engine_contract import link, prompt
from tests.support.gguf_file import CHATML
from tieline_server.engines.chat_format.effort import words_for
from tieline_server.engines.chat_format.prompt import PromptBuilder

HARMONY_TOKENS = [
    f"<|{name}|>" for name in ("start", "end", "return", "call", "channel", "constrain", "message")
]


def told(template: str, effort: str | None) -> dict[str, Any]:
    return ChatFamily(template, special=HARMONY_TOKENS).template.manner(effort).words


@pytest.mark.parametrize(
    ("effort", "words"),
    [
        (None, {}),
        ("none", {"enable_thinking": False}),
        ("minimal", {"enable_thinking": False}),
        ("low", {}),
        ("high", {}),
    ],
)
def test_tp_05_a_switch_is_off_for_the_least_efforts(
    effort: str | None, words: dict[str, Any]
) -> None:
    """TP-05: where the template thinks by itself, nothing need be said for the others."""
    assert told(chat_templates.SWITCH, effort) == words


@pytest.mark.parametrize(
    ("effort", "name"),
    [("none", "low"), ("minimal", "low"), ("low", "low"), ("medium", "medium"), ("xhigh", "high")],
)
def test_tp_05_an_effort_by_name_is_one_that_models_were_trained_with(
    effort: str, name: str
) -> None:
    """TP-05."""
    assert told(chat_templates.EFFORT, effort) == {"reasoning_effort": name}


def test_tp_05_a_template_without_a_word_for_it_is_given_none() -> None:
    """TP-05."""
    assert told(CHATML, "high") == {}


def test_tp_05_names_that_a_template_refuses_are_passed_over_and_its_own_are_found() -> None:
    """TP-05: Hunyuan's knows three, and thinks by none of them where nothing is said."""

    def render(reasoning_effort: str = "no_think", **_: Any) -> str:
        if reasoning_effort not in ("no_think", "low", "high"):
            raise ValueError("no such effort")
        return f"mode {reasoning_effort}"

    assert words_for("none", render) == {"reasoning_effort": "no_think"}
    assert words_for("high", render) == {"reasoning_effort": "high"}
    assert words_for("medium", render) == {}


def test_tp_05_a_word_that_counts_only_beside_another_one_is_found() -> None:
    """TP-05: DeepSeek's has a switch, and a most for what is switched on; Seed's counts tokens."""

    def render(
        enable_thinking: bool = False, reasoning_effort: str = "", thinking_budget: int = -1
    ) -> str:
        most = "most" if enable_thinking and reasoning_effort == "max" else ""
        return f"{enable_thinking} {most} {thinking_budget}"

    assert words_for("xhigh", render) == {
        "enable_thinking": True,
        "reasoning_effort": "max",
        "thinking_budget": 16384,
    }
    assert words_for("none", render)["thinking_budget"] == 0


def test_tp_05_the_effort_of_a_create_reaches_its_prompt_and_no_other() -> None:
    """TP-05."""
    family = ChatFamily(chat_templates.SWITCH)
    built = PromptBuilder(family.template, context=2048)
    off = [*family.template.tokens.encode("<think></think>")]
    tip = link("hi")
    plain = built.build(prompt(tip=tip)).ids
    assert built.build(prompt(tip=tip, reasoning={"effort": "none"})).ids == [*plain, *off]
    assert built.build(prompt(tip=tip, reasoning={"effort": "high"})).ids == plain
    assert built.build(prompt(tip=tip)).ids == plain


def test_tp_05_an_effort_that_every_question_shows_has_its_chats_rendered_whole() -> None:
    """TP-05: GLM's puts a word behind each question."""
    source = chat_templates.HERMES.replace(
        "{{ message.content }}<|im_end|>\n{% endif -%}\n{%- endfor",
        "{{ message.content }}{{ '/nothink' if message.role == 'user' and enable_thinking is "
        "defined and not enable_thinking }}<|im_end|>\n{% endif -%}\n{%- endfor",
    )
    family = ChatFamily(source)
    assert family.template.cuts
    built = PromptBuilder(family.template, context=2048)
    tip = link("again", link([{"role": "assistant", "content": "yes"}], link("hi")))
    quiet = built.build(prompt(tip=tip, reasoning={"effort": "none"})).ids
    message = family.template.message
    assert quiet == [
        *message("user", "hi/nothink"),
        *message("assistant", "yes"),
        *message("user", "again/nothink"),
        *family.template.opening,
    ]
    assert built.build(prompt(tip=tip)).ids[: len(message("user", "hi"))] == message("user", "hi")
