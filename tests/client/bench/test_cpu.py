"""CPU time of another process, from /proc."""

import subprocess
import sys

import pytest

from tieline_client.bench.cpu import AFTER, CpuMeter

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


def test_what_a_process_does_a_moment_after_its_turn_counts_too() -> None:
    late = f"import time\nprint(1, flush=True)\ntime.sleep({AFTER / 2})\n"
    late += "end = time.thread_time() + 0.02\nwhile time.thread_time() < end: pass\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", late], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        meter = CpuMeter(process.pid)
        assert process.stdout.readline() == "1\n"
        before = meter.settled()
        assert meter.rested() - before >= 20_000_000 * 0.9
        process.communicate("\n")


def test_a_process_that_is_gone_is_an_error() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    with pytest.raises(ProcessLookupError):
        CpuMeter(process.pid).read()
