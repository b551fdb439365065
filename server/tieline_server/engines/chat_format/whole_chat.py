"""Calls and outputs in the form of a model, and chats that a template renders whole.

Where a template treats messages by their place, a chat is not its messages one after the other,
and each turn renders all of it. What is said does not meet the template all the same: a mark
stands for it. So does, as far as the template shows it as it was, what the model itself said, and
its very ids come in place of that mark: what follows can use of the cache what has not changed.
"""

import hashlib
import json
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tieline.items import (
    AdditionalTools,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Message,
    encode,
)
from tieline_server.core.create.tools import brought_by
from tieline_server.core.history.chain import ChainNode
from tieline_server.engines.base import EngineError
from tieline_server.engines.chat_format import parameters
from tieline_server.engines.chat_format.content import text_of
from tieline_server.engines.chat_format.jinja_template import (
    FAULTS,
    MARK,
    MARKS,
    JinjaTemplate,
    same_start,
)
from tieline_server.engines.chat_format.json_scan import quoted
from tieline_server.engines.chat_format.syntax import Syntax
from tieline_server.engines.chat_format.syntax.base import (
    ID,
    ID_LETTERS,
    INDEX,
    NAME,
    OUTPUT,
    VALUE,
)
from tieline_server.engines.chat_format.tokens import Tokens, Trusted
from tieline_server.engines.chat_format.tool_text import describe, wire_name
from tieline_server.engines.client_tools import as_functions

Call = FunctionCall | CustomToolCall
Output = FunctionCallOutput | CustomToolCallOutput

SYSTEM: Final = ("system", "developer")


class Asked(Struct, frozen=True):
    """A call, as its output is told which one it answers."""

    name: str
    index: int
    call_id: str


def calls_of(link: ChainNode, *, first: int) -> dict[str, Asked]:
    """The calls that outputs in ``link`` may answer, each with its place in its answer."""
    asked: dict[str, Asked] = {}
    for items in (link.parent.open_calls.values() if link.parent else ()), link.shown:
        at = first
        for item in as_functions(items, describe):
            if isinstance(item.view, Call):
                asked[item.opens or ""] = Asked(_name(item.view), at, item.view.call_id)
                at += 1
            else:
                at = first
    return asked


def brought(view: AdditionalTools) -> str:
    """Tools that came with the input, but for those that are to be searched for."""
    return describe(tool for tool in brought_by(encode(view)) if not tool.deferred)


def said_calls(syntax: Syntax, calls: Sequence[Any]) -> list[str]:
    """Calls, as the model has them: all that is between what is around an answer."""
    parts: list[str] = [Trusted(syntax.opens)] if syntax.opens else []
    for at, call in enumerate(calls):
        if at and syntax.between:
            parts.append(Trusted(syntax.between))
        parts += said_call(syntax, call, at + syntax.first)
    return [*parts, Trusted(syntax.closes)] if syntax.closes else parts


def said_call(syntax: Syntax, call: Any, index: int) -> list[str]:
    """One call."""
    custom = isinstance(call, CustomToolCall)
    value: list[str] = [quoted(call.input) if custom else call.arguments]
    if custom and syntax.parameters is not None:
        value = [call.input]
    elif syntax.parameters is not None:
        value = []
        for before, key, middle, text, behind in parameters.shown(
            call.arguments, syntax.parameters
        ):
            value += [Trusted(before), key, Trusted(middle), text, Trusted(behind)]
    form = syntax.custom if custom else syntax.call
    return _filled(form, Asked(_name(call), index, call.call_id), value)


def said_output(syntax: Syntax, view: Any, asked: Asked | None) -> list[str]:
    """One output."""
    text = text_of(view.output)
    shown = quoted(text) if syntax.output_json else text
    return _filled(syntax.output, asked or Asked("", syntax.first, view.call_id), [shown])


def short_id(call_id: str) -> str:
    """A call's id in as many letters as a model writes."""
    if len(call_id) == ID_LETTERS and call_id.isalnum() and call_id.isascii():
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:ID_LETTERS]


def _name(call: Any) -> str:
    return wire_name(call.name, call.namespace)


IN_QUOTES_FIRST: Final = (f'"{NAME}"', NAME, ID, INDEX, VALUE, OUTPUT)
PLACES: Final = re.compile("(" + "|".join(map(re.escape, IN_QUOTES_FIRST)) + ")")


@lru_cache(maxsize=64)
def _pieces(form: str) -> tuple[str, ...]:
    """A form, cut at its places: each second piece is one."""
    return tuple(piece if at % 2 else Trusted(piece) for at, piece in enumerate(PLACES.split(form)))


def _filled(form: str, asked: Asked, value: Sequence[str]) -> list[str]:
    """A form with its places filled; what fills them is text."""
    filled: list[str] = []
    for at, piece in enumerate(_pieces(form)):
        if at % 2 == 0:
            filled.append(piece)
        elif piece in (VALUE, OUTPUT):
            filled += value
        elif piece == ID:
            filled.append(short_id(asked.call_id))
        elif piece == INDEX:
            filled.append(str(asked.index))
        else:
            filled.append(asked.name if piece == NAME else quoted(asked.name))
    return filled


class WholeChat:
    """Renders chats with one template."""

    def __init__(self, jinja: JinjaTemplate, syntax: Syntax, tokens: Tokens) -> None:
        self._jinja = jinja
        self._syntax = syntax
        self._tokens = tokens

    def ends(self) -> str:
        """What is behind an answer, wherever it stands."""
        user, said, more = (MARK.format(at) for at in range(3))
        chat = [{"role": "user", "content": user}, {"role": "assistant", "content": said}]
        try:
            ended = self._jinja.whole(chat).partition(said)[2]
            further = [*chat, {"role": "user", "content": more}]
            return same_start(ended, self._jinja.whole(further).partition(said)[2])
        except FAULTS:
            return ""

    def text(self, links: Sequence[ChainNode], *, tools: Sequence[Mapping[str, Any]]) -> str | None:
        """A chat as text; None where the template refuses it."""
        built = _Builder(self._jinja, self._syntax)
        for link in links:
            built.add(link)
        try:
            return built.restored(built.render(built.messages, tools, {}))
        except FAULTS:
            return None

    def ids(
        self,
        links: Sequence[ChainNode],
        told: str | None,
        tools: Sequence[Mapping[str, Any]],
        *,
        words: Mapping[str, Any],
        sampled: "Mapping[ChainNode, array[int]]",
    ) -> list[int]:
        """The ids of a chat; raises :class:`EngineError` where the template refuses it."""
        built = _Builder(self._jinja, self._syntax)
        if told:
            built.messages.append({"role": "system", "content": built.mark([told])})
        for link in links:
            built.add(link, sampled.get(link))
        plain = built.messages
        for messages in (plain, _merged(plain), _merged(plain, system=False)):
            try:
                text = built.render(messages, tools, words)
            except FAULTS:
                continue
            return self._encoded(built.with_sampled(text), built.said)
        raise EngineError(
            "unsupported_value",
            "The model's chat template refuses messages in this order: "
            "let users and assistants take turns, and outputs follow their calls.",
            param="input",
        )

    def _encoded(self, text: str, said: "Sequence[Sequence[str] | array[int]]") -> list[int]:
        ids: list[int] = []
        run: list[str] = []
        for at, part in enumerate(MARKS.split(text)):
            if at % 2 == 0:
                run.append(Trusted(part))
                continue
            value = said[int(part)]
            if not isinstance(value, array):
                run += value
                continue
            ids += self._tokens.encode(*run)
            ids += value
            run.clear()
        return ids + self._tokens.encode(*run)


class _Builder:
    """Messages with marks, and what they stand for."""

    def __init__(self, jinja: JinjaTemplate, syntax: Syntax) -> None:
        self._jinja = jinja
        self._syntax = syntax
        self.said: list[Any] = []
        """What each mark stands for: text, parts of text, or ids."""
        self.messages: list[dict[str, Any]] = []
        self._sampled: list[tuple[str, array[int]]] = []
        """What the template is to write of answers whose ids are known."""

    def mark(self, parts: "Sequence[str] | array[int]") -> str:
        """A mark for these."""
        self.said.append(parts)
        return MARK.format(len(self.said) - 1)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        words: Mapping[str, Any],
    ) -> str:
        """What the template writes, arguments that are a mark as that mark."""
        text = self._jinja.whole(
            # Templates may change what they are given.
            msgspec.to_builtins(messages),
            tools=self._jinja.safe([*tools], self.said) or None,
            add_generation_prompt=True,
            **words,
        )
        return OBJECT.sub(r"\1", text)

    def restored(self, text: str) -> str:
        """``text`` with what was said in place of marks."""
        parts = MARKS.split(text)
        return "".join(
            "".join(self.said[int(part)]) if at % 2 else part for at, part in enumerate(parts)
        )

    def with_sampled(self, text: str) -> str:
        """``text`` with a mark for what the model itself said, as far as it stands there."""
        for written, ids in self._sampled:
            text = text.replace(written, self.mark(ids), 1)
        return text

    def add(self, link: ChainNode, sampled: "array[int] | None" = None) -> None:
        """The messages of one link."""
        found = calls_of(link, first=self._syntax.first)
        asked = {key: replace(each, name=self._name(each.name)) for key, each in found.items()}
        begun = len(self.messages)
        written: list[str] = []
        calls: list[tuple[Any, Any]] = []

        def flush() -> None:
            if calls:
                written.append(self._call(calls))
                calls.clear()

        for item in as_functions(link.shown, describe):
            view: Any = item.view
            if isinstance(view, Call):
                calls.append((view, asked[item.opens or ""]))
                continue
            flush()
            if isinstance(view, Message):
                role = "system" if view.role in SYSTEM else view.role
                mark = self.mark([text_of(view.content)])
                self.messages.append({"role": role, "content": mark})
                written.append(mark)
            elif isinstance(view, Output):
                self._output(view, asked.get(view.call_id))
            elif isinstance(view, AdditionalTools) and (tools := brought(view)):
                self.messages.append({"role": "system", "content": self.mark([tools])})
        flush()
        # White space before a call may be the template's or the model's: none is to come twice.
        if sampled is None or len(self.messages) != begun + 1:
            return
        if not (self._syntax.lead and "tool_calls" in self.messages[-1]):
            self._sampled.append(("".join(written), sampled))

    def _call(self, calls: Sequence[tuple[Any, Asked]]) -> str:
        """One message of calls; what the template is to write of it."""
        syntax = self._syntax
        if syntax.message is None:
            mark = self.mark(said_calls(syntax, [view for view, _ in calls]))
            self.messages.append({"role": "assistant", "content": mark})
            return mark
        asked: list[dict[str, Any]] = []
        written: list[str] = [syntax.opens]
        for at, (view, call) in enumerate(calls):
            arguments, value = self._arguments(view)
            function = {"name": call.name, "arguments": arguments}
            asked.append({"id": self._id(call), "type": "function", "function": function})
            written.append((syntax.between or "") if at else "")
            written += _filled(syntax.call, call, [value])
        self.messages.append({"role": "assistant", "content": syntax.empty, "tool_calls": asked})
        return "".join([*written, syntax.closes])

    def _arguments(self, view: Any) -> tuple[Any, str]:
        """A call's arguments as the template takes them, and as it writes them."""
        custom = isinstance(view, CustomToolCall)
        text = json.dumps({"input": view.input}, ensure_ascii=False) if custom else view.arguments
        form = self._syntax.parameters
        if form is None:
            mark = self.mark([text])
            return (mark if self._syntax.arguments == "str" else {mark: 0}), mark
        given: dict[str, Any] = {}
        written = []
        values = _object(text)
        for before, key, middle, value, behind in parameters.shown(text, form):
            mark, told = self.mark([key]), values.get(key, value)
            shown = self.mark([value]) if isinstance(told, str) else value
            given[mark] = shown if isinstance(told, str) else self._jinja.safe(told, self.said)
            written.append(f"{before}{mark}{middle}{shown}{behind}")
        return given, "".join(written)

    def _name(self, name: str) -> str:
        """A tool's name as a mark."""
        return self.mark([quoted(name)[1:-1] if f'"{NAME}"' in self._syntax.call else name])

    def _output(self, view: Any, asked: Asked | None) -> None:
        syntax = self._syntax
        if syntax.message is None:
            mark = self.mark(said_output(syntax, view, asked))
            self.messages.append({"role": syntax.output_role or "user", "content": mark})
            return
        asked = asked or Asked(self.mark([""]), syntax.first, view.call_id)
        text = text_of(view.output)
        mark = self.mark([quoted(text)[1:-1] if syntax.output_json else text])
        message = {"role": "tool", "tool_call_id": self._id(asked), "name": asked.name}
        self.messages.append({**message, "content": mark})

    def _id(self, call: Asked) -> str:
        form = self._syntax.ids
        return form.format(name=call.name, index=call.index) if form else short_id(call.call_id)


OBJECT: Final = re.compile(r"\{\s*\"(" + MARKS.pattern.replace("(", "(?:") + r")\"\s*:\s*0\s*\}")
"""Arguments that are a mark, as a template writes an object."""


def _object(text: str) -> dict[str, Any]:
    """Arguments as an object; empty where they are none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _merged(messages: Iterable[Mapping[str, Any]], *, system: bool = True) -> list[dict[str, Any]]:
    """The same for a template that wants users and assistants to take turns, and, without
    ``system``, knows of nothing else."""
    merged: list[dict[str, Any]] = []
    for message in messages:
        each = dict(message)
        if each["role"] == "system" and (merged or not system):
            each["role"] = "user"
        last = merged[-1] if merged else {}
        plain = "tool_calls" not in each and "tool_calls" not in last
        if plain and last.get("role") == each["role"] and each["role"] in ("user", "assistant"):
            last["content"] = f"{last['content']}\n\n{each['content']}"
        else:
            merged.append(each)
    return merged
