"""A client's JSON schema as the runtime's own library (llguidance) takes it: one small walk.

What a schema means is llguidance's to say. The walk bounds what it may cost, copies each word that
llguidance knows, and makes four changes:

* each ``$ref`` is resolved (RFC 6901, ``$anchor``) and points into the ``$defs`` of the copy;
* other drafts are written as 2020-12 has it: tuples, ``exclusiveMinimum: true``, ``3.0`` for 3;
* an object that names members is closed unless the schema opens it: each answer stays valid;
* strings and lists that the schema leaves open get ``Bounds``, where a model needs them.

What llguidance lacks, or gets wrong, is refused where the schema is ``strict``. Where it is not,
it is left out of the copy, and :class:`Walk` tells which word it was and where.
"""

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from math import lcm
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from tieline_server.engines.chat_format.schema_parts import (
    ANNOTATIONS,
    BOUNDED_FORMATS,
    IMPLIED,
    IN_PLACE,
    KNOWN,
    NAME,
    NUMBERS,
    TYPES,
    Excluding,
    Limited,
    Schema,
    SchemaError,
    anchors,
    as_number,
    end_loops,
    escaped,
    is_exact,
    levels,
    listed,
    names_of,
    opens,
    plain,
    target,
)

MOST_NODES: Final = 2_000
"""Schemas within one: the runtime takes half a second for as many members of one object."""
MOST_DEPTH: Final = 60  # Of schemas, each two levels of JSON: the runtime reads up to 127.
MOST_LOOKS: Final = 20_000
"""Schemas that are looked at to find what the parts of others name."""
MOST_ITEMS: Final = 10_000
"""What all ``minItems``, ``maxItems``, ``minProperties`` and ``maxProperties`` add up to: the
runtime lays out each item."""
MOST_VALUES: Final = 64 * 1024
"""Bytes of JSON of all enums and constants."""
MOST_STEPS: Final = 10_000
"""Least common multiple of all ``multipleOf``, of their digits: as many states has a number."""
LONGEST_PATTERN: Final = 1_000
MOST_PATTERNS: Final = 16_000
"""Characters of all patterns."""
MOST_NAMES_BY_PATTERN: Final = 64
"""Patterns of members' names: the runtime compares each with every other."""
LONGEST: Final = 2**31 - 1
"""What ``minLength`` and the other lengths may be."""
MOST_TOLD: Final = 64
"""Words that were left out of which the places are kept."""


class Bounds(Struct, frozen=True, kw_only=True):
    """For models that ramble: the longest string and list where a schema does not say."""

    string: int | None = None
    items: int | None = None


Fails: TypeAlias = Callable[[dict[str, Any]], bool]
"""Whether the runtime cannot take a schema of a few words."""
Means: TypeAlias = Callable[[str, Iterable[str]], bool]
"""Whether a pattern of the runtime's means one of these names, or cannot be read."""


def read(raw: bytes) -> Any:
    """JSON with its numbers as they were written. Raises :class:`SchemaError`."""
    try:
        return json.loads(raw, parse_float=Decimal)
    except (ValueError, RecursionError):
        raise SchemaError("the schema cannot be read, or is nested too deeply", "") from None


class _Place(NamedTuple):
    """A schema of the client's: where it stands, and how deep in the copy."""

    at: str
    depth: int
    alone: bool
    """Whether nothing else is said of the same value."""

    def under(self, *steps: object, alone: bool = True) -> "_Place":
        """The place of a schema within it."""
        more = "".join(f"/{escaped(str(step))}" for step in steps)
        return _Place(self.at + more, self.depth + 1, alone)


class Walk:
    """Copies the schema ``root``, of a ``function``'s parameters or of any value.

    ``fails`` and ``means`` ask the runtime about the words of one string, number or pattern.
    """

    def __init__(
        self,
        root: Any,
        *,
        strict: bool,
        fails: Fails,
        means: Means,
        bounds: Bounds | None = None,
        function: bool = False,
    ) -> None:
        self.left_out: list[tuple[str, str]] = []
        """Words that were left out, and where; the first ``MOST_TOLD``."""
        self.told = 0
        """How many were."""
        self.open = False
        """Whether there is an object whose names the runtime may write twice."""
        self.origins: dict[str, str] = {}
        """Names in ``$defs`` of the copy -> where it stood."""
        self._root = root
        self._strict = strict
        self._function = function
        self._fails, self._means = fails, means
        self._bounds = bounds or Bounds()
        self._defs: dict[str, Schema] = {}
        self._names: dict[tuple[str, bool], str] = {}
        self._wanted: list[tuple[str, Any, _Place]] = []
        self._anchors: dict[str, str] | None = None
        self._nodes = MOST_NODES
        self._looks = MOST_LOOKS
        self._items = MOST_ITEMS
        self._values = MOST_VALUES
        self._patterns = MOST_PATTERNS
        self._names_by_pattern = MOST_NAMES_BY_PATTERN
        self._steps = Fraction(0)
        self._states = Fraction(0)

    def copy(self) -> dict[str, Any]:
        """The whole of it. Raises :class:`SchemaError`."""
        made = self._of(self._root, _Place("", 0, True))
        while self._wanted:
            name, schema, place = self._wanted.pop()
            self._defs[name] = self._of(schema, place)
        end_loops(made, self._defs, self.origins)
        if made is False:
            raise SchemaError("nothing satisfies 'false'", "")
        whole = {} if made is True else made
        if self._defs:
            whole["$defs"] = self._defs
        return whole

    @property
    def cost(self) -> float:
        """What it costs the runtime, of what one schema may cost in each way: 0 to 4."""
        left = (self._nodes / MOST_NODES, self._items / MOST_ITEMS, self._values / MOST_VALUES)
        return sum(1 - max(each, 0.0) for each in left) + float(self._states) / MOST_STEPS

    # What is wrong.

    def _leave_out(self, word: str, at: str, why: str) -> None:
        if self._strict:
            raise SchemaError(why, at)
        self.told += 1
        if len(self.left_out) < MOST_TOLD:
            self.left_out.append((word, at))

    # One schema.

    def _of(self, schema: Any, place: _Place) -> Schema:
        self._nodes -= 1
        if self._nodes < 0:
            raise SchemaError(f"a schema has at most {MOST_NODES} schemas in it", place.at)
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            self._leave_out("schema", place.at, "a schema is an object or a boolean")
            return True
        if place.depth > MOST_DEPTH:
            why = f"schemas are nested at most {MOST_DEPTH} deep"
            self._leave_out("schema", place.at, why)
            return True
        made: dict[str, Any] = {}
        kinds = self._types(schema, place)
        if kinds is not None:
            made["type"] = kinds[0] if len(kinds) == 1 else kinds
        self._text(schema, made, place)
        self._numbers(schema, made, place)
        self._array(schema, made, place)
        self._object(schema, made, place)
        self._literals(schema, made, place)
        self._unknown(schema, place)
        composed = [word for word in (*IN_PLACE, "$ref") if word in schema]
        # What is all that is said of a value, beside its type, is closed and bounded by itself.
        alone = place.alone and len(composed) == 1 and not made.keys() - {"type"}
        alone = alone and composed != ["allOf"]
        for word in composed:
            if word == "$ref":
                self._refer(schema["$ref"], made, place, alone=alone)
            else:
                self._branches(word, schema[word], made, place, alone=alone)
        if place.alone and not alone:
            self._close(schema, made, place, composed=bool(composed))
        return self._bound(made) if place.alone and not composed else made

    def _types(self, schema: dict[str, Any], place: _Place) -> list[str] | None:
        """The types of a schema. Where it has none, it may be plain which one is meant."""
        whole = self._function and place.depth == 0
        kind = schema.get("type")
        if kind is not None:
            named = kind if isinstance(kind, list) else [kind]
            known = [each for each in TYPES if each in named]
            if len(known) < len(named) or not known:
                types = ", ".join(f"'{each}'" for each in TYPES)
                why = f"a 'type' is one of {types}, or a list of them"
                self._leave_out("type", f"{place.at}/type", why)
            if whole and known and "object" not in known:
                why = "the parameters of a function are of 'type' 'object'"
                raise SchemaError(why, f"{place.at}/type")
            if not whole:
                return known or None
        if whole:
            return ["object"]
        if not place.alone or any(word in schema for word in (*IN_PLACE, "$ref", "enum", "const")):
            return None
        kinds = [name for name, words in IMPLIED.items() if words & schema.keys()]
        return kinds if len(kinds) == 1 else None

    def _unknown(self, schema: dict[str, Any], place: _Place) -> None:
        for word in schema:
            if word in KNOWN or word in ANNOTATIONS or word.startswith("x-"):
                continue
            if word == "propertyNames" and schema[word] in (True, {}, {"type": "string"}):
                continue
            why = (
                f"the model cannot be held to '{word[:64]}'; remove it, or do not ask for 'strict'"
            )
            self._leave_out(word, f"{place.at}/{escaped(word)}", why)
        nested = place.at and isinstance(schema.get("$id"), str) and "$ref" not in schema
        if nested and not schema["$id"].startswith("#"):
            self._leave_out("$id", f"{place.at}/$id", "only the whole schema may have an '$id'")

    # Words of one type.

    def _text(self, schema: dict[str, Any], made: dict[str, Any], place: _Place) -> None:
        for word in ("minLength", "maxLength"):
            self._whole_number(word, schema, made, place)
        text = {name: value for name, value in made.items() if name != "type"}
        for word in ("format", "pattern"):
            if word not in schema:
                continue
            value = schema[word]
            right = isinstance(value, str) and self._affords(word, value)
            if right and not self._fails({"type": "string", **text, word: value}):
                text[word] = made[word] = value
            else:
                why = f"the model cannot be held to this {word}; simplify or remove it"
                self._leave_out(word, f"{place.at}/{word}", why)

    def _numbers(self, schema: dict[str, Any], made: dict[str, Any], place: _Place) -> None:
        number: dict[str, Any] = {}
        for word in NUMBERS:
            if word in schema and (value := self._number(word, schema, place)) is not None:
                number[word] = value
        made |= number
        kind = "integer" if made.get("type") == "integer" else "number"
        if number and self._fails({"type": kind, **number}):
            for word in number:
                del made[word]
                why = "the model cannot be held to these bounds; simplify or remove them"
                self._leave_out(word, f"{place.at}/{word}", why)

    def _affords(self, word: str, pattern: str) -> bool:
        if word == "pattern":
            self._patterns -= len(pattern)
        return len(pattern) <= LONGEST_PATTERN and self._patterns >= 0

    def _whole_number(
        self, word: str, schema: dict[str, Any], made: dict[str, Any], place: _Place
    ) -> None:
        if word not in schema:
            return
        value = as_number(schema[word])
        if isinstance(value, int) and 0 <= value <= LONGEST:
            made[word] = value
        else:
            why = f"'{word}' is a whole number of at least 0, and below 2^31"
            self._leave_out(word, f"{place.at}/{word}", why)

    def _number(self, word: str, schema: dict[str, Any], place: _Place) -> int | float | None:
        given, at = schema[word], f"{place.at}/{word}"
        if isinstance(given, bool) and word.startswith("exclusive"):  # As draft 4 has it.
            beside = as_number(schema.get(word[9:].lower()))
            given = beside if given and beside is not None else None
            if given is None:
                return None
        value = as_number(given)
        why = f"'{word}' is a number between -2^53 and 2^53"
        if value is None or not is_exact(given):
            self._leave_out(word, at, why)
            return None
        if word == "multipleOf" and (value <= 0 or not self._afford_steps(given)):
            why = f"'multipleOf' is above 0, and of few digits: {MOST_STEPS} steps, all together"
            self._leave_out(word, at, why)
            return None
        return value

    def _afford_steps(self, value: int | Decimal) -> bool:
        step = Fraction(value)
        digits = max(0, -int(Decimal(value).normalize().as_tuple().exponent))
        before = self._steps or step
        common = Fraction(
            lcm(before.numerator * step.denominator, step.numerator * before.denominator),
            before.denominator * step.denominator,
        )
        least = min(Fraction(1, 10**digits), Fraction(1, before.denominator))
        if digits > 15 or common / least > MOST_STEPS:
            return False
        self._steps, self._states = common, common / least
        return True

    def _literals(self, schema: dict[str, Any], made: dict[str, Any], place: _Place) -> None:
        why = f"values have numbers up to 2^53, {MOST_VALUES} bytes, and {MOST_DEPTH} levels in all"
        if "const" in schema:
            value = schema["const"]
            if is_exact(value) and self._afford(value, place):
                made["const"] = plain(value)
            else:
                self._leave_out("const", f"{place.at}/const", why)
        if "enum" in schema:
            at, values = f"{place.at}/enum", schema["enum"]
            if not isinstance(values, list):
                return self._leave_out("enum", at, "an 'enum' is a list")
            if not values:
                raise SchemaError("nothing satisfies an empty 'enum'", at)
            kept = [each for each in values if is_exact(each) and self._afford(each, place)]
            if len(kept) < len(values):
                self._leave_out("enum", at, why)
            if kept:
                made["enum"] = [plain(each) for each in kept]

    def _afford(self, value: Any, place: _Place) -> bool:
        self._values -= len(msgspec.json.encode(value))
        return self._values >= 0 and levels(value) <= MOST_DEPTH - place.depth

    def _array(self, schema: dict[str, Any], made: dict[str, Any], place: _Place) -> None:
        items, first = schema.get("items"), schema.get("prefixItems")
        rest, head = "items", "prefixItems"
        if isinstance(items, list):  # The tuples of older drafts.
            items, first = schema.get("additionalItems"), items
            rest, head = "additionalItems", "items"
        if first is not None:
            if isinstance(first, list):
                made["prefixItems"] = [
                    self._of(each, place.under(head, at)) for at, each in enumerate(first)
                ]
            else:
                self._leave_out(head, f"{place.at}/{head}", f"'{head}' is a list of schemas")
        if items is not None:
            made["items"] = self._of(items, place.under(rest))
        for word in ("minItems", "maxItems"):
            self._count(word, schema, made, place)

    def _count(
        self, word: str, schema: dict[str, Any], made: dict[str, Any], place: _Place
    ) -> None:
        self._whole_number(word, schema, made, place)
        if word not in made:
            return
        if made[word] > self._items:
            why = f"items and members are counted up to {MOST_ITEMS}, in all of a schema"
            self._leave_out(word, f"{place.at}/{word}", why)
            del made[word]
        else:
            self._items -= made[word]

    def _object(self, schema: dict[str, Any], made: dict[str, Any], place: _Place) -> None:
        for word in ("properties", "patternProperties"):
            members = schema.get(word)
            if isinstance(members, dict):
                made[word] = {
                    name: self._of(each, place.under(word, name))
                    for name, each in members.items()
                    if word == "properties" or self._follows(name, schema, place)
                }
            elif word in schema:
                why = f"'{word}' is an object of schemas"
                self._leave_out(word, f"{place.at}/{word}", why)
        required = schema.get("required", [])
        if isinstance(required, list) and all(isinstance(each, str) for each in required):
            if len(required) > MOST_NODES:
                why = f"at most {MOST_NODES} members are required"
                raise SchemaError(why, f"{place.at}/required")
            if required:
                made["required"] = list(dict.fromkeys(required))
        else:
            self._leave_out("required", f"{place.at}/required", "'required' is a list of names")
        if "additionalProperties" in schema:
            others = schema["additionalProperties"]
            made["additionalProperties"] = self._of(others, place.under("additionalProperties"))
        for word in ("minProperties", "maxProperties"):
            self._count(word, schema, made, place)
        self._open_names(schema, made, place)

    def _follows(self, pattern: str, schema: dict[str, Any], place: _Place) -> bool:
        """Whether the runtime holds members to ``pattern``: not those that are named, too."""
        named = names_of(schema)
        self._names_by_pattern -= 1
        self._looks -= len(named)
        right = self._affords("pattern", pattern) and min(self._names_by_pattern, self._looks) >= 0
        right = right and not (named and self._means(pattern, named))
        alone = {"type": "object", "patternProperties": {pattern: True}}
        if right and not self._fails(alone):
            return True
        why = "the model cannot be held to this pattern, or not beside members that it names too"
        at = f"{place.at}/patternProperties/{escaped(pattern)}"
        self._leave_out("patternProperties", at, why)
        return False

    def _open_names(self, schema: dict[str, Any], made: dict[str, Any], place: _Place) -> None:
        """What counts members counts names that came twice as two."""
        if "minProperties" not in made or (made.get("additionalProperties") is False):
            return
        named = made.get("properties", {})
        if place.alone and named and "additionalProperties" not in made:
            return
        if made["minProperties"] > 1:
            why = "the model cannot be held to this where the names of members are open"
            self._leave_out("minProperties", f"{place.at}/minProperties", why)
            del made["minProperties"]

    # Words that are about the same value.

    def _branches(
        self, word: str, branches: Any, made: dict[str, Any], place: _Place, *, alone: bool
    ) -> None:
        if not isinstance(branches, list) or not branches:
            why = f"'{word}' is a list of at least one schema"
            self._leave_out(word, f"{place.at}/{word}", why)
            return
        copies = [
            self._of(each, place.under(word, at, alone=alone)) for at, each in enumerate(branches)
        ]
        if word == "oneOf":
            # Not by what was copied: what is narrower may exclude more.
            if not Excluding(self._resolved).all(branches):
                why = "the model is held to a 'oneOf' only where its schemas exclude each other"
                self._leave_out(word, f"{place.at}/{word}", why)
            word, copies = (
                ("allOf", [*made.get("allOf", []), {"anyOf": copies}])
                if "anyOf" in made
                else ("anyOf", copies)
            )
        made[word] = copies

    def _resolved(self, reference: str) -> Any:
        """What a reference points at; what cannot be said admits anything."""
        fragment = self._fragment(reference)
        return True if fragment is None else self._target(fragment, "")[1]

    def _refer(self, reference: Any, made: dict[str, Any], place: _Place, *, alone: bool) -> None:
        at = f"{place.at}/$ref"
        if not isinstance(reference, str):
            self._leave_out("$ref", at, "a '$ref' is text")
            return
        fragment = self._fragment(reference)
        if fragment is None:
            self._leave_out("$ref", at, "a '$ref' points into the same schema")
            return
        pointer, schema = self._target(fragment, at)
        key = (pointer, alone)
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = f"d{len(self._names)}"
            self.origins[name] = pointer
            self._wanted.append((name, schema, _Place(pointer, place.depth + 1, alone)))
        made["$ref"] = f"#/$defs/{name}"

    def _fragment(self, reference: str) -> str | None:
        """What stands behind ``#`` of a reference into the same document."""
        base, _, fragment = reference.partition("#")
        own = self._root.get("$id", "") if isinstance(self._root, dict) else ""
        if base and (not isinstance(own, str) or base != own.rstrip("#")):
            return None
        return unquote(fragment)

    def _target(self, fragment: str, at: str) -> tuple[str, Any]:
        """The canonical pointer of a fragment, and what stands there (RFC 6901)."""
        if fragment and not fragment.startswith("/"):
            if self._anchors is None:
                self._anchors = dict(anchors(self._root))
            if fragment not in self._anchors:
                raise SchemaError("the schema has no such '$anchor'", at)
            fragment = self._anchors[fragment]
        try:
            return target(self._root, fragment)
        except LookupError:
            raise SchemaError("this '$ref' points at nothing in the schema", at) from None

    # Narrowing.

    def _close(
        self, schema: dict[str, Any], made: dict[str, Any], place: _Place, *, composed: bool
    ) -> None:
        """Closes an object that names members, unless the schema opens it."""
        kinds = listed(made.get("type")) or [made.get("type")]
        if made.keys() & {"enum", "const"} or not {None, "object"} & {*kinds}:
            return
        names, opened = (
            self._named(schema, set()) if composed else (names_of(schema), opens(schema))
        )
        known = bool(names) or ("properties" in schema and not composed)
        shut = made.get("additionalProperties") is False
        if known and not opened and not shut and made.get("minProperties", 0) <= len(names):
            members = made.setdefault("properties", {})
            for name in names:
                members.setdefault(name, True)
            made["additionalProperties"] = False
            return
        if (
            (shut and not made.get("patternProperties"))
            or made.get("maxProperties", 2) < 2
            or (composed and kinds == [None] and not opened)
        ):
            return
        self.open = True
        if self._strict and (opened or "object" in kinds):
            why = (
                "the model may write a name twice where names are open; "
                "set 'additionalProperties' to false, or do not ask for 'strict'"
            )
            raise SchemaError(why, place.at)

    def _named(self, schema: Any, seen: set[str]) -> tuple[dict[str, None], bool]:
        """Names of the members that a schema has in all its parts, and whether one opens it."""
        self._looks -= 1
        if not isinstance(schema, dict) or self._looks < 0:
            return {}, self._looks < 0
        names, opened = names_of(schema), opens(schema)
        parts = [each for word in IN_PLACE for each in listed(schema.get(word))]
        fragment = self._fragment(str(schema["$ref"])) if "$ref" in schema else None
        if fragment is not None and fragment not in seen:
            seen.add(fragment)
            with suppress(SchemaError):
                parts.append(self._target(fragment, "")[1])
        for part in parts:
            more, opening = self._named(part, seen)
            names, opened = {**names, **more}, opened or opening
        return names, opened

    def _bound(self, made: dict[str, Any]) -> Schema:
        """The same with bounds on what is open, where a model needs them."""
        bounds = self._bounds
        if made.keys() & {"enum", "const"}:
            return made
        kinds = listed(made.get("type")) or [made.get("type")]
        if bounds.string is not None and kinds == [None] and bounds.items is not None:
            scalars = ("number", "boolean", "null")
            text = Limited({"type": "string"})
            text.limit("maxLength", bounds.string)
            return {**made, "anyOf": [text, *({"type": each} for each in scalars)]}
        limited = Limited(made)
        if bounds.string is not None and "string" in kinds and "maxLength" not in made:
            most = max(bounds.string, made.get("minLength", 0))
            held = {name: made[name] for name in made if name in ("minLength", "pattern")}
            if made.get("format") not in BOUNDED_FORMATS and not self._fails(
                {"type": "string", **held, "maxLength": most}
            ):
                limited.limit("maxLength", most)
        if bounds.items is not None and "array" in kinds and "maxItems" not in made:
            first = len(made.get("prefixItems", ()))
            limited.limit("maxItems", max(bounds.items, made.get("minItems", 0), first))
        if bounds.items is not None and "object" in kinds:
            self._bound_object(made, limited, bounds.items)
        return limited if limited != made else made

    def _bound_object(self, made: dict[str, Any], limited: Limited, most: int) -> None:
        others = made.get("additionalProperties", True)
        if others is False or made.get("minProperties", 0) > most:
            return
        limited["additionalProperties"] = False
        if not made.get("properties") and not made.get("patternProperties"):
            free = others if others is not True else self._bound({})
            limited["patternProperties"] = {NAME: free}
            if "maxProperties" not in limited:
                limited.limit("maxProperties", most)
