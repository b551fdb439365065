"""What the families differ in."""

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from tieline_server.engines.chat_format.json_scan import quoted

NAME: Final = "$NAME"
VALUE: Final = "$VALUE"
OUTPUT: Final = "$OUTPUT"
KEY: Final = "$KEY"
ID: Final = "$ID"
INDEX: Final = "$INDEX"

LETTER: Final = "\ue002"
"""Stands for any letter or digit in what a model writes."""
DIGIT: Final = "\ue003"
ID_LETTERS: Final = 9
"""Letters of a call's id where a model writes one (Mistral refuses any other number)."""

THOUGHT: Final = ("<think>", "</think>")
"""Between these a model thinks, where its template knows them."""

KINDS: Final = ("string", "number", "boolean", "object", "array", "null")
"""What a JSON value may be; an integer is a number."""


class Parameters(Struct, frozen=True, kw_only=True):
    """How arguments are written one by one: strings as they are, anything else as JSON."""

    around: Mapping[str, tuple[str, str, str]]
    """A kind of JSON value -> what is before its key, between that and it, and behind it."""
    words: Mapping[str, str]
    """``true``, ``false`` and ``null`` as they are written."""


class Syntax(Struct, frozen=True, kw_only=True):
    """One family. Texts hold special tokens by their names, as templates do."""

    name: str
    call: str
    """A call: ``NAME`` stands for the tool's name, as JSON where it is in quotes, and ``VALUE``
    for its arguments.

    ``ID`` and ``INDEX`` stand for nine letters and a digit that tell it from others.
    """
    custom: str
    """The same for a custom tool, whose input is a JSON string, or the one parameter."""
    parameters: Parameters | None = None
    """How ``VALUE`` is written where it is not JSON."""
    message: tuple[str, str] | None = None
    """What is around calls in a chat, where it is not what is around an answer's text."""
    lead: bool = False
    """Whether white space may come before the first call of an answer."""
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
    arguments: str = "dict"
    """How the template takes a call's arguments: as a ``dict``, or as JSON in a ``str``."""
    empty: str | None = ""
    """The content that the template takes beside calls."""
    first: int = 0
    """``INDEX`` of the first call of an answer."""
    ids: str = ""
    """What ``ID`` is in a template that takes one form only: of a call's name and index."""
    output: str
    """A tool's output, as the text of a message, or as a message where ``output_role`` is None."""
    output_role: str | None = None
    outputs: tuple[str, str, str] = ("", "", "")
    """What is before, between and behind outputs that follow each other, without a role."""
    output_json: bool = False
    """Whether the output is written as a JSON string."""

    def frame(self, name: str, *, custom: bool = False) -> tuple[str, str]:
        """What a call of this tool has before and behind its value.

        >>> PLAIN.frame("look")  # doctest: +SKIP
        ('{"name":"look","arguments":', '}')
        """
        form = self.custom if custom else self.call
        head, _, tail = form.partition(VALUE)
        return self._sampled(head, name), self._sampled(tail, name)

    def _sampled(self, text: str, name: str) -> str:
        text = text.replace(f'"{NAME}"', quoted(name)).replace(NAME, name)
        return text.replace(ID, LETTER * ID_LETTERS).replace(INDEX, DIGIT)

    @property
    def texts(self) -> tuple[str, ...]:
        """All that an answer may have around what it says."""
        around = (self.call, self.custom, self.opens, self.may_open, self.between or "")
        parameters = self.parameters.around.values() if self.parameters else ()
        parts = (part for each in parameters for part in each)
        return (*around, self.closes, self.says, *(self.thought or ()), *parts)


PLACES: Final = {LETTER: re.compile("[a-zA-Z0-9]"), DIGIT: re.compile("[0-9]")}


def starts(text: str, form: str) -> bool:
    """Whether ``text`` begins with ``form``, in which places stand for a letter or a digit."""
    return text.startswith(form) or (len(text) >= len(form) and _alike(text, form))


def may_start(text: str, form: str) -> bool:
    """Whether more of ``text`` can make it begin with ``form``."""
    return len(text) < len(form) and (form.startswith(text) or _alike(text, form))


def _alike(text: str, form: str) -> bool:
    if LETTER not in form and DIGIT not in form:
        return False
    pairs = zip(text, form, strict=False)
    return all(a == b or (b in PLACES and PLACES[b].match(a)) for a, b in pairs)
