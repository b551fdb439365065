"""CPU time of another process, from /proc."""

import subprocess
import sys
import time

import pytest

from tieline_bench.cpu import AFTER, CpuMeter

WORKS = """
import threading, time
def work():
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        pass
    print("worked", flush=True)
    let_go.wait()
let_go = threading.Event()
thread = threading.Thread(target=work)
input()
thread.start()
input()
let_go.set()
thread.join()
print("ended", flush=True)
input()
"""
WORK_NS = 50_000_000


def test_all_threads_count_also_one_that_has_ended() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def tell_and_hear() -> str:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            return process.stdout.readline()

        meter = CpuMeter(process.pid)
        before = meter.settled()
        assert tell_and_hear() == "worked\n"
        assert meter.settled() - before >= WORK_NS * 0.9
        assert tell_and_hear() == "ended\n"
        assert meter.settled() - before >= WORK_NS * 0.9
        process.communicate("\n")
    assert process.returncode == 0


def test_what_a_process_does_in_the_moment_after_its_turn_counts_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        meter = CpuMeter(process.pid)
        before = meter.settled()

        def sleep(seconds: float) -> None:
            if seconds == AFTER:
                process.stdin.write("\n")  # type: ignore[union-attr]
                process.stdin.flush()  # type: ignore[union-attr]
                assert process.stdout.readline() == "worked\n"  # type: ignore[union-attr]

        monkeypatch.setattr(time, "sleep", sleep)
        assert meter.rested() - before >= WORK_NS * 0.9
        monkeypatch.undo()
        process.communicate("\n\n")


def test_a_process_that_is_gone_is_an_error() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    with pytest.raises(ProcessLookupError):
        CpuMeter(process.pid).read()
