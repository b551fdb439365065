"""What the walk of a schema knows of JSON Schema itself: words, parts, ends, places, numbers."""

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
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


EXACT: Final = 2**53
"""Numbers beyond it are floats to the runtime."""

MOST_ANCHORED: Final = 20_000
"""Parts of a document that are searched for anchors."""


class SchemaError(Exception):
    """The schema is refused: ``why`` is a sentence, ``at`` a JSON pointer to what is wrong."""

    def __init__(self, why: str, at: str) -> None:
        super().__init__(why)
        self.why = why
        self.at = at


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


def names_of(schema: dict[str, Any]) -> dict[str, None]:
    named = [*mapped(schema.get("properties")), *listed(schema.get("required"))]
    return dict.fromkeys(each for each in named if isinstance(each, str))


def opens(schema: dict[str, Any]) -> bool:
    others = schema.get("additionalProperties", False)
    return others is not False or bool(schema.get("patternProperties"))


def matches(pattern: str, name: str) -> bool:
    """Whether a name may be one that a pattern means."""
    try:
        return re.search(pattern, name) is not None
    except (re.error, RecursionError, OverflowError):
        return True
