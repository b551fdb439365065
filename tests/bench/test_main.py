"""``python -m tieline_bench``: its arguments, before anything is measured."""

import subprocess
import sys

import pytest

from tieline_bench import __main__


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tieline_bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_help_names_the_benchmark_and_both_options() -> None:
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("limits", "warm", "upstream", "peer", "--quick", "--json"):
        assert word in done.stdout


@pytest.mark.parametrize("arguments", [("speed",), ("limits", "--slow"), ("limits", "more")])
def test_what_it_does_not_know_is_wrong_usage(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "tieline-bench: error: " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "name", "as_json"),
    [
        ([], "limits", False),
        (["limits"], "limits", False),
        (["--quick"], "limits", False),
        (["limits", "--quick", "--json"], "limits", True),
        (["upstream"], "upstream", False),
        (["warm"], "warm", False),
        (["peer", "--json"], "peer", True),
    ],
)
@pytest.mark.parametrize("status", [0, 1, 2])
def test_the_benchmark_decides_the_exit_status(
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    name: str,
    as_json: bool,
    status: int,
) -> None:
    asked: list[tuple[str, bool]] = []

    def run(name: str, *, as_json: bool) -> int:
        asked.append((name, as_json))
        return status

    monkeypatch.setattr(__main__, "run", run)
    monkeypatch.setattr(sys, "argv", ["tieline-bench", *arguments])
    assert __main__.main() == status
    assert asked == [(name, as_json)]
