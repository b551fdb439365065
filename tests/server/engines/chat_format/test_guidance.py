"""What llguidance says of a schema, and what is not sure of a value that follows it.

``--schema-suite`` takes the folder of a draft of JSON-Schema-Test-Suite (the sdist of PyPI's
``jsonschema`` has them in ``json/tests``), ``--tool-schemas`` a list of schemas of real tools;
``-s`` prints how many were accepted. Without them both run over a few of our own.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from llguidance import LLMatcher

from tests.support.llguidance_inside import verdict
from tieline_server.engines.chat_format import guidance
from tieline_server.engines.chat_format.guidance import FREE, Followed, followed, matcher
from tieline_server.engines.chat_format.json_schema import MOST_DEPTH, Bounds
from tieline_server.engines.chat_format.schema_parts import SchemaError

HERE = Path(__file__).parent
END = 256
"""The token that ends a text."""


def follow(schema: Any, **options: Any) -> Followed:
    return followed(json.dumps(schema).encode(), **options)


def admits(found: Followed, value: Any) -> bool:
    """Whether the runtime may write this value."""
    given = matcher(found.schema, strict=found.strict)
    assert not given.is_error(), given.get_error()
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    return given.try_consume_tokens([*text]) == len(text) and given.is_accepting()


def refusal(schema: Any, **options: Any) -> SchemaError:
    with pytest.raises(SchemaError) as caught:
        follow(schema, **options)
    return caught.value


# The library is the very one that samples.

SCHEMAS: list[Any] = [
    *(each["schema"] for each in json.loads((HERE / "schema_suite.json").read_text())),
    *json.loads((HERE / "tool_schemas.json").read_text()),
    {"not": {}},
    {"enum": []},
    {"type": "STRING"},
    {"type": "string", "maxLength": 3.0},
    {"type": "string", "format": "frob"},
    {"type": "object", "minProperties": 2, "properties": {"a": {}}},
    {"anyOf": [{"$ref": "#/$defs/nowhere"}]},
    {"type": "integer", "minimum": 1e30},
]


@pytest.mark.parametrize("lenient", [True, False])
def test_it_says_what_the_one_inside_the_runtime_says(lenient: bool) -> None:
    """PyPI's llguidance and xllamacpp's own: word for word."""
    for schema in SCHEMAS:
        options = {"whitespace_flexible": False, "lenient": lenient}
        lark = f"%llguidance {{}}\nstart: %json {json.dumps({**schema, 'x-guidance': options})}\n"
        wrong, said = LLMatcher.validate_grammar_with_warnings(LLMatcher.grammar_from_lark(lark))
        code, message = verdict(lark)
        assert (code == -1, code == 1) == (wrong, bool(said) and not wrong)
        for line in said:
            assert line.splitlines()[0] in message


# What is followed.


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "integer"}, 1796080367, 1.5),
        ({"type": "integer"}, -(2**53), "1"),
        ({"allOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]}, "b", "c"),
        ({"type": "string", "format": "email"}, "a@b.de", "string"),
        ({"type": "string", "pattern": "^2026-", "format": "date"}, "2026-12-30", "1234-12-30"),
        ({"properties": {"a": False, "b": {"type": "null"}}}, {"b": None}, {"a": True}),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, 2, 2.5),
        ({"type": "string", "maxLength": 2.0}, "\u00e9\U0001f600", "abc"),
    ],
    ids=["SC-01", "SC-01 least", "SC-03", "SC-08", "SC-09", "SC-10", "SC-07", "3.0"],
)
def test_a_strict_schema_is_followed(schema: Any, right: Any, wrong: Any) -> None:
    """SC-01, SC-03, SC-07 to SC-10."""
    found = follow(schema, strict=True)
    assert admits(found, right)
    assert not admits(found, wrong)
    assert (found.left_out, found.told) == ((), 0)


@pytest.mark.parametrize(
    ("schema", "at"),
    [
        ({"allOf": [{"enum": ["a"]}, {"enum": ["c"]}]}, ""),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, ""),
        ({"properties": {"q": {"minimum": 5, "maximum": 3}}, "required": ["q"]}, "/properties/q"),
        ({"type": "array", "minItems": 2, "maxItems": 1}, ""),
        ({"type": "string", "pattern": "^a", "enum": ["b"]}, ""),
        (
            {
                "$ref": "#/$defs/A",
                "$defs": {"A": {"type": "string", "minLength": 2, "maxLength": 1}},
            },
            "/$defs/A",
        ),
        ({"type": "array", "items": False, "minItems": 1}, ""),
    ],
)
def test_sc_03_sc_10_what_nothing_satisfies_is_refused_by_its_place(schema: Any, at: str) -> None:
    for strict in (True, False):
        error = refusal(schema, strict=strict)
        assert (error.why, error.at) == ("nothing satisfies this schema", at)


def test_sc_07_branches_that_overlap_are_refused_or_told() -> None:
    schema = {"properties": {"n": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}}
    error = refusal(schema, strict=True)
    assert "oneOf" in error.why
    assert error.at == "/properties/n/oneOf"
    found = follow(schema)
    assert (found.left_out, found.told) == (("oneOf",), 1)
    assert admits(found, {"n": 2})


def test_sc_12_only_what_the_grammar_cannot_do_is_passed_over() -> None:
    schema = {
        "type": "object",
        "properties": {
            "list": {"type": "string", "pattern": "^([^,]+(,|$)){3,}$", "minLength": 2},
            "name": {"type": "string", "pattern": "^[a-z]+$"},
        },
        "required": ["list", "name"],
    }
    found = follow(schema, function=True)
    assert found.left_out == ("pattern",)
    assert admits(found, {"list": "ab", "name": "ab"})
    assert not admits(found, {"list": "a", "name": "ab"})
    assert not admits(found, {"list": "ab", "name": "AB"})
    assert refusal(schema, strict=True).at == "/properties/list/pattern"


@pytest.mark.parametrize("kind", ["array", "string", ["array", "null"]])
def test_sc_13_parameters_of_a_function_are_an_object(kind: Any) -> None:
    for strict in (True, False):
        error = refusal({"type": kind}, strict=strict, function=True)
        assert (error.at, "object" in error.why) == ("/type", True)
    assert refusal({"$ref": "#/$defs/A", "$defs": {"A": {"type": kind}}}, function=True)
    assert follow({"type": ["object", "null"]}, function=True).schema["type"] == "object"


@pytest.mark.parametrize(
    ("schema", "at"),
    [
        ({"type": "number", "multipleOf": 0.1, "minimum": 0.25, "maximum": 0.35}, "/minimum"),
        ({"type": "number", "multipleOf": 3, "minimum": -19, "maximum": -4}, "/minimum"),
        ({"type": "integer", "multipleOf": 5, "exclusiveMaximum": 0}, "/exclusiveMaximum"),
        ({"$ref": "#/$defs/step", "maximum": -1}, ""),
        ({"type": "number", "multipleOf": 3, "enum": [-6]}, ""),
        ({"$ref": "#/$defs/step", "const": -6}, ""),
        ({"allOf": [{"type": "number", "maximum": -1}, {"multipleOf": 3}]}, ""),
        ({"type": "number", "maximum": -1, "anyOf": [{"multipleOf": 2}, {"multipleOf": 3}]}, ""),
    ],
)
def test_numbers_of_which_the_runtime_finds_none_are_refused_or_told(
    schema: dict[str, Any], at: str
) -> None:
    """It takes such a schema, has no byte to write there, and would then write what it likes."""
    whole = {
        "$defs": {"step": {"type": "number", "multipleOf": 0.5}},
        "type": "object",
        "properties": {"a": schema, "b": {"type": "boolean"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    assert refusal(whole, strict=True).at == f"/properties/a{at}"
    found = follow(whole)
    assert found.told
    assert admits(found, {"a": -6, "b": True})
    assert not admits(found, {"a": -6, "b": 1})


@pytest.mark.parametrize(
    ("schema", "word", "bound"),
    [
        ({"exclusiveMinimum": 0, "maximum": 0.5}, "exclusiveMinimum", 0),
        ({"exclusiveMinimum": 1.0, "exclusiveMaximum": 1.8}, "exclusiveMinimum", 1),
        ({"minimum": -7.5, "exclusiveMaximum": -7}, "exclusiveMaximum", -7),
    ],
)
def test_an_excluded_bound_that_the_runtime_writes_is_refused_or_told(
    schema: dict[str, Any], word: str, bound: int
) -> None:
    """A fault of the library's; all else of the words holds."""
    whole = {"type": "array", "items": {"type": "number", **schema}, "maxItems": 1}
    assert refusal(whole, strict=True).at == f"/items/{word}"
    found = follow(whole)
    assert (found.left_out, found.told) == ((word,), 1)
    assert admits(found, [bound])
    assert not admits(found, [bound + 2])


def test_an_excluded_bound_is_followed_elsewhere() -> None:
    for most in (1, 2.5, 100):
        found = follow({"type": "number", "exclusiveMinimum": 0, "maximum": most}, strict=True)
        assert not admits(found, 0)
        assert admits(found, 1)


def test_numbers_that_the_runtime_finds_are_followed() -> None:
    """Bounds beside ``multipleOf`` that have a multiple in common."""
    step = {"type": "number", "multipleOf": 0.5}
    schema = {"anyOf": [{"$ref": "#/$defs/step", "maximum": 10}, {"type": "null"}]}
    found = follow({**schema, "$defs": {"step": step}}, strict=True)
    assert admits(found, 9.5)
    assert not admits(found, 10.5)


@pytest.mark.parametrize("pattern", ["^a", "b$", "^[a-z]{2}$", "(a+)+b", "\\p{L}", "("])
def test_a_pattern_that_means_a_named_member_is_refused_or_told(pattern: str) -> None:
    """Nor does finding that out take long, whatever the pattern."""
    named = {"ab": {"type": "string"}, "a" * 200 + "!": {"type": "null"}}
    schema = {"properties": named, "patternProperties": {pattern: {"maxLength": 1}}}
    assert refusal(schema, strict=True).at.startswith("/patternProperties/")
    assert follow(schema).left_out == ("patternProperties",)
    apart = {"properties": named, "patternProperties": {"^x": {"maxLength": 1}}}
    assert follow(apart).left_out == ()


def test_what_the_whole_cannot_be_held_to_is_left_out_alone() -> None:
    """Each pattern is fine; that all hold at once is more than llguidance finds out."""
    much = {"allOf": [{"type": "string", "pattern": f".{{{n}}}a.*b"} for n in (7, 11, 13)]}
    schema = {"properties": {"a": much, "b": {"type": "null"}}, "required": ["b"]}
    assert refusal(schema, strict=True).at == "/properties/a"
    found = follow(schema)
    assert found.left_out == ("schema",)
    assert admits(found, {"a": 1, "b": None})
    assert not admits(found, {"a": 1, "b": 1})


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("word", ["properties", "anyOf", "items", "$defs"])
def test_what_is_nested_as_deep_as_it_may_be_is_read_by_the_runtime(
    word: str, strict: bool
) -> None:
    around: dict[str, Callable[[Any], Any]] = {
        "properties": lambda inner: {
            "type": "object",
            "properties": {"a": inner},
            "required": ["a"],
            "additionalProperties": False,
        },
        "anyOf": lambda inner: {"anyOf": [inner, {"type": "null"}]},
        "items": lambda inner: {"type": "array", "items": inner},
        "$defs": lambda inner: {"$defs": {"a": inner}, "$ref": "#/$defs/a"},
    }
    schema: Any = {"type": "array", "const": [[1]]}
    for _ in range(MOST_DEPTH - 2 if word != "$defs" else 1):
        schema = around[word](schema)
    assert follow(schema, strict=strict).left_out == ()
    deeper = {"type": "string"}
    for _ in range(MOST_DEPTH + 1):
        deeper = around["properties"](deeper)
    deeper = around[word](deeper)
    if strict:
        with pytest.raises(SchemaError, match="nested at most"):
            follow(deeper, strict=True)
    else:
        assert follow(deeper).left_out == ("schema",)


def test_a_clients_options_of_the_library_are_without_effect() -> None:
    """SC: ``lenient`` would pass words over in silence, a separator would be no JSON."""
    schema: dict[str, Any] = {
        "type": "array",
        "x-guidance": {"lenient": True, "item_separator": ";"},
    }
    assert json.loads(follow(schema).rule.removeprefix("%json "))["x-guidance"] == {
        "whitespace_flexible": False,
        "lenient": True,
    }
    schema["uniqueItems"] = True
    assert refusal(schema, strict=True).at == "/uniqueItems"


def test_a_verdict_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that comes again costs nothing, one that is refused as little."""
    asked = Counter[str]()
    build = guidance.matcher

    def counted(schema: dict[str, Any], *, strict: bool) -> LLMatcher:
        asked["built"] += 1
        return build(schema, strict=strict)

    monkeypatch.setattr(guidance, "matcher", counted)
    once = {"type": "integer", "title": "asked for by this test alone"}
    assert follow(once) is follow(once)
    assert asked["built"] == 1
    never = {"enum": [], "title": "asked for by this test alone"}
    assert [refusal(never).at for _ in range(2)] == ["/enum", "/enum"]
    assert asked["built"] == 1


# What is not sure of a value.


def test_sc_14_a_name_that_came_twice_is_found() -> None:
    found = follow({"type": "object"})
    assert found.open
    assert found.falls_short('{"its":0,"arguments":1,"its":2}')
    assert found.falls_short('{"a":[{"b":1,"b":1}]}')
    assert not found.falls_short('{"its":0,"arguments":1}')
    assert not follow({"properties": {"a": {}}}).schema.get("patternProperties")
    assert not FREE.falls_short('{"a":1,"a":2}')


@pytest.mark.parametrize(
    ("schema", "reached", "free"),
    [
        ({"type": "string"}, "abcd", "abc"),
        ({"type": "array", "items": {"type": "integer"}}, [1, 2, 3], [1, 2]),
        ({"properties": {"a": {"type": "string"}}}, {"a": "abcd"}, {"a": "abc"}),
        ({"properties": {"a": {"maxLength": 4}}}, {"a": "\U0001f600" * 4}, {"a": "abc"}),
        ({"type": ["string", "null"]}, "abcd", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "abcd", None),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "string"}}}, "abcd", "abc"),
        ({"type": "array", "prefixItems": [{"type": "string"}]}, ["abcd"], ["abc"]),
        ({"type": "object", "additionalProperties": {"type": "string"}}, {"k": "abcd"}, {"k": "a"}),
        ({"type": "object"}, {"a": 1, "b": 2, "c": 3}, {"a": 1}),
    ],
)
def test_sc_16_a_value_that_reached_a_bound_of_ours_is_found(
    schema: Any, reached: Any, free: Any
) -> None:
    found = follow(schema, bounds=Bounds(string=4, items=3))
    for value, short in ((reached, True), (free, False)):
        assert admits(found, value)
        ours = "4" not in json.dumps(schema)
        assert found.falls_short(json.dumps(value)) is (short and ours)


def test_sc_16_what_a_client_bounds_itself_is_whole_at_its_bound() -> None:
    schema = {"properties": {"a": {"type": "string", "maxLength": 4}, "b": {"enum": ["abcd"]}}}
    found = follow(schema, bounds=Bounds(string=4, items=3))
    assert not found.falls_short('{"a":"abcd","b":"abcd"}')


# Whatever is written.


def sampled(found: Followed, rng: random.Random) -> str:
    """A value that the runtime may write, byte by byte, short where that is left to it."""
    given = matcher(found.schema, strict=found.strict)
    text: list[int] = []
    while len(text) < 400:
        mask = given.compute_bitmask()
        open_to = [at for at in range(END + 1) if mask[at // 8] >> (at % 8) & 1]
        if END in open_to and (len(open_to) == 1 or rng.random() < 0.5):
            return bytes(text).decode(errors="surrogateescape")
        ends = [at for at in open_to if at in [*b'"]},']]
        wanted = [at for at in open_to if at != END and 32 <= at < 127 and at != 92]
        chosen = rng.choice(ends if ends and rng.random() < 0.4 else wanted)
        assert given.consume_token(chosen)
        text.append(chosen)
    return ""


def test_what_is_sampled_satisfies_a_strict_schema() -> None:
    """And else what is left of it: of these schemas, everything."""
    rng = random.Random(0)
    found = 0
    for case in json.loads((HERE / "schema_suite.json").read_text()):
        try:
            strict = follow(case["schema"], strict=True)
        except SchemaError:
            continue
        for _ in range(40):
            if text := sampled(strict, rng):
                found += 1
                Draft202012Validator(_in_draft_2020_12(case["schema"])).validate(json.loads(text))
    assert found > 200


def _in_draft_2020_12(schema: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(schema.get("items"), list):
        return schema
    return {"prefixItems": schema["items"], "items": schema["additionalItems"]}


# The two runs.


def cases(folder: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas of a suite with their instances; of ours where none is named."""
    paths = sorted(Path(folder).glob("*.json")) if folder else [HERE / "schema_suite.json"]
    assert paths, f"no files in {folder}"
    for path in paths:
        for case in json.loads(path.read_text()):
            yield path.name, case


def test_no_schema_that_is_accepted_as_strict_admits_what_is_invalid(
    pytestconfig: pytest.Config,
) -> None:
    """The mandatory part of JSON-Schema-Test-Suite, or a part of our own."""
    counted = Counter[str]()
    wrong: list[str] = []
    for file, case in cases(pytestconfig.getoption("--schema-suite")):
        counted["schemas"] += 1
        try:
            found = follow(case["schema"], strict=True)
        except SchemaError:
            counted["refused"] += 1
            continue
        for each in case["tests"]:
            admitted = admits(found, each["data"])
            kind = "valid" if each["valid"] else "invalid"
            counted[kind] += 1
            counted[f"{kind} and admitted"] += admitted
            if admitted and not each["valid"]:
                wrong.append(f"{file}: {case['description']}: {each['description']}")
    print(f"\nstrict: {dict(counted)}")
    assert not wrong
    # Some are refused, and of what is not, enough was tried.
    assert 0 < counted["refused"] < counted["schemas"]
    assert counted["invalid"] > 0 < counted["valid and admitted"]


def test_schemas_of_tools_are_accepted_where_they_are_not_strict(
    pytestconfig: pytest.Config,
) -> None:
    path = pytestconfig.getoption("--tool-schemas") or HERE / "tool_schemas.json"
    schemas = json.loads(Path(path).read_text())
    refused: list[str] = []
    words = Counter[str]()
    for at, schema in enumerate(schemas):
        try:
            words.update(follow(schema, function=True).left_out)
        except SchemaError as error:
            refused.append(f"{at}: {error.at}: {error.why}")
    print(f"\ntools: {len(schemas) - len(refused)} of {len(schemas)}; left out: {dict(words)}")
    assert len(refused) <= len(schemas) * 0.03, refused
