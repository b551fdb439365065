"""Hermes, Qwen and others in ChatML: calls between ``<tool_call>`` tags, behind any text."""

from typing import Final

from tieline_server.engines.chat_format.syntax.base import Syntax

HERMES: Final = Syntax(
    name="hermes",
    call='<tool_call>\n{"name": $NAME, "arguments": $VALUE}\n</tool_call>',
    custom='<tool_call>\n{"name": $NAME, "arguments": {"input": $VALUE}}\n</tool_call>',
    between="\n",
    begins="<tool_call>",
    output="<tool_response>\n$OUTPUT\n</tool_response>",
    output_role="user",
    outputs_join=True,
)
