"""Families of models by their chat templates."""

import pytest

from tests.support import chat_templates
from tests.support.gguf_file import CHATML
from tieline_server.engines.chat_format.syntax import PLAIN, Syntax, recognise
from tieline_server.engines.chat_format.syntax.base import THOUGHT
from tieline_server.engines.chat_format.syntax.harmony import HARMONY
from tieline_server.engines.chat_format.syntax.hermes import HERMES
from tieline_server.engines.chat_format.syntax.llama3 import LLAMA3
from tieline_server.engines.chat_format.syntax.mistral import MISTRAL, MISTRAL_ARGS


@pytest.mark.parametrize(
    ("template", "syntax"),
    [
        (CHATML, PLAIN),
        (chat_templates.HERMES, HERMES),
        (chat_templates.LLAMA3, LLAMA3),
        (chat_templates.MISTRAL, MISTRAL),
        (chat_templates.MISTRAL + "[ARGS]", MISTRAL_ARGS),
        (chat_templates.HARMONY, HARMONY),
    ],
)
def test_a_family_is_told_by_what_its_template_writes(template: str, syntax: Syntax) -> None:
    assert recognise(template) == syntax


def test_a_model_thinks_where_its_template_knows_the_tags() -> None:
    assert recognise(chat_templates.THINKS).thought == THOUGHT
    assert recognise(CHATML + "{# <think> #}").thought == THOUGHT
    assert recognise(chat_templates.HARMONY + "{# <think> #}").thought == HARMONY.thought
