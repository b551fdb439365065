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
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NoReturn

import msgspec
from msgspec import Struct

from tieline.items import (
    AdditionalTools,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    decode_input,
)
from tieline_server.core.create.settings import Settings
from tieline_server.core.create.tools import Tool
from tieline_server.core.history.chain import ChainNode
from tieline_server.core.values import Work
from tieline_server.engines.chat_format.constrain import Constraint, Speech
from tieline_server.engines.chat_format.content import text_of
from tieline_server.engines.chat_format.effort import NAMES, words_for
from tieline_server.engines.chat_format.gguf_metadata import Metadata
from tieline_server.engines.chat_format.jinja_template import Forms, JinjaTemplate
from tieline_server.engines.chat_format.sampled_ids import Sampled, SampledIds
from tieline_server.engines.chat_format.syntax import Syntax, recognise
from tieline_server.engines.chat_format.syntax.base import ID, INDEX, NAME, VALUE
from tieline_server.engines.chat_format.tokens import Tokens, Trusted
from tieline_server.engines.chat_format.tool_text import CALLABLE, as_function, describe
from tieline_server.engines.chat_format.whole_chat import (
    Asked,
    WholeChat,
    brought,
    calls_of,
    said_calls,
    said_output,
)
from tieline_server.engines.client_tools import as_functions, callable_tools
from tieline_server.models.packaged import ModelError

ROLES: Final = {"developer": "system"}
"""Roles that templates do not know -> the one that stands for it."""

CALL_FORM: Final = "You have these tools:\n{tools}\nTo use one, answer only with {form}"

ASKED: Final = "qzAsked"
"""Stands for a question in chats that only a template is asked about."""

LOOK_TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "d",
            "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
        },
    }
    for name in ("qzLook", "qzRead")
]


def _chats() -> list[list[dict[str, Any]]]:
    """Chats with calls: one or two, with text before them, and what follows their outputs."""
    asked = {"role": "user", "content": ASKED}
    calls, outputs = [], []
    for at, name in enumerate(("qzLook", "qzRead")):
        call_id = f"qzcall00{at}"
        given = {"type": "function_call", "call_id": call_id, "name": name}
        calls.append({**given, "arguments": '{"at": "qzPlace"}'})
        outputs.append({"type": "function_call_output", "call_id": call_id, "output": "qzOut"})
    said = [{"role": "assistant", "content": "qzSaid"}, {"role": "user", "content": "qzMore"}]
    one = [asked, calls[0], outputs[0]]
    return [one, [*one, *said], [*one, calls[1], outputs[1], *said]]


CHATS: Final = _chats()

NO_IDS: Final = array("i")

Call = FunctionCall | CustomToolCall
Output = FunctionCallOutput | CustomToolCallOutput


class Rendered(Struct, frozen=True, kw_only=True):
    """A chain as token ids: those of its last link, and what came before."""

    ids: "array[int]" = NO_IDS
    """Ids of the last link alone; none where a template renders chats whole."""
    before: "Rendered | None" = None
    total: int = 0
    """Tokens of the whole chain."""
    answers: bool = False
    """Whether the last link has outputs of calls that are in one before it."""
    link: ChainNode | None = None


EMPTY: Final = Rendered()


class Manner(Struct, frozen=True, kw_only=True):
    """How a model is spoken to with one ``reasoning.effort``."""

    words: dict[str, Any]
    """What the template is given for it."""
    forms: Forms | None
    """What is around messages; None where the template renders chats whole."""
    prelude: list[int]
    speech: Speech

    @property
    def opening(self) -> Sequence[int]:
        """Ids of what asks for an answer."""
        return self.speech.opening


def _unknown(_text: str) -> NoReturn:
    raise ModelError("the model's vocabulary is known to its runtime alone")


class ChatTemplate:
    """Renders for one model; raises :class:`ModelError` for a template that cannot be followed.

    ``tokenise`` is the runtime's own, for a vocabulary that is not known here.
    """

    def __init__(self, metadata: Metadata, tokenise: Callable[[str], list[int]] = _unknown) -> None:
        self.tokens: Final = Tokens(metadata, tokenise)
        self._metadata = metadata
        self._jinja = JinjaTemplate(
            metadata.template, bos=metadata.bos, eos=metadata.eos, special=[*metadata.special]
        )
        self.memory: Final = SampledIds()
        self._manners: dict[str | None, Manner] = {}
        forms = self._jinja.forms()
        self._syntax: Syntax = recognise(self._jinja.whole, forms, special=[*metadata.special])
        self._chat: Final = WholeChat(self._jinja, self._syntax, self.tokens)
        if forms is not None and not self._same(forms):
            forms = None
        self.cuts: Final = forms is not None
        """Whether a chat is its messages, one after the other; else it is rendered whole."""
        self._forms = forms
        self._around = (forms.user, forms.assistant) if forms else None
        self._close = self.tokens.encode(forms.assistant[1]) if forms else []
        # Beforehand: each is learnt in some milliseconds.
        plain, *_ = (self.manner(effort) for effort in (None, *NAMES))
        self.speech: Final = plain.speech
        self.opening: Final = [*plain.opening]

    def manner(self, effort: str | None) -> Manner:
        """How the model is spoken to that is to think so much."""
        made = self._manners.get(effort)
        if made is None:
            made = self._manners[effort] = self._manner(effort)
        return made

    def _manner(self, effort: str | None) -> Manner:
        def asks(**members: Any) -> str:
            asked = [{"role": "user", "content": ASKED}]
            return self._jinja.whole(asked, add_generation_prompt=True, **members)

        metadata, syntax, forms = self._metadata, self._syntax, self._forms
        words = words_for(effort, asks)
        if words and forms is not None:
            found = self._jinja.forms(**words)
            # Where it changes messages, those before are to change too (GLM): no cutting then.
            same = found is not None and (found.user, found.assistant) == self._around
            forms = found if same else None
        opening = forms.opening if forms else Trusted(asks(**words).partition(ASKED)[2])
        ends = forms.assistant[1] if forms else self._chat.ends()
        names = [name for name in metadata.special if name in ends]
        if not names and not metadata.eos:
            raise ModelError("nothing in the model's chat template ends an answer")
        prelude = self.tokens.encode(forms.prelude) if forms else []
        bos = metadata.special.get(metadata.bos)
        if metadata.begins and bos is not None and prelude[:1] != [bos]:
            prelude.insert(0, bos)
        thought = syntax.thought
        speech = Speech(
            syntax=syntax,
            special=metadata.special,
            end=min(names, key=ends.index) if names else metadata.eos,
            inside=thought is not None and opening.rstrip().endswith(thought[0]),
            opening=tuple(self.tokens.encode(opening)),
        )
        return Manner(words=words, forms=forms, prelude=prelude, speech=speech)

    def _same(self, forms: Forms) -> bool:
        """Whether a chat with calls is its messages too, as the template writes it."""
        if self._syntax.message is None:
            # Its calls are written as we say, not as the template does.
            return True
        self._forms = forms
        for chat in CHATS:
            last_node = ChainNode(None, tuple(decode_input(msgspec.json.encode(chat))))
            mine = "".join(
                [*(part for each in self.parts_of(last_node) for part in each), forms.opening]
            )
            # Without tools, which some templates show again behind each question (Mistral).
            whole = self._chat.text([last_node], tools=()) or self._chat.text(
                [last_node], tools=LOOK_TOOLS
            )
            if whole is None:
                return False
            mine, whole = (each.partition(ASKED)[2] for each in (mine, whole))
            if chat is CHATS[0]:
                # Only what follows: of a loop that runs, templates write thoughts that are not
                # there, and white space that goes when there is more.
                mine, whole = (
                    re.sub(r"\s", "", each.partition("qzOut")[2]) for each in (mine, whole)
                )
            if mine != whole:
                return False
        return True

    def begin(self, last_node: ChainNode, constraint: Constraint) -> Sampled:
        """A record of the answer that is about to be sampled under ``constraint``."""
        speech = constraint.speech or self.speech
        return self.memory.begin(last_node, speech.opening)

    @property
    def quick(self) -> bool:
        """Whether rendering takes microseconds; else it is the runtime that tokenises."""
        return self.tokens.quick

    def message(self, role: str, *text: str) -> list[int]:
        """The ids of one message."""
        return self.tokens.encode(*self._message(role, text))

    def head(
        self, instructions: str | None, tools: Sequence[Tool], manner: Manner | None = None
    ) -> list[int]:
        """What stands before the chain: instructions and tools, or what every chat begins with."""
        manner = manner or self.manner(None)
        forms = manner.forms
        if forms is None:
            return []
        offered = [tool for tool in tools if tool.type in CALLABLE]
        if self._syntax.native and offered:
            functions = [*map(as_function, offered)]
            parts = self._jinja.head(instructions, functions, forms, **manner.words)
            if parts is not None:
                return self.tokens.encode(*parts)
            # Where the template puts instructions into the user's message (Mistral).
            parts = self._jinja.head(None, functions, forms, **manner.words)
            if parts is not None:
                told = _around("system", [instructions], forms) if instructions else []
                return self.tokens.encode(*parts, *told)
        text = self.told(instructions, offered)
        system = self.tokens.encode(*_around("system", [text], forms)) if text else []
        return [*manner.prelude, *system]

    def told(self, instructions: str | None, offered: Sequence[Tool]) -> str:
        """Instructions, and tools in words, for a template that shows none."""
        texts = [instructions] if instructions else []
        if offered:
            texts.append(CALL_FORM.format(tools=describe(offered), form=self._call_form()))
        return "\n\n".join(texts)

    def _call_form(self) -> str:
        """How to call a tool, for a model that is told in words."""
        syntax = self._syntax
        if syntax.message is None:
            return 'JSON: {"name": its name, "arguments": {...}}'
        value = "{...}"
        if syntax.parameters is not None:
            before, middle, behind = syntax.parameters.around["string"]
            value = f"{before}name{middle}value{behind}"
        call = syntax.call.replace(NAME, "its name").replace(VALUE, value)
        return f"{syntax.opens}{call}{syntax.closes}".replace(ID, "its id").replace(INDEX, "0")

    def whole(self, links: Sequence[ChainNode], settings: Settings, manner: Manner) -> list[int]:
        """The ids of a chat that is rendered whole; raises :class:`EngineError` for one that the
        template refuses."""
        offered = [tool for tool in callable_tools(settings) if tool.type in CALLABLE]
        native = self._syntax.native
        told = settings.instructions if native else self.told(settings.instructions, offered)
        functions = [*map(as_function, offered)] if native else []
        ids = self._chat.ids(
            links,
            told or None,
            functions,
            words=manner.words,
            sampled={link: found for link in links if (found := self._kept(link))},
        )
        if manner.prelude and ids[:1] != manner.prelude[:1]:
            ids = [*manner.prelude, *ids]
        return ids

    def _kept(self, link: ChainNode) -> "array[int] | None":
        """The ids that ``link`` was sampled as, without what the template writes around them."""
        found = self.memory.find(link)
        # Of a thought, the template decides whether it is shown again.
        if found is None or any(isinstance(item.view, Reasoning) for item in link.shown):
            return None
        answer, ids = found
        if all(isinstance(item.view, Message) for item in link.shown):
            return answer.spoken(ids)
        return ids[:-1] if ids[-1] in self.speech.ends else ids

    def chain(self, last_node: ChainNode, work: Work) -> Rendered:
        """The chain that ends in ``last_node``; only links that were never rendered cost anything.

        Their bytes are added to ``work.render``. Raises :class:`EngineError` for content that
        is no text.
        """

        def step(before: Rendered, link: ChainNode) -> Rendered:
            ids = self._sampled(link) if self.cuts else NO_IDS
            if ids is None:
                work.render += link.size
                ids = array("i", self._tokenised(link))
            own = {item.opens for item in link.shown}
            return Rendered(
                ids=ids,
                before=before,
                total=before.total + len(ids),
                answers=any(item.answers and item.answers not in own for item in link.shown),
                link=link,
            )

        return last_node.derive(self, EMPTY, step)

    def _sampled(self, link: ChainNode) -> "array[int] | None":
        """The link as it was sampled, from the opening that it was asked for with."""
        found = self.memory.find(link)
        if found is None:
            return None
        answer, sampled = found
        # What ends a message was sampled with it, unless something else ended it.
        ended = sampled[-1] in self.speech.ends
        return array("i", [*answer.opening, *sampled, *self._close[1 if ended else 0 :]])

    def _tokenised(self, link: ChainNode) -> list[int]:
        ids: list[int] = []
        for parts in self.parts_of(link):
            ids += self.tokens.encode(*parts)
        return ids

    def parts_of(self, link: ChainNode) -> Iterator[list[str]]:
        """The messages that show ``link`` to the model, each in parts."""
        asked = calls_of(link, first=self._syntax.first)
        for kind, run in groupby(as_functions(link.shown, describe), _kind):
            items: list[Any] = [item.view for item in run]
            if kind is Call:
                yield self._calls(items)
            elif kind is Output:
                yield from self._outputs(items, asked)
            else:
                for view in items:
                    if isinstance(view, Message):
                        yield self._message(
                            ROLES.get(view.role, view.role), [text_of(view.content)]
                        )
                    elif isinstance(view, AdditionalTools) and (tools := brought(view)):
                        yield self._message("system", [tools])

    def _message(self, role: str, text: Sequence[str]) -> list[str]:
        return _around(role, text, self._forms) if self._forms else [*text]

    def _calls(self, calls: Sequence[Any]) -> list[str]:
        syntax, forms = self._syntax, self._forms
        said = said_calls(syntax, calls)
        if forms is None:
            return said
        if syntax.message is not None:
            return [Trusted(syntax.message[0]), *said, Trusted(syntax.message[1])]
        begins = forms.opening if syntax.says else forms.assistant[0]
        ends = Trusted(syntax.call_ends) if syntax.call_ends else forms.assistant[1]
        return [begins, *said, ends]

    def _outputs(self, views: Sequence[Any], asked: Mapping[str, Asked]) -> Iterator[list[str]]:
        syntax = self._syntax
        outputs = [said_output(syntax, view, asked.get(view.call_id)) for view in views]
        if syntax.output_role is not None:
            for each in outputs:
                yield self._message(syntax.output_role, each)
            return
        if syntax.outputs == ("", "", ""):
            yield from outputs
            return
        opens, between, closes = map(Trusted, syntax.outputs)
        parts = [part for each in outputs for part in (between, *each)][1:]
        yield [opens, *parts, closes]

    def unrendered(self, last_node: ChainNode, *, whole: bool = False) -> int:
        """Bytes of the links up to ``last_node`` that are to be rendered: those that never were,
        or the ``whole`` of it."""
        size = 0
        link: ChainNode | None = last_node
        while link is not None and (whole or self not in link.memo):
            size += link.size
            link = link.base
        return size


def assemble(
    head: list[int], chain: Rendered, tail: Sequence[int], *, room: int
) -> list[int] | None:
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
    return [*ids, *tail]


def _around(role: str, text: Sequence[str], forms: Forms) -> list[str]:
    """A message, in parts."""
    around = {"assistant": forms.assistant, "system": forms.system}.get(role) or forms.user
    return [around[0], *text, around[1]]


def _kind(item: Item) -> object:
    view = item.view
    return next((kind for kind in (Call, Output) if isinstance(view, kind)), None)
