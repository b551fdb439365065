"""What the documents tell a reader to run exists."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MAKE = re.compile(r"(?:^|`|&& )make ([a-z][a-z-]*)\b", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
COMMAND = re.compile(r"\b(tieline-server|tieline)((?: [^\n`|;&]+)?)")


def blocks(document: Path, *languages: str) -> Iterator[str]:
    for language, body in FENCE.findall(document.read_text()):
        if language in languages:
            yield body


def verbs() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_make_verb_in_a_document_is_in_the_makefile(document: Path) -> None:
    assert set(MAKE.findall(document.read_text())) <= verbs()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_to_a_file_leads_somewhere(document: Path) -> None:
    links = LINK.findall(document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_in_a_document_compiles_and_its_imports_of_ours_exist(document: Path) -> None:
    for body in blocks(document, "python"):
        for node in ast.walk(ast.parse(body)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tieline"):
                module = importlib.import_module(str(node.module))
                assert [name.name for name in node.names if not hasattr(module, name.name)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_option_of_our_commands_in_a_document_is_one_that_they_have(document: Path) -> None:
    for body in blocks(document, "sh", "shell", "bash", "console"):
        for command, arguments in COMMAND.findall(body.replace("\\\n", " ")):
            words = arguments.split()
            options = {word.split("=")[0] for word in words if word.startswith("--")}
            if options:
                assert options <= options_of(command, words)


def options_of(command: str, words: list[str]) -> set[str]:
    """What `--help` lists, asked of the sub-command where the words begin with one."""
    subcommand = [words[0]] if re.fullmatch(r"[a-z]+", words[0]) else []
    done = subprocess.run(
        [str(Path(sys.executable).parent / command), *subcommand, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"COLUMNS": "200", "NO_COLOR": "1", "PATH": "/usr/bin:/bin"},
    )
    return set(re.findall(r"--[a-z][a-z0-9-]*", done.stdout))
