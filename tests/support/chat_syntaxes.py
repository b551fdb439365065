"""How models of the families that ``chat_templates`` has write, learnt from those templates."""

from collections.abc import Sequence
from typing import Final

from tests.support import chat_templates
from tieline_server.engines.chat_format.jinja_template import JinjaTemplate
from tieline_server.engines.chat_format.syntax import Syntax, recognise

SPECIAL: Final = ("<|im_end|>", "<|eot_id|>", "</s>", "<|python_tag|>")


def syntax_of(template: str, special: Sequence[str] = SPECIAL) -> Syntax:
    """The syntax of a model with this chat template."""
    jinja = JinjaTemplate(template, bos="<s>", eos="</s>", special=special)
    return recognise(jinja.whole, jinja.forms(), special=special)


HERMES: Final = syntax_of(chat_templates.HERMES)
LLAMA3: Final = syntax_of(chat_templates.LLAMA3)
MISTRAL: Final = syntax_of(chat_templates.MISTRAL)
MISTRAL_ARGS: Final = syntax_of(chat_templates.MISTRAL_ARGS)
