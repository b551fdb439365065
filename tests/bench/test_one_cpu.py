"""Pinning to one CPU: whom it binds, and that it ends."""

import os
from pathlib import Path

import pytest

from tieline_bench import workload
from tieline_bench.one_cpu import on_one_cpu
from tieline_bench.processes import product


def test_the_caller_is_bound_to_a_cpu_of_its_own_and_gets_all_back_also_after_an_error() -> None:
    allowed = os.sched_getaffinity(0)

    def fail() -> None:
        with on_one_cpu() as cpu:
            assert os.sched_getaffinity(0) == {cpu}
            assert cpu in allowed
            raise RuntimeError("measured")

    with pytest.raises(RuntimeError, match="measured"):
        fail()
    assert os.sched_getaffinity(0) == allowed


def test_every_thread_of_a_server_that_is_started_meanwhile_is_bound(tmp_path: Path) -> None:
    files = workload.write(tmp_path, tokens=1)
    with on_one_cpu() as cpu, product(files, merge="never") as server:
        threads = os.listdir(f"/proc/{server.pid}/task")
        assert len(threads) > 1
        assert [os.sched_getaffinity(int(thread)) for thread in threads] == [{cpu}] * len(threads)
