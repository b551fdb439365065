"""What docs/configuration.md tells a reader to ask of the ledger is answered."""

import json
import re
import shlex
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.support.filled_ledger import FILLED, STORE
from tests.support.server_process import serving
from tieline_server.__main__ import main
from tieline_server.config import PREFIX
from tieline_server.config.toml_tables import STORES
from tieline_server.storage.questions import moment

PAGE = (Path(__file__).parents[2] / "docs/configuration.md").read_text(encoding="utf-8")
SECTION = PAGE.split("\n## Usage\n")[1].split("\n## ")[0]
HTTP = "127.0.0.1:8080"
"""The address that the page assumes: the server's default."""

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINES = [
    line
    for language, body in _FENCE.findall(SECTION)
    if language == "sh"
    for line in body.splitlines()
]
COMMANDS = [line for line in LINES if line.startswith("tieline-server usage")]
REQUESTS = [line for line in LINES if line.startswith("curl ")]


def fetched(url: str, body: object = None) -> Any:
    """The JSON behind a URL."""
    data = None if body is None else json.dumps(body).encode()
    asked = Request(url, data, {"Content-Type": "application/json"})
    with urlopen(asked, timeout=60) as answer:
        return json.load(answer)


def test_every_line_to_run_is_tried_here() -> None:
    assert (len(COMMANDS), len(REQUESTS)) == (2, 1)
    assert len(LINES) == 3


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_prints_sums(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STORES, "sqlite", FILLED)
    monkeypatch.setenv(PREFIX + "STORE", STORE)
    monkeypatch.setenv("GRPC_VERBOSITY", "NONE")
    assert main(shlex.split(command)[1:]) == 0
    written = capsys.readouterr()
    assert written.err == ""
    assert "responses" in written.out.splitlines()[0]


def test_the_request_of_the_page_is_answered_in_the_shape_of_the_page() -> None:
    (example,) = (body for language, body in _FENCE.findall(SECTION) if language == "json")
    (url,) = (shlex.split(line)[1] for line in REQUESTS)
    with serving() as server:
        fetched(f"http://{server.http}/v1/responses", {"input": "hi"})
        said = fetched(url.replace(HTTP, server.http))
    shown = json.loads(example)
    assert said.keys() == shown.keys()
    assert [list(each) for each in said["data"]] == [list(each) for each in shown["data"]]
    assert (said["data"][0]["group"], said["data"][0]["responses"]) == ("scripted", 1)


def test_every_moment_of_the_page_is_one() -> None:
    durations = re.findall(r"`(\d+[a-z])`", SECTION)
    assert len(durations) == 5
    for each in durations:
        moment(each, now=0.0)
