"""The command ``tieline-server usage``: what it asks, how it answers, what it refuses."""

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.filled_ledger import FILLED, STORE
from tests.support.server_process import run, serving
from tieline.errors import how_to_install
from tieline_server.__main__ import main
from tieline_server.config import PREFIX
from tieline_server.config.toml_tables import STORES
from tieline_server.usage import FORMATS

WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None
from tieline_server.__main__ import main
sys.exit(main(["usage", "--store", "sqlite:///nowhere"]))
"""


class Command:
    """The command in this process, on a ledger that has rows."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> str:
        """What it prints where all is well."""
        assert main(["usage", "--store", STORE, *words]) == 0
        written = self._capsys.readouterr()
        assert written.err == ""
        return written.out

    def json(self, *words: str) -> list[dict[str, Any]]:
        """The sums that it prints as JSON."""
        said = json.loads(self("--format", "json", *words))
        assert set(said) == {"object", "data"}
        assert said["object"] == "list"
        data: list[dict[str, Any]] = said["data"]
        return data

    def groups(self, *words: str) -> list[tuple[str, int]]:
        """(group, responses) of each sum."""
        return [(each["group"], each["responses"]) for each in self.json(*words)]

    def refusal(self, *words: str) -> str:
        """The one line of a command that cannot be."""
        try:
            status: object = main(["usage", *words])
        except SystemExit as end:
            status = end.code
        assert status == 2
        written = self._capsys.readouterr()
        assert written.out == ""
        (line,) = written.err.splitlines()
        assert line.startswith("tieline-server: ")
        return line.removeprefix("tieline-server: ")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setitem(STORES, "sqlite", FILLED)
    monkeypatch.setenv("GRPC_VERBOSITY", "NONE")
    return Command(capsys)


class TestForms:
    def test_a_table_is_aligned_and_ends_with_the_total(self, command: Command) -> None:
        assert command("--by", "key").splitlines() == [
            "key    responses    input  cached  output  reasoning",
            "ann            2      200     120      40         10",
            "bob            1  1234567       0      20          0",
            "total          3  1234767     120      60         10",
        ]

    def test_a_group_without_a_name_has_a_mark_in_the_table_alone(self, command: Command) -> None:
        assert command("--by", "model").splitlines()[1].split()[0] == "-"
        assert command.json("--by", "model")[0]["group"] == ""

    def test_csv_has_a_line_of_names_and_quotes_what_must_be(self, command: Command) -> None:
        text = command("--by", "model", "--format", "csv")
        rows = list(csv.reader(io.StringIO(text)))
        assert rows[0] == [
            "model",
            "responses",
            "input_tokens",
            "cached_tokens",
            "output_tokens",
            "reasoning_tokens",
        ]
        assert rows[1:] == [
            ["", "1", "1234567", "0", "20", "0"],
            ["large, slow", "1", "100", "60", "20", "5"],
            ["small", "1", "100", "60", "20", "5"],
        ]

    def test_json_is_what_the_http_server_answers(self, command: Command) -> None:
        assert command.json("--by", "key")[0] == {
            "group": "ann",
            "responses": 2,
            "input_tokens": 200,
            "cached_tokens": 120,
            "output_tokens": 40,
            "reasoning_tokens": 10,
        }

    @pytest.mark.parametrize("form", FORMATS)
    def test_nothing_is_no_error_in_any_form(self, command: Command, form: str) -> None:
        text = command("--until", "2020-01-01", "--format", form)
        assert text.endswith("\n")
        expected = {"table": 2, "csv": 1, "json": 1}
        assert len(text.splitlines()) == expected[form]


class TestPrices:
    """Of ann's 100 tokens of input 60 were cached, and 20 came out, for each model."""

    @pytest.fixture
    def priced(self, command: Command, tmp_path: Path) -> Callable[..., str]:
        path = tmp_path / "server.toml"
        path.write_text(
            "[models.small]\nprice = {input = 10000, cached_input = 0, output = 50000}\n"
            '[models."large, slow"]\nprice = {input = 100000, output = 0}\n'
            "[models.free]\n"
        )
        return lambda *words: command("--config", str(path), *words)

    @pytest.mark.parametrize(
        ("by", "costs"),
        [
            ("model", [0.0, 10.0, 1.4]),
            ("key", [11.4, 0.0]),
            ("day", [11.4, 0.0]),
        ],
    )
    def test_each_sum_has_what_its_models_cost(
        self, priced: Callable[..., str], by: str, costs: list[float]
    ) -> None:
        said = json.loads(priced("--by", by, "--format", "json"))
        assert [each["cost"] for each in said["data"]] == costs
        rows = list(csv.reader(io.StringIO(priced("--by", by, "--format", "csv"))))
        assert rows[0][-1] == "cost"
        assert [float(row[-1]) for row in rows[1:]] == costs

    def test_the_table_adds_them_up(self, priced: Callable[..., str]) -> None:
        lines = priced("--by", "key").splitlines()
        assert [line.split()[-1] for line in lines] == ["cost", "11.4000", "0.0000", "11.4000"]

    def test_bounds_of_time_bound_the_cost_too(self, priced: Callable[..., str]) -> None:
        said = json.loads(priced("--since=2026-11-01T13:00:00Z", "--format", "json"))
        assert [each["cost"] for each in said["data"]] == [0.0]


class TestQuestions:
    def test_every_owner_counts_and_days_are_the_default(self, command: Command) -> None:
        days = [("2026-11-01", 2), ("2026-11-02", 1)]
        assert command.groups() == command.groups("--by", "day") == days

    def test_since_and_until_bound_what_counts(self, command: Command) -> None:
        assert command.groups("--since", "2026-11-02") == [("2026-11-02", 1)]
        assert command.groups("--until", "2026-11-02") == [("2026-11-01", 2)]
        assert command.groups("--since", "200000d", "--until", "100000d") == []
        assert command.groups("--since=2026-11-01T13:00:00Z") == [("2026-11-02", 1)]

    def test_the_store_comes_from_the_environment_or_a_file_too(
        self, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        settings = tmp_path / "server.toml"
        settings.write_text(f'store = "{STORE}"\n')
        assert main(["usage", "--config", str(settings)]) == 0
        monkeypatch.setenv(PREFIX + "STORE", STORE)
        assert main(["usage"]) == 0

    def test_settings_that_only_a_server_needs_do_not_stop_it(
        self, command: Command, tmp_path: Path
    ) -> None:
        """A server may get the rest of its settings by flags that nobody repeats here."""
        settings = tmp_path / "server.toml"
        settings.write_text(
            'grpc = "0.0.0.0:50051"\nhttp = "0.0.0.0:8080"\ntls_key = "/no/key.pem"\n'
            'script = "/no/script.json"\nmodel = "/no/model.gguf"\n'
        )
        assert len(command.groups("--config", str(settings))) == 2


class TestRefusals:
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["--since", "soon"], "argument --since: expected a date, an ISO timestamp"),
            (["--until", "7x"], "argument --until: expected a date, an ISO timestamp"),
            (["--since", "1d", "--until", "2d"], "argument --until: it is not after 'since'"),
            (["--by", "week"], "argument --by: invalid choice: 'week'"),
            (["--format", "xml"], "argument --format: invalid choice: 'xml'"),
            (["--sin", "7d"], "unrecognized arguments: --sin 7d (see tieline-server usage --help)"),
            (["extra"], "unrecognized arguments: extra"),
            (["--store", "disk"], "memory"),
            (["--config", "/no/such.toml"], "cannot read /no/such.toml"),
        ],
    )
    def test_what_cannot_be_is_refused_in_one_line(
        self, command: Command, words: list[str], said: str
    ) -> None:
        assert said in command.refusal(*words)

    def test_no_password_of_a_store_is_in_a_message(self, command: Command) -> None:
        assert "secret" not in command.refusal("--store", "nosql://user:secret@host/rows")

    def test_the_ledger_of_the_memory_store_is_to_be_asked_of_its_server(
        self, command: Command
    ) -> None:
        said = command.refusal("--store", "memory")
        assert "lives in the running server" in said
        assert "GET /v1/usage" in said

    def test_a_file_that_is_not_there_is_no_ledger_and_is_not_made(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        path = tmp_path / "mistyped.db"
        said = Command(capsys).refusal("--store", f"sqlite:///{path}")
        assert said == f"cannot open {path}: No such file or directory"
        assert not path.exists()

    @pytest.mark.parametrize("package", ["pydantic_settings", "sqlalchemy"])
    def test_without_its_extra_the_command_says_what_to_install(self, package: str) -> None:
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT, package],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            f"tieline-server: {package} is not installed: {how_to_install('server')}\n"
        )


class TestProcess:
    def test_the_command_is_one_of_the_servers_and_has_a_help(self) -> None:
        assert "tieline-server usage" in run("--help", COLUMNS="200").stdout
        text = run("usage", "--help", COLUMNS="200").stdout
        for word in ("--since", "--until", "--by", "--format", "--store", "--config", "24h", "UTC"):
            assert word in text

    def test_its_refusal_leaves_a_server_that_runs_alone(self) -> None:
        with serving() as server:
            done = run("usage", "--since", "7d")
            assert (done.returncode, done.stdout) == (2, "")
            assert server.process.poll() is None
