"""The words of the glossary are used, and those that they replaced are gone."""

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
GLOSSARY: Final = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
FOLDERS: Final = ("client", "docs", "examples", "protos", "server", "tests")
KINDS: Final = frozenset({".py", ".pyi", ".proto", ".md"})
SKIPPED: Final = frozenset({"node_modules", "__pycache__"})

TEXTS: Final = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for start in (*(ROOT / folder for folder in FOLDERS), ROOT / "README.md")
    for path in (start.rglob("*") if start.is_dir() else (start,))
    if path.suffix in KINDS and "_pb2" not in path.name and SKIPPED.isdisjoint(path.parts)
    if path != Path(__file__)
}

CLASSES: Final = (
    "Line", "LineRuntime", "Segment", "Tip", "KeptTurns?", "Recall", "Recollection",
    "FieldMemory", "Memory", "Home", "Alone", "Neighbou?r\\w*", "Link", "Places", "Nursery",
    "Nurse", "Post", "WorkerPost", "Door", "GrpcDoor", "HttpDoor", "Pulse", "Standing",
    "Succession", "Tally", "Marks", "Seat",
)  # fmt: skip
CLASS: Final = re.compile(rf"^ *class ({'|'.join(CLASSES)})\b", re.MULTILINE)

MODULE: Final = re.compile(
    r"(?:^|/)(line|tip|segment|kept|recall|recollection|neighbou?r\w*|homes?|nursery|nurse|board"
    r"|places|pulse|standing|succession|tally|marks|settling|ending|intake|booking|pretouch)\.py$"
)

PROSE: Final = re.compile(
    r"\b(neighbou?r(?:hood)?s?|nurser(?:y|ies)|nurses?|recollections?|tips?|kept turns?|circles?"
    r"|pulses?|doors?|tall(?:y|ies)|LineRuntime)\b",
    re.IGNORECASE,
)

ALLOWED_ANYWHERE: Final = frozenset({"tip", "tips"})
"""The name of a variable still, for a chain's last node. This may only get shorter."""

ALLOWED: Final = {
    # Neighbours in a text or in time are the plain word.
    "client/tieline_bench/turns.py": frozenset({"neighbour"}),
    "protos/tieline/codecs/json.py": frozenset({"neighbours"}),
    "server/tieline_server/engines/chat_format/syntax/learned.py": frozenset({"neighbours"}),
    "tests/server/storage/sql/test_killed.py": frozenset({"neighbour"}),
    # Of imports and of schemas.
    "tests/packaging/test_cycles.py": frozenset({"circle"}),
    "tests/server/engines/chat_format/test_parameters.py": frozenset({"circle"}),
    # A slot of the model as it is given to a turn.
    "server/tieline_server/engines/llama/slots.py": frozenset({"seat"}),
    # What a test adds up.
    "tests/properties/test_guards.py": frozenset({"tally"}),
    "tests/server/guards/test_output.py": frozenset({"tally"}),
}
"""File -> other words that it may still have. This may only get shorter."""


def left_over(pattern: re.Pattern[str], text: str) -> set[str]:
    """The words of ``pattern`` in a text, small letters throughout."""
    return {found.lower() for found in pattern.findall(text)}


LEFT: Final = {
    path: words
    for path, text in TEXTS.items()
    if (words := left_over(CLASS, text) | left_over(PROSE, text))
}


def test_the_private_words_are_gone() -> None:
    more = {
        path: sorted(words - ALLOWED_ANYWHERE - ALLOWED.get(path, frozenset()))
        for path, words in LEFT.items()
    }

    assert {path: words for path, words in more.items() if words} == {}


def test_what_is_allowed_is_still_there() -> None:
    gone = {path: sorted(words - LEFT.get(path, set())) for path, words in ALLOWED.items()}

    assert {path: words for path, words in gone.items() if words} == {}
    assert frozenset().union(*LEFT.values()) >= ALLOWED_ANYWHERE


def test_no_module_has_a_private_name() -> None:
    assert [path for path in TEXTS if MODULE.search(path)] == []


def test_each_class_of_the_glossary_is_in_the_code() -> None:
    named = re.findall(r"\(`([A-Z]\w+)`\)", GLOSSARY)
    code = "\n".join(text for path, text in TEXTS.items() if path.endswith(".py"))

    assert len(named) > 8
    assert [name for name in named if not re.search(rf"^class {name}\b", code, re.MULTILINE)] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("class Line:", {"line"}),
        ("class LineReader:", set()),
        ("the neighbour's nursery", {"neighbour", "nursery"}),
        ("a line of text", set()),
    ],
)
def test_a_private_word_is_told_from_others(text: str, words: set[str]) -> None:
    assert left_over(CLASS, text) | left_over(PROSE, text) == words
