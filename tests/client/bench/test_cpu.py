"""CPU time of another process, from /proc."""

import subprocess
import sys

import pytest

from tieline_client.bench.cpu import CpuMeter

WORKS = """
import threading, time
def work():
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        pass
thread = threading.Thread(target=work)
input()
thread.start()
thread.join()
print("done", flush=True)
input()
"""


def test_all_threads_count_also_one_that_has_ended() -> None:
    command = [sys.executable, "-c", WORKS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        meter = CpuMeter(process.pid)
        before = meter.settled()
        process.stdin.write("\n")
        process.stdin.flush()
        while (used := meter.read() - before) < 25_000_000:
            pass
        assert process.stdout.readline() == "done\n"
        # Half of its work was seen while the thread lived, so its end takes nothing back.
        assert meter.settled() - before >= used
        process.stdin.write("\n")
    assert process.returncode == 0


def test_a_process_that_is_gone_is_an_error() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    with pytest.raises(ProcessLookupError):
        CpuMeter(process.pid).read()
