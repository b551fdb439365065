"""The Makefile's first steps on a machine that has nothing of ours."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.packaging.artifacts import ROOT


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "Makefile").write_text((ROOT / "Makefile").read_text())
    return subprocess.run(
        ["make", *arguments],
        cwd=folder,
        # Without the variables by which `make test` would speak to a make below it.
        env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def interpreter(folder: Path, body: str) -> str:
    """Stand in for a machine's python3: a shell script that sees the arguments."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return f"PYTHON={path}"


def errors(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What make itself does not add."""
    return [line for line in done.stderr.splitlines() if not line.startswith("make: ")]


def test_make_alone_lists_every_verb(tmp_path: Path) -> None:
    verbs = re.findall(r"^\.PHONY: (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    listed = re.findall(r"^  (\S+) +\S", make(tmp_path).stdout, re.MULTILINE)
    assert {"demo", "test", "check"} <= set(verbs)
    assert sorted(listed) == sorted(verbs)


def test_a_python_that_is_too_old_is_said_in_one_line(tmp_path: Path) -> None:
    done = make(tmp_path, "test", interpreter(tmp_path, "exit 1"))
    assert done.returncode != 0
    (line,) = errors(done)
    assert "3.11" in line


@pytest.mark.parametrize(
    ("fails", "packages"),
    [("ensurepip", "python3-venv"), ("libgomp", "libgomp1"), ("import", "python3-venv libgomp1")],
)
def test_what_the_machine_lacks_is_said_in_one_line_with_the_command(
    fails: str, packages: str, tmp_path: Path
) -> None:
    lacking = f'case "$*" in *version_info*) ;; *{fails}*) exit 1;; esac'
    done = make(tmp_path, "demo", interpreter(tmp_path, lacking))
    assert done.returncode != 0
    (line,) = errors(done)
    assert line.endswith(f"apt-get install -y {packages}")
