"""Streams of tokens on the real server and on the bare one."""

from pathlib import Path

from tieline_bench import workload
from tieline_bench.processes import product
from tieline_bench.tokens import Run, late, token_costs
from tieline_bench.turns import record

TOKENS = 40


def test_every_token_comes_from_both_servers(tmp_path: Path) -> None:
    files = workload.write(tmp_path, tokens=TOKENS)
    with product(files, merge="never") as server:
        record(workload.GRPC, server, tmp_path)
        streams = token_costs(workload.GRPC, server, tmp_path, rounds=1, tokens=TOKENS)
    for runs in streams:
        (run,) = runs
        assert run.lost == 0
        assert run.us_a_token > 0
        assert len(run.late_us) == workload.STREAMS * TOKENS
        assert min(run.late_us) >= 0
        assert run.busy > 0


def test_lateness_is_taken_over_all_rounds() -> None:
    runs = [Run(1.0, 0, [5.0, 1.0], 0.5), Run(1.0, 0, [9.0], 0.5)]
    assert late(runs, 0.5) == 5.0
    assert late(runs, 1.0) == 9.0
