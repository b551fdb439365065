"""What docs/upstreams.md tells a reader to run and to write does what it says."""

import json
import re
import shlex
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.server_process import run, serving
from tests.support.upstream_server import MODEL, UpstreamServer, upstream_beside
from tests.support.upstream_shapes import talk
from tieline_server.config.toml_tables import ModelSettings
from tieline_server.models.packaged import find

PAGE = (Path(__file__).parents[2] / "docs/upstreams.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINES = [body.strip() for language, body in FENCE.findall(PAGE) if language == "sh"]
TOKENIZER, TABLES = (body for language, body in FENCE.findall(PAGE) if language == "toml")
URL = re.compile(r"http://127\.0\.0\.1:800\d/v1")


def here(text: str, server: UpstreamServer) -> str:
    """The text with every upstream of the page being this one."""
    return URL.sub(server.url, text).replace("model.gguf", str(find()))


def ask(http: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """The JSON of an answer, an error's too."""
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"http://{http}{path}", data, {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=60) as answer:
            return json.load(answer)
    except HTTPError as refused:
        with refused:
            return json.load(refused)


@pytest.mark.parametrize("line", LINES)
def test_a_server_of_the_page_answers(line: str) -> None:
    with upstream_beside() as server:
        server.otherwise = talk
        flags = shlex.split(here(line, server))[1:]
        with serving(*flags) as process:
            made = ask(process.http, "/v1/responses", {"input": "hello"})
            assert made["status"] == "completed"
            assert made["model"] == MODEL
            assert made["output"][0]["content"][0]["text"].lstrip().startswith("word")
            assert made["usage"]["input_tokens"] == 9


def test_a_model_of_the_page_has_the_tokenizer_of_its_table(tmp_path: Path) -> None:
    with upstream_beside() as server:
        server.otherwise = talk
        path = tmp_path / "tieline.toml"
        path.write_text(here(TOKENIZER, server))
        with serving("--config", str(path), "--engine", "upstream") as process:
            made = ask(process.http, "/v1/responses", {"input": "hello"})
            assert (made["status"], made["model"]) == ("completed", "local")
            assert made["usage"]["input_tokens"] == 7
            assert "prompt" in server.bodies[-1]


def test_the_tables_of_the_page_name_models_as_it_says(tmp_path: Path) -> None:
    with upstream_beside() as server:
        path = tmp_path / "tieline.toml"
        path.write_text(here(TABLES, server))
        # The engine of the file, not the one that tests choose.
        with serving("--config", str(path), "--engine", "upstream") as process:
            listed = ask(process.http, "/v1/models")["data"]
            assert [each["id"] for each in listed] == ["chat", "thinker", "elsewhere", "rules"]
            codex = ask(process.http, "/v1/models?client_version=1")["models"]
            assert [each["slug"] for each in codex] == ["chat", "thinker", "elsewhere", "rules"]
            said = ask(process.http, "/v1/capabilities")
            assert server.url not in json.dumps(said)
            abilities = [each for engine in said["engines"] for each in engine["models"]]
            assert {each["id"]: each.get("price") for each in abilities} == {
                "chat": None,
                "thinker": None,
                "elsewhere": {"input": 2.0, "cached_input": 0.5, "output": 8.0},
                "rules": None,
            }

            made = ask(process.http, "/v1/responses", {"input": "a", "model": "gpt-4o"})
            assert (made["model"], made["max_output_tokens"]) == ("chat", 1024)
            assert server.bodies[-1]["model"] == MODEL
            assert server.bodies[-1]["max_tokens"] == 1024

            made = ask(process.http, "/v1/responses", {"input": "a", "model": "thinker"})
            assert made["reasoning"]["effort"] == "high"
            assert server.bodies[-1]["reasoning_effort"] == "high"
            asked = {"input": "a", "model": "thinker", "reasoning": {"effort": "low"}}
            ask(process.http, "/v1/responses", asked)
            assert server.bodies[-1]["reasoning_effort"] == "low"

            before = len(server.bodies)
            ask(process.http, "/v1/responses", {"input": "a", "model": "elsewhere"})
            assert len(server.bodies) == before + 1
            made = ask(process.http, "/v1/responses", {"input": "a", "model": "rules"})
            assert (made["status"], made["model"]) == ("completed", "rules")
            assert len(server.bodies) == before + 1

            for unknown in (MODEL, "scripted", "none"):
                refused = ask(process.http, "/v1/responses", {"input": "a", "model": unknown})
                assert refused["error"]["code"] == "model_not_found"


def test_every_worker_has_the_key_and_one_that_is_wrong_is_one_line(tmp_path: Path) -> None:
    flags = ("--workers", "2", "--store", f"sqlite:///{tmp_path}/tieline.db")
    with upstream_beside(key="s3cret") as server:
        given = ("--engine", "upstream", "--upstream", server.url, *flags)
        with serving(*given, TIELINE_UPSTREAM_KEY="s3cret") as process:
            made = [ask(process.http, "/v1/responses", {"input": "hello"}) for _ in range(6)]
            assert {each["status"] for each in made} == {"completed"}
            assert "s3cret" not in process.log()
        refused = run(*given[:4], TIELINE_UPSTREAM_KEY="wr0ng")
        assert refused.returncode == 2
        assert refused.stderr.count("\n") == 1
        assert "it wants another key" in refused.stderr
        assert "wr0ng" not in refused.stderr


def test_the_page_lists_every_key_of_a_table_with_its_meaning() -> None:
    listed = re.findall(r"^\| `(\w+)` \| (.+?) \|$", PAGE, re.MULTILINE)
    fields = ModelSettings.model_fields.items()
    meant = [(name, str(field.description)) for name, field in fields]
    assert [(name, meaning) for name, meaning in listed if (name, meaning) in meant] == meant
