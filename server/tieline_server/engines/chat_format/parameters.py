"""Arguments that are written one by one, each between tags of its name (``syntax``).

A string stands as it is, anything else as JSON. So a schema becomes a row of parameters in its
own order: those that are required must come, and what is between a parameter's tags is a string
up to the closing tag, or JSON by the member's schema. Read back, they are an object again, whose
values have the types that the schema gives them: ``42`` is a number where a number may be, and
text where only text may be.

What a row of parameters cannot be held to is refused where the tool is ``strict``, and passed
over where it is not: conditions on the object as a whole, patterns of a string, and what is
neither clearly a string nor clearly something else.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from tieline_server.engines.base import EngineError
from tieline_server.engines.chat_format.json_scan import (
    JsonScan,
    UntilText,
    check_json,
    off_schema,
    quoted,
)
from tieline_server.engines.chat_format.syntax.base import KINDS, Parameters

MOST: Final = 8
"""Parameters of a schema that names none."""

NAMES: Final = r'/[^\s"<>=\[\]]{1,64}/'
"""Names of parameters where the schema has none."""

DEFINED: Final[tuple[str, ...]] = ("$defs", "definitions")
WHOLE: Final = ("properties", "required", "type", "additionalProperties", *DEFINED)
"""Words about an object that a row of parameters keeps to."""
REMARKS: Final = (
    "$schema",
    "$id",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "$comment",
)
TEXTUAL: Final = ("type", "enum", "const", "minLength", "maxLength", *REMARKS)
"""Words about a string that text between tags keeps to."""

EVERY: Final = frozenset(KINDS)
STEPS: Final = 16
"""References that are followed one after the other."""

_members: Final = msgspec.json.Decoder(dict[str, Raw])


class Member(Struct, frozen=True, kw_only=True):
    """One parameter, as its schema has it."""

    name: str
    schema: dict[str, Any]
    kinds: frozenset[str]
    """What its value may be."""
    required: bool = False

    @property
    def text(self) -> bool:
        """Whether it is a string and nothing else."""
        return self.kinds == {"string"}


class Row(Struct, frozen=True, kw_only=True):
    """The parameters of one tool, in order; ``members`` is None where the schema names none."""

    form: Parameters
    members: tuple[Member, ...] | None
    others: Member | None = None
    """What each is where none is named."""

    def bounded(self, schema: dict[str, Any]) -> "Row":
        """The same with members as ``schema`` has them, which is the tool's own with bounds."""
        found = {member.name: member for member in _members_of(schema)}
        members = tuple(found.get(each.name, each) for each in self.members or ())
        return replace(self, members=members)


def row_of(
    schema: dict[str, Any],
    form: Parameters,
    *,
    refuse: Callable[[str], EngineError] | None = None,
) -> Row:
    """The row for a tool's schema; what a strict one asks beyond it raises ``refuse(why)``."""
    defined = {key: schema[key] for key in DEFINED if key in schema}
    schema = {**_flat(schema, schema), **defined}
    beyond = sorted(schema.keys() - {*WHOLE, *REMARKS})
    if refuse is not None and beyond:
        raise refuse(f"'{beyond[0]}' of its parameters as a whole")
    more = schema.get("additionalProperties")
    if not isinstance(schema.get("properties"), dict) and not _needed(schema) and more is not False:
        if refuse is not None:
            raise refuse("parameters that have no names")
        other = more if isinstance(more, dict) else {}
        others = Member(name="", schema=other, kinds=kinds_of(other, schema))
        return Row(form=form, members=None, others=others)
    row = Row(form=form, members=_members_of(schema))
    for member in row.members or ():
        if refuse is not None and (why := _beyond(member)):
            raise refuse(f"{why} of parameter '{member.name[:64]}'")
    return row


def _members_of(schema: dict[str, Any]) -> tuple[Member, ...]:
    said, more = schema.get("properties"), schema.get("additionalProperties")
    given = said if isinstance(said, dict) else {}
    required = _needed(schema)
    if more is not False:
        # What is required and has no schema of its own has that of all others.
        given = {**given, **{name: more for name in required if name not in given}}
    defined = {name: schema[name] for name in DEFINED if name in schema}
    members = []
    for name, value in given.items():
        if value is False:
            continue
        member = {**_flat(value, schema), **defined}
        kinds = kinds_of(member, schema)
        members.append(Member(name=name, schema=member, kinds=kinds, required=name in required))
    return tuple(members)


def _needed(schema: Mapping[str, Any]) -> list[str]:
    """The names that a schema requires."""
    needed = schema.get("required")
    return [each for each in needed if isinstance(each, str)] if isinstance(needed, list) else []


def _beyond(member: Member) -> str | None:
    """What of a strict parameter text between tags cannot be held to."""
    if "string" not in member.kinds:
        return None
    words = sorted(member.schema.keys() - {*TEXTUAL, *DEFINED})
    if words:
        return f"'{words[0]}'"
    return None if member.kinds <= {"string", "null", "boolean"} else "text or something else"


def _flat(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """A member's schema without a reference, and without a choice between a string and null."""
    schema = _referred(schema, root)
    for word in ("anyOf", "oneOf"):
        branches = schema.get(word)
        if not isinstance(branches, list) or not schema.keys() <= {word, *REMARKS}:
            continue
        parts = [_referred(each, root) for each in branches]
        texts = [each for each in parts if kinds_of(each, root) == {"string"}]
        nulls = [each for each in parts if each == {"type": "null"}]
        if len(texts) == 1 and len(nulls) == len(parts) - 1:
            merged = {**texts[0], "type": ["string", "null"]}
            choices = _values(texts[0])
            return {**merged, "enum": [*choices, None]} if choices is not None else merged
    return {**schema}


def _referred(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """What a schema that is a reference and nothing else refers to, also as all of an ``allOf``."""
    for _ in range(STEPS):
        if not isinstance(schema, dict):
            return {}
        parts = schema.get("allOf")
        if isinstance(parts, list) and len(parts) == 1 and schema.keys() <= {"allOf", *REMARKS}:
            schema = parts[0]
            continue
        if not isinstance(schema.get("$ref"), str) or not schema.keys() <= {"$ref", *REMARKS}:
            return schema
        schema = _resolved(schema["$ref"], root)
    return {}


def _values(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values that a schema has, where it names them."""
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def kinds_of(
    schema: Any, root: Mapping[str, Any], *, known: dict[str, frozenset[str]] | None = None
) -> frozenset[str]:
    """What a value may be by its schema: some of :data:`KINDS`.

    ``known`` are references that were followed already: each is, once.
    """
    if not isinstance(schema, dict):
        return EVERY
    known = {} if known is None else known
    found = _own_kinds(schema)
    for word in ("anyOf", "oneOf"):
        branches = schema.get(word)
        if isinstance(branches, list) and branches:
            parts = (kinds_of(each, root, known=known) for each in branches)
            found &= frozenset().union(*parts)
    for each in schema["allOf"] if isinstance(schema.get("allOf"), list) else ():
        found &= kinds_of(each, root, known=known)
    pointer = schema.get("$ref")
    if isinstance(pointer, str):
        if pointer not in known:
            known[pointer] = EVERY
            known[pointer] = kinds_of(_resolved(pointer, root), root, known=known)
        found &= known[pointer]
    return found or EVERY


def _own_kinds(schema: Mapping[str, Any]) -> frozenset[str]:
    """The same by the words that look at the value itself."""
    found = EVERY
    kinds = schema.get("type")
    if isinstance(kinds, str):
        kinds = [kinds]
    if isinstance(kinds, list):
        found &= {"number" if each == "integer" else str(each) for each in kinds}
    values = _values(schema)
    if values is not None:
        found &= {kind_of(json.dumps(each)) for each in values}
    return found


def _resolved(pointer: str, root: Mapping[str, Any]) -> Any:
    """What a reference within the schema names (RFC 6901); None where there is nothing."""
    found: Any = root
    for step in pointer.removeprefix("#").split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and step.isdigit() and int(step) < len(found):
            found = found[int(step)]
        elif isinstance(found, dict):
            found = found.get(step)
        else:
            return None
    return found


def kind_of(value: str) -> str:
    """Which of :data:`KINDS` a JSON value is, by its first letter."""
    first = value[:1]
    named = {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean"}
    return named.get(first, "null" if first == "n" else "number")


# How it is sampled.


class Writer:
    """Makes the rules of one row of a grammar, whose names begin with ``name``.

    ``literal(text)`` is text in the grammar, ``until(name, text, end)`` text and what ends it,
    ``json_rule(schema)`` JSON.
    """

    def __init__(
        self,
        row: Row,
        name: str,
        *,
        literal: Callable[[str], str],
        until: Callable[[str, str, str], dict[str, str]],
        json_rule: Callable[[dict[str, Any]], str],
    ) -> None:
        self._row = row
        self._name = name
        self._literal = literal
        self._until = until
        self._json_rule = json_rule
        self.rules: dict[str, str] = {}

    def write(self) -> dict[str, str]:
        """All rules; the first one is the row."""
        row, name = self._row, self._name
        if row.members is None and row.others is not None:
            self.rules[name] = f"({name}_any){{0,{MOST}}}"
            self.rules[f"{name}_any"] = self._parameter(f"{name}_any", row.others)
            return self.rules
        parts = []
        self.rules[name] = ""
        for at, member in enumerate(row.members or ()):
            rule = f"{name}_{at}"
            self.rules[rule] = self._parameter(rule, member)
            parts.append(rule if member.required else f"{rule}?")
        self.rules[name] = " ".join(parts) or '""'
        return self.rules

    def _parameter(self, rule: str, member: Member) -> str:
        ways: dict[tuple[str, str, str], list[str]] = {}
        for kind in KINDS:
            if kind in member.kinds:
                ways.setdefault(self._row.form.around[kind], []).append(kind)
        parts = []
        for at, (around, kinds) in enumerate(ways.items()):
            before, middle, _ = around
            if member.name:
                head = self._literal(before + member.name + middle)
            else:
                self.rules["NAMES"] = NAMES
                head = f"{self._literal(before)} NAMES {self._literal(middle)}"
            parts.append(f"{head} {self._value(f'{rule}_{at}', member, kinds, around[2])}")
        return " | ".join(parts)

    def _value(self, rule: str, member: Member, kinds: Sequence[str], end: str) -> str:
        words = self._row.form.words
        choices = _choices(member.schema)
        written = [text for text in choices or () if text[0] in kinds]
        if written and ("string" in kinds or kinds == ["boolean"]):
            texts = dict.fromkeys(words.get(text, text) for _, text in written)
            each = " | ".join(self._literal(text + end) for text in texts)
            return f"({each})"
        said = [
            self._literal(words.get(word, word) + end)
            for word, kind in (("true", "boolean"), ("false", "boolean"), ("null", "null"))
            if kind in kinds
        ]
        if "string" in kinds:
            least, most = (member.schema.get(word) for word in ("minLength", "maxLength"))
            if member.kinds <= {"string", "null", "boolean"} and (least, most) != (None, None):
                bounds = f"{{{least or 0},{'' if most is None else most}}}"
                self.rules |= self._until(f"{rule}_text", rf"(.|\n){bounds}", end)
                return f"({' | '.join([f'{rule}_text', *said])})"
            self.rules |= self._until(rule, r"(.|\n)*", end)
            return rule
        if words and set(kinds) <= {"boolean", "null"}:
            return f"({' | '.join(said)})"
        schema = dict(member.schema)
        if member.kinds != set(kinds):
            kind = list(kinds)
            schema = {"allOf": [schema, {"type": kind[0] if len(kind) == 1 else kind}]}
            schema |= {key: member.schema[key] for key in DEFINED if key in member.schema}
        self.rules[rule] = self._json_rule(schema)
        return f"{rule} {self._literal(end)}"


def _choices(schema: Mapping[str, Any]) -> list[tuple[str, str]] | None:
    """The values that a parameter has, each with its kind, as they are written."""
    values = _values(schema)
    if values is None:
        return None
    texts = (json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in values)
    return [(kind_of(text), json.loads(text) if text[0] == '"' else text) for text in texts]


# How it is shown.


def shown(arguments: str, form: Parameters) -> Iterator[tuple[str, str, str, str, str]]:
    """Arguments as they are written: of each what is before, between and behind, key and value."""
    try:
        members = _members.decode(arguments)
    except (msgspec.MsgspecError, RecursionError):
        # Not an object: it is shown as it came.
        yield ("", "", "", "", arguments)
        return
    for key, raw in members.items():
        text = bytes(raw).decode()
        kind = kind_of(text)
        before, middle, behind = form.around[kind]
        value = json.loads(text) if kind == "string" else form.words.get(text, text)
        yield (before, key, middle, value, behind)


# How it is read.


class ParameterScan:
    """Reads a row of parameters piece by piece, as the JSON of an object."""

    def __init__(self, row: Row, tail: str) -> None:
        self._row = row
        self._tail = tail
        self._text = ""
        self._count = 0
        self._keys: set[str] = set()
        self._value: _Value | None = None
        befores = {before for before, _, _ in row.form.around.values()}
        self._before = min(befores, key=len)

    def feed(self, text: str) -> tuple[str, str | None]:
        """The JSON that ``text`` adds, and what of it is behind the row; None while that runs.

        Raises :class:`EngineError` for what is no parameter of the tool.
        """
        self._text += text
        parts: list[str] = []
        while True:
            if self._value is not None:
                more, rest = self._value.feed(self._text)
                parts.append(more)
                if rest is None:
                    self._text = ""
                    break
                self._value, self._text = None, rest
            elif self._text.startswith(self._tail):
                parts.append("}" if self._count else "{}")
                return "".join(parts), self._text
            elif not self._begin(parts):
                break
        return "".join(parts), None

    def _begin(self, parts: list[str]) -> bool:
        """Reads the head of a parameter; whether it was whole."""
        before = self._before
        if not self._text.startswith(before):
            if not any(each.startswith(self._text) for each in (before, self._tail)):
                raise off_schema()
            return False
        rest = self._text[len(before) :]
        # The tail may begin as a parameter does.
        if self._tail.startswith(self._text):
            return False
        found = self._named(rest)
        if found is None:
            return False
        member, name, middle, kinds = found
        if name in self._keys:
            raise off_schema()
        self._keys.add(name)
        parts.append(f"{',' if self._count else '{'}{quoted(name)}:")
        self._count += 1
        self._text = rest[len(name) + len(middle) :]
        end = self._row.form.around[next(iter(kinds))][2]
        self._value = _Value(member.kinds & kinds, end, self._row.form.words)
        return True

    def _named(self, text: str) -> tuple[Member, str, str, frozenset[str]] | None:
        """The parameter whose name ``text`` begins with; None while it is not whole."""
        around = self._row.form.around
        middles: dict[str, set[str]] = {}
        for kind, (_, middle, _) in around.items():
            middles.setdefault(middle, set()).add(kind)
        waiting = False
        if self._row.members is not None:
            for member in self._row.members:
                for middle, kinds in middles.items():
                    if not member.kinds & kinds:
                        continue
                    if text.startswith(member.name + middle):
                        return member, member.name, middle, frozenset(kinds)
                    waiting = waiting or (member.name + middle).startswith(text)
        elif self._row.others is not None:
            ends = [(text.find(middle), middle) for middle in middles if middle in text]
            if ends:
                at, middle = min(ends)
                return self._row.others, text[:at], middle, frozenset(middles[middle])
            waiting = len(text) < 256
        if not waiting:
            raise off_schema()
        return None


class _Value:
    """One value, up to what ends it."""

    def __init__(self, kinds: frozenset[str], end: str, words: Mapping[str, str]) -> None:
        self._kinds = kinds
        self._end = end
        self._words = {written: word for word, written in words.items()}
        self._string: UntilText | None = UntilText(end) if kinds == {"string"} else None
        self._scan: JsonScan | None = None
        self._begun = False
        self._text = ""
        """What has come of a value that is told by all of it, or of what ends one."""
        self._json: list[str] = []

    def feed(self, text: str) -> tuple[str, str | None]:
        """The JSON that ``text`` adds, and what is behind the value."""
        if self._string is not None:
            return self._quoted(self._string, text)
        self._text += text
        if self._scan is None and "string" not in self._kinds and self._text[:1] in ("{", "["):
            self._scan = JsonScan()
        if self._scan is not None:
            return self._structure(self._scan)
        at = self._text.find(self._end)
        if at < 0:
            return "", None
        return self._read(self._text[:at]), self._text[at + len(self._end) :]

    def _quoted(self, scan: UntilText, text: str) -> tuple[str, str | None]:
        begin = "" if self._begun else '"'
        self._begun = True
        more, rest = scan.feed(text)
        shown = begin + quoted(more)[1:-1]
        return (shown, None) if rest is None else (shown + '"', rest[len(self._end) :])

    def _structure(self, scan: JsonScan) -> tuple[str, str | None]:
        rest = scan.feed(self._text)
        inside = self._text if rest is None else self._text[: len(self._text) - len(rest)]
        self._json.append(inside)
        self._text = rest or ""
        if rest is None or len(rest) < len(self._end):
            if not self._end.startswith(self._text):
                raise off_schema()
            return inside, None
        if not rest.startswith(self._end):
            raise off_schema()
        check_json("".join(self._json))
        return inside, rest[len(self._end) :]

    def _read(self, text: str) -> str:
        """A value that is whole: JSON where the schema may have it, and else text."""
        word = self._words.get(text, text).strip()
        try:
            msgspec.json.decode(word)
            if kind_of(word) in self._kinds - {"string"}:
                return word
        except (msgspec.MsgspecError, RecursionError):
            pass
        if "string" in self._kinds:
            return quoted(text)
        raise off_schema()
