"""gpt-oss: an answer is a message in a channel: ``analysis`` is thought, ``commentary`` with a
recipient is a call, ``final`` is text. One call an answer: its last token ends it."""

from typing import Final

from tieline_server.engines.chat_format.syntax.base import Syntax

HARMONY: Final = Syntax(
    name="harmony",
    call="<|channel|>commentary to=functions.$NAME <|constrain|>json<|message|>$VALUE",
    custom='<|channel|>commentary to=functions.$NAME <|constrain|>json<|message|>{"input":$VALUE}',
    says="<|channel|>final<|message|>",
    thought=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
    text_ends="<|return|>",
    call_ends="<|call|>",
    output="<|start|>functions.$NAME to=assistant<|channel|>commentary<|message|>$OUTPUT<|end|>",
)
