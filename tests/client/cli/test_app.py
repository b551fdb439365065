"""``tieline ask`` and ``tieline agent`` against the real server."""

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.support.server_process import ServerProcess, serving, write_script
from tieline_client import cli
from tieline_client.errors import UnsupportedUrl

RULES: list[dict[str, Any]] = [
    {
        "id": "refuse",
        "when": {"user_contains": "refuse"},
        "emit": {"type": "error", "status": 429, "code": "rate_limit_exceeded", "message": "Slow."},
    },
    {
        "id": "break",
        "when": {"user_contains": "break"},
        "emit": [
            {"type": "message", "text": "a b c d"},
            {
                "type": "error",
                "status": 500,
                "code": "server_error",
                "message": "It broke.",
                "after_tokens": 2,
            },
        ],
    },
    {
        "id": "output",
        "when": {"last": "tool_output"},
        "emit": {"type": "message", "text": "The tool said: {output}"},
    },
    {
        "id": "read",
        "when": {"user_contains": "read", "tool": ["function", "read_file"]},
        "emit": {"type": "function_call", "name": "read_file", "arguments": {"path": "note.txt"}},
    },
    {
        "id": "escape",
        "when": {"user_contains": "escape", "tool": ["function", "read_file"]},
        "emit": {"type": "function_call", "name": "read_file", "arguments": {"path": "../x"}},
    },
    {
        "id": "hidden",
        "when": {"user_contains": "hidden", "tool": ["function", "read_file"]},
        "emit": {"type": "function_call", "name": "read_file", "arguments": {"path": ".env"}},
    },
    {
        "id": "run",
        "when": {"user_contains": "run", "tool": ["function", "run_command"]},
        "emit": {
            "type": "function_call",
            "name": "run_command",
            "arguments": {"command": "echo ran > ran.txt; echo done\x1b[2J"},
        },
    },
    {"id": "echo", "emit": {"type": "message", "text": "You said: {user}"}},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    script = write_script(tmp_path_factory.mktemp("script"), rules=RULES)
    with serving("--script", script) as process:
        yield process


@pytest.fixture(scope="module")
def url(server: ServerProcess) -> str:
    return f"grpc://{server.address}"


class Command:
    """The command, run in this process."""

    def __init__(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, url: str
    ) -> None:
        self._capsys = capsys
        self._patch = monkeypatch
        monkeypatch.setenv("TIELINE_URL", url)
        monkeypatch.delenv("TIELINE_API_KEY", raising=False)
        self.out = ""
        self.err = ""

    def __call__(self, *arguments: str, stdin: str = "") -> int:
        self._patch.setattr(sys, "argv", ["tieline", *arguments])
        self._patch.setattr(sys, "stdin", io.StringIO(stdin))
        status = cli.main()
        self.out, self.err = self._capsys.readouterr()
        return status


@pytest.fixture
def tieline(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, url: str
) -> Command:
    return Command(capsys, monkeypatch, url)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "note.txt").write_text("forty-two")
    (tmp_path / ".env").write_text("KEY=1")
    return tmp_path


def test_version(tieline: Command) -> None:
    assert tieline("--version") == 0
    assert tieline.out == f"tieline {version('tieline')}\n"


def test_ask_streams_the_answer_and_nothing_else(tieline: Command) -> None:
    assert tieline("ask", "hello") == 0
    assert (tieline.out, tieline.err) == ("You said: hello\n", "")


@pytest.mark.parametrize("scheme", ["ws", "http"])
@pytest.mark.parametrize("transport", [None, "websocket", "http"])
def test_ask_goes_over_the_transport_that_it_is_told(
    tieline: Command, server: ServerProcess, scheme: str, transport: str | None
) -> None:
    """HTTP and WebSocket share a port: either may be asked for with the other's URL."""
    named = () if transport is None else ("--transport", transport)
    assert tieline("ask", "hello", "--url", f"{scheme}://{server.http}", *named) == 0
    assert (tieline.out, tieline.err) == ("You said: hello\n", "")


@pytest.mark.parametrize(
    ("transport", "url"),
    [
        (None, "grpc://127.0.0.1:50051"),
        ("grpc", "grpc://127.0.0.1:50051"),
        ("websocket", "ws://127.0.0.1:8080"),
        ("http", "http://127.0.0.1:8080"),
    ],
)
def test_each_transport_has_its_default_address(
    tieline: Command, monkeypatch: pytest.MonkeyPatch, transport: str | None, url: str
) -> None:
    asked: list[str] = []

    def connect(url: str, **_: object) -> None:
        asked.append(url)
        raise UnsupportedUrl("seen")

    monkeypatch.setattr("tieline_client.cli.app.connect_session", connect)
    monkeypatch.delenv("TIELINE_URL")
    named = () if transport is None else ("--transport", transport)
    assert tieline("ask", "x", *named) == 2
    assert asked == [url]


def test_ask_reads_the_question_from_stdin(tieline: Command) -> None:
    assert tieline("ask", "-", stdin="from a pipe") == 0
    assert tieline.out == "You said: from a pipe\n"


def test_ask_shows_where_the_time_went(tieline: Command) -> None:
    assert tieline("ask", "hello", "--timing") == 0
    assert "service" in tieline.err
    assert tieline.out == "You said: hello\n"


def test_ask_prints_events_as_json_lines(tieline: Command) -> None:
    assert tieline("ask", "hello", "--json", "--instructions", "be brief") == 0
    events = [json.loads(line) for line in tieline.out.splitlines()]
    assert events[0]["type"] == "response.created"
    assert events[0]["response"]["instructions"] == "be brief"
    assert events[-1]["type"] == "response.completed"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_an_answer_that_was_cut_says_so(tieline: Command) -> None:
    assert tieline("ask", "hello", "--max-output-tokens", "1") == 0
    assert "incomplete: max_output_tokens" in tieline.err


@pytest.mark.parametrize(
    ("scheme", "transport", "says"),
    [
        ("ws", "grpc", "it speaks HTTP/2 there, as gRPC does: use grpc://"),
        ("http", "grpc", "it speaks HTTP/2 there, as gRPC does: use grpc://"),
        ("grpc", "http", "it speaks HTTP/1 there, and not gRPC: use http://"),
        ("wss", "http", "it does not speak TLS there: use ws://"),
        ("grpcs", "grpc", "it does not speak TLS there: use grpc://"),
    ],
)
def test_op_06_a_port_of_another_kind_is_one_line_with_the_likely_cause(
    tieline: Command, server: ServerProcess, scheme: str, transport: str, says: str
) -> None:
    address = server.address if transport == "grpc" else server.http
    assert tieline("ask", "hello", "--url", f"{scheme}://{address}") == 1
    assert tieline.err == f"tieline: cannot connect to {address}: {says}\n"
    assert tieline.out == ""


@pytest.mark.parametrize("flag", ["--ca", "--cert", "--key"])
@pytest.mark.parametrize("scheme", ["grpc", "ws", "HTTP"])
def test_op_06_files_of_tls_are_not_taken_where_they_would_be_of_no_use(
    tieline: Command, scheme: str, flag: str
) -> None:
    assert tieline("ask", "hello", "--url", f"{scheme}://127.0.0.1:1", flag, "file.pem") == 2
    assert tieline.err == (
        "tieline: --ca, --cert and --key go with grpcs://, wss://, https:// only\n"
    )


@pytest.mark.parametrize("command", [(), ("ask",), ("agent",), ("bench",), ("bench", "limits")])
def test_each_command_has_its_help(tieline: Command, command: tuple[str, ...]) -> None:
    assert tieline(*command, "--help") == 0
    assert tieline.err == ""
    assert "Usage: tieline" in tieline.out
    assert "--help" in tieline.out


def test_the_help_says_how_the_command_ends(tieline: Command) -> None:
    assert tieline("--help") == 0
    assert "Exit status: 0 done, 1 no answer, 2 wrong usage, 130 interrupted." in tieline.out


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("ask", "refuse"), 1, "tieline: Slow."),
        (("ask", "break"), 1, "tieline: It broke."),
        (("ask", "x", "--model", "nope"), 1, "tieline: The model 'nope' does not exist."),
        (("ask", "x", "--url", "grpc://127.0.0.1:1"), 1, "cannot connect to 127.0.0.1:1: "),
        (
            ("ask", "x", "--url", "grpcs://127.0.0.1:1", "--ca", "/no/such"),
            1,
            "cannot read /no/such: No such file",
        ),
        (("agent", "x", "--root", "/no-such"), 1, "cannot read /no-such: No such file"),
        (("ask", "x", "--url", "ws://127.0.0.1:1"), 1, "cannot connect to 127.0.0.1:1: "),
        (("ask", "x", "--url", "http://127.0.0.1:1"), 1, "cannot connect to 127.0.0.1:1: "),
        (
            ("ask", "x", "--url", "wss://127.0.0.1:1", "--ca", "/no/such"),
            1,
            "cannot read /no/such: No such file",
        ),
        (("ask", "x", "--url", "ftp://127.0.0.1"), 2, "does not begin with"),
        (("ask", "x", "--url", "grpc://h:1", "--transport", "http"), 2, "does not go with"),
        (("ask", "x", "--url", "ws://h:1", "--transport", "grpc"), 2, "does not go with"),
        (("ask", "x", "--transport", "pigeon"), 2, "pigeon"),
        (("ask", "x", "--max-output-tokens", "0"), 2, "greater than or equal to 1"),
        (("ask",), 2, "Missing argument"),
        (("ask", "x", "--frob"), 2, "--frob"),
        (("frob",), 2, "frob"),
    ],
)
def test_what_goes_wrong_is_one_line_and_a_status(
    tieline: Command, arguments: tuple[str, ...], status: int, says: str
) -> None:
    assert tieline(*arguments) == status
    (line,) = tieline.err.splitlines()
    assert line.startswith("tieline: ")
    assert says in line


def test_without_arguments_the_help_is_shown(tieline: Command) -> None:
    assert tieline() == 2
    assert "agent" in tieline.out
    assert tieline.err == ""


@pytest.mark.parametrize("shape", ["append", "create"])
def test_the_agent_reads_a_file_and_shows_each_turns_time(
    tieline: Command, folder: Path, shape: str
) -> None:
    status = tieline("agent", "read the note", "--root", str(folder), "--shape", shape)
    assert status == 0
    assert tieline.out == "The tool said: forty-two\n"
    assert 'read_file({"path":"note.txt"}) -> forty-two' in tieline.err
    rows = [line.split() for line in tieline.err.splitlines() if line.startswith("│")]
    assert [row[1] for row in rows] == ["1", "2"]


@pytest.mark.parametrize("scheme", ["ws", "http"])
def test_the_agent_runs_over_each_transport_in_the_shape_that_it_carries(
    tieline: Command, server: ServerProcess, folder: Path, scheme: str
) -> None:
    url = f"{scheme}://{server.http}"
    assert tieline("agent", "read the note", "--root", str(folder), "--url", url) == 0
    assert tieline.out == "The tool said: forty-two\n"
    rows = [line.split() for line in tieline.err.splitlines() if line.startswith("│")]
    assert [row[1] for row in rows] == ["1", "2"]
    assert "-" not in [row[3] for row in rows]


def test_the_agent_cannot_hold_a_response_over_http(
    tieline: Command, server: ServerProcess, folder: Path
) -> None:
    url = f"http://{server.http}"
    status = tieline("agent", "x", "--root", str(folder), "--url", url, "--shape", "append")
    assert status == 1
    assert tieline.err == "tieline: HTTP cannot carry append: use gRPC or WebSocket\n"


def test_the_agent_cannot_leave_its_folder(tieline: Command, folder: Path) -> None:
    assert tieline("agent", "escape", "--root", str(folder), "--yes") == 0
    assert "Error: read_file raised Refused" in tieline.out


@pytest.mark.parametrize("answer", ["", "n\n", "no\n", "maybe\n"])
def test_the_agent_runs_no_command_that_was_not_allowed(
    tieline: Command, folder: Path, answer: str
) -> None:
    assert tieline("agent", "run it", "--root", str(folder), "--yes", stdin=answer) == 0
    assert "does not let you run" in tieline.out
    assert not (folder / "ran.txt").exists()


def test_the_agent_shows_a_command_as_it_is_and_runs_it_when_allowed(
    tieline: Command, folder: Path
) -> None:
    assert tieline("agent", "run it", "--root", str(folder), stdin="y\n") == 0
    assert "echo done\\x1b[2J\nAllow? [y/N]" in tieline.out
    assert (folder / "ran.txt").read_text() == "ran\n"


def test_yes_answers_for_hidden_files_only(tieline: Command, folder: Path) -> None:
    assert tieline("agent", "hidden", "--root", str(folder)) == 0
    assert "does not let you read" in tieline.out
    assert tieline("agent", "hidden", "--root", str(folder), "--yes") == 0
    assert "KEY=1" in tieline.out


def test_an_agent_that_finds_no_answer_in_time_has_failed(tieline: Command, folder: Path) -> None:
    assert tieline("agent", "read", "--root", str(folder), "--max-turns", "1") == 1
    assert "tieline: no answer within 1 turns" in tieline.err


def test_op_08_without_the_extra_one_line_says_what_to_install(
    tieline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("tieline_client.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "typer", None)
    assert tieline("ask", "x") == 2
    assert tieline.err == (
        "tieline: typer is not installed: pip install '.[cli]' in a checkout, "
        "or pip install 'tieline-X.whl[cli]' with a wheel's file\n"
    )


def test_a_reader_that_stops_reading_costs_no_traceback(url: str) -> None:
    command = f"{sys.executable} -m tieline_client.cli ask hello --json --url {url} | head -c 1"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("{", "")
