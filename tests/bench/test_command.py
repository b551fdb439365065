"""The commands: what they print, and their exit status."""

import json
import sys
from types import ModuleType
from typing import Any

import pytest

from tieline.errors import how_to_install
from tieline_bench import __main__, command, limits, peer, upstream, warm
from tieline_bench.clients import LoadError
from tieline_bench.processes import StartError
from tieline_bench.report import Report, bar, report
from tieline_client.cli.app import app, run


def outcome(result: Report | Exception) -> type:
    class Limits:
        def __init__(self, **_: Any) -> None: ...

        def run(self) -> Report:
            if isinstance(result, Exception):
                raise result
            return result

    return Limits


MET = report([bar("turn.grpc", 2.0, 3.0)], [], {})
MISSED = report([bar("turn.grpc", 4.0, 3.0)], [], {})


@pytest.mark.parametrize(
    ("result", "status"),
    [(MET, 0), (MISSED, 1), (StartError("no server"), 2), (LoadError("no answer"), 2)],
)
@pytest.mark.parametrize("module", [limits, upstream, peer, warm], ids=lambda each: each.__name__)
def test_the_exit_status_says_whether_all_bars_are_met(
    module: ModuleType, result: Report | Exception, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = module.__name__.rpartition(".")[2]
    monkeypatch.setattr(module, command.BENCHMARKS[name], outcome(result))
    assert command.run(name, as_json=False) == status


@pytest.mark.parametrize("entry", ["make", "cli"])
def test_both_commands_print_the_report_as_json(
    entry: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(limits, "Limits", outcome(MISSED))
    words = ["limits", "--quick", "--json"] if entry == "make" else ["bench", "limits", "--json"]
    monkeypatch.setattr(sys, "argv", ["tieline", *words])
    assert (__main__.main() if entry == "make" else run()) == 1
    assert json.loads(capsys.readouterr().out)["bars"][0]["name"] == "turn.grpc"
    assert app.registered_groups


@pytest.mark.parametrize("entry", ["make", "cli"])
def test_the_ratio_of_warm_turns_stands_first_in_their_json(
    entry: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = {"warm_over_cold": 0.02}
    monkeypatch.setattr(warm, "Warm", outcome(report([bar("warm", 0.02, 0.05)], [], figures)))
    words = ["warm", "--json"] if entry == "make" else ["bench", "warm", "--json"]
    monkeypatch.setattr(sys, "argv", ["tieline", *words])
    assert (__main__.main() if entry == "make" else run()) == 0
    printed = json.loads(capsys.readouterr().out)
    assert next(iter(printed.items())) == ("warm_over_cold", 0.02)
    assert printed["bars"][0]["met"]


def test_a_server_that_answers_wrongly_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(warm, "Warm", outcome(LoadError("a turn said nothing")))
    assert command.run("warm", as_json=True) == 2
    assert capsys.readouterr() == ("", "bench: a turn said nothing\n")


def test_without_the_extra_one_line_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "tieline_bench.limits")
    monkeypatch.setitem(sys.modules, "h2", None)
    for name in [name for name in sys.modules if name.startswith("tieline_bench.clients")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "h2.config", None)
    assert command.run("limits", as_json=False) == 2
    assert capsys.readouterr().err == f"bench: h2 is not installed: {how_to_install('bench')}\n"
