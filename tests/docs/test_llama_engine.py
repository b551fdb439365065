"""What docs/llama-engine.md says of the embedded engine is what the code has."""

import re
from pathlib import Path

import pytest

from tieline_server.engines.chat_format import json_schema
from tieline_server.engines.chat_format.constrain import MAX_CALLS, MOST_COST
from tieline_server.engines.chat_format.guidance import followed
from tieline_server.engines.chat_format.schema_parts import KNOWN, SchemaError
from tieline_server.engines.llama.engine import MAX_CONTEXT, RAMBLING, SLOTS
from tieline_server.engines.llama.runtime import BATCH

PAGE = (Path(__file__).parents[2] / "docs/llama-engine.md").read_text(encoding="utf-8")
NUMBERS = {4: "four", 6: "six"}


def test_numbers_of_the_page_are_those_of_the_code() -> None:
    assert f"{NUMBERS[SLOTS].capitalize()} answers are sampled side by side" in PAGE
    assert f"({MAX_CONTEXT:,} tokens" in PAGE
    assert f"the batch of {BATCH} prompt tokens" in PAGE
    assert f"one to {NUMBERS[MAX_CALLS]} calls" in PAGE
    assert f"They are {RAMBLING.string} and {RAMBLING.items} with the packaged model" in PAGE


def test_what_schemas_may_cost_is_what_the_page_says() -> None:
    assert MOST_COST == 16
    for said in (
        f"{json_schema.MOST_NODES:,} schemas in it, nested {json_schema.MOST_DEPTH} deep",
        f"{json_schema.MOST_VALUES // 1024} KiB of values",
        f"items and members counted up to {json_schema.MOST_ITEMS:,}",
        f"patterns of {json_schema.LONGEST_PATTERN:,} characters "
        f"({json_schema.MOST_PATTERNS:,} in all, {json_schema.MOST_NAMES_BY_PATTERN} of them",
        f"a `multipleOf` of {json_schema.MOST_STEPS:,} steps",
        "as much as sixteen schemas",
    ):
        assert said in PAGE


def test_words_and_formats_that_are_followed_are_named() -> None:
    [row] = re.findall(r"^\| followed \| (.*) \|$", PAGE, re.MULTILINE)
    unnamed = {"additionalItems", "exclusiveMinimum", "exclusiveMaximum"}
    assert set(re.findall(r"`([A-Za-z$]+)`", row)) == (KNOWN - unnamed) | {
        "$anchor",
        "true",
        "false",
    }
    [formats] = re.findall(r"`format` \(([^)]+)\)", row)
    for name in formats.split(", "):
        assert followed(b'{"type":"string","format":"%b"}' % name.encode(), strict=True)


def test_words_that_are_passed_over_are_refused_where_strict() -> None:
    [row] = re.findall(r"^\| passed over, or refused where strict \| (.*) \|$", PAGE, re.MULTILINE)
    [words] = re.findall(r"all other words \(([^)]+)\)", row)
    for word in re.findall(r"`([^`]+)`", words):
        raw = b'{"type":"null","%b":[]}' % word.encode()
        assert followed(raw).left_out == (word,)
        with pytest.raises(SchemaError):
            followed(raw, strict=True)
