"""What docs/llama-engine.md says of the embedded engine is what the code has."""

from pathlib import Path

from tieline_server.engines.chat_format.bounded_schema import (
    MAX_ITEMS,
    MAX_STRING,
    PASSED_OVER,
    STEP,
)
from tieline_server.engines.chat_format.constrain import MAX_CALLS
from tieline_server.engines.llama.engine import MAX_CONTEXT, SLOTS
from tieline_server.engines.llama.runtime import BATCH

PAGE = (Path(__file__).parents[2] / "docs/llama-engine.md").read_text(encoding="utf-8")
NUMBERS = {4: "four", 6: "six"}


def test_numbers_of_the_page_are_those_of_the_code() -> None:
    assert f"{NUMBERS[SLOTS].capitalize()} answers are sampled side by side" in PAGE
    assert f"({MAX_CONTEXT:,} tokens" in PAGE
    assert f"the batch of {BATCH} prompt tokens" in PAGE
    assert f"one to {NUMBERS[MAX_CALLS]} calls" in PAGE
    digits = NUMBERS[len(f"{STEP:f}".partition(".")[2])]
    bounds = f"a string {MAX_STRING} characters, an array {MAX_ITEMS} items"
    assert f"({bounds}, a number {digits} digits of fraction)" in PAGE


def test_words_that_no_grammar_has_are_named() -> None:
    named = [word for word in PASSED_OVER if not word.startswith("dependent")]
    assert all(f"`{word}`" in PAGE for word in named)
