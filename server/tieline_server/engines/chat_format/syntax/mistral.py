"""Mistral: ``[TOOL_CALLS]`` and a list of calls, or, later, the same before each call's name."""

from typing import Final

from tieline_server.engines.chat_format.syntax.base import Syntax

MISTRAL: Final = Syntax(
    name="mistral",
    call='{"name": $NAME, "arguments": $VALUE}',
    custom='{"name": $NAME, "arguments": {"input": $VALUE}}',
    opens="[TOOL_CALLS][",
    between=", ",
    closes="]",
    begins="[TOOL_CALLS]",
    output='[TOOL_RESULTS]{"content": $OUTPUT}[/TOOL_RESULTS]',
    output_json=True,
)

MISTRAL_ARGS: Final = Syntax(
    name="mistral-args",
    call="[TOOL_CALLS]$NAME[ARGS]$VALUE",
    custom='[TOOL_CALLS]$NAME[ARGS]{"input": $VALUE}',
    raw_name=True,
    between="",
    begins="[TOOL_CALLS]",
    output="[TOOL_RESULTS]$OUTPUT[/TOOL_RESULTS]",
)
