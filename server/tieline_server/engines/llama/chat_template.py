"""Chains of items as token ids, in the ChatML form of the embedded model.

Each item becomes a message of its own: ``<|im_start|>role``, its text, ``<|im_end|>``. Tokens
never merge across those two, so that the ids of a chain are the ids of its links one after the
other, and a turn renders only its new links. What the model said stays the very ids that it
sampled (``engines.llama.sampled_ids``), so that they are still in its KV cache. Text is never
searched for special tokens: what a user writes as ``<|im_end|>`` stays ordinary tokens.

A function call is an assistant's message that holds the JSON which the model was made to write
(``engines.constrain``), a tool's output is a user's message between two tags. Reasoning and items
that have no class in ``tieline.items`` are not shown to the model. It reads text only: an image
or a file is refused. The system message that the model's own template puts before a chat which
has none is left out: with it, the model does not even know the capital of France.
"""

from array import array
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Struct

from tieline.errors import ApiError
from tieline.items import (
    AdditionalTools,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
)
from tieline_server.core.effects import Work
from tieline_server.core.history import Segment
from tieline_server.core.settings import Tool, parse_tools
from tieline_server.engines.bpe import Vocabulary
from tieline_server.engines.llama.constrain import call_text
from tieline_server.engines.llama.content import text_of
from tieline_server.engines.llama.gguf_metadata import Metadata
from tieline_server.engines.llama.sampled_ids import Memory
from tieline_server.engines.llama.tool_text import describe
from tieline_server.models import ModelError

START: Final = "<|im_start|>"
END: Final = "<|im_end|>"

ROLES: Final = {"developer": "system"}
"""Roles that the model was not trained with -> the one that stands for it."""

NO_IDS: Final = array("i")


class Rendered(Struct, frozen=True, kw_only=True):
    """A chain as token ids: those of its last link, and what came before."""

    ids: "array[int]" = NO_IDS
    """Ids of the last link alone."""
    before: "Rendered | None" = None
    total: int = 0
    """Tokens of the whole chain."""
    tools: tuple[Tool, ...] = ()
    """Tools that came with the input."""


EMPTY: Final = Rendered()


class ChatTemplate:
    """Renders for one model. Raises :class:`ModelError` when the model does not speak ChatML."""

    def __init__(self, metadata: Metadata) -> None:
        known = START in metadata.template and {START, END} <= metadata.special.keys()
        if not known:
            raise ModelError("the model's chat template is not supported: it is not ChatML")
        self._size = 1 + max(max(metadata.ranks.values()), max(metadata.special.values()))
        self._vocabulary = Vocabulary(_all_bytes(metadata.ranks, self._size))
        self._start = metadata.special[START]
        self._end = metadata.special[END]
        self._close = [self._end, *self.encode("\n")]
        self.memory: Final = Memory()
        self.opening: Final = [self._start, *self.encode("assistant\n")]
        """The ids that ask for an answer."""

    def encode(self, text: str) -> list[int]:
        """The ids of ``text``, none of them special."""
        ids = self._vocabulary.encode(text)
        # A few control characters have no token. The model's own tokeniser drops them too.
        if ids and max(ids) >= self._size:
            return [each for each in ids if each < self._size]
        return ids

    def message(self, role: str, text: str) -> list[int]:
        """The ids of one message."""
        return [self._start, *self.encode(f"{role}\n{text}"), *self._close]

    def chain(self, tip: Segment, work: Work) -> Rendered:
        """The chain that ends in ``tip``; only links that were never rendered cost anything.

        Their bytes are added to ``work.render``. Raises :class:`EngineError` for content that
        is no text.
        """

        def step(before: Rendered, link: Segment) -> Rendered:
            ids = self._sampled(link)
            if ids is None:
                work.render += link.size
                ids = self._tokenised(link)
            return Rendered(
                ids=ids,
                before=before,
                total=before.total + len(ids),
                tools=before.tools + _tools_of(link),
            )

        return tip.derive(self, EMPTY, step)

    def split(self, text: str, count: int, last: int) -> list[int] | None:
        """The ids of text that was sampled as so many, of which the last one is known."""
        return self._vocabulary.split(text, count, last)

    def _sampled(self, link: Segment) -> "array[int] | None":
        """The link as it was sampled, from the opening that it was asked for with."""
        sampled = self.memory.find(link)
        if sampled is None:
            return None
        # What ends a message was sampled with it, unless something else ended it.
        ended = sampled[-1] == self._end
        return array("i", [*self.opening, *sampled, *self._close[1 if ended else 0 :]])

    def _tokenised(self, link: Segment) -> "array[int]":
        ids = array("i")
        for item in link.shown:
            for role, text in messages_of(item):
                ids.extend(self.message(role, text))
        return ids

    def unrendered(self, tip: Segment) -> int:
        """Bytes of the links of ``tip``'s chain that :meth:`chain` would have to render."""
        size = 0
        link: Segment | None = tip
        while link is not None and self not in link.memo:
            size += link.size
            link = link.base
        return size


def assemble(head: list[int], chain: Rendered, tail: list[int], *, room: int) -> list[int] | None:
    """``head``, the newest links of ``chain`` that fit into ``room`` tokens, and ``tail``.

    Whole links are left out from the oldest on. None when not even the newest fits.
    """
    room -= len(head) + len(tail)
    links: list[array[int]] = []
    link: Rendered | None = chain
    while link is not None and room >= len(link.ids):
        room -= len(link.ids)
        links.append(link.ids)
        link = link.before
    if not links:
        return None
    ids = list(head)
    for each in reversed(links):
        ids.extend(each)
    return ids + tail


def messages_of(item: Item) -> Iterator[tuple[str, str]]:
    """The messages (role, text) that show ``item`` to the model."""
    view = item.view
    if isinstance(view, Message):
        yield ROLES.get(view.role, view.role), text_of(view.content)
    elif isinstance(view, FunctionCall):
        yield "assistant", call_text(view.name, view.arguments, namespace=view.namespace)
    elif isinstance(view, CustomToolCall):
        text = msgspec.json.encode(view.input).decode()
        yield "assistant", call_text(view.name, text, namespace=view.namespace, custom=True)
    elif isinstance(view, FunctionCallOutput | CustomToolCallOutput):
        yield "user", f"<tool_response>\n{text_of(view.output)}\n</tool_response>"
    elif isinstance(view, AdditionalTools) and (tools := describe(_offered(view))):
        yield "system", tools


def _tools_of(link: Segment) -> tuple[Tool, ...]:
    views = (item.view for item in link.shown)
    return tuple(
        tool for view in views if isinstance(view, AdditionalTools) for tool in _offered(view)
    )


def _offered(view: AdditionalTools) -> tuple[Tool, ...]:
    try:
        return parse_tools(msgspec.json.encode(view.tools)).offered
    except ApiError:
        # Whether the input is right is not for an engine to say; these tools are no tools.
        return ()


def _all_bytes(ranks: dict[bytes, int], size: int) -> dict[bytes, int]:
    """``ranks`` with an id beyond the vocabulary for each byte that has no token."""
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    return ranks | {bytes([byte]): size + index for index, byte in enumerate(missing)}
