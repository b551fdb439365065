"""Whether a value conforms to a JSON schema, as far as an answer of our own needs to know.

Not checked: ``pattern`` of a text, ``format``, and whatever is not in the table at the end.
Unknown keywords hold, as the standard says. The work is bounded by a :class:`Budget`, because
schemas come from clients.
"""

from collections.abc import Callable, Mapping, Sized
from typing import Any, Final
from urllib.parse import unquote

from tieline_server.engines.scripted.pattern import matcher

DEEPEST: Final = 100
"""Schemas inside schemas that are followed."""

PATTERNS: Final = 100
"""Different patterns of names that are understood; beyond them each may cover any name."""

MATCHED: Final = 256
"""Bytes of a pattern and a name that are matched in the time of a step."""


class Spent(Exception):
    """The budget is used up."""


class Budget:
    """Steps that may still be taken."""

    __slots__ = ("left",)

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int = 1) -> None:
        """Takes ``steps``; raises :class:`Spent` when there are not so many."""
        self.left -= steps
        if self.left < 0:
            raise Spent


def resolve(root: Any, reference: str) -> Any:
    """What a local ``$ref`` points at; anything is allowed (True) where it points elsewhere.

    It is the fragment of a URI, where a character may be percent-encoded (RFC 6901 6).

    >>> resolve({"$defs": {"a/b": {"type": "null"}}}, "#/%24defs/a~1b")
    {'type': 'null'}
    """
    if not reference.startswith("#"):
        return True
    node = root
    for step in unquote(reference[1:]).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and name in node:
            node = node[name]
        elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
            node = node[int(name)]
        else:
            return True
    return node


def same(one: Any, two: Any) -> bool:
    """Whether two JSON values are equal: 1 is 1.0, and true is not 1."""
    if isinstance(one, bool) or isinstance(two, bool):
        return one is two
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    return bool(one == two)


Holds = Callable[["Conform", Any, Any, Mapping[str, Any]], bool]
"""(checker, keyword's value, instance, schema) -> whether the keyword holds."""


class Conform:
    """Checks values against ``root`` and the schemas in it."""

    __slots__ = ("_depth", "_matchers", "budget", "root")

    def __init__(self, root: Any, budget: Budget) -> None:
        self.root = root
        self.budget = budget
        self._depth = 0
        self._matchers: dict[str, Callable[[str], bool] | None] = {}

    def to(self, schema: Any, value: Any) -> bool:
        """Whether ``value`` conforms; raises :class:`Spent`."""
        self.budget.spend()
        if not isinstance(schema, dict):
            return schema is not False
        if self._depth >= DEEPEST:
            raise Spent
        self._depth += 1
        try:
            return all(
                holds(self, schema[keyword], value, schema)
                for keyword, holds in KEYWORDS.items()
                if keyword in schema
            )
        finally:
            self._depth -= 1

    def covers(self, pattern: str, name: str) -> bool | None:
        """Whether a pattern of ``patternProperties`` covers this name; None: it cannot be told."""
        self.budget.spend(1 + (len(pattern) + len(name)) // MATCHED)
        if pattern not in self._matchers and len(self._matchers) < PATTERNS:
            self._matchers[pattern] = matcher(pattern)
        match = self._matchers.get(pattern)
        return None if match is None else match(name)

    def covering(self, schema: Mapping[str, Any], name: str) -> list[Any]:
        """The schemas that ``properties`` and ``patternProperties`` have for a member."""
        named = schema.get("properties", {})
        found = [named[name]] if name in named else []
        patterns = schema.get("patternProperties", {})
        return found + [each for key, each in patterns.items() if self.covers(key, name)]

    def count(self, schemas: list[Any], value: Any) -> int:
        """To how many of ``schemas`` the value conforms."""
        return sum(self.to(schema, value) for schema in schemas)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and value == int(value),
    "null": lambda value: value is None,
    "number": _is_number,
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}


def _type(_: Conform, wanted: Any, value: Any, __: Mapping[str, Any]) -> bool:
    kinds = wanted if isinstance(wanted, list) else [wanted]
    return any(kind in _TYPES and _TYPES[kind](value) for kind in kinds)


def _condition(check: Conform, condition: Any, value: Any, schema: Mapping[str, Any]) -> bool:
    branch = "then" if check.to(condition, value) else "else"
    return check.to(schema.get(branch, True), value)


def _multiple(_: Conform, step: Any, value: Any, __: Mapping[str, Any]) -> bool:
    if not _is_number(value):
        return True
    if isinstance(step, int) and isinstance(value, int):
        return value % step == 0
    return float(value / step).is_integer()


def _items(check: Conform, each: Any, value: Any, schema: Mapping[str, Any]) -> bool:
    if not isinstance(value, list):
        return True
    if isinstance(each, list):
        # Until draft 2019-09 these were the first ones, and ``additionalItems`` the rest.
        others = schema.get("additionalItems", True)
        rest = all(check.to(others, entry) for entry in value[len(each) :])
        return rest and all(map(check.to, each, value))
    return all(check.to(each, entry) for entry in value[len(schema.get("prefixItems", ())) :])


def _prefix(check: Conform, schemas: Any, value: Any, _: Mapping[str, Any]) -> bool:
    return not isinstance(value, list) or all(map(check.to, schemas, value))


def _contains(check: Conform, wanted: Any, value: Any, schema: Mapping[str, Any]) -> bool:
    if not isinstance(value, list):
        return True
    found = sum(check.to(wanted, entry) for entry in value)
    return bool(schema.get("minContains", 1) <= found <= schema.get("maxContains", found))


def _unique(check: Conform, wanted: Any, value: Any, _: Mapping[str, Any]) -> bool:
    if wanted is not True or not isinstance(value, list):
        return True
    check.budget.spend(len(value) ** 2 // 2)
    return not any(same(one, two) for at, one in enumerate(value) for two in value[:at])


def _properties(check: Conform, schemas: Any, value: Any, _: Mapping[str, Any]) -> bool:
    if not isinstance(value, dict):
        return True
    return all(check.to(schema, value[name]) for name, schema in schemas.items() if name in value)


def _additional(check: Conform, others: Any, value: Any, schema: Mapping[str, Any]) -> bool:
    if not isinstance(value, dict):
        return True
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    return all(
        check.to(others, value[name])
        for name in value
        # A name that a pattern might cover is let through.
        if name not in named and all(check.covers(each, name) is False for each in patterns)
    )


def _patterned(check: Conform, schemas: Any, value: Any, _: Mapping[str, Any]) -> bool:
    if not isinstance(value, dict):
        return True
    return all(
        check.to(schema, value[name])
        for pattern, schema in schemas.items()
        for name in value
        if check.covers(pattern, name)
    )


def _named(check: Conform, schema: Any, value: Any, _: Mapping[str, Any]) -> bool:
    return not isinstance(value, dict) or all(check.to(schema, name) for name in value)


def _dependent(check: Conform, asked: Any, value: Any, _: Mapping[str, Any]) -> bool:
    """What the presence of a member asks for: other members, or a schema."""
    if not isinstance(value, dict):
        return True
    return all(
        all(other in value for other in each) if isinstance(each, list) else check.to(each, value)
        for name, each in asked.items()
        if name in value
    )


def _sized(kind: type[Sized], *, least: bool) -> Holds:
    """A bound of a length."""

    def holds(_: Conform, bound: Any, value: Any, __: Mapping[str, Any]) -> bool:
        if not isinstance(value, kind):
            return True
        return bool(len(value) >= bound if least else len(value) <= bound)

    return holds


def _bound(within: Callable[[Any, Any], bool]) -> Holds:
    """A bound of a number."""
    return lambda _, bound, value, __: not _is_number(value) or within(value, bound)


KEYWORDS: Final[Mapping[str, Holds]] = {
    "$ref": lambda check, ref, value, _: check.to(resolve(check.root, ref), value),
    "allOf": lambda check, schemas, value, _: check.count(schemas, value) == len(schemas),
    "anyOf": lambda check, schemas, value, _: check.count(schemas, value) > 0,
    "oneOf": lambda check, schemas, value, _: check.count(schemas, value) == 1,
    "not": lambda check, schema, value, _: not check.to(schema, value),
    "if": _condition,
    "const": lambda _, wanted, value, __: same(wanted, value),
    "enum": lambda _, values, value, __: any(same(each, value) for each in values),
    "type": _type,
    "minimum": _bound(lambda value, bound: value >= bound),
    "maximum": _bound(lambda value, bound: value <= bound),
    "exclusiveMinimum": _bound(lambda value, bound: value > bound),
    "exclusiveMaximum": _bound(lambda value, bound: value < bound),
    "multipleOf": _multiple,
    "minLength": _sized(str, least=True),
    "maxLength": _sized(str, least=False),
    "items": _items,
    "prefixItems": _prefix,
    "contains": _contains,
    "minItems": _sized(list, least=True),
    "maxItems": _sized(list, least=False),
    "uniqueItems": _unique,
    "properties": _properties,
    "required": lambda _, names, value, __: (
        not isinstance(value, dict) or all(name in value for name in names)
    ),
    "patternProperties": _patterned,
    "additionalProperties": _additional,
    "propertyNames": _named,
    "dependentRequired": _dependent,
    "dependentSchemas": _dependent,
    "dependencies": _dependent,
    "minProperties": _sized(dict, least=True),
    "maxProperties": _sized(dict, least=False),
}
"""Keyword -> whether it holds."""
