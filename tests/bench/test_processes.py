"""Servers as processes: where they listen, what they say when they do not start."""

from pathlib import Path

import pytest

from tieline_bench import workload
from tieline_bench.processes import StartError, bare, product


def test_a_server_says_where_it_listens_and_is_gone_afterwards(tmp_path: Path) -> None:
    with product(workload.write(tmp_path, tokens=1), merge="never") as server:
        assert Path(f"/proc/{server.pid}").exists()
        address = server.address(workload.GRPC)
        assert address is not None
        assert address.startswith("127.0.0.1:")
    assert not Path(f"/proc/{server.pid}").exists()


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    files = workload.Files(tmp_path / "none.json", tmp_path / "none.toml")
    with pytest.raises(StartError, match=r"none\.(json|toml)"), product(files, merge="never"):
        pass


def test_a_bare_server_needs_its_bytes(tmp_path: Path) -> None:
    bytes_missing = bare(workload.GRPC, tmp_path, mode="turns", tokens=1, rate=1)
    with pytest.raises(StartError, match=r"turn\.bin"), bytes_missing:
        pass
