"""What docs/configuration.md tells a reader to run and to write does what it says."""

import re
import shlex
import stat
import subprocess
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.server_process import serving
from tieline_server.config import KIB, MIB, Config
from tieline_server.transports.arrivals import SLOWEST
from tieline_server.transports.grpc.admission import KEYLESS, KEYLESS_OF_ADDRESS
from tieline_server.transports.grpc.config import HEADROOM, GrpcConfig
from tieline_server.transports.http.config import HttpConfig
from tieline_server.transports.http.server import HEADER_BYTES
from tieline_server.transports.http.tcp_connection import HEAD_BYTES
from tieline_server.transports.websocket.config import WebSocketConfig

PAGE = (Path(__file__).parents[2] / "docs/configuration.md").read_text(encoding="utf-8")

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINES: list[str] = [
    line
    for language, body in _FENCE.findall(PAGE)
    if language == "sh"
    for line in body.splitlines()
    if line
]
SERVERS = [line for line in LINES if re.search(r"\btieline-server\b(?! usage)", line)]
ELSEWHERE = ("tieline-server usage", "curl ", "pip install ")
"""What tests/docs/test_usage.py and tests/packaging/test_install.py run."""

(KEYS,) = (body for language, body in _FENCE.findall(PAGE) if language == "toml")


def line_with(word: str) -> str:
    """The one line to run that has this word."""
    (line,) = (line for line in LINES if word in line)
    return line


def words(line: str) -> tuple[dict[str, str], list[str]]:
    """The variables that a line sets for the server, and its flags."""
    before, _, after = line.partition("tieline-server")
    variables = dict(word.split("=", 1) for word in shlex.split(before))
    return variables, shlex.split(after, comments=True)


def test_every_line_to_run_is_tried() -> None:
    tried = {*SERVERS, line_with("sha256sum"), line_with("/dev/urandom")}
    assert [line for line in LINES if line not in tried and not line.startswith(ELSEWHERE)] == []


@pytest.mark.parametrize("line", [line for line in SERVERS if "postgresql:" not in line])
def test_a_server_of_the_page_starts(line: str, tmp_path: Path) -> None:
    variables, flags = words(line)
    here = [
        flag.replace("127.0.0.1:50051", "127.0.0.1:0")
        .replace("sqlite:////var/lib/tieline", f"sqlite:///{tmp_path}")
        .replace("sqlite:///tieline.db", f"sqlite:///{tmp_path}/tieline.db")
        for flag in flags
    ]
    with serving(*here, **variables) as server:
        assert get(server.http, "/healthz") == 200
    if "sqlite" in line:
        assert stat.S_IMODE((tmp_path / "tieline.db").stat().st_mode) == 0o600


def test_the_address_of_postgresql_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    variables, flags = words(line_with("postgresql:"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert flags == []
    assert Config.load({}).store == variables["TIELINE_STORE"]


def test_the_keys_of_the_page_open_a_server_and_their_hashes_are_made_as_it_says(
    tmp_path: Path,
) -> None:
    keys = dict(re.findall(r'"sha256:(\w+)"   # of "(\w+)"', KEYS))
    assert len(keys) == 2
    for digest, key in keys.items():
        assert shell(line_with("sha256sum"), KEY=key).split()[0] == digest
    path = tmp_path / "keys.toml"
    path.write_text(KEYS)
    with serving("--api-keys", str(path)) as server:
        assert [get(server.http, "/v1/models", key) for key in keys.values()] == [200, 200]
        assert [get(server.http, "/v1/models", key) for key in ("wrong", None)] == [401, 401]


def test_the_seal_keys_of_the_page_are_some(tmp_path: Path) -> None:
    shell(line_with("/dev/urandom"), folder=tmp_path)
    path = tmp_path / "seal.keys"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with serving("--seal-key", str(path)) as server:
        assert get(server.http, "/healthz") == 200


def shell(line: str, *, folder: Path | None = None, **variables: str) -> str:
    """What a line prints."""
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def get(http: str, path: str, key: str | None = None) -> int:
    """The status of an answer."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        with urlopen(Request(f"http://{http}{path}", headers=headers), timeout=60) as answer:
            return int(answer.status)
    except HTTPError as refused:
        refused.close()
        return refused.code


def test_cn_21_the_stated_bounds_are_those_of_the_defaults() -> None:
    config = Config.load({"engine": "scripted"})
    call = config.max_grpc_message_bytes + HEADROOM
    for sentence in (
        f"bytes counted as they come | {config.max_owner_incoming_bytes // MIB} MiB "
        f"| {config.max_total_incoming_bytes // MIB} MiB |",
        f"| {config.max_owner_calls} calls: {config.max_owner_calls * call // MIB} MiB "
        f"| {config.max_calls} calls: {config.max_calls * call // MIB:,} MiB |",
        f"| {config.max_owner_connections:,}: {config.max_owner_connections * 192 // KIB} MiB "
        f"| {config.max_connections:,}: {config.max_connections * 192 // KIB} MiB |",
        f"times ({config.max_grpc_message_bytes // MIB} MiB + {HEADROOM // KIB} KiB)",
        f"due within {GrpcConfig().first_message_timeout:.0f} s,",
        f"at most {KEYLESS_OF_ADDRESS} calls of one address, {KEYLESS} together, "
        f"may wait for their message (together {KEYLESS * call // MIB} MiB)",
        f"silent for {WebSocketConfig().read_timeout:.0f} s, or comes slower than "
        f"{SLOWEST // KIB} kB/s",
        f"The headers of a request may take {HEAD_BYTES // KIB} KiB together, its path or "
        f"one of them {HEADER_BYTES // KIB} KiB (413).",
    ):
        assert sentence in PAGE
    assert WebSocketConfig().read_timeout == HttpConfig().read_timeout
