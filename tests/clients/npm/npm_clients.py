"""Clients from npm, unchanged, in tool loops against a server: run by ``make clients``.

Their packages are in this folder's node_modules. Each tool's effect is a file, looked at from
outside the client; what the server made of the client is read from its log.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.server_process import TIMEOUT, ServerProcess, serving, write_script

HERE: Final = Path(__file__).parent
COMMANDS: Final = HERE / "node_modules" / ".bin"

NOWHERE: Final = "http://127.0.0.1:9"
"""A proxy that nothing listens on: what a client would tell the outside stays here."""


def call(function: str, **arguments: Any) -> list[dict[str, Any]]:
    """A thought and a call of a function."""
    return [
        {"type": "reasoning", "summary": "A file is asked for."},
        {"type": "function_call", "name": function, "arguments": arguments},
    ]


def rule(function: str, **arguments: Any) -> dict[str, Any]:
    """A model that calls a function where it is offered and the user says "proof"."""
    when = {"last": "message", "tool": ["function", function], "user_contains": "proof"}
    return {"id": function, "when": when, "emit": call(function, **arguments)}


SHELL: Final = "echo made > proof.txt && cat proof.txt"
RULES: Final[list[dict[str, Any]]] = [
    rule("exec_command", cmd=SHELL),
    rule("run_commands", commands=[SHELL]),
    rule("write_file", name="proof.txt", text="{user}"),
    {
        "id": "done",
        "when": {"last": "tool_output"},
        "emit": {"type": "message", "text": "Done: {output}"},
    },
    {"id": "echo", "emit": {"type": "message", "text": "You said: {user}"}},
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of the test's own, so that its log holds this test's turns alone."""
    with serving("--script", write_script(tmp_path, rules=RULES)) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the client works."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def run(*command: str | Path, folder: Path, **variables: str) -> list[dict[str, Any]]:
    """Runs a client to its end; the lines of its standard output that are JSON."""
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    kept = {"PATH": os.environ["PATH"], "HOME": str(home), "NO_PROXY": "127.0.0.1"}
    ended = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**kept, "HTTP_PROXY": NOWHERE, "HTTPS_PROXY": NOWHERE, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]


def turns_of(server: ServerProcess) -> list[dict[str, Any]]:
    """What the server logged of its turns, once it has ended; nothing worse than that happened."""
    server.process.terminate()
    assert server.process.wait(TIMEOUT) == 0
    assert [line for line in server.lines() if line["level"] != "info"] == []
    return server.lines("turn")


def members(turns: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    """Some members of each turn's log line."""
    return [tuple(turn.get(name) for name in names) for turn in turns]


CODEX: Final = """\
model = "scripted"
model_provider = "tieline"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[model_providers.tieline]
name = "Tieline"
base_url = "{url}"
wire_api = "responses"
supports_websockets = {websocket}
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false
"""


def codex(server: ServerProcess, folder: Path, *arguments: str, websocket: bool) -> Any:
    """Codex without a terminal, its settings in a folder of the test's; what it says, by type."""
    home = folder.parent / "codex"
    home.mkdir(exist_ok=True)
    url = f"http://{server.http}/v1"
    text = CODEX.format(url=url, websocket=json.dumps(websocket))
    (home / "config.toml").write_text(text)
    lines = run(COMMANDS / "codex", "exec", *arguments, folder=folder, CODEX_HOME=str(home))
    assert lines[-1]["type"] == "turn.completed"
    return {
        line["item"]["type"]: line["item"] for line in lines if line["type"] == "item.completed"
    }


def codex_makes_a_proof(server: ServerProcess, folder: Path, *, websocket: bool) -> None:
    options = ("--skip-git-repo-check", "--json")
    items = codex(server, folder, *options, "make a proof", websocket=websocket)
    assert (folder / "proof.txt").read_text() == "made\n"
    assert items["command_execution"]["exit_code"] == 0
    assert items["reasoning"]["text"] == "A file is asked for."
    assert items["agent_message"]["text"].startswith("Done: ")
    assert "made" in items["agent_message"]["text"]


def test_codex_warms_up_and_goes_on_incrementally_over_websocket(
    server: ServerProcess, folder: Path
) -> None:
    codex_makes_a_proof(server, folder, websocket=True)
    options = ("--skip-git-repo-check", "--json")
    items = codex(server, folder, "resume", "--last", *options, "and now?", websocket=True)
    assert items["agent_message"]["text"] == "You said: and now?"
    turns = turns_of(server)
    same = ("transport", "store", "outcome")
    assert set(members(turns, *same)) == {("websocket", False, "completed")}
    assert [turn["kind"] for turn in turns] == ["prewarm", "turn", "turn", "prewarm", "turn"]
    warm, asked, told, again, last = turns
    for turn, parent in ((asked, warm), (told, asked), (last, again)):
        assert turn["previous_response_id"] == parent["response_id"]
        assert turn["cached_tokens"] > 0


def test_codex_sends_its_whole_history_over_sse(server: ServerProcess, folder: Path) -> None:
    codex_makes_a_proof(server, folder, websocket=False)
    turns = turns_of(server)
    wanted = ("sse", "turn", False, "completed", None)
    names = ("transport", "kind", "store", "outcome", "previous_response_id")
    assert members(turns, *names) == [wanted, wanted]


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("transport", ["sse", "websocket"])
def test_the_ai_sdk_loops_over_tools(
    server: ServerProcess, folder: Path, transport: str, store: bool
) -> None:
    url = f"http://{server.http}/v1"
    *_, said = run("node", HERE / "ai_sdk.mjs", url, transport, json.dumps(store), folder=folder)
    assert (folder / "proof.txt").read_text() == "write proof"
    assert (said["first"], said["steps"]) == ("Done: 11 characters", 2)
    assert said["second"] == "You said: and now?"
    turns = turns_of(server)
    names = ("transport", "store", "outcome")
    assert members(turns, *names) == [(transport, store, "completed")] * 3
    assert said["cached"] == turns[-1]["cached_tokens"]
    goes_on = store or transport == "websocket"
    assert (said["cached"] > 0) == goes_on
    assert turns[-1].get("previous_response_id") == (turns[1]["response_id"] if goes_on else None)


@pytest.mark.parametrize("store", [True, False])
def test_openai_on_a_websocket_loops_over_tools(
    server: ServerProcess, folder: Path, store: bool
) -> None:
    url = f"http://{server.http}/v1"
    *_, said = run("node", HERE / "openai_ws.mjs", url, json.dumps(store), folder=folder)
    assert (folder / "proof.txt").read_text() == "write proof 3"
    assert said["texts"] == ["Done: 13 characters"] * 3
    assert said["refused"] == "previous_response_not_found"
    assert said["failures"] == ["previous_response_not_found"]
    *turns, refused = turns_of(server)
    names = ("transport", "store", "outcome")
    assert members(turns, *names) == [("websocket", store, "completed")] * 6
    previous = [turn.get("previous_response_id") for turn in turns]
    assert previous == [None, *(turn["response_id"] for turn in turns[:-1])]
    assert [turn["cached_tokens"] > 0 for turn in turns] == [False] + [True] * 5
    assert said["cached"] == turns[-1]["cached_tokens"]
    assert members([refused], "outcome", "error") == [("refused", "previous_response_not_found")]


def test_cline_loops_over_tools_over_sse(server: ServerProcess, folder: Path) -> None:
    data = folder.parent / "cline"
    (data / "settings").mkdir(parents=True)
    settings = {"telemetryOptOut": True, "autoUpdateEnabled": False}
    (data / "settings" / "global-settings.json").write_text(json.dumps(settings))
    cline = (COMMANDS / "cline", "--data-dir", data)
    url = f"http://{server.http}/v1"
    account = ("-p", "openai-native", "-k", "none", "-m", "scripted", "-b", url)
    run(COMMANDS / "cline", "auth", *account, "--data-dir", data, folder=folder)
    *_, said = run(*cline, "--json", "-t", "60", "-c", folder, "make a proof", folder=folder)
    assert (folder / "proof.txt").read_text() == "made\n"
    assert (said["type"], said["finishReason"]) == ("run_result", "completed")
    assert "made" in said["text"]
    turns = turns_of(server)
    assert members(turns, "transport", "store", "outcome") == [("sse", True, "completed")] * 2
