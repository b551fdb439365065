"""The examples, run as they are against a scripted server."""

import subprocess
import sys
from pathlib import Path

from tests.support.server_process import serving, write_script

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str, *arguments: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_quickstart_prints_both_answers(tmp_path: Path) -> None:
    rules = [
        {"id": "2", "when": {"turn": 2}, "emit": {"type": "message", "text": "Still two."}},
        {"id": "1", "emit": {"type": "message", "text": "Two of them."}},
    ]
    with serving("--script", write_script(tmp_path, rules=rules)) as server:
        said = example("quickstart.py", f"grpc://{server.address}", folder=tmp_path)
    assert said == "Two of them.\nStill two.\n"


def test_agent_runs_its_tools_and_shows_the_time(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("one two three")
    call = {"type": "function_call", "name": "count_words", "arguments": {"name": "note.txt"}}
    rules = [
        {
            "id": "answer",
            "when": {"last": "tool_output"},
            "emit": {"type": "message", "text": "It has {output} words."},
        },
        {"id": "call", "when": {"tool": ["function", "count_words"]}, "emit": call},
    ]
    with serving("--script", write_script(tmp_path, rules=rules)) as server:
        url = f"grpc://{server.address}"
        said = example("agent.py", url, "How long is the note?", folder=tmp_path).splitlines()
    assert said[:2] == ['count_words({"name":"note.txt"}) -> 3', "It has 3 words."]
    assert said[2].split() == ["turn", "service", "engine", "client", "wall"]
