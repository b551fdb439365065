"""Llama 3: a call is the whole answer, JSON that may have ``<|python_tag|>`` before it."""

from typing import Final

from tieline_server.engines.chat_format.syntax.base import Syntax

LLAMA3: Final = Syntax(
    name="llama3",
    call='{"name": $NAME, "parameters": $VALUE}',
    custom='{"name": $NAME, "parameters": {"input": $VALUE}}',
    may_open="<|python_tag|>",
    between="; ",
    output="<|start_header_id|>ipython<|end_header_id|>\n\n$OUTPUT<|eot_id|>",
)
