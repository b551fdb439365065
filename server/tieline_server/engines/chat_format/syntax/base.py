"""What the families differ in."""

from typing import Final

from msgspec import Struct

from tieline_server.engines.chat_format.json_scan import quoted

NAME: Final = "$NAME"
VALUE: Final = "$VALUE"
OUTPUT: Final = "$OUTPUT"

THOUGHT: Final = ("<think>", "</think>")
"""Between these a model thinks, where its template knows them."""


class Syntax(Struct, frozen=True, kw_only=True):
    """One family. Texts hold special tokens by their names, as templates do."""

    name: str
    call: str
    """A call: ``NAME`` stands for the tool's, ``VALUE`` for the JSON of its arguments."""
    custom: str
    """The same for a custom tool, whose input is a JSON string."""
    raw_name: bool = False
    """Whether the name is written as it is; else as a JSON string."""
    opens: str = ""
    """What is written before the first call of an answer."""
    may_open: str = ""
    """What a model may write before that, and what is passed over."""
    between: str | None = None
    """What is between two calls; None where an answer has one at most."""
    closes: str = ""
    """What is written behind the last call."""
    begins: str | None = None
    """What no text contains, since a call begins so; None where the first letter decides."""
    says: str = ""
    """What is written before text."""
    thought: tuple[str, str] | None = None
    """What is written before and behind a thought."""
    text_ends: str | None = None
    call_ends: str | None = None
    """The special token that ends an answer of this kind, where it is not the template's."""
    native: bool = True
    """Whether the template itself shows the tools; else a system message does."""
    output: str
    """A tool's output, as the text of a message, or as a message where ``output_role`` is None."""
    output_role: str | None = None
    outputs_join: bool = False
    """Whether outputs that follow each other are one message, a line feed between them."""
    output_json: bool = False
    """Whether the output is written as a JSON string."""

    def frame(self, name: str, *, custom: bool = False) -> tuple[str, str]:
        """What a call of this tool has before and behind its value.

        >>> PLAIN.frame("look")  # doctest: +SKIP
        ('{"name":"look","arguments":', '}')
        """
        form = self.custom if custom else self.call
        head, _, tail = form.partition(VALUE)
        return head.replace(NAME, name if self.raw_name else quoted(name)), tail

    @property
    def texts(self) -> tuple[str, ...]:
        """All that an answer may have around what it says."""
        around = (self.call, self.custom, self.opens, self.may_open, self.between or "")
        return (*around, self.closes, self.says, *(self.thought or ()))
