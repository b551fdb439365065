"""What llguidance, which samples, says of a schema before anything is sampled.

A matcher is built once for a schema and its verdict kept: tools come again with every create.
Building takes milliseconds, for the largest schema that the walk lets pass about a second, and
lets other threads run; so who asks does it beside the event loop.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from msgspec import Struct

from tieline_server.engines.chat_format.json_schema import Bounds, Walk, read
from tieline_server.engines.chat_format.schema_parts import NUMBERS, Limited, SchemaError, escaped

logger: Final = logging.getLogger("tieline.schemas")

KEPT: Final = 1_024
"""Schemas whose verdict is kept."""

KEPT_BYTES: Final = 64 * 1024
"""A larger schema is read again on each lane that has it."""

PIECES: Final = 4_096
"""Strings, numbers and patterns whose verdict is kept."""

MOST_LEFT_OUT: Final = 8
"""Schemas within one that are left out because the runtime cannot take them."""

MOST_ASKED: Final = 64
"""Schemas within one that are tried by themselves, to say which one is wrong."""

EMPTY: Final = "Unsatisfiable schema"
"""How llguidance's errors begin where nothing satisfies a schema."""

EXCLUSIVE: Final = ("exclusiveMinimum", "exclusiveMaximum")

LITERALS: Final = frozenset({"enum", "const"})

COMBINING: Final = frozenset({"allOf", "anyOf", "oneOf", "$ref"})
"""Words by which one value is told by several schemas."""

LENGTHS: Final[Mapping[type, str]] = {str: "maxLength", list: "maxItems", dict: "maxProperties"}
"""Type of a value -> the word that bounds its length."""


class Followed(Struct, frozen=True, kw_only=True):
    """A schema as the runtime follows it, and what is not sure of a value that it sampled."""

    schema: dict[str, Any]
    strict: bool = False
    left_out: tuple[str, ...] = ()
    """Words of the client's schema that the runtime is not held to."""
    told: int = 0
    """How many there are, those past the first few included."""
    cost: float = 0.0
    """What it costs to be asked about and to be sampled by (``Walk.cost``)."""
    open: bool = False
    limited: bool = False

    @property
    def rule(self) -> str:
        """It in a grammar: JSON without white space."""
        return self.rule_of(self.schema)

    def rule_of(self, part: dict[str, Any]) -> str:
        """The same for a part of it, which brings the ``$defs`` that it refers to."""
        options = {"whitespace_flexible": False, "lenient": not self.strict}
        return "%json " + json.dumps({**part, "x-guidance": options})

    def falls_short(self, text: str) -> bool:
        """Whether a value, valid as it is, has a name twice or has reached a bound of ours."""
        if not self.open and not self.limited:
            return False
        twice = False

        def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            nonlocal twice
            found = dict(pairs)
            twice = twice or len(found) < len(pairs)
            return found

        value = json.loads(text, object_pairs_hook=members)
        return twice or (self.limited and _reached(self.schema, value, self.schema.get("$defs")))


FREE: Final = Followed(schema={})
"""Holds to nothing, and finds nothing short."""


Path = tuple[Any, ...]


class Refused(Struct, frozen=True):
    """Why a schema is not taken, and where in it."""

    why: str
    at: str


def followed(
    raw: bytes, *, strict: bool = False, bounds: Bounds | None = None, function: bool = False
) -> Followed:
    """The schema as the runtime follows it; ``function``: it is of a function's parameters.

    Raises :class:`SchemaError`. Takes a while: see above.
    """
    make = _kept if len(raw) <= KEPT_BYTES else _made
    found = make(raw, strict, bounds, function)
    if isinstance(found, Refused):
        raise SchemaError(found.why, found.at)
    return found


def _made(raw: bytes, strict: bool, bounds: Bounds | None, function: bool) -> Followed | Refused:
    try:
        root = read(raw)
        walk = Walk(
            root, strict=strict, fails=_fails, means=_means, bounds=bounds, function=function
        )
        return _verdict(walk, walk.copy(), strict=strict)
    except SchemaError as error:
        return Refused(error.why, error.at)


_kept: Final = lru_cache(KEPT)(_made)


def _verdict(walk: Walk, schema: dict[str, Any], *, strict: bool) -> Followed | Refused:
    left_out, told = [word for word, _ in walk.left_out], walk.told
    path: Path | None = None
    for _ in range(MOST_LEFT_OUT + 1):
        error, warnings = _asked(schema, strict=strict)
        path = _stuck(schema, strict=strict) if error is None else None
        if error is None and path is None:
            left_out += [_word_of(each) for each in warnings]
            loose = _loose(schema)
            if loose and strict:
                why = "the model may write this bound beside one that is so near; choose another"
                return Refused(why, _pointer(walk, loose[0]))
            left_out += [str(place[-1]) for place in loose]
            return Followed(
                schema=schema,
                strict=strict,
                left_out=tuple(left_out),
                told=told + len(warnings) + len(loose),
                cost=walk.cost,
                open=walk.open,
                limited=any(isinstance(part, Limited) for part in _all(schema)),
            )
        if path is None:
            assert error is not None
            path = _culprit(schema, error, strict=strict)
            if error.startswith(EMPTY):
                return Refused("nothing satisfies this schema", _pointer(walk, path))
        if strict or not path:
            break
        parent: Any = schema
        for step in path[:-1]:
            parent = parent[step]
        parent[path[-1]] = True
        left_out, told = [*left_out, "schema"], told + 1
    why = "the model cannot be held to this schema; simplify its patterns and what it combines"
    return Refused(why, _pointer(walk, path or ()))


class _Bytes:
    """The plainest tokenizer: what a schema admits is no matter of tokens."""

    eos_token_id = 256
    bos_token_id = None
    unk_token_id = None
    tokens: Final = [*(bytes([each]) for each in range(256)), b"</s>"]
    special_token_ids: Final = [256]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@lru_cache(1)
def _tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Bytes()))


def matcher(schema: dict[str, Any], *, strict: bool) -> LLMatcher:
    """A matcher of JSON text without white space, byte by byte. It says by itself what is wrong."""
    grammar = LLMatcher.grammar_from_json_schema(
        json.dumps(schema), overrides={"whitespace_flexible": False, "lenient": not strict}
    )
    return LLMatcher(_tokenizer(), grammar, log_level=0)


def _asked(schema: dict[str, Any], *, strict: bool) -> tuple[str | None, list[str]]:
    """What is wrong with a schema, and what else there is to say of it."""
    built = matcher(schema, strict=strict)
    if built.is_error():
        return built.get_error(), []
    return None, built.get_grammar_warnings()


def _admits_nothing(schema: dict[str, Any], *, strict: bool) -> bool:
    """Whether a schema that was taken admits no first byte.

    Its numbers are patterns: those of bounds and of ``multipleOf`` may have no text in common
    (``0.30`` and ``0.3``), and no multiple is below 0.
    """
    built = matcher(schema, strict=strict)
    if not built.is_error():
        built.compute_bitmask()
    return built.is_stopped() and not built.is_accepting()


def _stuck(schema: dict[str, Any], *, strict: bool) -> Path | None:
    """Where in a copy numbers are combined so that the runtime finds none, if anywhere.

    The words of one schema were tried together as it was copied (``_fails``).
    """
    if not any("multipleOf" in part for part in _all(schema)):
        return None
    defs = {name: _numeric(each) for name, each in schema.get("$defs", {}).items()}
    left = MOST_ASKED
    for path, node in _places(schema):
        if COMBINING & node.keys() or ("multipleOf" in node and LITERALS & node.keys()):
            left -= 1
            if left < 0 or _admits_nothing({**_numeric(node), "$defs": defs}, strict=strict):
                return path
    return None


def _places(schema: dict[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """All schemas in a copy, itself the first, with their steps."""
    wanted: list[tuple[Path, Any]] = [
        *((("$defs", name), each) for name, each in schema.get("$defs", {}).items()),
        ((), schema),
    ]
    while wanted:
        path, node = wanted.pop()
        if isinstance(node, dict):
            yield path, node
            wanted += [(path + steps, each) for steps, each in _below({}, {**node, "$ref": ""})]


def _numeric(schema: Any) -> Any:
    """What a schema says of numbers, which costs little to ask about."""
    if not isinstance(schema, dict):
        return schema
    words = ("type", "enum", "const", "$ref", *NUMBERS)
    kept = {word: schema[word] for word in words if word in schema}
    branches = {word: schema[word] for word in ("allOf", "anyOf", "oneOf") if word in schema}
    return kept | {word: [_numeric(each) for each in said] for word, said in branches.items()}


def _fails(words: dict[str, Any]) -> bool:
    return _piece_fails(json.dumps(words))


def _means(pattern: str, names: Iterable[str]) -> bool:
    # Not by Python's own expressions, which may take for ever.
    built = matcher({"type": "string", "pattern": pattern}, strict=True)
    if built.is_error():
        return True
    for name in names:
        text = json.dumps(name, ensure_ascii=False).encode(errors="replace")
        if built.try_consume_tokens([*text]) == len(text) and built.is_accepting():
            return True
        if not built.reset():
            return True
    return False


@lru_cache(PIECES)
def _piece_fails(words: str) -> bool:
    schema = json.loads(words)
    error, _ = _asked(schema, strict=True)
    if error is None:
        return "multipleOf" in schema and _admits_nothing(schema, strict=True)
    return not error.startswith(EMPTY)


@lru_cache(PIECES)
def _admits_bound(words: str, word: str) -> bool:
    """Whether the runtime writes the very bound that is excluded, as it may beside a near one."""
    schema = json.loads(words)
    bound = schema[word]
    text = json.dumps(int(bound) if bound == int(bound) else bound)
    built = matcher(schema, strict=True)
    for said in (text, f"{text}.0", f"{text}.00"):
        if built.try_consume_tokens([*said.encode()]) == len(said) and built.is_accepting():
            return True
        if not built.reset():
            break
    return False


def _loose(schema: dict[str, Any]) -> list[Path]:
    """Where in a copy a bound is excluded and admitted all the same."""
    found = []
    for path, node in _places(schema):
        words = {word: node[word] for word in ("type", *NUMBERS) if word in node}
        for word in EXCLUSIVE:
            if word in words and _admits_bound(json.dumps(words), word):
                found.append((*path, word))
    return found


def _word_of(warning: str) -> str:
    return "minProperties" if "Properties" in warning else "schema"


def _culprit(schema: dict[str, Any], error: str, *, strict: bool) -> Path:
    """Where in a copy is the innermost schema that is wrong by itself in the same way."""
    empty, left = error.startswith(EMPTY), MOST_ASKED
    path: Path = ()
    seen: set[Path] = set()
    node: Any = schema
    while True:
        for steps, child in _below(schema, node):
            place = steps if steps[0] == "$defs" else path + steps
            if place in seen or not isinstance(child, dict) or not left:
                continue
            seen.add(place)
            left -= 1
            wrong, _ = _asked({**child, "$defs": schema.get("$defs", {})}, strict=strict)
            if wrong is not None and wrong.startswith(EMPTY) == empty:
                path, node = place, child
                break
        else:
            return path


def _below(root: dict[str, Any], schema: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    """The schemas in one of a copy, and their steps from it (or from the root, by ``$defs``)."""
    if name := schema.get("$ref", "").removeprefix("#/$defs/"):
        yield ("$defs", name), root["$defs"][name]
    for word in ("properties", "patternProperties"):
        for name, each in schema.get(word, {}).items():
            yield (word, name), each
    for word in ("prefixItems", "allOf", "anyOf", "oneOf"):
        for at, each in enumerate(schema.get(word, ())):
            yield (word, at), each
    for word in ("items", "additionalProperties"):
        if word in schema:
            yield (word,), schema[word]


def _all(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    wanted: list[Any] = [schema, *schema.get("$defs", {}).values()]
    while wanted:
        node = wanted.pop()
        if isinstance(node, dict):
            yield node
            wanted += [each for _, each in _below({"$defs": {}}, {**node, "$ref": ""})]


def _pointer(walk: Walk, path: Path) -> str:
    """A place in the copy as a JSON pointer into the client's schema."""
    start = ""
    if path[:1] == ("$defs",):
        start, path = walk.origins[path[1]], path[2:]
    return start + "".join(f"/{escaped(str(step))}" for step in path)


def _reached(schema: Any, value: Any, defs: Any) -> bool:
    """Whether a value, or one in it, is as long as a bound of ours."""
    if not isinstance(schema, dict):
        return False
    if isinstance(schema, Limited):
        word = LENGTHS.get(type(value))
        if word in schema.ours and len(value) >= schema[word]:
            return True
    if "$ref" in schema and _reached(defs[schema["$ref"].removeprefix("#/$defs/")], value, defs):
        return True
    for word in ("allOf", "anyOf", "oneOf"):
        if any(_reached(each, value, defs) for each in schema.get(word, ())):
            return True
    if isinstance(value, list):
        first = schema.get("prefixItems", [])
        rest = [schema.get("items")] * (len(value) - len(first))
        return any(map(_reached, [*first, *rest], value, [defs] * len(value)))
    if isinstance(value, dict):
        members, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        others = [*patterns.values(), schema.get("additionalProperties")]
        return any(
            _reached(each, member, defs)
            for name, member in value.items()
            for each in ([members[name]] if name in members else others)
        )
    return False
