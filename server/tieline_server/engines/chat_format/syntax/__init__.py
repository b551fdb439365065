"""How models write calls and thoughts, and how they are shown tools' outputs."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from tieline_server.engines.chat_format.jinja_template import Forms
from tieline_server.engines.chat_format.syntax.base import Syntax
from tieline_server.engines.chat_format.syntax.harmony import HARMONY
from tieline_server.engines.chat_format.syntax.learned import Render, learn, learn_thought
from tieline_server.engines.chat_format.syntax.plain import PLAIN

__all__ = ["PLAIN", "Syntax", "recognise"]

PYTHON_TAG: Final = "<|python_tag|>"
"""What Llama's models may write before a call, though no template shows it."""


def recognise(render: Render, forms: Forms | None, *, special: Sequence[str]) -> Syntax:
    """The syntax of the model whose template writes like this."""
    syntax = learn(render, forms, special=special) or PLAIN
    if "<|channel|>commentary" in syntax.call and "to=functions." in syntax.call:
        # The same messages, with the recipient where these models themselves put it.
        return HARMONY
    if syntax.call.startswith("{") and syntax.between is None and PYTHON_TAG in special:
        syntax = replace(syntax, may_open=PYTHON_TAG, between="; ")
    thinks = partial(render, enable_thinking=True, thinking=True)
    return replace(syntax, thought=learn_thought(render) or learn_thought(thinks))
