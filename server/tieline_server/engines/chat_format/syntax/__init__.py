"""How models write calls and thoughts, and how they are shown tools' outputs: a file a family.

A new family is a file in this folder and a line in :data:`FAMILIES`.
"""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from tieline_server.engines.chat_format.syntax.base import THOUGHT, Syntax
from tieline_server.engines.chat_format.syntax.harmony import HARMONY
from tieline_server.engines.chat_format.syntax.hermes import HERMES
from tieline_server.engines.chat_format.syntax.llama3 import LLAMA3
from tieline_server.engines.chat_format.syntax.mistral import MISTRAL, MISTRAL_ARGS
from tieline_server.engines.chat_format.syntax.plain import PLAIN

__all__ = ["FAMILIES", "PLAIN", "Syntax", "recognise"]

FAMILIES: Final[tuple[tuple[Callable[[str], bool], Syntax], ...]] = (
    (lambda template: "<|channel|>" in template, HARMONY),
    (lambda template: "[TOOL_CALLS]" in template and "[ARGS]" in template, MISTRAL_ARGS),
    (lambda template: "[TOOL_CALLS]" in template, MISTRAL),
    (lambda template: "<|start_header_id|>" in template and "tools" in template, LLAMA3),
    (lambda template: "<tool_call>" in template, HERMES),
)
"""What tells a family by its chat template, the surest sign first; the rest is plain."""


def recognise(template: str) -> Syntax:
    """The syntax of the model with this chat template."""
    syntax = next((found for told, found in FAMILIES if told(template)), PLAIN)
    if syntax.thought is None and THOUGHT[0] in template:
        return replace(syntax, thought=THOUGHT)
    return syntax
