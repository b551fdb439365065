"""A model whose template knows no tools: it is told by a system message how to call them.

The call is the whole answer, as JSON without white space: its first letter tells it from text.
A tool's output is a user's message between two tags.
"""

from typing import Final

from tieline_server.engines.chat_format.syntax.base import Syntax

PLAIN: Final = Syntax(
    name="plain",
    call='{"name":"$NAME","arguments":$VALUE}',
    custom='{"name":"$NAME","input":$VALUE}',
    between="\n",
    native=False,
    output="<tool_response>\n$OUTPUT\n</tool_response>",
    output_role="user",
)
