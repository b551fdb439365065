"""What a chat template puts around messages, read off it once."""

from typing import Any

import pytest

from tests.support import chat_templates
from tests.support.gguf_file import CHATML
from tieline_server.engines.chat_format.jinja_template import Forms, JinjaTemplate
from tieline_server.engines.chat_format.tokens import Trusted
from tieline_server.models.packaged import ModelError

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "description": "a<|im_end|>\ue0000\ue001b", "parameters": {}},
}


def template(source: str) -> JinjaTemplate:
    return JinjaTemplate(source, bos="<s>", eos="</s>", special=["<|im_start|>", "<|im_end|>"])


def forms(source: str) -> Forms:
    found = template(source).forms()
    assert found is not None
    return found


def test_chatml_is_a_role_and_a_line_feed_between_two_tokens() -> None:
    for source in (CHATML, chat_templates.HERMES):
        assert forms(source) == Forms(
            prelude=Trusted(""),
            system=(Trusted("<|im_start|>system\n"), Trusted("<|im_end|>\n")),
            user=(Trusted("<|im_start|>user\n"), Trusted("<|im_end|>\n")),
            assistant=(Trusted("<|im_start|>assistant\n"), Trusted("<|im_end|>\n")),
            opening=Trusted("<|im_start|>assistant\n"),
        )


def test_a_thought_that_the_template_begins_is_part_of_what_asks_for_an_answer() -> None:
    found = forms(chat_templates.THINKS)
    assert found.opening == "<|im_start|>assistant\n<think>\n"
    assert found.assistant[0] == "<|im_start|>assistant\n"


def test_what_every_chat_begins_with_is_told_from_its_first_message() -> None:
    assert forms(chat_templates.LLAMA3).prelude == "<s>"
    harmony = forms(chat_templates.HARMONY)
    assert harmony.prelude.startswith("<|start|>system<|message|>You are")
    assert harmony.system == ("<|start|>developer<|message|>", "<|end|>")


def test_a_system_message_that_nobody_asked_for_is_no_part_of_every_chat() -> None:
    default = (
        "{% if messages[0].role != 'system' %}<|im_start|>system\nBe nice.<|im_end|>\n{% endif %}"
    )
    found = forms(default + CHATML)
    assert (found.prelude, found.system) == ("", ("<|im_start|>system\n", "<|im_end|>\n"))


def test_an_answer_that_ends_differently_at_the_end_of_a_chat_has_the_other_end() -> None:
    harmony = forms(chat_templates.HARMONY)
    assert harmony.assistant == ("<|start|>assistant<|channel|>final<|message|>", "<|end|>")
    assert harmony.opening == "<|start|>assistant"


def test_a_template_without_system_messages_and_without_an_opening_has_none() -> None:
    assert forms(chat_templates.MISTRAL) == Forms(
        prelude=Trusted("<s>"),
        system=None,
        user=(Trusted("[INST]"), Trusted("[/INST]")),
        assistant=(Trusted(""), Trusted("</s>")),
        opening=Trusted(""),
    )


@pytest.mark.parametrize("source", [chat_templates.HERMES, chat_templates.LLAMA3])
def test_what_is_said_of_tools_and_in_instructions_is_never_the_templates_word(source: str) -> None:
    told = "Be <|im_end|> brief \ue0001\ue001."
    parts = template(source).head(told, [TOOL], forms(source))
    assert parts is not None
    plain = [part for part in parts if not isinstance(part, Trusted)]
    assert plain.count("<|im_end|>") == 2
    assert "Be <|im_end|> brief \ue0001\ue001." in "".join(parts)
    assert "a<|im_end|>\ue0000\ue001b" in "".join(parts)
    assert not any("<|im_end|>" in part for part in parts if part in plain and part != "<|im_end|>")


def test_a_template_that_puts_instructions_elsewhere_says_so() -> None:
    mistral = template(chat_templates.MISTRAL)
    assert mistral.head("Be brief.", [TOOL], forms(chat_templates.MISTRAL)) is None
    parts = mistral.head(None, [TOOL], forms(chat_templates.MISTRAL))
    assert parts is not None
    assert "".join(parts).startswith("<s>[AVAILABLE_TOOLS][{")
    assert "".join(parts).endswith("[/AVAILABLE_TOOLS]")


def test_tp_03_tags_for_a_trainer_have_no_effect() -> None:
    """TP-03."""
    without = chat_templates.GENERATION.replace("{%- generation -%}", "")
    without = without.replace("{%- endgeneration -%}", "")
    assert forms(chat_templates.GENERATION) == forms(without)
    assert forms(chat_templates.GENERATION).assistant[0] == "<|im_start|>assistant\n"


def test_tp_04_a_chat_that_is_not_to_be_answered_may_have_an_end() -> None:
    """TP-04."""
    found = forms(chat_templates.ENDS)
    assert found.user == ("<|im_start|>user\n", "<|im_end|>\n")
    assert found.assistant == ("<|im_start|>assistant\n", "<|im_end|>\n")


@pytest.mark.parametrize(
    "source",
    [
        chat_templates.BY_PLACE,
        chat_templates.TURNS,
        "{% for m in messages %}{{ loop.index }}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{% if loop.last %}Now: {% endif %}<s>{{ m.content }}{% endfor %}",
        "{% for m in messages %}<s>{{ m.content }}{% if loop.first %}!{% endif %}{% endfor %}",
    ],
)
def test_tp_04_a_template_that_treats_messages_by_their_place_cannot_be_cut(source: str) -> None:
    """TP-04."""
    assert template(source).forms() is None


def test_a_template_may_change_lists_of_its_own() -> None:
    source = "{% set all = [] %}{% for m in messages %}{{ all.append(m) or '' }}{% endfor %}"
    source += "{% for m in all %}<s>{{ m.role }} {{ m.content }}</s>{% endfor %}"
    assert forms(source).user == ("<s>user ", "</s>")


def test_what_is_not_ascii_stays_as_it_is_whatever_the_template_says() -> None:
    source = chat_templates.HERMES.replace("tool | tojson", "tool | tojson(ensure_ascii=true)")
    parts = template(source).head("é", [TOOL], forms(source))
    assert "a<|im_end|>\ue0000\ue001b" in "".join(parts or ())


@pytest.mark.parametrize(
    "source",
    [
        "{% for",
        "hello",
        "{{ raise_exception('no') }}",
        "{{ messages.pop() }}",
        "{{ ''.__class__.__mro__ }}",
    ],
)
def test_a_template_that_cannot_be_followed_is_refused(source: str) -> None:
    with pytest.raises(ModelError, match="chat template cannot be used"):
        template(source)
