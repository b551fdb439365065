"""Which process lives: real ones, that end as processes do."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.support.database import made, rows
from tieline_server.storage.sql import processes as processes
from tieline_server.storage.sql.processes import BEAT, DEAD, SLEPT, Others, Watch, identity, lives

CHILD = """
from tieline_server.storage.sql.processes import identity
print(identity(), flush=True)
input()
"""


@contextmanager
def child() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that has said its name and waits."""
    made = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert made.stdout is not None
        yield made, made.stdout.readline().strip()
    finally:
        made.kill()
        made.communicate()


def test_a_process_names_itself_and_lives() -> None:
    names = {identity() for _ in range(3)}
    assert len(names) == 3
    assert [lives(name) for name in names] == [True] * 3


def test_a_process_that_was_killed_is_dead_at_once_whether_or_not_its_parent_asked() -> None:
    with child() as (made, name):
        assert lives(name) is True
        made.send_signal(signal.SIGKILL)
        # It has ended, and nobody has asked for its status: the system still lists it.
        os.waitid(os.P_PID, made.pid, os.WEXITED | os.WNOWAIT)
        assert lives(name) is False
        made.wait()
        assert lives(name) is False


def test_a_process_that_was_given_the_number_of_a_dead_one_is_another() -> None:
    boot, namespace, pid, started, token = identity().split(".")
    assert lives(".".join((boot, namespace, pid, str(int(started) - 1), token))) is False


def test_of_another_machine_boot_or_namespace_nothing_can_be_told() -> None:
    boot, namespace, pid, started, token = identity().split(".")
    for name in (
        ".".join(("another-boot", namespace, pid, started, token)),
        ".".join((boot, "1", pid, started, token)),
        ".".join((boot, namespace, "x", started, token)),
        ".".join((boot, namespace, pid, "-", token)),
        "two",
        "",
        "a.b.c.d.e",
    ):
        assert lives(name) is None


def test_where_the_system_tells_nothing_of_processes_beats_must_tell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = identity()
    monkeypatch.setattr(processes, "PROC", tmp_path)
    assert lives(name) is None
    assert lives(identity()) is None


def test_a_process_that_the_system_hides_is_not_called_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = identity()

    def refuse(pid: int, signal_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(processes, "_stat", lambda pid: [])
    monkeypatch.setattr(os, "kill", refuse)
    assert lives(name) is None


def test_silence_counts_from_when_it_was_first_seen() -> None:
    watch = Watch()
    for at in range(0, 15, 5):
        watch.look({"two": 100.0}, float(at))
        assert not watch.silent("two", 100.0)
    watch.look({"two": 100.0}, DEAD)
    assert watch.silent("two", 100.0)
    assert not watch.silent("two", 101.0), "it has beaten since the look"
    assert not watch.silent("three", None)
    watch.look({"two": 99.0}, DEAD + BEAT)
    assert not watch.silent("two", 99.0), "a clock may be set back; a beat is a beat"


def test_a_process_that_never_beat_is_silent_too() -> None:
    watch = Watch()
    for at in range(0, 20, 5):
        watch.look({"two": None}, float(at))
    assert watch.silent("two", None)


@pytest.mark.parametrize("trouble", ["blinked", "slept"])
def test_who_could_not_look_begins_anew(trouble: str) -> None:
    watch = Watch()
    for at in range(0, 15, 5):
        watch.look({"two": 100.0}, float(at))
    if trouble == "blinked":
        watch.blink()
    later = 15.0 if trouble == "blinked" else 10.0 + SLEPT + 1
    watch.look({"two": 100.0}, later)
    assert not watch.silent("two", 100.0)


def test_what_can_be_told_at_once_needs_no_beats_and_nobody_calls_himself_dead() -> None:
    others = Others("one", {"one": False, "two": True, "three": False}.get)
    for at in range(0, 20, 5):
        others.watch.look(dict.fromkeys(("one", "two", "three", "four"), 1.0), float(at))
    judged = {name: others.dead(name, 1.0) for name in ("one", "two", "three", "four")}
    assert judged == {"one": False, "two": False, "three": True, "four": True}


async def test_a_beat_takes_the_place_of_the_last_one(address: str) -> None:
    beats = (("one", 1.0), ("one", 2.0), ("two", 3.0))
    await made(address, *(partial(processes.beat, process=name, now=at) for name, at in beats))
    found = await rows(address, "SELECT id, seen_at FROM processes ORDER BY id")
    assert found == [("one", 2.0), ("two", 3.0)]


@pytest.mark.parametrize("dead", [True, False])
async def test_a_process_is_dead_by_the_beat_that_a_transaction_sees(
    address: str, dead: bool
) -> None:
    others = Others("two", lambda process: None)
    for at in (0.0, 5.0, 10.0, 15.0):
        others.watch.look({"one": 1.0}, at)
    await made(address, partial(processes.beat, process="one", now=1.0 if dead else 2.0))
    assert await made(address, partial(processes.is_dead, others=others, process="one")) == [dead]
