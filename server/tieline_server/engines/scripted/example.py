"""One value for a JSON schema: always the same, and valid wherever the schema is understood.

What a value must be is gathered first (references followed, ``allOf`` merged), then candidates
are built, then the first one that conforms (:mod:`.conform`) is taken; where alternatives are
open, each is tried. Schemas come from clients: the work is bounded, and a text is never searched
for a pattern. Where no value is found there is none: never one that does not conform.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from tieline_server.engines.scripted.conform import Budget, Conform, Spent, resolve, same
from tieline_server.engines.scripted.pattern import NoSample, sample

STEPS: Final = 20_000
"""Nodes of schema and value that are looked at, at most."""

DEEPEST: Final = 40
LONGEST: Final = 10_000
"""Characters of a string, and entries of a list, at most."""

MANY: Final = 1_000
"""Different values of one type that are tried."""

MANY_NAMES: Final = 20
"""Different names that are made from one pattern or schema."""

COMPARED: Final = 16
"""Values that are compared in the time of a step."""

HINT: Final = 200
"""Characters of the hint that a string may take over."""

FORMATS: Final[Mapping[str, str]] = {
    "date": "2025-01-31",
    "date-time": "2025-01-31T12:00:00Z",
    "duration": "PT1H",
    "email": "user@example.com",
    "hostname": "example.com",
    "idn-email": "user@example.com",
    "idn-hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "iri": "https://example.com/",
    "iri-reference": "/example",
    "json-pointer": "/example",
    "regex": "a",
    "relative-json-pointer": "0",
    "time": "12:00:00Z",
    "uri": "https://example.com/",
    "uri-reference": "/example",
    "uri-template": "/example/{id}",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
}

_HINTS: Final[Mapping[str, tuple[str, ...]]] = {
    "object": (
        "properties",
        "required",
        "patternProperties",
        "additionalProperties",
        "propertyNames",
        "dependentRequired",
        "minProperties",
    ),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
"""A type, and the keywords that tell it where a schema does not say so."""


class _Stuck(Exception):
    """No value on this way."""


class NoExample(Exception):
    """No value is found for a schema."""


def example(schema: bytes, *, hint: str = "", kind: str | None = None) -> Any:
    """A value for ``schema`` (raw JSON), of the type ``kind`` where one is named.

    Strings that may be anything are ``hint``. Raises :class:`NoExample`.

    >>> example(b'{"properties":{"n":{"type":"integer","minimum":3}},"required":["n"]}')
    {'n': 3}
    """
    try:
        root = msgspec.json.decode(schema)
        wanted = root if kind is None else {"type": kind, "allOf": [root]}
        return _Builder(root, hint[:HINT] or "text").build(wanted)
    except (_Stuck, Spent, RecursionError, msgspec.MsgspecError):
        raise NoExample from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        # A keyword's value has a type that the standard does not allow ("minItems": "two").
        raise NoExample from None


class _Builder:
    def __init__(self, root: Any, hint: str) -> None:
        self._root = root
        self._hint = hint
        self._budget = Budget(STEPS)
        self._conform = Conform(root, self._budget)
        self._depth = 0
        self._open: list[str] = ["#"]
        """References that lead here: following one again would never end."""
        self._types: dict[str, Callable[[dict[str, Any]], Iterator[Any]]] = {
            "object": self._objects,
            "array": self._arrays,
            "string": self._strings,
            "integer": _integers,
            "number": _numbers,
            "boolean": lambda _: iter((True, False)),
            "null": lambda _: iter((None,)),
        }

    def build(self, schema: Any, nth: int = 0) -> Any:
        """A value for ``schema``: its ``nth``, or the last where there are not so many."""
        if self._depth >= DEEPEST:
            raise _Stuck
        self._depth += 1
        open_before = len(self._open)
        try:
            flat, followed = self._flatten(schema, ())
            self._open += followed
            return self._pick(schema, self._candidates(flat, nth), nth)
        finally:
            self._depth -= 1
            del self._open[open_before:]

    def _pick(self, schema: Any, candidates: Iterator[Any], nth: int) -> Any:
        found: list[Any] = []
        for value in candidates:
            self._budget.spend(len(found))
            if self._conform.to(schema, value) and not any(same(value, each) for each in found):
                found.append(value)
                if len(found) > nth:
                    break
        if not found:
            raise _Stuck
        return found[-1]

    def _flatten(self, schema: Any, path: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
        """The schema without ``$ref`` and, as far as it can be merged, without ``allOf``.

        And the references that were followed; ``path`` is those that lead to ``schema``.
        """
        self._budget.spend()
        if schema is False:
            raise _Stuck
        if not isinstance(schema, dict):
            return {}, []
        flat = {key: value for key, value in schema.items() if key not in ("$ref", "allOf")}
        parts = [(part, path) for part in schema.get("allOf", ())]
        followed: list[str] = []
        if (reference := schema.get("$ref")) is not None:
            if reference in self._open or reference in path:
                raise _Stuck
            followed.append(reference)
            parts.insert(0, (resolve(self._root, reference), (*path, reference)))
        for part, behind in parts:
            more, further = self._flatten(part, behind)
            self._budget.spend(_toil(flat, more))
            flat = _merge(flat, more)
            followed += further
        return flat, followed

    def _candidates(self, flat: dict[str, Any], nth: int) -> Iterator[Any]:
        """Values worth a check, the best first."""
        if "const" in flat:
            yield flat["const"]
        elif "enum" in flat:
            yield from flat["enum"]
        else:
            yield from (flat["default"],) if "default" in flat else ()
            yield from flat.get("examples", ())
            branches = _branches(flat)
            yield from self._typed(flat) if branches is None else self._chosen(branches, nth)

    def _chosen(self, branches: list[dict[str, Any]], nth: int) -> Iterator[Any]:
        for branch in branches:
            with contextlib.suppress(_Stuck):
                yield from (self.build(branch, each) for each in range(nth + 1))

    def _typed(self, flat: dict[str, Any]) -> Iterator[Any]:
        """Values of each type that the schema allows, null last."""
        for kind in sorted(_types(flat), key=lambda kind: kind == "null"):
            with contextlib.suppress(_Stuck, NoSample):
                yield from self._types[kind](flat)

    def _objects(self, flat: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """What is required, then as much more as ``minProperties`` asks for."""
        spare = self._names(flat)
        names: dict[str, None] = {}
        flat = self._with_dependents(flat, names)
        while len(names) < flat.get("minProperties", 0):
            self._budget.spend()
            flat = self._with_dependents(flat, names, next(spare))
        properties = flat.get("properties", {})
        order = [name for name in properties if name in names]
        order += [name for name in names if name not in properties]
        for nth in range(MANY if order else 1):
            yield {name: self.build(self._member(flat, name), nth) for name in order}

    def _with_dependents(
        self, flat: dict[str, Any], names: dict[str, None], *more: str
    ) -> dict[str, Any]:
        """Adds to ``names`` what is required, and what its presence asks for.

        Returns the schema with the schemas that it asks for.
        """
        left = [*flat.get("required", ()), *more]
        while left:
            name = left.pop(0)
            self._budget.spend()
            if not isinstance(name, str) or name in names:
                continue
            names[name] = None
            for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
                asked = flat.get(keyword, {}).get(name, True)
                if isinstance(asked, list):
                    left += asked
                elif asked is not True:
                    added, _ = self._flatten(asked, ())
                    self._budget.spend(_toil(flat, added))
                    flat = _merge(flat, added)
                    left += flat.get("required", ())
        return flat

    def _member(self, flat: dict[str, Any], name: str) -> Any:
        """The schema of a member of this name."""
        known = self._conform.covering(flat, name)
        if not known:
            return flat.get("additionalProperties", True)
        return known[0] if len(known) == 1 else {"allOf": known}

    def _names(self, flat: dict[str, Any]) -> Iterator[str]:
        """Names for members that the schema does not name."""
        yield from flat.get("properties", {})
        for pattern in flat.get("patternProperties", {}):
            with contextlib.suppress(NoSample):
                yield from (sample(pattern, shortest=length) for length in range(MANY_NAMES))
        if "propertyNames" in flat:
            text = {"allOf": [{"type": "string"}, flat["propertyNames"]]}
            with contextlib.suppress(_Stuck):
                yield from (self.build(text, nth) for nth in range(MANY_NAMES))
        yield from (f"key{at}" for at in itertools.count(1))

    def _arrays(self, flat: dict[str, Any]) -> Iterator[list[Any]]:
        """As many as ``minItems`` asks for; where it asks for none, one, else none."""
        prefix, rest = list(flat.get("prefixItems", ())), flat.get("items", True)
        if isinstance(rest, list):
            prefix, rest = list(rest), flat.get("additionalItems", True)
        least = flat.get("minItems", 0)
        wanted = flat.get("minContains", 1) if "contains" in flat else 0
        if wanted > LONGEST:
            raise _Stuck
        if wanted:
            prefix += [{"allOf": [rest, flat["contains"]]}] * wanted
            least = max(least, len(prefix))
        if least > LONGEST:
            raise _Stuck
        differ = flat.get("uniqueItems") is True
        for nth in range(MANY):
            if least == 0 and ("items" in flat or prefix):
                with contextlib.suppress(_Stuck):
                    yield [self.build(prefix[0] if prefix else rest, nth)]
            yield [
                self.build(prefix[at] if at < len(prefix) else rest, at + nth if differ else nth)
                for at in range(least)
            ]

    def _strings(self, flat: dict[str, Any]) -> Iterator[str]:
        shortest, longest = flat.get("minLength", 0), flat.get("maxLength", LONGEST)
        if shortest > LONGEST:
            raise _Stuck
        if "pattern" in flat:
            yield sample(flat["pattern"], shortest=shortest, longest=longest)
        elif flat.get("format") in FORMATS:
            yield FORMATS[flat["format"]]
        for nth in range(MANY):
            text = f"{nth} {self._hint}" if nth else self._hint
            # A text that is too short is repeated.
            yield (text * max(1, math.ceil(shortest / len(text))))[:longest]


def _branches(flat: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The schema once for each alternative of a choice that it leaves open, or None."""
    for key in ("anyOf", "oneOf"):
        if key in flat:
            return [_instead(flat, (key,), branch) for branch in flat[key]]
    if "if" in flat:
        keys = ("if", "then", "else")
        both = {"allOf": [flat["if"], flat.get("then", True)]}
        return [_instead(flat, keys, both), _instead(flat, keys, flat.get("else", True))]
    return None


def _instead(flat: dict[str, Any], without: tuple[str, ...], branch: Any) -> dict[str, Any]:
    rest = {key: value for key, value in flat.items() if key not in without}
    return {**rest, "allOf": [branch, *rest.get("allOf", ())]}


def _types(flat: dict[str, Any]) -> list[str]:
    if "type" in flat:
        return flat["type"] if isinstance(flat["type"], list) else [flat["type"]]
    hinted = [kind for kind, keys in _HINTS.items() if any(key in flat for key in keys)]
    return [*hinted, "string", "integer", "object", "array", "boolean", "null"]


def _toil(one: dict[str, Any], two: dict[str, Any]) -> int:
    """Steps that a merge takes: it copies what both say, and compares enums with each other."""
    steps = len(one) + len(one.get("allOf", ()))
    for first, second, key in ((one[key], two[key], key) for key in one.keys() & two.keys()):
        if isinstance(first, list | dict) and isinstance(second, list | dict):
            compared = len(first) * len(second) // COMPARED if key == "enum" else 0
            steps += len(first) + len(second) + compared
    return steps


def _merge(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
    """A schema that asks for both; what cannot be merged waits in ``allOf``."""
    both = dict(one)
    for key, value in two.items():
        if key not in both:
            both[key] = value
        elif key in _MERGES:
            both[key] = _MERGES[key](both[key], value)
        elif key not in ("description", "title", "$defs", "definitions"):
            both["allOf"] = [*both.get("allOf", ()), {key: value}]
    return both


def _both(one: Any, two: Any) -> dict[str, Any]:
    return {"allOf": [one, two]}


def _merge_properties(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
    return {**one, **two, **{name: _both(one[name], two[name]) for name in one if name in two}}


def _merge_dependents(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
    common = {name: list(dict.fromkeys([*one[name], *two[name]])) for name in one if name in two}
    return {**one, **two, **common}


def _merge_types(one: Any, two: Any) -> list[str]:
    first, second = _types({"type": one}), _types({"type": two})
    common = [kind for kind in first if kind in second]
    # Every integer is a number.
    if "integer" not in common and {"integer", "number"} <= {*first, *second}:
        common.append("integer")
    return common


_MERGES: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
    "additionalProperties": _both,
    "allOf": lambda one, two: [*one, *two],
    "enum": lambda one, two: [value for value in one if value in two],
    "items": _both,
    "dependentRequired": _merge_dependents,
    "dependentSchemas": _merge_properties,
    "patternProperties": _merge_properties,
    "properties": _merge_properties,
    "propertyNames": _both,
    "required": lambda one, two: list(dict.fromkeys([*one, *two])),
    "type": _merge_types,
}
"""Keyword -> how two of its values become one."""


def _integers(flat: dict[str, Any]) -> Iterator[float]:
    """Whole numbers on the grid of ``multipleOf``, from zero or from a bound on."""
    step = flat.get("multipleOf", 1)
    yield from _grid(flat, step if step == int(step) else 1)


def _numbers(flat: dict[str, Any]) -> Iterator[float]:
    yield from _grid(flat, flat.get("multipleOf", 1))
    low, high = _bounds(flat)
    # No whole number lies between the bounds.
    yield from (low, high)
    yield from (low + (high - low) / (nth + 2) for nth in range(MANY))


def _grid(flat: dict[str, Any], step: float) -> Iterator[float]:
    """Multiples of ``step``, up from the allowed one nearest to zero, then down."""
    low, high = _bounds(flat)
    start = low if low > 0 else min(high, 0)
    at = math.floor(start / step)
    for nth in itertools.chain(range(MANY), range(-1, -MANY, -1)):
        value = (at + nth) * step
        # Beyond 2**53 a float is as whole as an int, and every JSON parser takes it.
        yield int(value) if abs(value) < 2**53 and value == int(value) else float(value)


def _bounds(flat: dict[str, Any]) -> tuple[float, float]:
    low = max(flat.get("minimum", -math.inf), flat.get("exclusiveMinimum", -math.inf))
    return low, min(flat.get("maximum", math.inf), flat.get("exclusiveMaximum", math.inf))
