"""Tool calls and structured outputs: the grammar that the runtime follows.

llama.cpp's own ``tool_choice: required`` lets a small model answer with prose. Here calls are
sampled under a grammar of ours, in the form that the model knows (``syntax``): what is around the
arguments is known to the letter, and the arguments follow the tool's schema, written without
white space. Where the model may choose, what it writes first does, or a tag that no text
contains. What was written is read by ``sampled_text``.
"""

import json
import logging
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Final, Literal

from msgspec import Struct

from tieline_server.core.create.settings import Format, Settings
from tieline_server.core.create.tools import Tool
from tieline_server.engines.base import EngineError
from tieline_server.engines.chat_format.guidance import Followed, followed
from tieline_server.engines.chat_format.json_scan import quoted
from tieline_server.engines.chat_format.json_schema import Bounds
from tieline_server.engines.chat_format.parameters import Row, Writer, row_of
from tieline_server.engines.chat_format.sampled_text import (
    Calls,
    CallsReader,
    EitherReader,
    Frame,
    JsonReader,
    OptionalReader,
    PlainReader,
    Reader,
    Skipper,
    UnblankReader,
    UntilReader,
    thinking,
)
from tieline_server.engines.chat_format.schema_parts import SchemaError
from tieline_server.engines.chat_format.syntax import PLAIN, Syntax
from tieline_server.engines.chat_format.syntax.base import DIGIT, ID, INDEX, LETTER
from tieline_server.engines.chat_format.tool_text import CALLABLE, read_schema, wire_name

logger: Final = logging.getLogger("tieline.schemas")

TEXT: Final = r"/[^{\s](.|\n)*/"
"""An answer that cannot be mistaken for a call that begins with a brace."""

ANYTHING: Final = r"/(.|\n)+/"

STRING: Final = b'{"type":"string"}'
OBJECT: Final = b'{"type":"object"}'
NOTHING: Final = b'{"type":"object","additionalProperties":false}'
"""The schema of a function without parameters."""

SPACE: Final = r"/\s*/"

MOST_COST: Final = 16.0
"""What the schemas of all tools may cost (``Walk.cost``): some ten seconds, where all is new."""

MAX_CALLS: Final = 4
"""Calls of one answer, where several are allowed: a small model does not stop by itself."""


class Speech(Struct, frozen=True, kw_only=True, dict=True):
    """How one model writes: its syntax, and its special tokens."""

    syntax: Syntax = PLAIN
    special: Mapping[str, int]
    end: str
    """The special token that ends a message."""
    inside: bool = False
    """Whether what asks for an answer has begun a thought already."""
    opening: tuple[int, ...] = ()
    """Ids of what asks for an answer."""

    @cached_property
    def told(self) -> tuple[str, ...]:
        """The special tokens that are to be seen in what is sampled."""
        texts = "".join(self.syntax.texts)
        return tuple(token for token in self.special if token in texts)

    @cached_property
    def ends(self) -> frozenset[int]:
        """Ids of all tokens that end an answer."""
        names = (self.end, self.syntax.text_ends, self.syntax.call_ends)
        return frozenset(self.special[name] for name in names if name and name in self.special)

    def literal(self, text: str) -> str:
        """``text`` in a grammar: special tokens by their ids, the rest as strings."""
        words = [*map(re.escape, self.told), f"{LETTER}+", f"{DIGIT}+"]
        parts = re.split("(" + "|".join(words) + ")", text)
        return " ".join(map(self._literal, filter(None, parts)))

    def _literal(self, part: str) -> str:
        if part in self.special:
            return f"<[{self.special[part]}]>"
        place = {LETTER: "[a-zA-Z0-9]", DIGIT: "[0-9]"}.get(part[0])
        return f"/{place}{{{len(part)}}}/" if place else quoted(part)

    def until(self, name: str, text: str, end: str) -> dict[str, str]:
        """The rule ``name``, for text of this pattern, and the first ``end`` behind it."""
        first = re.match("|".join(map(re.escape, self.told)), end) if self.told else None
        if first:
            # The runtime knows a special token from text, but takes its letters for it too.
            inside = _lacking(f"/{text}/", [end, *self.told])
            return {name: f"{name.upper()} {self.literal(end)}", name.upper(): inside}
        near, found, rest = end, "", ""
        for token in self.told:
            if token in near:
                near, found, rest = near.partition(token)[0], token, end
        # Greedy, it would take the beginning of what ends it for text.
        rules = {f"{name}[lazy]": f"/{text}{_pattern(near)}/"}
        if found:
            rules = {f"{name}_near[lazy]": rules[f"{name}[lazy]"]}
            rules = {name: f"{name}_near {self.literal(rest[len(near) :])}", **rules}
        return rules

    def ending(self, token: str | None) -> str:
        """What ends an answer, in a grammar."""
        return f"<[{self.special.get(token or self.end, self.special[self.end])}]>"


class Rules(Struct, frozen=True, kw_only=True):
    """How what samples is held to schemas."""

    guided: bool = True
    """Whether by llguidance: else it gets the client's schemas as they are."""
    bounds: Bounds | None = None


DEFAULT: Final = Rules()


class Constraint(Struct, frozen=True, kw_only=True):
    """What an answer must look like: calls of some tools, JSON, text, or one of two."""

    grammar: str | None = None
    """In LLGuidance's form of Lark, or None for an answer without constraint."""
    schema: str | None = None
    """The same as a JSON schema, for a runtime that knows no Lark: one call, or JSON.

    None where none can say it: where there is a choice, and where anything is around the JSON.
    """
    written: Followed | None = None
    """The schema of a text format."""
    calls: Calls | None = None
    """Of the tools that may be called."""
    answer: Literal["text", "json"] | None = "text"
    """What may be written instead of calls."""
    speech: Speech | None = None

    def reader(self) -> Reader:
        """A reader for one answer."""
        speech = self.speech
        if speech is None or speech.syntax.thought is None:
            return self._spoken()
        # A reader is for one answer: what may be read by either of two needs one of each.
        then, other = self._spoken(), self._spoken()
        return thinking(speech.syntax.thought, then, other, inside=speech.inside)

    def _spoken(self) -> Reader:
        """Reads what is said, thoughts apart."""
        if self.answer is None and self.calls is not None:
            reader = CallsReader(self.calls)
            return Skipper(reader) if self.calls.lead else reader
        answer: Reader = PlainReader() if self.written is None else JsonReader(self.written)
        says = self.speech.syntax.says if self.speech else ""
        if self.calls is None:
            return OptionalReader(says, answer, PlainReader()) if says else answer
        if self.calls.begins is not None and self.answer == "text":
            calls = CallsReader(self.calls)
            return UntilReader(self.calls.begins, UnblankReader(), calls, kept=True)
        if says:
            answer = OptionalReader(says, answer, PlainReader())
        return EitherReader(self.calls, answer)


def constraint_of(
    tools: Iterable[Tool], settings: Settings, speech: Speech, rules: Rules = DEFAULT
) -> Constraint:
    """The constraint that a create's settings put on its answer.

    A required tool goes before a text format. A choice that requires a tool which is not ours to
    call (a hosted one) constrains nothing. Raises :class:`EngineError` for a schema that cannot
    be followed. Takes a while where schemas are new (``guidance``).
    """
    choice, form = settings.tool_choice, settings.format
    offered = [tool for tool in tools if tool.type in CALLABLE]
    admitted = [tool for tool in offered if choice.admits(tool)]
    lines: dict[str, str] = {}
    calls = None
    if admitted:
        calls = _calls(admitted, speech.syntax, rules, many=_many(settings))
        lines |= _call_rules(calls, speech)
    answer: Literal["text", "json"] | None = None
    written: Followed | None = None
    if not (admitted and choice.mode == "required"):
        answer = "text" if form.type == "text" else "json"
        written = _written(form, rules) if answer == "json" else None
        if answer == "json" or offered or speech.syntax.says:
            lines |= _answer_rules(written, speech)
    if not lines:
        return Constraint(speech=speech)
    return Constraint(
        grammar=_grammar(lines, speech),
        schema=None if rules.guided else _schema(calls, written, speech.syntax),
        calls=calls,
        answer=answer,
        written=written,
        speech=speech,
    )


def _many(settings: Settings) -> bool:
    """Whether an answer may have several calls: not where one tool is named."""
    choice = settings.tool_choice
    named = choice.mode == "required" and choice.allowed is not None and len(choice.allowed) == 1
    return settings.parallel_tool_calls and not named


def _calls(tools: Iterable[Tool], syntax: Syntax, rules: Rules, *, many: bool) -> Calls:
    frames = {}
    left = MOST_COST
    for tool in tools:
        name = wire_name(tool.name or "", tool.namespace)
        head, tail = syntax.frame(name, custom=tool.type == "custom")
        # Of two tools with one name the last one counts.
        arguments = _arguments(tool, rules)
        row = _row(tool, arguments, syntax) if tool.type != "custom" else None
        bare = syntax.parameters is not None and row is None
        frames[head] = Frame(
            tool=tool, head=head, tail=tail, followed=arguments, row=row, bare=bare
        )
        left -= arguments.cost
        if left < 0:
            raise EngineError(
                "invalid_function_parameters",
                f"The schemas of all tools up to '{name[:64]}' are too large; offer fewer at once.",
                param=f"{tool.param}.parameters",
            )
    return Calls(
        frames=tuple(frames.values()),
        lead=syntax.lead,
        opens=syntax.opens,
        may_open=syntax.may_open,
        between=syntax.between if many else None,
        closes=syntax.closes,
        begins=syntax.begins,
    )


def _call_rules(calls: Calls, speech: Speech) -> dict[str, str]:
    names = [f"call_{at}" for at in range(len(calls.frames))]
    rules = {"call": " | ".join(names)}
    for at, frame in enumerate(calls.frames):
        rules[names[at]] = f"{speech.literal(frame.head)} {_valued(at, frame, speech)}"
        rules |= _value_rules(f"value_{at}", frame, speech)
    more = ""
    if calls.between is not None:
        between = speech.literal(calls.between) + " " if calls.between else ""
        more = f" ({between}call){{0,{MAX_CALLS - 1}}}"
    opens = speech.literal(calls.opens) + " " if calls.opens else ""
    may_open = "SPACE " if calls.lead else ""
    if calls.lead:
        rules["SPACE"] = SPACE
    if calls.may_open in speech.special:
        may_open += f"({speech.literal(calls.may_open)})? "
    closes = " " + speech.literal(calls.closes) if calls.closes else ""
    rules["calls"] = f"{may_open}{opens}call{more}{closes}"
    if calls.begins is not None and calls.begins not in speech.special:
        # Behind text, what tells calls from it is read with the text.
        rules |= speech.until("said", r"(.|\n)*", calls.begins)
        rest = calls.opens.removeprefix(calls.begins) if calls.opens else ""
        first = "call"
        if not calls.opens:
            first = "first"
            heads = [frame.head.removeprefix(calls.begins) for frame in calls.frames]
            parts = [
                f"{speech.literal(head)} {_valued(at, frame, speech)}".lstrip()
                for at, (head, frame) in enumerate(zip(heads, calls.frames, strict=True))
            ]
            rules["first"] = " | ".join(parts)
        rest = speech.literal(rest) + " " if rest else ""
        rules["said_calls"] = f"said {rest}{first}{more}{closes}"
    return rules


def _valued(at: int, frame: Frame, speech: Speech) -> str:
    """The value of a call, with what is behind it."""
    tail = speech.literal(frame.tail) if frame.tail and not frame.bare else ""
    return f"value_{at} {tail}".rstrip()


def _value_rules(name: str, frame: Frame, speech: Speech) -> dict[str, str]:
    if frame.bare:
        return speech.until(name, r"(.|\n)*", frame.tail)
    if frame.row is None:
        return {name: frame.followed.rule}
    writer = Writer(
        frame.row,
        name,
        literal=speech.literal,
        until=speech.until,
        json_rule=frame.followed.rule_of,
    )
    return writer.write()


def _row(tool: Tool, arguments: Followed, syntax: Syntax) -> Row | None:
    """The parameters of a tool, where they are written one by one."""
    if syntax.parameters is None:
        return None
    name = wire_name(tool.name or "", tool.namespace)[:64]

    def refuse(why: str) -> EngineError:
        return EngineError(
            "invalid_function_parameters",
            f"Invalid schema for function '{name}': this model writes parameters one by one, as "
            f"text, and cannot be held to {why}. "
            "Leave it out, or send the tool without 'strict'.",
            param=f"{tool.param}.parameters",
        )

    schema = read_schema(tool.parameters) or {"additionalProperties": False}
    row = row_of(schema, syntax.parameters, refuse=refuse if tool.strict is True else None)
    # What the members themselves are sampled as is what it is in any other form.
    return row if row.members is None else row.bounded(arguments.schema)


def _answer_rules(written: Followed | None, speech: Speech) -> dict[str, str]:
    says = speech.literal(speech.syntax.says) + " " if speech.syntax.says else ""
    if written is not None:
        return {"answer": f"{says}json", "json": written.rule}
    begins = speech.syntax.begins
    text = TEXT if begins is None and not says else ANYTHING
    without = [*speech.told, *([begins] if begins else ())]
    return {"answer": f"{says}TEXT", "TEXT": _lacking(text, without)}


def _grammar(rules: dict[str, str], speech: Speech) -> str:
    syntax = speech.syntax
    call_ends, text_ends = speech.ending(syntax.call_ends), speech.ending(syntax.text_ends)
    starts = [f"calls {call_ends}"] if "calls" in rules else []
    if "answer" in rules:
        starts.append(f"answer {text_ends}")
    if len(starts) == 2 and syntax.begins is not None and "TEXT" in rules:
        said = "said_calls" if "said_calls" in rules else "TEXT calls"
        starts.append(f"{said} {call_ends}")
    start = " | ".join(starts)
    if syntax.thought is not None:
        opens = speech.literal(syntax.thought[0])
        thought = "close SPACE"
        start = f"thought ({start})" if speech.inside else f"thought? ({start})"
        rules = {
            **rules,
            "thought": thought if speech.inside else f"{opens} {thought}",
            **speech.until("close", r"(.|\n)*", syntax.thought[1]),
            "SPACE": SPACE,
        }
    lines = [
        "%llguidance {}",
        f"start: {start}",
        *(f"{key}: {rule}" for key, rule in rules.items()),
    ]
    return "\n".join(lines) + "\n"


def _schema(calls: Calls | None, written: Followed | None, syntax: Syntax) -> str | None:
    """The constraint as a JSON schema, where the answer is one JSON value."""
    bare = not (syntax.says or syntax.thought or syntax.opens or syntax.may_open or syntax.begins)
    bare = bare and not syntax.parameters and ID not in syntax.call and INDEX not in syntax.call
    if not bare or (calls is None) == (written is None):
        return None
    if calls is not None:
        found = [_call_schema(frame, at) for at, frame in enumerate(calls.frames)]
        return json.dumps({"anyOf": found})
    return json.dumps(written.schema if written is not None else {})


def _call_schema(frame: Frame, at: int) -> dict[str, Any]:
    """A call of one tool, all of it: branch ``at`` of the whole."""
    name, member = json.loads(f"{frame.head}null{frame.tail}")
    place = f"#/anyOf/{at}/properties/{member}"
    return {
        "type": "object",
        "properties": {
            name: {"const": wire_name(frame.tool.name or "", frame.tool.namespace)},
            member: _moved(frame.followed.schema, place),
        },
        "required": [name, member],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """A schema that stands in another one: its references point to where it is now."""
    if isinstance(schema, list):
        return [_moved(each, place) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {name: _moved(each, place) for name, each in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        moved["$ref"] = place + reference[1:]
    return moved


def _lacking(text: str, words: Iterable[str]) -> str:
    """A pattern less all that has one of ``words`` in it.

    To the runtime a special token is also the letters of its name.
    """
    found = "|".join(map(_pattern, dict.fromkeys(words)))
    return rf"{text} & ~/(.|\n)*({found})(.|\n)*/" if found else text


def _pattern(text: str) -> str:
    """``text`` within a pattern of a grammar."""
    return re.escape(text).replace("/", "\\/").replace("\\\n", "\\n")


def _arguments(tool: Tool, rules: Rules) -> Followed:
    """The schema of a call's arguments, or of a custom tool's input."""
    if tool.type == "custom":
        return followed(STRING, bounds=rules.bounds)
    raw = tool.parameters if read_schema(tool.parameters) else NOTHING
    if not rules.guided:
        return Followed(schema={"type": "object", **read_schema(raw)})
    name = wire_name(tool.name or "", tool.namespace)[:64]
    strict, param = tool.strict is True, f"{tool.param}.parameters"
    try:
        found = followed(raw or NOTHING, strict=strict, bounds=rules.bounds, function=True)
    except SchemaError as error:
        code = "invalid_function_parameters"
        raise _refused(code, f"function '{name}'", error, param) from None
    return _telling(found, param)


def _written(form: Format, rules: Rules) -> Followed:
    """The schema of a text format."""
    if not rules.guided:
        return Followed(schema=read_schema(form.schema or OBJECT))
    strict, param = form.strict is True, "text.format.schema"
    try:
        found = followed(form.schema or OBJECT, strict=strict, bounds=rules.bounds)
    except SchemaError as error:
        raise _refused("invalid_json_schema", "the text format", error, param) from None
    return _telling(found, param)


def _telling(found: Followed, param: str) -> Followed:
    """The same; an operator hears of words that a schema has in vain."""
    if found.told:
        words = ", ".join(sorted(set(found.left_out)))
        logger.info("%d words of a schema are passed over (%s): %s", found.told, param, words)
    return found


def _refused(code: str, what: str, error: SchemaError, param: str) -> EngineError:
    at = error.at or "/"
    return EngineError(
        code, f"Invalid schema for {what}, at '{at[:256]}': {error.why}.", param=param
    )
