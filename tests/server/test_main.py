"""The command: its options, its errors in one line, and the life of a real server process."""

import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support import interrupted
from tests.support.grpc_certificates import Authority
from tests.support.interrupted import script
from tests.support.server_process import command, environment, run, serving, write_script
from tieline.errors import how_to_install
from tieline.v1 import requests_pb2, service_pb2, service_pb2_grpc
from tieline_server.__main__ import main
from tieline_server.config import FLAGLESS, Config, flag

SECRET = hashlib.sha256(b"secret").hexdigest()
STALLED = {"rules": [{"id": "stall", "when": {}, "emit": [{"type": "stall", "seconds": 3600}]}]}
SLOW = {
    "pace": {"ttft_ms": 0, "tokens_per_second": 40},
    "rules": [{"id": "slow", "when": {}, "emit": {"type": "message", "text": "word " * 20}}],
}

WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None
from tieline_server.__main__ import main
sys.exit(main(["--engine", "none"]))
"""


def refusal(*arguments: str, **variables: str) -> str:
    """The one line of a command that cannot start."""
    done = run(*arguments, **variables)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line.removeprefix("tieline-server: ")


def status(arguments: list[str]) -> object:
    """The exit status of the command, run in this process."""
    try:
        return main(arguments)
    except SystemExit as end:
        return end.code


def create() -> service_pb2.StreamRequest:
    asked = requests_pb2.ResponseCreate(input_text="the secret word")
    return service_pb2.StreamRequest(response_create=asked)


def kinds(message: service_pb2.StreamResponse) -> list[str]:
    return [str(event.WhichOneof("event")) for event in message.events]


class TestOptions:
    def test_the_version_is_that_of_the_distribution(self) -> None:
        done = run("--version")
        assert re.fullmatch(r"tieline-server \d+\.\d+\.\d+\S*\n", done.stdout)

    def test_the_help_lists_every_setting_with_its_default(self) -> None:
        text = run("--help", COLUMNS="200").stdout
        named = Config.model_fields.keys() - FLAGLESS
        assert [name for name in named if flag(name) not in text] == []
        assert [name for name in FLAGLESS if re.search(rf"{flag(name)}(?![\w-])", text)] == []
        assert "--no-reflection" in text
        assert "--no-http" in text
        assert "[127.0.0.1:50051]" in text

    def test_a_flag_beats_the_environment(self) -> None:
        assert "no engine 'flagged'" in refusal("--engine", "flagged", TIELINE_ENGINE="environed")
        assert "no engine 'environed'" in refusal(TIELINE_ENGINE="environed")

    def test_the_model_command_names_what_it_can_do(self) -> None:
        assert "fetch" in run("model", "--help").stdout
        assert "COMMAND" in refusal("model")


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--nope"], "unrecognized arguments: --nope (see tieline-server --help)"),
            (["--gr", "127.0.0.1:1"], "unrecognized arguments: --gr"),
            (["--engine"], "argument --engine: expected one argument"),
            (["--grpc", "0.0.0.0:1"], "can be reached from elsewhere and needs --api-keys"),
            (["--heartbeat", "soon"], "--heartbeat: Input should be a valid number"),
            (["--config", "/no/such.toml"], "cannot read /no/such.toml"),
        ],
    )
    def test_a_setting_that_cannot_be_is_refused_in_one_line(
        self,
        arguments: list[str],
        said: str,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("GRPC_VERBOSITY", "NONE")
        assert status(arguments) == 2
        written = capsys.readouterr()
        (line,) = written.err.splitlines()
        assert line.startswith("tieline-server: ")
        assert said in line
        assert written.out == ""

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--engine", "gpu"], "no engine 'gpu'; known are: llama, scripted"),
            (["--store", "sqlite:////no/tieline.db"], "cannot open /no/tieline.db"),
            (["--api-keys", "/no/keys.toml"], "cannot read /no/keys.toml"),
            (["--script", "/no/such.json"], "/no/such.json"),
            (["--tls-cert", "/no/cert.pem", "--tls-key", "/no/key.pem"], "cannot read /no/cert"),
        ],
    )
    def test_what_is_not_there_is_refused_in_one_line(
        self, arguments: list[str], said: str
    ) -> None:
        assert said in refusal(*arguments, TIELINE_ENGINE="scripted", TIELINE_GRPC="127.0.0.1:0")

    @pytest.mark.parametrize("workers", ["1", "2"])
    @pytest.mark.parametrize("name", ["--grpc", "--http"])
    def test_op_05_a_port_that_is_taken_is_said_by_its_setting_and_nothing_is_announced(
        self, name: str, workers: str, tmp_path: Path
    ) -> None:
        other = "--http" if name == "--grpc" else "--grpc"
        shared = ("--workers", workers, "--store", f"sqlite:///{tmp_path}/tieline.db")
        several = shared if workers != "1" else ()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            flags = ("--engine", "scripted", name, address, other, "127.0.0.1:0")
            said = refusal(*flags, *several)
        assert said == f"{name}: cannot listen on {address}: Address already in use"

    def test_a_certificate_that_is_none_is_said_in_one_line(self, tmp_path: Path) -> None:
        path = tmp_path / "rubbish.pem"
        path.write_text("rubbish")
        files = ("--tls-cert", str(path), "--tls-key", str(path))
        said = refusal("--engine", "scripted", "--grpc", "127.0.0.1:0", *files)
        assert str(path) in said
        assert "PEM" in said

    def test_op_04_a_variable_that_is_none_is_told_with_the_nearest(self) -> None:
        said = refusal(TIELINE_ENGIN="scripted")
        assert said == "TIELINE_ENGIN: no setting has this name; did you mean TIELINE_ENGINE?"

    def test_a_missing_model_is_said_with_what_to_do(self) -> None:
        said = refusal("--model", "/no/such.gguf", "--grpc", "127.0.0.1:0")
        assert "/no/such.gguf" in said

    @pytest.mark.parametrize("package", ["pydantic_settings", "uvloop", "structlog", "grpc_health"])
    def test_without_its_extra_the_command_says_what_to_install(self, package: str) -> None:
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT, package],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2
        assert done.stderr == (
            f"tieline-server: {package} is not installed: {how_to_install('server')}\n"
        )


class TestLife:
    def test_the_default_engine_serves_and_ends_well(self) -> None:
        with serving("--engine", "llama") as server:
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
            assert server.lines("started")[0]["engine"] == "llama"

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_an_idle_server_announces_itself_and_ends_well_by_a_signal(self, number: int) -> None:
        with serving() as server:
            host, _, port = server.address.rpartition(":")
            assert host == "127.0.0.1"
            with socket.create_connection((host, int(port))):
                pass
            server.signal(number)
            assert server.wait() == 0
            assert server.rest_of_stdout() == ""
            lines = server.lines()
            assert [line["event"] for line in lines] == ["started", "draining", "stopped"]
            assert len({line["pid"] for line in lines}) == 1

    def test_a_reader_of_the_addresses_that_goes_is_no_reason_to_end(self) -> None:
        """As in `tieline-server | head -n 0`."""
        reads, writes = os.pipe()
        os.close(reads)
        flags = ("--engine", "scripted", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")
        with subprocess.Popen(
            command(*flags, "--log-format", "json"),
            env=environment(),
            stdout=writes,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            os.close(writes)
            assert process.stderr is not None
            first = json.loads(process.stderr.readline())
            process.send_signal(signal.SIGTERM)
            rest = process.stderr.read()
        assert first["event"] == "started"
        assert [json.loads(line)["event"] for line in rest.splitlines()] == ["draining", "stopped"]
        assert process.returncode == 0

    def test_a_response_that_runs_gets_to_its_end_before_the_server_does(
        self, tmp_path: Path
    ) -> None:
        with (
            serving("--script", write_script(tmp_path, **SLOW)) as server,
            grpc.insecure_channel(server.address) as channel,
        ):
            stream = service_pb2_grpc.ResponsesServiceStub(channel).Stream(create())
            seen = kinds(next(stream))
            server.signal(signal.SIGTERM)
            for message in stream:
                seen += kinds(message)
            assert seen[-1] == "response_completed"
            assert server.wait() == 0
            (turn,) = server.lines("turn")
            assert (turn["outcome"], turn["transport"]) == ("completed", "grpc")

    def test_the_flags_of_tls_and_keys_reach_the_server(self, tmp_path: Path) -> None:
        authority = Authority(tmp_path, "authority")
        own, caller = authority.sign("server"), authority.sign("client")
        root = authority.pem.certificate
        keys = tmp_path / "keys.toml"
        keys.write_text(f'[[keys]]\nhash = "sha256:{SECRET}"\nowner = "ann"\n')
        flags = ("--tls-cert", own.certificate, "--tls-key", own.key, "--tls-client-ca", root)
        shown = grpc.ssl_channel_credentials(
            root.read_bytes(), caller.key.read_bytes(), caller.certificate.read_bytes()
        )
        with (
            serving(*map(str, flags), "--api-keys", str(keys)) as server,
            grpc.secure_channel(server.address, shown) as channel,
        ):
            stub = service_pb2_grpc.ResponsesServiceStub(channel)
            with pytest.raises(grpc.RpcError) as refused:
                list(stub.Stream(create()))
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            metadata = (("authorization", "Bearer secret"),)
            assert list(stub.Stream(create(), metadata=metadata))
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
            assert [line["owner"] for line in server.lines("turn")][-1] == "ann"

    def test_http_is_served_by_the_same_process_and_drained_with_it(self, tmp_path: Path) -> None:
        with serving("--script", write_script(tmp_path, **SLOW)) as server:
            body = json.dumps({"input": "the secret word", "stream": True}).encode()
            head = {"Content-Type": "application/json"}
            where = f"http://{server.http}/v1/responses"
            with urlopen(Request(where, body, head), timeout=60) as stream:
                assert stream.readline() == b"event: response.created\n"
                server.signal(signal.SIGTERM)
                assert stream.read().endswith(b"data: [DONE]\n\n")
            assert server.wait() == 0
            (turn,) = server.lines("turn")
            assert (turn["outcome"], turn["transport"]) == ("completed", "sse")

    def test_metrics_are_those_of_the_process(self) -> None:
        with serving() as server:
            body = json.dumps({"input": "hi"}).encode()
            head = {"Content-Type": "application/json"}
            where = f"http://{server.http}"
            urlopen(Request(f"{where}/v1/responses", body, head), timeout=60).close()
            with urlopen(f"{where}/metrics", timeout=60) as metrics:
                text = metrics.read().decode()
            assert 'tieline_server_responses_total{tieline_transport="http"' in text
            assert "\ntieline_server_connections_active 0\n" in text

    def test_without_http_only_grpc_is_announced(self) -> None:
        flags = ("--engine", "scripted", "--grpc", "127.0.0.1:0", "--no-http")
        process = subprocess.Popen(command(*flags), stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("grpc listening on ")
        process.terminate()
        assert process.communicate(timeout=60)[0] == ""
        assert process.returncode == 0

    def test_no_content_reaches_the_log(self, tmp_path: Path) -> None:
        answer = {"rules": [{"id": "one", "when": {}, "emit": {"type": "message", "text": "pst"}}]}
        with (
            serving("--script", write_script(tmp_path, **answer)) as server,
            grpc.insecure_channel(server.address) as channel,
        ):
            list(service_pb2_grpc.ResponsesServiceStub(channel).Stream(create()))
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
            assert len(server.lines("turn")) == 1
            assert "secret" not in server.log()
            assert "pst" not in server.log()

    def test_a_response_that_outlasts_the_drain_is_ended(self, tmp_path: Path) -> None:
        script = write_script(tmp_path, **STALLED)
        with (
            serving("--script", script, "--drain-timeout", "0.2") as server,
            grpc.insecure_channel(server.address) as channel,
        ):
            stream = service_pb2_grpc.ResponsesServiceStub(channel).Stream(create())
            assert "response_created" in kinds(next(stream))
            server.signal(signal.SIGTERM)
            # Its last word may be an event or a status; server and connection both watch it.
            with contextlib.suppress(grpc.RpcError):
                list(stream)
            assert server.wait() == 0
            (turn,) = server.lines("turn")
            assert turn["outcome"] not in ("completed", "refused")

    def test_a_second_signal_does_not_wait_for_what_runs(self, tmp_path: Path) -> None:
        script = write_script(tmp_path, **STALLED)
        with (
            serving("--script", script, "--drain-timeout", "3600") as server,
            grpc.insecure_channel(server.address) as channel,
        ):
            stream = service_pb2_grpc.ResponsesServiceStub(channel).Stream(create())
            assert "response_created" in kinds(next(stream))
            stub = health_pb2_grpc.HealthStub(channel)
            # Its type stubs lack this method.
            health = stub.Watch(health_pb2.HealthCheckRequest())  # type: ignore[attr-defined]
            assert next(health).status == health_pb2.HealthCheckResponse.SERVING
            server.signal(signal.SIGTERM)
            assert next(health).status == health_pb2.HealthCheckResponse.NOT_SERVING
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
            assert len(server.lines("interrupted")) == 1


SERVE = ("--engine", "scripted", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")
COMMANDS = ((script("tieline-server"),), (sys.executable, "-m", "tieline_server"))


class TestInterrupts:
    @pytest.mark.parametrize("started", COMMANDS, ids=["script", "module"])
    @pytest.mark.parametrize(
        ("module", "words"),
        [
            ("typing", SERVE),
            ("tieline_server.config", SERVE),
            ("pydantic_settings", SERVE),
            ("argparse", SERVE),
            ("uvloop", SERVE),
            ("tieline_server.app", SERVE),
            ("aiohttp", SERVE),
            ("grpc", SERVE),
            ("pydantic", ("--workers", "2", *SERVE)),
            ("tieline_server.config", ("--help",)),
            ("tieline_server.usage", ("usage",)),
            ("tieline_server.models.packaged", ("model", "fetch")),
        ],
    )
    def test_op_07_an_interrupt_while_it_imports_says_nothing(
        self, tmp_path: Path, started: tuple[str, ...], module: str, words: tuple[str, ...]
    ) -> None:
        done = interrupted.at(module, [*started, *words], tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "")

    @pytest.mark.parametrize("started", COMMANDS, ids=["script", "module"])
    @pytest.mark.parametrize("seconds", [0.0, 0.05, 0.1, 0.2, 0.3])
    def test_op_07_an_interrupt_at_any_time_ends_it_in_order(
        self, tmp_path: Path, started: tuple[str, ...], seconds: float
    ) -> None:
        """OP-07: one that has come as far as to serve drains, as after its start."""
        words = [*started, *SERVE, "--log-format", "json"]
        done = interrupted.after(seconds, "tieline_server.config", words, tmp_path)
        said = [json.loads(line)["event"] for line in done.stderr.splitlines()]
        assert (done.returncode, bool(said)) in ((130, False), (0, True))
        if said:
            assert said[-1] == "stopped"

    @pytest.mark.parametrize("workers", ["1", "2"])
    def test_op_07_after_its_start_an_interrupt_still_drains(
        self, tmp_path: Path, workers: str
    ) -> None:
        store = f"sqlite:///{tmp_path / 'tieline.db'}"
        with serving("--workers", workers, "--store", store) as server:
            server.signal(signal.SIGINT)
            assert server.wait() == 0
            assert server.lines("draining")
            assert server.lines()[-1]["event"].endswith("stopped")
