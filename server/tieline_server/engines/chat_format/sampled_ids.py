"""The very ids that an answer was sampled as, for when its chain goes on.

Text that is tokenised again is not always the same ids, and a turn can use of the KV cache only
what begins with the same ids. So what was sampled from a link is remembered on that link, and the
link that the answer becomes is rendered from it. What became of the answer is in the link alone:
it may have been cut, refused, or folded away, so the ids count as far as their text is the
link's. Where nothing fits, the text is tokenised as any other.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from tieline.items import CustomToolCall, FunctionCall, Item, Message, Reasoning
from tieline_server.core.deltas import CallDelta, CallStart, Delta, TextDelta
from tieline_server.core.history.chain import ChainNode
from tieline_server.engines.chat_format.content import text_of
from tieline_server.engines.chat_format.tool_text import describe
from tieline_server.engines.client_tools import as_functions

Kind = tuple[str, ...]
"""A message, or a call by its kind, name and namespace."""

MESSAGE: Final[Kind] = ("message",)
KEPT: Final = 4
"""Answers from one link that are remembered: creates that failed are sent again."""


class Part(Struct):
    """One item of an answer: its kind and its text."""

    kind: Kind
    text: list[str]


class Sampled:
    """One answer as it is sampled: its items, and how far each id has brought them."""

    __slots__ = ("_chars", "_lost", "_open", "_parts", "_reached", "ids", "opening")

    def __init__(self, opening: Sequence[int] = ()) -> None:
        self.opening = opening
        """Ids of what asked for it."""
        self.ids = array("i")
        self._reached = array("i")
        """For each id, how many characters of all items there were when it came."""
        self._chars = 0
        self._lost = False
        self._parts: list[Part] = []
        self._open = False
        """Whether text that comes next belongs to the last item."""

    def add(self, ids: Sequence[int] | None, deltas: Iterable[Delta]) -> None:
        """``ids`` were sampled, and these are the deltas that they completed.

        With None, for ids that are not known, the record ends.
        """
        self._lost = self._lost or ids is None
        if ids is None or self._lost:
            return
        for delta in deltas:
            self._hear(delta)
        self.ids.extend(ids)
        self._reached.extend([self._chars] * len(ids))

    def ids_of(self, said: Sequence[tuple[Kind, str]]) -> "array[int] | None":
        """The ids of these items, or None where they are not how the answer began."""
        mine = [(part.kind, "".join(part.text)) for part in self._parts]
        if list(said) == mine:
            return self.ids
        if not said or len(said) > len(mine) or list(said[:-1]) != mine[: len(said) - 1]:
            return None
        kind, text = mine[len(said) - 1]
        if kind != said[-1][0] or not text.startswith(said[-1][1]):
            return None
        wanted = sum(len(text) for _, text in said)
        try:
            return self.ids[: self._reached.index(wanted) + 1]
        except ValueError:
            return None

    def spoken(self, ids: "array[int]") -> "array[int]":
        """Those of ``ids`` that are text of items, without what is around it."""
        reached = self._reached[: len(ids)]
        begin = next((at for at, chars in enumerate(reached) if chars), len(ids))
        return ids[begin : reached.index(reached[-1]) + 1]

    def _hear(self, delta: Delta) -> None:
        match delta:
            case TextDelta(text) if text:
                if not self._open or self._parts[-1].kind is not MESSAGE:
                    self._parts.append(Part(MESSAGE, []))
            case CallStart():
                # A search for tools is a function to a model, and is read back as one.
                kind = "custom_tool_call" if delta.kind == "custom_tool_call" else "function_call"
                self._parts.append(Part((kind, delta.name, delta.namespace or ""), []))
                text = ""
            case CallDelta(text):
                pass
            case _:
                self._open = False
                return
        self._open = True
        self._parts[-1].text.append(text)
        self._chars += len(text)


class SampledIds:
    """What was sampled from each link, hung on it."""

    __slots__ = ()

    def begin(self, last_node: ChainNode, opening: Sequence[int] = ()) -> Sampled:
        """A record of what is about to be sampled from the chain that ends in ``last_node``."""
        answers: list[Sampled] = last_node.memo.setdefault(self, [])
        del answers[: 1 - KEPT]
        answers.append(Sampled(opening))
        return answers[-1]

    def find(self, link: ChainNode) -> "tuple[Sampled, array[int]] | None":
        """The answer that ``link`` was sampled as, and its ids; None where nothing is known."""
        answers: list[Sampled] = link.parent.memo.get(self, []) if link.parent else []
        if not answers or link.restarts:
            return None
        said = said_in(link.shown)
        if said is None:
            return None
        found = ((answer, answer.ids_of(said)) for answer in reversed(answers))
        return next(((answer, ids) for answer, ids in found if ids), None)


def said_in(items: Iterable[Item]) -> list[tuple[Kind, str]] | None:
    """What a model said in ``items``, or None where something else is among them."""
    said: list[tuple[Kind, str]] = []
    for item in as_functions(items, describe):
        match item.view:
            case Message(role="assistant", content=content):
                said.append((MESSAGE, text_of(content)))
            case FunctionCall() as call:
                said.append((("function_call", call.name, call.namespace or ""), call.arguments))
            case CustomToolCall() as call:
                said.append((("custom_tool_call", call.name, call.namespace or ""), call.input))
            case Reasoning():
                pass
            case _:
                return None
    return said
