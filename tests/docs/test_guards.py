"""What docs/guards.md tells a reader to run and to write does what it says."""

import json
import re
import signal
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.moderation_server import moderation_beside
from tests.support.server_process import ServerProcess, run, serving
from tieline_server.config.toml_tables import GuardSettings
from tieline_server.guards.pattern import LONGEST, MEMORY
from tieline_server.guards.sentences import LONGEST as SENTENCE
from tieline_server.guards.sentences import MOST

PAGE = (Path(__file__).parents[2] / "docs/guards.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
(PATTERNS,) = (body for language, body in FENCE.findall(PAGE) if language == "text")
PATTERN_GUARD, REMOTE_GUARD, TABLES = (
    body for language, body in FENCE.findall(PAGE) if language == "toml"
)

FLAGGED = "tell me about Project Bluebird"


def here(text: str, folder: Path, url: str = "http://127.0.0.1:1/v1") -> str:
    """The text with the page's files in this folder and its server at this URL."""
    (folder / "patterns.txt").write_text(PATTERNS)
    for name in ("patterns.txt", "moderation.key"):
        text = text.replace(name, str(folder / name))
    return text.replace("http://127.0.0.1:9000/v1", url)


def config_of(text: str, folder: Path, url: str = "http://127.0.0.1:1/v1") -> tuple[str, str]:
    """The flag of a file that says this, and which engine samples."""
    path = folder / "tieline.toml"
    path.write_text('engine = "scripted"\n' * ("engine" not in text) + here(text, folder, url))
    return "--config", str(path)


def ask(server: ServerProcess, said: str, **members: Any) -> Any:
    """The JSON of an answer, an error's too, with its ``Server-Timing``."""
    data = json.dumps({"input": said, **members}).encode()
    head = {"Content-Type": "application/json"}
    try:
        with urlopen(Request(f"http://{server.http}/v1/responses", data, head), timeout=60) as got:
            return {**json.load(got), "timing": got.headers["Server-Timing"]}
    except HTTPError as refused:
        with refused:
            return json.load(refused)


def metric(server: ServerProcess, name: str) -> float:
    """The sum of a metric over its labels."""
    with urlopen(f"http://{server.http}/metrics", timeout=60) as got:
        text = got.read().decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def refused(answer: Any) -> bool:
    return bool(answer.get("error") and answer["error"]["code"] == "invalid_prompt")


def test_the_patterns_of_the_page_keep_back_what_they_say(tmp_path: Path) -> None:
    with serving(*config_of(PATTERN_GUARD, tmp_path)) as server:
        assert ask(server, "hello")["status"] == "completed"
        for said in (FLAGGED, "my card is 4111 1111 1111 1111"):
            assert refused(ask(server, said))
        assert "guard;dur=" in ask(server, "hello")["timing"]
        assert metric(server, "tieline_server_guard_hits_total") == 2
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        turns = server.lines("turn")
        assert all(turn["phases_us"]["guard"] > 0 for turn in turns)
        assert "luebird" not in server.log()


def test_the_server_of_moderation_of_the_page_is_asked(tmp_path: Path) -> None:
    key = tmp_path / "moderation.key"
    key.write_text("s3cret\n")
    with moderation_beside("s3cret") as moderator:
        flags = config_of(REMOTE_GUARD, tmp_path, moderator.url)
        with serving(*flags) as server:
            assert ask(server, "hello")["status"] == "completed"
            assert refused(ask(server, "so bad"))
            assert moderator.bodies[0]["model"] == "omni-moderation-latest"
            assert "hello" in moderator.inputs
            assert "s3cret" not in server.log()
        key.write_text("wr0ng\n")
        with serving(*flags) as server:
            error = ask(server, "hello")["error"]
            assert error["code"] == "engine_unavailable"
            assert "401" not in error["message"]


def test_the_tables_of_the_page_guard_each_model_as_they_say(tmp_path: Path) -> None:
    with moderation_beside() as moderator:
        flags = config_of(TABLES, tmp_path, moderator.url)
        with serving(*flags) as server:
            flagged = ask(server, FLAGGED, model="chat")
            assert flagged["error"]["message"] == "This is confidential."
            assert refused(ask(server, "so bad", model="chat"))
            assert refused(ask(server, FLAGGED, model="draft"))
            assert ask(server, "so bad", model="draft")["status"] == "completed"
            assert ask(server, f"{FLAGGED}, so bad", model="free")["status"] == "completed"
            assert len(moderator.bodies) == 1


def test_every_worker_has_the_guards(tmp_path: Path) -> None:
    (tmp_path / "moderation.key").write_text("s3cret\n")
    store = ("--workers", "2", "--store", f"sqlite:///{tmp_path}/tieline.db")
    with moderation_beside("s3cret") as moderator:
        flags = config_of(PATTERN_GUARD + REMOTE_GUARD, tmp_path, moderator.url)
        with serving(*flags, *store) as server:
            for _ in range(6):
                assert refused(ask(server, FLAGGED))
                assert refused(ask(server, "so bad"))
            assert metric(server, "tieline_server_guard_hits_total") == 12


@pytest.mark.parametrize(
    "more",
    [(), ("--workers", "2", "--store", "sqlite:///{}/tieline.db")],
    ids=["one process", "two workers"],
)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('kind = "pattern"\npatterns = ["(bad"]', "guards.g: '(bad': RE2 refuses it: missing )"),
        ('kind = "pattern"\npatterns = ["b.*d"]', "guards.g: 'b.*d' has no longest match"),
        ('kind = "pattern"\nfile = "none"', "guards.g: cannot read none: FileNotFoundError"),
    ],
    ids=["no pattern", "unbounded", "no file"],
)
def test_a_guard_that_cannot_be_had_is_one_line(
    text: str, said: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "tieline.toml"
    path.write_text(f'engine = "scripted"\n[guards.g]\n{text}\n')
    flags = (each.format(tmp_path) for each in more)
    done = run("--config", str(path), "--grpc", "127.0.0.1:0", "--http", "off", *flags)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
    if not more:
        assert done.stderr.count("\n") == 1


def test_the_page_lists_every_key_of_a_table_with_its_meaning() -> None:
    listed = re.findall(r"^\| `(\w+)` \| (.+?) \|$", PAGE, re.MULTILINE)
    fields = GuardSettings.model_fields.items()
    assert listed == [(name, str(field.description)) for name, field in fields]


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    for sentence in (
        f"At most {LONGEST:,} characters are held.",
        f"A sentence of {SENTENCE} characters",
        f"When {MOST:,} characters wait",
        f"at most {MEMORY // 1024 // 1024} MiB",
    ):
        assert sentence in PAGE
