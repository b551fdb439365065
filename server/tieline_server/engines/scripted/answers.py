"""What the scripted engine answers: the rule that holds, or something sensible without one.

An answer is made of runs of deltas, cut as they will be sent, and of pauses. It is written
lazily, so a long text costs nothing before it is due.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain, islice, repeat
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct

from tieline_server.core.create.settings import Format
from tieline_server.core.create.tools import Tool
from tieline_server.core.deltas import (
    TOOL_SEARCH,
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
from tieline_server.engines.base import EngineError
from tieline_server.engines.bpe import Vocabulary
from tieline_server.engines.client_tools import callable_tools
from tieline_server.engines.scripted import script
from tieline_server.engines.scripted.example import NoExample, example
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
Run = tuple[Output, ...]
"""Deltas, at least one, that all cost the same: a token each, or nothing."""

Runs = Iterable[Run | script.Stall]
Make = Callable[[str], Output]

REUSED: Final = 64 * 1024
"""Characters of JSON up to which the runs of an emission are kept."""

BATCH: Final = 64
"""The most pieces of a text in a run."""

END: Final[Run] = (ItemEnd(),)
HIDDEN: Final[Run] = (ReasoningDelta(""),)

FILLER: Final = " and so on"
"""What an answer is filled with when it must break after more tokens than it has."""


class Plan(Struct, frozen=True, kw_only=True):
    """How one prompt is answered."""

    runs: Iterator[Run | script.Stall]
    pace: Pace
    usage: StatedUsage = StatedUsage()
    error: script.Error | None = None
    """With ``after_tokens`` the answer breaks there; without, the prompt is refused."""
    delay: float = 0
    """Seconds before a refusal."""


class Context:
    """What a prompt says, for rules and placeholders; each is read when first asked for.

    ``said`` is the text of the user's last message where that is known.
    """

    def __init__(self, prompt: Prompt, facts: Facts, head: Head, said: str | None = None) -> None:
        self.prompt = prompt
        self.facts = facts
        self.head = head
        self._said = said

    @property
    def user(self) -> str:
        """Text of the user's last message."""
        if self._said is None:
            self._said = text_of(self.facts.user)
        return self._said

    @cached_property
    def output(self) -> str:
        """Text of the last tool output."""
        return text_of(self.facts.output)

    @cached_property
    def context(self) -> str:
        """The effective input, byte for byte. Costs the whole chain."""
        items = b",".join(item.raw for item in self.prompt.chain.context())
        return f"[{items.decode(errors='replace')}]"

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Everything that can be called: the request's tools, then those that items brought."""
        return callable_tools(self.prompt.settings, self.facts.tools)


def holds(when: When, context: Context) -> bool:
    """Whether a rule's conditions all hold."""
    prompt, facts = context.prompt, context.facts
    if when.last is not UNSET and when.last != facts.last:
        return False
    if when.turn is not UNSET and when.turn != prompt.chain.turn:
        return False
    if when.model is not UNSET and when.model != prompt.model:
        return False
    if when.tool is not UNSET:
        offer = tuple(when.tool)
        if offer not in context.head.offers and offer not in facts.offers:
            return False
    return when.user_contains is UNSET or when.user_contains in context.user


class _Part(Struct):
    """An emission of a rule, and its runs once they are made, where no prompt can change them."""

    emission: script.AnyEmission
    fixed: bool
    runs: tuple[Run | script.Stall, ...] | None = None


class _Ready(Struct, frozen=True):
    """A rule, and what follows from it whatever the prompt."""

    rule: Rule
    parts: tuple[_Part, ...]
    pace: Pace
    error: script.Error | None


class Author:
    """Writes answers by a script."""

    def __init__(self, rules: Script, vocabulary: Vocabulary) -> None:
        self._pace = rules.pace
        self._rules = [_ready(rule, rules.pace) for rule in rules.rules]
        self._vocabulary = vocabulary
        self._writers: Mapping[type, Callable[[Any, Context], Runs]] = {
            script.Message: self._message,
            script.Reasoning: self._reasoning,
            script.FunctionCall: self._function_call,
            script.CustomToolCall: self._custom_tool_call,
            script.Refusal: self._refusal,
            script.Error: lambda _, __: (),
            script.Stall: lambda stall, _: (stall,),
        }

    def plan(self, context: Context) -> Plan:
        """The answer of the first rule that holds, else the default one."""
        for ready in self._rules:
            if holds(ready.rule.when, context):
                return self._by_rule(ready, context)
        return Plan(runs=iter(self._by_default(context)), pace=self._pace)

    def _by_rule(self, ready: _Ready, context: Context) -> Plan:
        rule, error, delay = ready.rule, ready.error, 0.0
        runs = chain.from_iterable(map(self._write, ready.parts, repeat(context)))
        if error is not None:
            if error.after_tokens is None:
                before = rule.emit[: rule.emit.index(error)]
                delay = sum(each.seconds for each in before if isinstance(each, script.Stall))
            else:
                filler = tuple(map(TextDelta, self._vocabulary.pieces(FILLER)))
                runs = chain(runs, repeat(filler))
            message = script.fill(error.message, context)
            code = script.fill(error.code, context)
            error = msgspec.structs.replace(error, code=code, message=message)
        return Plan(runs=runs, pace=ready.pace, usage=rule.usage, error=error, delay=delay)

    def _write(self, part: _Part, context: Context) -> Runs:
        if part.runs is not None:
            return part.runs
        runs = self._writers[type(part.emission)](part.emission, context)
        if part.fixed:
            runs = part.runs = tuple(runs)
        return runs

    # One writer for each type of emission.

    def _message(self, each: script.Message, context: Context) -> Runs:
        return chain(self._filled(TextDelta, each.text, context), (END,))

    def _refusal(self, each: script.Refusal, context: Context) -> Runs:
        return chain(self._filled(RefusalDelta, each.text, context), (END,))

    def _reasoning(self, each: script.Reasoning, context: Context) -> Runs:
        """The thought, then its summary; a thought that stays hidden is as long as its summary."""
        thought = self._filled(ReasoningDelta, each.text, context)
        summary = self._filled(_summary, each.summary, context)
        if not each.text:
            pieces = chain.from_iterable(summary)
            summary = (run for piece in pieces for run in (HIDDEN, (piece,)))
        return chain(thought, summary, (END,))

    def _function_call(self, each: script.FunctionCall, context: Context) -> Runs:
        filled = script.fill_all(each.arguments, context)
        pieces = self._cut(CallDelta, filled if isinstance(filled, str) else _json(filled))
        offered = (tool.name for tool in context.tools if tool.type == TOOL_SEARCH)
        kind: CallKind = "tool_search_call" if each.name in offered else "function_call"
        return _call(kind, each.name, each.namespace, pieces, context)

    def _custom_tool_call(self, each: script.CustomToolCall, context: Context) -> Runs:
        pieces = self._filled(CallDelta, each.input, context)
        return _call("custom_tool_call", each.name, each.namespace, pieces, context)

    def _filled(self, make: Make, template: str, context: Context) -> Iterator[Run]:
        return self._cut(make, script.fill(template, context))

    def _cut(self, make: Make, text: str) -> Iterator[Run]:
        pieces = map(make, self._vocabulary.pieces(text))
        return iter(lambda: tuple(islice(pieces, BATCH)), ())

    # Without a rule.

    def _by_default(self, context: Context) -> Runs:
        if context.facts.last == "tool_output":
            return self._say(f"The tool returned: {context.output}", context.output, context)
        tool = called_tool(context)
        if tool is None:
            text = f"You said: {context.user}" if context.user else "Nothing was said."
            return self._say(text, context.user, context)
        pieces = self._cut(CallDelta, arguments_for(tool, context.user))
        return _call(tool.call_kind, tool.name or "", tool.namespace, pieces, None)

    def _say(self, text: str, hint: str, context: Context) -> Runs:
        shaped = in_format(context.prompt.settings.format, text, hint)
        return chain(self._cut(TextDelta, shaped), (END,))


def _ready(rule: Rule, pace: Pace) -> _Ready:
    parts = tuple(_Part(each, _is_fixed(each)) for each in rule.emit)
    return _Ready(rule, parts, rule.pace.over(pace), rule.error)


def _is_fixed(each: script.AnyEmission) -> bool:
    """Whether no prompt can change it, and it is small enough to keep."""
    if isinstance(each, script.FunctionCall) and each.name == TOOL_SEARCH:
        return False
    # JSON leaves braces as they are, and none of its own look like a placeholder.
    data = _json(each)
    return len(data) <= REUSED and not PLACEHOLDER.search(data)


def _summary(text: str) -> SummaryDelta:
    return SummaryDelta(text)


def _call(
    kind: CallKind,
    name: str,
    namespace: str | None,
    pieces: Iterable[Run],
    context: Context | None,
) -> Runs:
    """A call: one token that begins it, then its arguments or input."""
    if context is not None:
        name = script.fill(name, context)
        namespace = script.fill(namespace, context) if namespace is not None else None
    start = CallStart(kind=kind, name=name, namespace=namespace, tokens=1)
    return chain(((start,),), pieces, (END,))


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


HEARD: Final = 10_000
"""Characters of the user's words in which tools are looked for: there may be many tools."""

_SEPARATORS: Final = re.compile("[_-]+")
_ASKS: Final = re.compile(r"\b(?:call|invoke|run|use)\b.{0,40}\btools?\b", re.IGNORECASE)


def called_tool(context: Context) -> Tool | None:
    """The tool that the request, or the user's words, ask for; None when they ask for none."""
    choice = context.prompt.settings.tool_choice
    tools = [tool for tool in context.tools if tool.name and choice.admits(tool)]
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
    """Arguments that satisfy a function's schema, or input for a custom tool.

    Raises :class:`EngineError` where none are found.
    """
    if tool.type == "custom":
        return _input_for(tool, hint)
    if not tool.parameters:
        return "{}"
    try:
        return _json(example(tool.parameters, hint=hint, kind="object"))
    except NoExample:
        raise EngineError(
            "invalid_function_parameters",
            f"The scripted engine finds no arguments for the schema of '{(tool.name or '')[:64]}'.",
            param=f"{tool.param}.parameters",
        ) from None


class _Grammar(Struct, frozen=True):
    syntax: str | None = None
    definition: str = ""


def _input_for(tool: Tool, hint: str) -> str:
    try:
        grammar = msgspec.json.decode(tool.format or b"{}", type=_Grammar)
        return sample(grammar.definition) if grammar.syntax == "regex" else hint
    except msgspec.MsgspecError:
        return hint
    except NoSample:
        raise EngineError(
            "invalid_value",
            "The scripted engine finds no text that this regular expression matches.",
            param=f"{tool.param}.format",
        ) from None


def in_format(form: Format, text: str, hint: str) -> str:
    """``text`` in the shape that the request asks for; ``hint`` is what it is about.

    Raises :class:`EngineError` where no value is found for its schema.
    """
    if form.type == "json_schema" and form.schema is not None:
        try:
            return _json(example(form.schema, hint=hint))
        except NoExample:
            raise EngineError(
                "invalid_json_schema",
                "The scripted engine finds no value for this schema.",
                param="text.format.schema",
            ) from None
    if form.type == "json_object":
        return _json({"text": text})
    return text
