"""Families of models, told by what their chat templates write."""

import pytest

from tests.support import chat_templates
from tests.support.chat_syntaxes import HERMES, syntax_of
from tests.support.gguf_file import CHATML
from tieline_server.engines.chat_format.syntax import PLAIN
from tieline_server.engines.chat_format.syntax.base import THOUGHT
from tieline_server.engines.chat_format.syntax.harmony import HARMONY


@pytest.mark.parametrize(
    ("template", "call"),
    [
        (CHATML, PLAIN.call),
        (chat_templates.HERMES, HERMES.call),
        (chat_templates.LLAMA3, '{"name": "$NAME", "parameters": $VALUE}'),
        (chat_templates.MISTRAL, '{"name": "$NAME", "arguments": $VALUE}'),
        (chat_templates.MISTRAL_ARGS, "[TOOL_CALLS]$NAME[ARGS]$VALUE"),
        (chat_templates.HARMONY, HARMONY.call),
    ],
)
def test_a_family_is_told_by_what_its_template_writes(template: str, call: str) -> None:
    assert syntax_of(template).call == call


def test_a_tag_that_a_template_names_and_does_not_write_tells_nothing() -> None:
    for named in ("<tool_call>", "<|channel|>", "[TOOL_CALLS][ARGS]", "<|start_header_id|> tools"):
        assert syntax_of(CHATML + f"{{# {named} #}}").call == PLAIN.call


def test_llamas_models_may_write_a_tag_that_no_template_shows() -> None:
    assert syntax_of(chat_templates.LLAMA3).may_open == "<|python_tag|>"
    assert syntax_of(chat_templates.LLAMA3, special=["<|eot_id|>"]).may_open == ""


def test_a_model_thinks_where_its_template_knows_the_tags() -> None:
    assert syntax_of(chat_templates.THINKS).thought == THOUGHT
    assert syntax_of(CHATML).thought is None
    assert syntax_of(chat_templates.HARMONY).thought == HARMONY.thought
