"""``tieline bench``: a group of its own in the command."""

import sys

import pytest

from tieline_bench import command
from tieline_client import cli

NAMES = list(command.BENCHMARKS)


class Command:
    """The command, run in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._patch = monkeypatch
        self.out = ""
        self.err = ""

    def __call__(self, *arguments: str) -> int:
        self._patch.setattr(sys, "argv", ["tieline", "bench", *arguments])
        status = cli.main()
        self.out, self.err = self._capsys.readouterr()
        return status


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


def test_without_a_name_it_says_which_benchmarks_there_are(bench: Command) -> None:
    assert bench() == 2
    for name in NAMES:
        assert name in bench.out


@pytest.mark.parametrize("name", NAMES)
def test_the_help_of_a_benchmark_says_what_its_exit_status_means(bench: Command, name: str) -> None:
    assert bench(name, "--help") == 0
    assert "--quick" in bench.out
    assert "--json" in bench.out
    words = " ".join(bench.out.replace("│", " ").split())
    assert "Exit status 1: a bar is not met." in words


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("status", [0, 1, 2])
@pytest.mark.parametrize(
    ("arguments", "as_json"), [((), False), (("--quick",), False), (("--quick", "--json"), True)]
)
def test_what_was_measured_is_the_exit_status(
    bench: Command,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    arguments: tuple[str, ...],
    as_json: bool,
    status: int,
) -> None:
    asked: list[tuple[str, bool]] = []

    def run(name: str, *, as_json: bool) -> int:
        asked.append((name, as_json))
        return status

    monkeypatch.setattr(command, "run", run)
    assert bench(name, *arguments) == status
    assert asked == [(name, as_json)]
    assert (bench.out, bench.err) == ("", "")


@pytest.mark.parametrize(
    ("arguments", "says"), [(("speed",), "speed"), (("limits", "--frob"), "--frob")]
)
def test_what_it_does_not_know_is_one_line(
    bench: Command, arguments: tuple[str, ...], says: str
) -> None:
    assert bench(*arguments) == 2
    (line,) = bench.err.splitlines()
    assert line.startswith("tieline: ")
    assert says in line
