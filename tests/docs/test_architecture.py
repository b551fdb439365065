"""The map of the code names what is there, and its picture is what its source gives."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
PAGE: Final = (DOCS / "architecture.md").read_text(encoding="utf-8")
CODE: Final = "\n".join(
    path.read_text(encoding="utf-8")
    for folder in ("protos/tieline", "server/tieline_server")
    for path in (ROOT / folder).rglob("*.py")
)

PATH: Final = re.compile(r"`((?:protos|server|client|tests|core|docs)/[\w./]+)`")
METHOD: Final = re.compile(r"`([A-Z]\w+)\.(\w+)`")


def named(page: str) -> set[str]:
    """The files and folders of a page; what begins with ``core/`` is the server's."""
    return {re.sub(r"^core/", "server/tieline_server/core/", path) for path in PATH.findall(page)}


def test_each_file_that_the_architecture_names_is_there() -> None:
    paths = named(PAGE)

    assert len(paths) > 40
    assert not sorted(path for path in paths if not (ROOT / path).exists())


def test_each_method_that_the_architecture_names_is_there() -> None:
    methods = METHOD.findall(PAGE)

    assert len(methods) > 15
    missing = [
        f"{owner}.{name}"
        for owner, name in methods
        if not re.search(rf"^class {owner}\b", CODE, re.MULTILINE)
        or not re.search(rf"^    (?:async )?def {name}\b", CODE, re.MULTILINE)
    ]
    assert not missing


def test_the_architecture_is_short() -> None:
    assert PAGE.count("\n") < 250


def test_each_room_of_the_server_is_in_the_table() -> None:
    server = ROOT / "server/tieline_server"
    rooms = {path.parent.name for path in server.glob("*/__init__.py")}

    assert rooms
    assert not sorted(room for room in rooms if f"| `server/tieline_server/{room}` " not in PAGE)


def test_the_picture_is_what_its_source_gives() -> None:
    done = subprocess.run(
        [sys.executable, str(DOCS / "architecture_picture.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ("`core/tables.py`", {"server/tieline_server/core/tables.py"}),
        ("`server/gone.py` and `Lanes.admit`", {"server/gone.py"}),
        ("core/tables.py", set()),
    ],
)
def test_paths_are_found_between_backticks(page: str, found: set[str]) -> None:
    assert named(page) == found
