"""What the walk of a schema knows of JSON Schema itself: words, parts, ends, places, numbers."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import combinations
from typing import Any, Final, TypeAlias

Schema: TypeAlias = "dict[str, Any] | bool"

IN_PLACE: Final = ("allOf", "anyOf", "oneOf")
"""Words whose schemas are about the same value."""

TYPES: Final = ("string", "number", "integer", "boolean", "null", "array", "object")

ANNOTATIONS: Final = frozenset(
    {
        "$anchor",
        "$comment",
        "$defs",
        "$dynamicAnchor",
        "$id",
        "$schema",
        "$vocabulary",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "default",
        "definitions",
        "deprecated",
        "description",
        "discriminator",
        "enumDescriptions",
        "enumNames",
        "errorMessage",
        "example",
        "examples",
        "externalDocs",
        "id",
        "markdownDescription",
        "nullable",
        "propertyOrdering",
        "readOnly",
        "title",
        "writeOnly",
        "xml",
    }
)
"""Words that admit and forbid nothing; so do all that begin with ``x-``. (``nullable`` of OpenAPI
admits null, and an answer without it stays valid.)"""

NUMBERS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")

IMPLIED: Final[Mapping[str, frozenset[str]]] = {
    "object": frozenset(
        {
            "properties",
            "required",
            "additionalProperties",
            "patternProperties",
            "minProperties",
            "maxProperties",
            "propertyNames",
            "dependentRequired",
        }
    ),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "contains", "uniqueItems"}),
    "string": frozenset({"maxLength", "minLength", "pattern", "format"}),
    "number": frozenset(NUMBERS),
}
"""Type that a schema without one means -> the words that give it away."""

BOUNDED_FORMATS: Final = ("date", "time", "date-time", "uuid", "ipv4", "ipv6", "duration")
"""Formats whose strings have an end."""


KNOWN: Final = frozenset(
    {"type", "enum", "const", "$ref", "additionalItems", *IN_PLACE}
    | (IMPLIED["object"] - {"propertyNames", "dependentRequired"})
    | (IMPLIED["array"] - {"contains", "uniqueItems"})
    | IMPLIED["string"]
    | IMPLIED["number"]
)
"""Words that llguidance 1.0.1 follows."""


NAME: Final = r"^[A-Za-z_][A-Za-z0-9_./ -]{0,39}$"
"""Names of members that a schema leaves open, where lists have a bound."""

EXACT: Final = 2**53
"""Numbers beyond it are floats to the runtime."""

MOST_COMPARED: Final = 100_000
"""Pairs of schemas that are compared to find whether those of a ``oneOf`` exclude each other."""
MOST_COMPARED_DEPTH: Final = 8

MOST_ANCHORED: Final = 20_000
"""Parts of a document that are searched for anchors."""


class SchemaError(Exception):
    """The schema is refused: ``why`` is a sentence, ``at`` a JSON pointer to what is wrong."""

    def __init__(self, why: str, at: str) -> None:
        super().__init__(why)
        self.why = why
        self.at = at


class Limited(dict[str, Any]):
    """A schema of the copy in which the bounds named in ``ours`` are of ``json_schema.Bounds``."""

    def __init__(self, words: Mapping[str, Any]) -> None:
        super().__init__(words)
        self.ours: set[str] = set()

    def limit(self, word: str, most: int) -> None:
        """Adds a bound."""
        self[word] = most
        self.ours.add(word)


def end_loops(made: Schema, defs: dict[str, Schema], origins: Mapping[str, str]) -> None:
    """Raises :class:`SchemaError` for a schema that refers to itself and has no end.

    A reference to one that has none becomes ``false`` where something else can be written.
    """
    if not defs:
        return
    for name in defs:
        if _returns(name, defs):
            raise SchemaError("this schema is a loop of '$ref'", origins[name])
    ending: set[str] = set()
    while more := {
        name for name, schema in defs.items() if name not in ending and _ends(schema, ending)
    }:
        ending |= more
    if not _ends(made, ending):
        raise SchemaError("nothing satisfies a loop of '$ref' without an end", "")
    for schema in [made, *defs.values()]:
        for part in parts(schema):
            if part.get("$ref", "")[8:] in defs.keys() - ending:
                part.clear()
                part["enum"] = []


def _returns(name: str, defs: Mapping[str, Schema]) -> bool:
    """Whether a definition refers to itself for the very same value."""
    seen: set[str] = set()
    wanted = [name]
    while wanted:
        for part in parts(defs[wanted.pop()], in_place=True):
            other = part.get("$ref", "")[8:]
            if other == name:
                return True
            if other and other not in seen:
                seen.add(other)
                wanted.append(other)
    return False


def parts(schema: Any, *, in_place: bool = False) -> Iterator[dict[str, Any]]:
    """A schema of the copy and all in it, or those that are about the same value."""
    if not isinstance(schema, dict):
        return
    yield schema
    below = [each for word in IN_PLACE for each in schema.get(word, ())]
    if not in_place:
        below += schema.get("prefixItems", [])
        below += [schema.get("items"), schema.get("additionalProperties")]
        for word in ("properties", "patternProperties"):
            below += schema.get(word, {}).values()
    for each in below:
        yield from parts(each, in_place=in_place)


def _ends(schema: Schema, ending: Iterable[str]) -> bool:
    """Whether a value of this schema can be finite, given the definitions of which it is known."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema and schema["$ref"][8:] not in ending:
        return False
    for word in ("anyOf", "oneOf"):
        if word in schema and not any(_ends(each, ending) for each in schema[word]):
            return False
    if not all(_ends(each, ending) for each in schema.get("allOf", ())):
        return False
    kinds = listed(schema.get("type")) or [schema.get("type")]
    if kinds == ["object"]:
        members = schema.get("properties", {})
        return all(_ends(members.get(name, True), ending) for name in schema.get("required", ()))
    if kinds == ["array"] and schema.get("minItems", 0) > 0:
        first = schema.get("prefixItems", [])[: schema["minItems"]]
        rest = [schema.get("items", True)] if len(first) < schema["minItems"] else []
        return all(_ends(each, ending) for each in [*first, *rest])
    return True


def anchors(root: Any) -> Iterator[tuple[str, str]]:
    """Names of places in a document, and their pointers; the first one counts."""
    found: dict[str, str] = {}
    wanted = [(root, "")]
    left = MOST_ANCHORED
    while wanted and left:
        left -= 1
        node, at = wanted.pop()
        if isinstance(node, dict):
            own = node.get("$id")
            for name in (
                node.get("$anchor"),
                own[1:] if isinstance(own, str) and own[:1] == "#" else 0,
            ):
                if isinstance(name, str):
                    found.setdefault(name, at)
            skipped = ("enum", "const", "default", "examples")
            wanted += [
                (each, f"{at}/{escaped(name)}")
                for name, each in node.items()
                if name not in skipped
            ]
        elif isinstance(node, list):
            wanted += [(each, f"{at}/{index}") for index, each in enumerate(node)]
    yield from found.items()


def as_number(value: Any) -> int | float | None:
    """A number as the runtime takes it: 3 for 3.0. None for what is none."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def is_exact(value: Any) -> bool:
    """Whether all numbers of a value stay what they are where numbers are floats."""
    if isinstance(value, dict):
        return all(map(is_exact, value.values()))
    if isinstance(value, list):
        return all(map(is_exact, value))
    if isinstance(value, Decimal):
        return abs(value) <= EXACT and Decimal(repr(float(value))) == value
    return not isinstance(value, int) or abs(value) <= EXACT


def levels(value: Any) -> int:
    """How deep lists and objects are nested in a value."""
    inner = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    )
    return 0 if inner is None else 1 + max(map(levels, inner), default=0)


def plain(value: Any) -> Any:
    """The same with ints and floats for decimals."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return as_number(value) if isinstance(value, Decimal) else value


def escaped(step: str) -> str:
    """A step of a JSON pointer."""
    return step.replace("~", "~0").replace("/", "~1")


def target(root: Any, fragment: str) -> tuple[str, Any]:
    """What a JSON pointer points at, and the pointer in its canonical form (RFC 6901).

    Raises :class:`LookupError` where that is nothing.
    """
    found, pointer = root, ""
    for step in fragment.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            if not name.isascii() or not name.isdigit() or str(int(name)) != name:
                raise LookupError(name)
            found = found[int(name)]
        elif isinstance(found, dict):
            found = found[name]
        else:
            raise LookupError(name)
        pointer += f"/{escaped(name)}"
    return pointer, found


def mapped(value: Any) -> dict[str, Any]:
    """The value where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def listed(value: Any) -> list[Any]:
    """The value where it is a list, else an empty one."""
    return value if isinstance(value, list) else []


class Excluding:
    """Whether schemas of a client exclude each other, as far as that is plain from their words.

    ``resolve`` says what a reference points at.
    """

    def __init__(self, resolve: Callable[[str], Any]) -> None:
        self._resolve = resolve
        self._left = MOST_COMPARED

    def all(self, schemas: list[Any]) -> bool:
        """Whether any two of them do."""
        return all(self._two(*pair, depth=0) for pair in combinations(schemas, 2))

    def _two(self, first: Any, second: Any, *, depth: int) -> bool:
        self._left -= 1
        if self._left < 0 or depth > MOST_COMPARED_DEPTH:
            return False
        ours, theirs = self._parts(first, 0), self._parts(second, 0)
        return any(self._apart(one, two, depth) for one in ours for two in theirs)

    def _parts(self, schema: Any, depth: int) -> list[Any]:
        """A schema and others that hold where it does."""
        self._left -= 1
        if not isinstance(schema, dict) or depth > MOST_COMPARED_DEPTH or self._left < 0:
            return [schema]
        more = listed(schema.get("allOf"))
        if isinstance(schema.get("$ref"), str):
            more = [*more, self._resolve(schema["$ref"])]
        return [schema, *(part for each in more for part in self._parts(each, depth + 1))]

    def _apart(self, first: Any, second: Any, depth: int) -> bool:
        self._left -= 1
        if first is False or second is False:
            return True
        if not isinstance(first, dict) or not isinstance(second, dict) or self._left < 0:
            return False
        for one, two in ((first, second), (second, first)):
            for word in ("anyOf", "oneOf"):
                branches = listed(one.get(word))
                if branches and all(self._two(each, two, depth=depth + 1) for each in branches):
                    return True
        values, others = _values_of(first), _values_of(second)
        if values is not None and others is not None:
            return not values & others
        kinds, other_kinds = _kinds_of(first), _kinds_of(second)
        if kinds is None or other_kinds is None:
            return False
        if kinds == other_kinds == {"object"}:
            return self._members_apart(first, second, depth)
        return not kinds & other_kinds

    def _members_apart(self, first: dict[str, Any], second: dict[str, Any], depth: int) -> bool:
        """Whether a member that one of them requires cannot be what both say."""
        ours, theirs = mapped(first.get("properties")), mapped(second.get("properties"))
        required = {
            each
            for schema in (first, second)
            for each in listed(schema.get("required"))
            if isinstance(each, str)
        }
        return any(
            self._two(ours[name], theirs[name], depth=depth + 1)
            for name in sorted(required & ours.keys() & theirs.keys())
        )


def _values_of(schema: dict[str, Any]) -> set[str] | None:
    """The values that a schema names, as text; None where it names none."""
    if "const" in schema:
        return {json.dumps(plain(schema["const"]), sort_keys=True)}
    if isinstance(schema.get("enum"), list):
        return {json.dumps(plain(each), sort_keys=True) for each in schema["enum"]}
    return None


def _kinds_of(schema: dict[str, Any]) -> set[str] | None:
    """The types of a schema, integers as numbers; None where it does not say."""
    kind = schema.get("type")
    named = {each for each in (listed(kind) or [kind]) if isinstance(each, str)}
    return {"number" if each == "integer" else each for each in named} or None


def names_of(schema: dict[str, Any]) -> dict[str, None]:
    named = [*mapped(schema.get("properties")), *listed(schema.get("required"))]
    return dict.fromkeys(each for each in named if isinstance(each, str))


def opens(schema: dict[str, Any]) -> bool:
    others = schema.get("additionalProperties", False)
    return others is not False or bool(schema.get("patternProperties"))
