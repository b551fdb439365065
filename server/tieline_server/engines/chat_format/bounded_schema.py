"""JSON schemas that a small model can follow to the end.

Two things go wrong with a client's schema as it is. A model of 135M parameters does not stop
inside an open-ended string, number or list: it runs to its token limit. And the runtime samples
*without any constraint*, and says nothing, when a schema holds a word that it does not know. So
what it gets is built here from the words that it does know, with a bound on everything. Whatever
satisfies the result is JSON; it also satisfies the client's schema, except for what is passed
over: ``not``, ``if``, ``contains``, ``patternProperties``, ``propertyNames``, ``uniqueItems``,
``dependent*``, ``minProperties``, formats and patterns beyond those below, ``$ref`` to another
document, and what lies deeper than ``MAX_DEPTH`` or beyond one of the other bounds: schemas come
from clients, so what one costs here and in the runtime has an end.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeGuard

import msgspec

from tieline_server.engines.base import EngineError

MAX_STRING: Final = 256
"""Characters of a string without ``maxLength``."""
MAX_FREE_STRING: Final = 64
"""Characters of a string where the schema would take anything."""
MAX_ITEMS: Final = 8
"""Items of an array without ``maxItems``."""
MOST_ITEMS: Final = 256
"""Items of an array, whatever its schema says: the runtime lays out every one of them."""
ALL_ITEMS: Final = 2_048
"""Items of all arrays of one schema; 100,000 take the runtime seconds and 200 MB."""
MAX_VALUES: Final = 64 * 1024
"""Bytes of JSON of all enums and constants of one schema: the runtime takes seconds for them."""
MAX_MEMBERS: Final = 8
"""Members of an object whose schema names none."""
MAX_NUMBER: Final = 1_000_000_000
"""Size of a number without ``minimum`` or ``maximum``."""
STEP: Final = 0.000001
"""Of a number without ``multipleOf``: to the runtime its digits else have no end."""
NARROW: Final = 1000 * STEP
"""Bounds nearer than this to each other may leave no step between them."""
MAX_DEPTH: Final = 12
"""Nesting at which whatever is left of a schema becomes a scalar."""
MAX_NODES: Final = 1_000
"""Parts of one result: a schema whose references multiply ends here."""

MAX_COPIES: Final = 500_000
"""Members that are copied while schemas are merged into each other."""
MAX_PATTERN: Final = 1_000
"""Characters of a pattern."""

NAME: Final = r"^[A-Za-z_][A-Za-z0-9_./ -]{0,39}$"
"""Names of members that the schema leaves open."""

FORMATS: Final = ("date", "time", "date-time", "uuid", "ipv4")
"""Formats that the runtime knows and that bound the string by themselves."""

HARD_PATTERN: Final = re.compile(r"\(\?(?!:|P<)|\\[bBAZzG1-9k]|[+*?}]\+")
"""What the runtime's regular expressions do not have: look-around, references, word borders."""

SCALARS: Final[Mapping[str, dict[str, Any]]] = {
    "string": {"type": "string", "maxLength": MAX_STRING},
    "number": {
        "type": "number",
        "minimum": -MAX_NUMBER,
        "maximum": MAX_NUMBER,
        "multipleOf": STEP,
    },
    "integer": {"type": "integer", "minimum": -MAX_NUMBER, "maximum": MAX_NUMBER},
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
}
_encode: Final = msgspec.json.Encoder().encode
TYPES: Final = (*SCALARS, "array", "object")

PASSED_OVER: Final = (
    "not", "if", "contains", "patternProperties", "propertyNames", "uniqueItems",
    "dependentRequired", "dependentSchemas", "minProperties",
)  # fmt: skip
"""Words that nothing stands for in what is made of a schema."""

BOUNDS: Final = (
    ("minimum", "maximum"),
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
)

ANY: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "string", "maxLength": MAX_FREE_STRING},
        *(SCALARS[name] for name in ("number", "boolean", "null")),
    ]
}
"""Stands for a schema that admits anything, or that cannot be read."""


def bounded(schema: Any, *, strict: bool = False, param: str | None = None) -> dict[str, Any]:
    """``schema`` with a bound on everything, in words that the runtime knows.

    Raises :class:`EngineError` for a schema that nothing satisfies, and, where it is ``strict``,
    for one of which something would have to be passed over; ``param`` is where it stands.

    >>> bounded({"type": "array", "items": {"const": 1}})
    {'type': 'array', 'items': {'const': 1}, 'minItems': 0, 'maxItems': 8}
    """
    bounds = _Bounds(schema)
    result = bounds.of(schema, 0)
    problem = bounds.empty or (bounds.passed_over if strict else None)
    if problem is None:
        return result
    why = "nothing satisfies" if bounds.empty else "the model cannot be held to"
    raise EngineError(
        "invalid_function_parameters", f"Invalid schema: {why} {problem}.", param=param
    )


class _Bounds:
    """One schema being rebuilt."""

    __slots__ = (
        "_copies", "_items", "_left", "_refers", "_root", "_values", "empty", "passed_over",
    )  # fmt: skip

    def __init__(self, root: Any) -> None:
        self.empty: str | None = None
        """The first thing that nothing satisfies."""
        self.passed_over: str | None = None
        """The first thing of the schema that is not in the result."""
        self._root = root
        self._left = MAX_NODES
        self._items = ALL_ITEMS
        self._copies = MAX_COPIES
        self._values = MAX_VALUES
        self._refers = False

    def of(self, schema: Any, depth: int) -> dict[str, Any]:
        self._left -= 1
        if not isinstance(schema, dict) or depth > MAX_DEPTH or self._left < 0:
            # A schema that refers to itself has no end; how deep an answer goes is up to the model.
            if isinstance(schema, dict) and not self._refers:
                self._pass_over("what is nested so deeply, or is so large")
            return ANY
        schema = self._flat(schema)
        for word in PASSED_OVER:
            if word in schema:
                self._pass_over(f"'{word}'")
        if self._empty(schema):
            return ANY
        if "const" in schema:
            return {"const": schema["const"]} if self._afford([schema["const"]]) else ANY
        choices = schema.get("enum")
        if isinstance(choices, list) and choices:
            choices = self._afford(choices)
            return {"enum": choices} if choices else ANY
        branches = schema.get("anyOf")
        if isinstance(branches, list) and branches:
            rest = {name: value for name, value in schema.items() if name != "anyOf"}
            return self._any_of([self._merge(rest, each) for each in branches[:MAX_NODES]], depth)
        kinds = self._kinds(schema)
        if len(kinds) > 1:
            return self._any_of([{**schema, "type": kind} for kind in kinds], depth)
        return self._of_type(kinds[0], schema, depth) if kinds else ANY

    def _pass_over(self, what: str) -> None:
        self.passed_over = self.passed_over or what

    def _empty(self, schema: dict[str, Any]) -> bool:
        """Whether the bounds of ``schema`` leave nothing."""
        for least, most in BOUNDS:
            low, high = schema.get(least), schema.get(most)
            if _is_number(low) and _is_number(high) and low > high:
                self.empty = self.empty or f"a '{least}' of {low} with a '{most}' of {high}"
                return True
        return False

    def _flat(self, schema: dict[str, Any]) -> dict[str, Any]:
        """``schema`` with references and ``allOf`` resolved, and ``oneOf`` as ``anyOf``."""
        for _ in range(MAX_DEPTH):
            if "$ref" in schema:
                rest = {name: value for name, value in schema.items() if name != "$ref"}
                schema = self._merge(self._target(schema["$ref"]), rest)
            elif isinstance(schema.get("allOf"), list):
                parts = schema["allOf"]
                schema = {name: value for name, value in schema.items() if name != "allOf"}
                for part in parts:
                    schema = self._merge(schema, part)
            elif "oneOf" in schema:
                rest = {name: value for name, value in schema.items() if name != "oneOf"}
                schema = {"anyOf": schema["oneOf"], **rest}
            else:
                break
        return schema

    def _afford(self, values: list[Any]) -> list[Any]:
        """The first of ``values``: as many as there is still room for."""
        for at, value in enumerate(values):
            self._values -= len(_encode(value))
            if self._values < 0:
                return values[:at]
        return values

    def _merge(self, base: Any, more: Any) -> dict[str, Any]:
        """Two schemas that both hold; once too much has been copied, the first one alone."""
        first = base if isinstance(base, dict) else {}
        second = more if isinstance(more, dict) else {}
        for schema in (first, second):
            self._copies -= 1 + len(schema) + sum(map(_length, map(schema.get, _ADDED_UP)))
        return _merge(first, second) if self._copies >= 0 else first

    def _target(self, reference: Any) -> Any:
        """What a JSON pointer into the same document points at (RFC 6901), or None."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            self._pass_over("a '$ref' to another document")
            return None
        self._refers = True
        target = self._root
        for step in reference[1:].split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, dict) or name not in target:
                return None
            target = target[name]
        return target

    def _any_of(self, branches: list[Any], depth: int) -> dict[str, Any]:
        before, self.empty = self.empty, None
        made: list[dict[str, Any]] = []
        why: str | None = None
        for branch in branches:
            found = self.of(branch, depth + 1)
            if self.empty is None:
                made.append(found)
            why, self.empty = why or self.empty, None
        # What nothing satisfies is no choice; without any other there is none.
        self.empty = before or (None if made else why)
        return {"anyOf": made} if made else ANY

    def _kinds(self, schema: dict[str, Any]) -> list[str]:
        kind = schema.get("type")
        if kind is None:
            kind = [name for name, words in _IMPLIED.items() if words & schema.keys()][:1]
        kinds = kind if isinstance(kind, list) else [kind]
        return [name for name in TYPES if name in kinds]

    def _of_type(self, kind: str, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, depth)
        if kind == "string":
            if not _simple(schema.get("pattern", "")):
                self._pass_over("such a 'pattern'")
            return _string(schema)
        return _number(kind, schema) if kind in ("number", "integer") else SCALARS[kind]

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        known, wanted = schema.get("properties"), schema.get("required")
        members = dict(known) if isinstance(known, dict) else {}
        names = wanted if isinstance(wanted, list) else []
        required = list(dict.fromkeys(name for name in names if isinstance(name, str)))
        for name in required:
            members.setdefault(name, {})
        if len(members) > MAX_NODES:
            required = required[:MAX_NODES]
            members = {name: members[name] for name in required or [*members][:MAX_NODES]}
        result: dict[str, Any] = {
            "type": "object",
            "properties": {name: self.of(value, depth + 1) for name, value in members.items()},
            "required": required,
            "additionalProperties": False,
        }
        others = schema.get("additionalProperties", known is None)
        if not members and others is not False:
            # Not by additionalProperties: a name, too, must have an end.
            result["patternProperties"] = {NAME: self.of(others, depth + 1)}
            result["maxProperties"] = MAX_MEMBERS
        return result

    def _array(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        items, first = schema.get("items", True), schema.get("prefixItems")
        if isinstance(items, list):  # The tuples of draft 7.
            items, first = schema.get("additionalItems", True), items
        first = first[:MOST_ITEMS] if isinstance(first, list) else []
        head = [self.of(each, depth + 1) for each in first]
        least = _whole(schema.get("minItems")) or 0
        most = _whole(schema.get("maxItems"))
        if most is None:
            most = max(least, len(head), MAX_ITEMS)
        if items is False:
            most = min(most, len(head))
        most = min(most, MOST_ITEMS, max(self._items, MAX_ITEMS))
        self._items -= most
        least = min(least, most)
        result: dict[str, Any] = {"type": "array", "items": self.of(items, depth + 1)}
        if head:
            result["prefixItems"] = head
        return {**result, "minItems": least, "maxItems": most}


_IMPLIED: Final[Mapping[str, frozenset[str]]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "string": frozenset({"maxLength", "minLength", "pattern", "format"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
}
"""Type that a schema without one means -> the words that give it away."""


_ADDED_UP: Final = ("properties", "required")


def _length(value: Any) -> int:
    return len(value) if isinstance(value, dict | list) else 0


def _merge(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two schemas that both hold; the second wins, properties and required add up."""
    merged = {**first, **second}
    if isinstance(first.get("properties"), dict) and isinstance(second.get("properties"), dict):
        merged["properties"] = {**first["properties"], **second["properties"]}
    if isinstance(first.get("required"), list) and isinstance(second.get("required"), list):
        merged["required"] = [*first["required"], *second["required"]]
    return merged


def _string(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("format") in FORMATS:
        return {"type": "string", "format": schema["format"]}
    least = _whole(schema.get("minLength")) or 0
    most = _whole(schema.get("maxLength"))
    result: dict[str, Any] = {"type": "string"}
    if least:
        result["minLength"] = least
    result["maxLength"] = max(least, MAX_STRING) if most is None else most
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and _simple(pattern):
        result["pattern"] = pattern
    return result


def _simple(pattern: Any) -> bool:
    """Whether the runtime can follow ``pattern``."""
    if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN:
        return False
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return HARD_PATTERN.search(pattern) is None


def _number(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    words = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    result: dict[str, Any] = {"type": kind}
    for word in words:
        value = schema.get(word)
        if _is_number(value):
            result[word] = value
    if result.get("multipleOf", 1) <= 0:
        del result["multipleOf"]
    if not result.keys() & {"minimum", "exclusiveMinimum"}:
        most = result.get("maximum", result.get("exclusiveMaximum", 0))
        result["minimum"] = min(-MAX_NUMBER, most - MAX_NUMBER)
    if not result.keys() & {"maximum", "exclusiveMaximum"}:
        least = result.get("minimum", result.get("exclusiveMinimum", 0))
        result["maximum"] = max(MAX_NUMBER, least + MAX_NUMBER)
    if kind == "number" and "multipleOf" not in result and _width(result) >= NARROW:
        result["multipleOf"] = STEP
    return result


def _width(schema: dict[str, Any]) -> float:
    least = max(schema[word] for word in ("minimum", "exclusiveMinimum") if word in schema)
    most = min(schema[word] for word in ("maximum", "exclusiveMaximum") if word in schema)
    return float(most - least)


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
