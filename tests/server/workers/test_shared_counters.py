"""Caps that several processes count together."""

import subprocess
import sys
from pathlib import Path

from tieline_server.workers.shared_counters import SharedCapacity, SharedCounters

TAKER = """
import sys
from pathlib import Path
from tieline_server.workers.shared_counters import SharedCounters, SharedCapacity
row = int(sys.argv[2])
capacity = SharedCapacity(SharedCounters.open(Path(sys.argv[1])), row=row, cap="calls", most=5000)
got = sum(capacity.take() for _ in range(4000))
for _ in range(got // 2):
    capacity.give_back()
print(got, flush=True)
"""
"""Takes as many as it can, and gives half of them back."""


def test_no_more_than_there_are_can_be_taken_by_all_together(tmp_path: Path) -> None:
    counters = SharedCounters.make(tmp_path / "counters", rows=2)
    one, other = (SharedCapacity(counters, row=row, cap="connections", most=3) for row in (0, 1))
    assert [one.take(), other.take(), one.take(), other.take(), one.take()] == [
        True,
        True,
        True,
        False,
        False,
    ]
    other.give_back()
    assert [one.take(), one.take()] == [True, False]
    counters.close()


def test_each_cap_is_counted_by_itself(tmp_path: Path) -> None:
    counters = SharedCounters.make(tmp_path / "counters", rows=2)
    connections, calls = (
        SharedCapacity(counters, row=1, cap=cap, most=1) for cap in ("connections", "calls")
    )
    assert [connections.take(), calls.take(), calls.take()] == [True, True, False]
    counters.close()


def test_what_a_worker_had_is_free_once_its_row_is_cleared(tmp_path: Path) -> None:
    counters = SharedCounters.make(tmp_path / "counters", rows=2)
    dead, alive = (SharedCapacity(counters, row=row, cap="calls", most=3) for row in (0, 1))
    assert [dead.take(), dead.take(), alive.take(), alive.take()] == [True, True, True, False]
    counters.clear(0)
    assert [alive.take(), alive.take(), alive.take()] == [True, True, False]
    counters.close()


def test_processes_that_count_at_once_lose_none_and_take_none_too_many(tmp_path: Path) -> None:
    path = tmp_path / "counters"
    counters = SharedCounters.make(path, rows=4)
    takers = [
        subprocess.Popen(
            [sys.executable, "-c", TAKER, str(path), str(row)], stdout=subprocess.PIPE, text=True
        )
        for row in range(3)
    ]
    got = [int(taker.communicate(timeout=60)[0]) for taker in takers]
    left = sum(each - each // 2 for each in got)
    rest = SharedCapacity(counters, row=3, cap="calls", most=5000)
    assert sum(rest.take() for _ in range(6000)) == 5000 - left
    counters.close()
