"""What the scripted engine answers: the rule that holds, or something sensible without one.

An answer is a run of acts: deltas as they will be sent, and pauses. It is written lazily, so a
long text costs nothing before it is due.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain, cycle
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct

from tieline_server.core.deltas import (
    CallDelta,
    CallKind,
    CallStart,
    ItemEnd,
    ReasoningDelta,
    RefusalDelta,
    SummaryDelta,
    TextDelta,
)
from tieline_server.core.effects import Prompt
from tieline_server.core.settings import Format, Tool
from tieline_server.engines.bpe import Vocabulary
from tieline_server.engines.scripted import script
from tieline_server.engines.scripted.example import example
from tieline_server.engines.scripted.facts import Facts, Head, text_of
from tieline_server.engines.scripted.pattern import NoSample, sample
from tieline_server.engines.scripted.script import (
    PLACEHOLDER,
    Pace,
    Rule,
    Script,
    StatedUsage,
    When,
)

Output = TextDelta | RefusalDelta | ReasoningDelta | SummaryDelta | CallStart | CallDelta | ItemEnd
Act = Output | script.Stall
Make = Callable[[str], Output]

REUSED: Final = 64 * 1024
"""Characters up to which the pieces of a script's own text are kept."""

FILLER: Final = " and so on"
"""What an answer is filled with when it must break after more tokens than it has."""


class Plan(Struct, frozen=True, kw_only=True):
    """How one prompt is answered."""

    acts: Iterator[Act]
    pace: Pace
    usage: StatedUsage = StatedUsage()
    error: script.Error | None = None
    """With ``after_tokens`` the answer breaks there; without, the prompt is refused."""
    delay: float = 0
    """Seconds before a refusal."""


class Context:
    """What a prompt says, for rules and placeholders; each is read when first asked for."""

    def __init__(self, prompt: Prompt, facts: Facts, head: Head) -> None:
        self.prompt = prompt
        self.facts = facts
        self.head = head

    @cached_property
    def user(self) -> str:
        """Text of the user's last message."""
        return text_of(self.facts.user)

    @cached_property
    def output(self) -> str:
        """Text of the last tool output."""
        return text_of(self.facts.output)

    @cached_property
    def context(self) -> str:
        """The effective input, byte for byte. Costs the whole chain."""
        items = b",".join(item.raw for item in self.prompt.tip.context())
        return f"[{items.decode(errors='replace')}]"

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Everything on offer: the request's tools, then those that came with the input."""
        return self.prompt.settings.tools.offered + self.facts.tools


def holds(when: When, context: Context) -> bool:
    """Whether a rule's conditions all hold."""
    prompt, facts = context.prompt, context.facts
    if when.last is not UNSET and when.last != facts.last:
        return False
    if when.turn is not UNSET and when.turn != prompt.tip.turn:
        return False
    if when.model is not UNSET and when.model != prompt.model:
        return False
    if when.tool is not UNSET:
        offer = tuple(when.tool)
        if offer not in context.head.offers and offer not in facts.offers:
            return False
    return when.user_contains is UNSET or when.user_contains in context.user


class Author:
    """Writes answers by a script."""

    def __init__(self, rules: Script, vocabulary: Vocabulary) -> None:
        self._script = rules
        self._vocabulary = vocabulary
        self._kept: dict[tuple[Make, str], tuple[Output, ...]] = {}
        self._writers: Mapping[type, Callable[[Any, Context], Iterator[Act]]] = {
            script.Message: self._message,
            script.Reasoning: self._reasoning,
            script.FunctionCall: self._function_call,
            script.CustomToolCall: self._custom_tool_call,
            script.Refusal: self._refusal,
            script.Error: lambda _, __: iter(()),
            script.Stall: lambda stall, _: iter((stall,)),
        }

    def plan(self, context: Context) -> Plan:
        """The answer of the first rule that holds, else the default one."""
        for rule in self._script.rules:
            if holds(rule.when, context):
                return self._by_rule(rule, context)
        return Plan(acts=self._by_default(context), pace=self._script.pace)

    def _by_rule(self, rule: Rule, context: Context) -> Plan:
        acts = chain.from_iterable(self._writers[type(each)](each, context) for each in rule.emit)
        delay, error = 0.0, rule.error
        if error is not None:
            message = script.fill(error.message, context)
            code = script.fill(error.code, context)
            error = msgspec.structs.replace(error, code=code, message=message)
            if error.after_tokens is None:
                before = rule.emit[: rule.emit.index(rule.error)] if rule.error else []
                delay = sum(each.seconds for each in before if isinstance(each, script.Stall))
            else:
                acts = chain(acts, cycle(self._fixed(TextDelta, FILLER)))
        pace = rule.pace.over(self._script.pace)
        return Plan(acts=acts, pace=pace, usage=rule.usage, error=error, delay=delay)

    # One writer for each type of emission.

    def _message(self, each: script.Message, context: Context) -> Iterator[Act]:
        yield from self._filled(TextDelta, each.text, context)
        yield ItemEnd()

    def _refusal(self, each: script.Refusal, context: Context) -> Iterator[Act]:
        yield from self._filled(RefusalDelta, each.text, context)
        yield ItemEnd()

    def _reasoning(self, each: script.Reasoning, context: Context) -> Iterator[Act]:
        """The thought, then its summary; a thought that stays hidden is as long as its summary."""
        yield from self._filled(ReasoningDelta, each.text, context)
        for piece in self._filled(_summary, each.summary, context):
            if not each.text:
                yield ReasoningDelta("")
            yield piece
        yield ItemEnd()

    def _function_call(self, each: script.FunctionCall, context: Context) -> Iterator[Act]:
        arguments = each.arguments
        if isinstance(arguments, str):
            pieces = self._filled(CallDelta, arguments, context)
        else:
            filled = script.fill_all(arguments, context)
            text = _json(filled)
            pieces = self._fixed(CallDelta, text) if filled == arguments else self._fresh(text)
        return _call("function_call", each.name, each.namespace, pieces, context)

    def _custom_tool_call(self, each: script.CustomToolCall, context: Context) -> Iterator[Act]:
        pieces = self._filled(CallDelta, each.input, context)
        return _call("custom_tool_call", each.name, each.namespace, pieces, context)

    def _fresh(self, text: str) -> Iterator[Output]:
        return map(CallDelta, self._vocabulary.pieces(text))

    def _filled(self, make: Make, template: str, context: Context) -> Iterable[Output]:
        if PLACEHOLDER.search(template):
            return map(make, self._vocabulary.pieces(script.fill(template, context)))
        return self._fixed(make, template)

    def _fixed(self, make: Make, text: str) -> Iterable[Output]:
        """The pieces of a text of the script's own: cut once, used by every answer."""
        if len(text) > REUSED:
            return map(make, self._vocabulary.pieces(text))
        kept = self._kept.get((make, text))
        if kept is None:
            kept = self._kept[make, text] = tuple(map(make, self._vocabulary.pieces(text)))
        return kept

    # Without a rule.

    def _by_default(self, context: Context) -> Iterator[Act]:
        if context.facts.last == "tool_output":
            return self._say(f"The tool returned: {context.output}", context.output, context)
        tool = called_tool(context)
        if tool is None:
            text = f"You said: {context.user}" if context.user else "Nothing was said."
            return self._say(text, context.user, context)
        kind: CallKind = "function_call" if tool.type == "function" else "custom_tool_call"
        pieces = self._fresh(arguments_for(tool, context.user))
        return _call(kind, tool.name or "", tool.namespace, pieces, None)

    def _say(self, text: str, hint: str, context: Context) -> Iterator[Act]:
        shaped = in_format(context.prompt.settings.format, text, hint)
        yield from map(TextDelta, self._vocabulary.pieces(shaped))
        yield ItemEnd()


def _summary(text: str) -> SummaryDelta:
    return SummaryDelta(text)


def _call(
    kind: CallKind,
    name: str,
    namespace: str | None,
    pieces: Iterable[Output],
    context: Context | None,
) -> Iterator[Act]:
    """A call: one token that begins it, then its arguments or input."""
    if context is not None:
        name = script.fill(name, context)
        namespace = script.fill(namespace, context) if namespace is not None else None
    yield CallStart(kind=kind, name=name, namespace=namespace, tokens=1)
    yield from pieces
    yield ItemEnd()


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


HEARD: Final = 10_000
"""Characters of the user's words in which tools are looked for: there may be many tools."""

_SEPARATORS: Final = re.compile("[_-]+")
_ASKS: Final = re.compile(r"\b(?:call|invoke|run|use)\b.{0,40}\btools?\b", re.IGNORECASE)


def called_tool(context: Context) -> Tool | None:
    """The tool that the request, or the user's words, ask for; None when they ask for none."""
    choice = context.prompt.settings.tool_choice
    tools = [
        tool
        for tool in context.tools
        if tool.type in ("function", "custom") and tool.name and choice.admits(tool)
    ]
    if not tools:
        return None
    words = context.user[:HEARD]
    folded = words.lower()
    named = next((tool for tool in tools if _names(words, folded, tool.name or "")), None)
    if named is not None:
        return named
    return tools[0] if choice.mode == "required" or _ASKS.search(words) else None


def _names(text: str, folded: str, name: str) -> bool:
    """Whether ``text`` names the tool, perhaps with blanks for underscores."""
    # Nearly all tools end here: to build a pattern for each would take longest.
    if not all(part in folded for part in _SEPARATORS.split(name.lower())):
        return False
    pattern = "[ _-]".join(map(re.escape, _SEPARATORS.split(name)))
    return re.search(rf"(?<!\w){pattern}(?!\w)", text, re.IGNORECASE) is not None


def arguments_for(tool: Tool, hint: str) -> str:
    """Arguments that satisfy a function's schema, or input for a custom tool."""
    if tool.type == "custom":
        return _input_for(tool, hint)
    value = example(tool.parameters, hint=hint, fallback={}) if tool.parameters else {}
    return _json(value if isinstance(value, dict) else {})


class _Grammar(Struct, frozen=True):
    syntax: str | None = None
    definition: str = ""


def _input_for(tool: Tool, hint: str) -> str:
    try:
        grammar = msgspec.json.decode(tool.format or b"{}", type=_Grammar)
        return sample(grammar.definition) if grammar.syntax == "regex" else hint
    except (msgspec.MsgspecError, NoSample):
        return hint


def in_format(form: Format, text: str, hint: str) -> str:
    """``text`` in the shape that the request asks for; ``hint`` is what it is about."""
    if form.type == "json_schema" and form.schema is not None:
        return _json(example(form.schema, hint=hint, fallback={}))
    if form.type == "json_object":
        return _json({"text": text})
    return text
