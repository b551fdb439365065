"""Chains of items as token ids, in the form of the model's own chat template.

Each message, each run of calls and each run of tool outputs becomes a message of its own, between
special tokens. Tokens never merge across those, so that the ids of a chain are the ids of its
links one after the other, and a turn renders only its new links. What the model said stays the
very ids that it sampled (``sampled_ids``), so that they are still in its KV cache. Text is never
searched for special tokens: what a user writes as ``<|im_end|>`` stays ordinary tokens.

Calls and outputs look as the model's family has them (``syntax``). Reasoning and items that have
no class in ``tieline.items`` are not shown to the model, but for what of a thought is among the
very ids. It reads text only: an image or a file is refused. The system message that a template
puts before a chat which has none is left out.
"""

import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, NoReturn

from msgspec import Struct

from tieline.items import (
    AdditionalTools,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    encode,
)
from tieline_server.core.client_tools import as_functions, brought_by
from tieline_server.core.effects import Work
from tieline_server.core.history import Segment
from tieline_server.core.settings import Tool
from tieline_server.engines.chat_format.constrain import Speech
from tieline_server.engines.chat_format.content import text_of
from tieline_server.engines.chat_format.gguf_metadata import Metadata
from tieline_server.engines.chat_format.jinja_template import JinjaTemplate
from tieline_server.engines.chat_format.json_scan import quoted
from tieline_server.engines.chat_format.sampled_ids import Memory
from tieline_server.engines.chat_format.syntax import Syntax, recognise
from tieline_server.engines.chat_format.syntax.base import NAME, OUTPUT, VALUE
from tieline_server.engines.chat_format.tokens import Tokens, Trusted
from tieline_server.engines.chat_format.tool_text import CALLABLE, as_function, describe, wire_name
from tieline_server.models import ModelError

ROLES: Final = {"developer": "system"}
"""Roles that templates do not know -> the one that stands for it."""

CALL_FORM: Final = "You have these tools:\n{tools}\nTo use one, answer only with {form}"

NO_IDS: Final = array("i")

Call = FunctionCall | CustomToolCall
Output = FunctionCallOutput | CustomToolCallOutput


class Rendered(Struct, frozen=True, kw_only=True):
    """A chain as token ids: those of its last link, and what came before."""

    ids: "array[int]" = NO_IDS
    """Ids of the last link alone."""
    before: "Rendered | None" = None
    total: int = 0
    """Tokens of the whole chain."""
    answers: bool = False
    """Whether the last link has outputs of calls that are in one before it."""


EMPTY: Final = Rendered()


def _unknown(_text: str) -> NoReturn:
    raise ModelError("the model's vocabulary is known to its runtime alone")


class ChatTemplate:
    """Renders for one model; raises :class:`ModelError` for a template that cannot be followed.

    ``tokenise`` is the runtime's own, for a vocabulary that is not known here.
    """

    def __init__(self, metadata: Metadata, tokenise: Callable[[str], list[int]] = _unknown) -> None:
        self.tokens: Final = Tokens(metadata, tokenise)
        self._jinja = JinjaTemplate(
            metadata.template, bos=metadata.bos, eos=metadata.eos, special=[*metadata.special]
        )
        self._forms = forms = self._jinja.forms
        self._syntax: Syntax = recognise(metadata.template)
        self.memory: Final = Memory()
        ends = [name for name in metadata.special if name in forms.assistant[1]]
        if not ends and not metadata.eos:
            raise ModelError("nothing in the model's chat template ends an answer")
        thought = self._syntax.thought
        self.speech: Final = Speech(
            syntax=self._syntax,
            special=metadata.special,
            end=min(ends, key=forms.assistant[1].index) if ends else metadata.eos,
            inside=thought is not None and forms.opening.rstrip().endswith(thought[0]),
        )
        self.opening: Final = self.tokens.encode(forms.opening)
        self._close = self.tokens.encode(forms.assistant[1])
        prelude = self.tokens.encode(forms.prelude)
        bos = metadata.special.get(metadata.bos)
        if metadata.begins and bos is not None and prelude[:1] != [bos]:
            prelude.insert(0, bos)
        self._prelude = prelude

    @property
    def quick(self) -> bool:
        """Whether rendering takes microseconds; else it is the runtime that tokenises."""
        return self.tokens.quick

    def message(self, role: str, *text: str) -> list[int]:
        """The ids of one message."""
        return self.tokens.encode(*self._message(role, text))

    def head(self, instructions: str | None, tools: Sequence[Tool]) -> list[int]:
        """What stands before the chain: instructions and tools, or what every chat begins with."""
        offered = [tool for tool in tools if tool.type in CALLABLE]
        if self._syntax.native and offered:
            functions = [*map(as_function, offered)]
            parts = self._jinja.head(instructions, functions)
            if parts is not None:
                return self.tokens.encode(*parts)
            # Where the template puts instructions into the user's message (Mistral).
            parts = self._jinja.head(None, functions)
            if parts is not None:
                told = self._message("system", [instructions]) if instructions else []
                return self.tokens.encode(*parts, *told)
        texts = [instructions] if instructions else []
        if offered:
            texts.append(CALL_FORM.format(tools=describe(offered), form=self._call_form()))
        system = self.message("system", "\n\n".join(texts)) if texts else []
        return [*self._prelude, *system]

    def _call_form(self) -> str:
        """How to call a tool, for a model that is told in words."""
        if not self._syntax.native:
            return 'JSON: {"name": its name, "arguments": {...}}'
        head, tail = self._syntax.frame("its name")
        return f"{self._syntax.opens}{head}{{...}}{tail}{self._syntax.closes}"

    def chain(self, tip: Segment, work: Work) -> Rendered:
        """The chain that ends in ``tip``; only links that were never rendered cost anything.

        Their bytes are added to ``work.render``. Raises :class:`EngineError` for content that
        is no text.
        """

        def step(before: Rendered, link: Segment) -> Rendered:
            ids = self._sampled(link)
            if ids is None:
                work.render += link.size
                ids = array("i", self._tokenised(link))
            own = {item.opens for item in link.shown}
            return Rendered(
                ids=ids,
                before=before,
                total=before.total + len(ids),
                answers=any(item.answers and item.answers not in own for item in link.shown),
            )

        return tip.derive(self, EMPTY, step)

    def _sampled(self, link: Segment) -> "array[int] | None":
        """The link as it was sampled, from the opening that it was asked for with."""
        sampled = self.memory.find(link)
        if sampled is None:
            return None
        # What ends a message was sampled with it, unless something else ended it.
        ended = sampled[-1] in self.speech.ends
        return array("i", [*self.opening, *sampled, *self._close[1 if ended else 0 :]])

    def _tokenised(self, link: Segment) -> list[int]:
        ids: list[int] = []
        for parts in self.parts_of(link):
            ids += self.tokens.encode(*parts)
        return ids

    def parts_of(self, link: Segment) -> Iterator[list[str]]:
        """The messages that show ``link`` to the model, each in parts."""
        calls = [*(link.parent.open_calls.values() if link.parent else ()), *link.shown]
        names = {
            item.opens: _name(item.view)
            for item in as_functions(calls, describe)
            if isinstance(item.view, Call)
        }
        for kind, run in groupby(as_functions(link.shown, describe), _kind):
            items: list[Any] = [item.view for item in run]
            if kind is Call:
                yield self._calls(items)
            elif kind is Output:
                outputs = [self._output(each, names.get(each.call_id, "")) for each in items]
                yield from self._outputs(outputs)
            else:
                for view in items:
                    if isinstance(view, Message):
                        yield self._message(
                            ROLES.get(view.role, view.role), [text_of(view.content)]
                        )
                    elif isinstance(view, AdditionalTools) and (tools := _offered(view)):
                        yield self._message("system", [tools])

    def _message(self, role: str, text: Sequence[str]) -> list[str]:
        forms = self._forms
        around = {"assistant": forms.assistant, "system": forms.system}.get(role) or forms.user
        return [around[0], *text, around[1]]

    def _calls(self, calls: Sequence[Any]) -> list[str]:
        syntax, forms = self._syntax, self._forms
        parts: list[str] = [Trusted(syntax.opens)]
        for at, call in enumerate(calls):
            custom = isinstance(call, CustomToolCall)
            value = quoted(call.input) if custom else call.arguments
            name = _name(call) if syntax.raw_name else quoted(_name(call))
            if at:
                parts.append(Trusted(syntax.between or ""))
            parts += _filled(syntax.custom if custom else syntax.call, {NAME: name, VALUE: value})
        parts.append(Trusted(syntax.closes))
        begins = forms.opening if syntax.says else forms.assistant[0]
        ends = Trusted(syntax.call_ends) if syntax.call_ends else forms.assistant[1]
        return [begins, *parts, ends]

    def _output(self, view: Any, name: str) -> list[str]:
        text = text_of(view.output)
        shown = quoted(text) if self._syntax.output_json else text
        return _filled(self._syntax.output, {NAME: name, OUTPUT: shown})

    def _outputs(self, outputs: Sequence[list[str]]) -> Iterator[list[str]]:
        role = self._syntax.output_role
        if role is None:
            yield from outputs
        elif self._syntax.outputs_join:
            joined = [part for each in outputs for part in (Trusted("\n"), *each)][1:]
            yield self._message(role, joined)
        else:
            for each in outputs:
                yield self._message(role, each)

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

    Whole links are left out from the oldest on, and none that answers calls is kept without the
    one that has them. None when not even the newest fits.
    """
    room -= len(head) + len(tail)
    links: list[Rendered] = []
    link: Rendered | None = chain
    while link is not None and room >= len(link.ids):
        room -= len(link.ids)
        links.append(link)
        link = link.before
    while link is not None and links and links[-1].answers:
        links.pop()
    if not links:
        return None
    ids = list(head)
    for each in reversed(links):
        ids.extend(each.ids)
    return ids + tail


def _filled(form: str, values: dict[str, str]) -> list[str]:
    """A form with its places filled; what fills them is text."""
    parts = re.split("(" + "|".join(map(re.escape, values)) + ")", form)
    return [values.get(part, Trusted(part)) for part in parts]


def _kind(item: Item) -> object:
    view = item.view
    return next((kind for kind in (Call, Output) if isinstance(view, kind)), None)


def _name(call: Any) -> str:
    return wire_name(call.name, call.namespace)


def _offered(view: AdditionalTools) -> str:
    """Tools that came with the input, but for those that are to be searched for."""
    return describe(tool for tool in brought_by(encode(view)) if not tool.deferred)
