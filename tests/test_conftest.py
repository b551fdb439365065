"""What the whole suite promises of each of its tests."""

import subprocess
import sys
from pathlib import Path

from tests.support.process_state import PATIENCE

ROOT = Path(__file__).parents[1]

LEAVES_OPEN = """
import asyncio
import pytest
import uvloop

async def leave(folder):
    await asyncio.start_unix_server(lambda reader, writer: reader.read(), folder / "s")
    leave.open = await asyncio.open_unix_connection(folder / "s")

def test_leaves_a_connection_open(tmp_path):
    uvloop.run(leave(tmp_path))

@pytest.fixture
def left(tmp_path):
    uvloop.run(leave(tmp_path))

def test_has_a_fixture_that_leaves_one_open(left):
    pass

def test_leaves_nothing_open():
    uvloop.run(asyncio.sleep(0))
"""


def test_what_leaves_a_connection_open_fails_and_does_not_hang(tmp_path: Path) -> None:
    (tmp_path / "test_open.py").write_text(LEAVES_OPEN)
    words = ["-m", "pytest", "-q", "-p", "tests.conftest", "-c", "pyproject.toml", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, *words, "-o", f"faulthandler_timeout={PATIENCE}"],
        cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE, check=False,
    )  # fmt: skip
    assert "left open when its loop was closed: unclosed resource <Unix" in done.stdout
    assert "1 failed, 1 passed, 1 error" in done.stdout
