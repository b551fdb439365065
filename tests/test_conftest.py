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
    # Held until the client is connected: a server that is let go closes.
    server = await asyncio.start_unix_server(lambda reader, writer: reader.read(), folder / "s")
    leave.open = await asyncio.open_unix_connection(folder / "s")
    del server

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

ASYNC_TESTS = """
import asyncio
import pytest
from hypothesis import given, settings, strategies as st
from tests.support import loop

loop.LIMIT = 0.5
drawn = []

async def test_passes(tmp_path):
    await asyncio.sleep(0)

async def test_fails():
    await asyncio.sleep(0)
    assert not "this is reached"

async def test_hangs():
    await asyncio.Event().wait()

async def test_leaves_a_task_of_the_product():
    names = {"__name__": "tieline_server.example", "asyncio": asyncio}
    exec("async def left_running(): await asyncio.Event().wait()", names)
    test_leaves_a_task_of_the_product.task = asyncio.create_task(names["left_running"]())

async def wait():
    await asyncio.Event().wait()

async def test_leaves_a_task_of_its_own():
    test_leaves_a_task_of_its_own.task = asyncio.create_task(wait())

@pytest.mark.parametrize("least", [0, 1])
@given(number=st.integers(0, 9))
async def test_is_given_examples(least, number):
    await asyncio.sleep(0)
    drawn.append(number)

def test_has_been_given_examples():
    assert len(set(drawn)) == 10

@given(number=st.integers(0, 9))
async def test_fails_for_an_example(number):
    await asyncio.sleep(0)
    assert number < 5
"""


def outcome(path: Path, source: str) -> str:
    """What pytest prints of a file of tests that is run as the whole suite is."""
    path.write_text(source)
    words = ["-m", "pytest", "-q", "-rA", "-p", "tests.conftest", "-c", "pyproject.toml", str(path)]
    done = subprocess.run(
        [sys.executable, *words, "-o", f"faulthandler_timeout={PATIENCE}"],
        cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE, check=False,
    )  # fmt: skip
    return done.stdout


def test_what_leaves_a_connection_open_fails_and_does_not_hang(tmp_path: Path) -> None:
    printed = outcome(tmp_path / "test_open.py", LEAVES_OPEN)
    assert "left open when its loop was closed: unclosed resource <Unix" in printed
    assert "1 failed, 1 passed, 1 error" in printed


def test_async_tests_run_to_their_end_and_fail_by_name(tmp_path: Path) -> None:
    printed = outcome(tmp_path / "test_async.py", ASYNC_TESTS)
    summary = [row for row in printed.splitlines() if row.startswith(("PASSED", "FAILED"))]
    rows = {row.partition("::")[2].partition(" ")[0]: row for row in summary}
    failed = {name for name, row in rows.items() if row.startswith("FAILED")}
    assert failed == {
        "test_fails",
        "test_hangs",
        "test_leaves_a_task_of_the_product",
        "test_fails_for_an_example",
    }
    assert "this is reached" in rows["test_fails"]
    assert "TimeoutError" in rows["test_hangs"]
    assert "tasks outlived the test: [<Task" in printed
    assert "left_running" in printed.partition("tasks outlived the test: ")[2]
    assert "number=5" in printed
    assert "4 failed, 5 passed" in printed
