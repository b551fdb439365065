"""The typed boundary to the library, with the real model."""

import http.client
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tieline.errors import how_to_install
from tieline_server.engines.chat_format import gguf_metadata
from tieline_server.engines.chat_format.tokens import Tokens
from tieline_server.engines.llama.runtime import (
    Completion,
    End,
    Failure,
    Progress,
    Report,
    Runtime,
    Text,
)
from tieline_server.models.packaged import ModelError, find

IDS = [1, 4093, 198, 19556, 2, 198, 1, 520, 9531, 198]


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    runtime = Runtime(find(), slots=1, context=256)
    yield runtime
    runtime.close()


def completion(ids: list[int], *, max_tokens: int = 2, grammar: str | None = None) -> Completion:
    return Completion(ids=ids, max_tokens=max_tokens, temperature=0.0, top_p=1.0, grammar=grammar)


def reports_of(runtime: Runtime, given: Completion) -> list[Report]:
    reports: list[Report] = []

    def report(what: Report) -> bool:
        reports.append(what)
        return False

    runtime.complete(given, report)
    return reports


def test_an_answer_is_progress_then_text_then_its_end(runtime: Runtime) -> None:
    reports = reports_of(runtime, completion(IDS))
    assert reports[0] == Progress(total=len(IDS), cached=0, done=0)
    texts = [report for report in reports if isinstance(report, Text)]
    assert [report.sampled for report in texts] == [1, 2]
    end = reports[-1]
    assert isinstance(end, End)
    assert (end.reason, end.input_tokens, end.output_tokens) == ("length", len(IDS), 2)


def test_a_prompt_that_was_there_is_not_computed_again(runtime: Runtime) -> None:
    reports_of(runtime, completion(IDS))
    [first, *_, last] = reports_of(runtime, completion([*IDS, 198]))
    assert first == Progress(total=len(IDS) + 1, cached=len(IDS), done=len(IDS))
    assert isinstance(last, End)
    assert last.prefilled_tokens == 1


def test_a_true_answer_of_the_callback_cancels(runtime: Runtime) -> None:
    reports: list[Report] = []

    def report(what: Report) -> bool:
        reports.append(what)
        return isinstance(what, Text)

    runtime.complete(completion(IDS, max_tokens=200), report)
    assert len([each for each in reports if isinstance(each, Text)]) == 1


def test_a_callback_that_raises_cancels_and_is_told(runtime: Runtime) -> None:
    reports: list[Report] = []

    def report(what: Report) -> bool:
        if isinstance(what, Text):
            raise ValueError("mine")
        reports.append(what)
        return False

    runtime.complete(completion(IDS, max_tokens=200), report)
    assert reports[-1] == Failure("ValueError")


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (completion([5] * 300), "exceed_context_size_error"),
        (completion([1, 10**6]), "invalid_request_error"),
        (completion([]), "invalid_request_error"),
    ],
)
def test_what_the_library_refuses_is_a_failure(
    runtime: Runtime, given: Completion, kind: str
) -> None:
    assert reports_of(runtime, given) == [Failure(kind)]


@pytest.mark.parametrize("text", ["hello", "<|im_end|> \n", "a🦊é日本語 1 22", " x ", "\0"])
def test_its_tokeniser_is_the_models_own(runtime: Runtime, text: str) -> None:
    tokens = Tokens(gguf_metadata.read(find()), runtime.tokenise)
    assert runtime.tokenise(text) == tokens.encode(text)


def test_the_librarys_port_is_on_loopback_and_wants_a_key(runtime: Runtime) -> None:
    host, _, port = runtime.address.removeprefix("http://").rpartition(":")
    assert host == "127.0.0.1"
    for path in ("/v1/models", "/slots", "/props", "/metrics"):
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
        connection.request("GET", path)
        assert connection.getresponse().status == 401
        connection.close()


def test_closing_closes_the_port() -> None:
    runtime = Runtime(find(), slots=1, context=64)
    host, _, port = runtime.address.removeprefix("http://").rpartition(":")
    runtime.close()
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection(host, int(port), timeout=10).connect()
    with pytest.raises(RuntimeError, match="closed"):
        runtime.complete(completion(IDS), lambda report: False)


def test_a_runtime_has_answered_once_so_that_it_can_be_closed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = import_module("xllamacpp")
    steps: list[str] = []

    class Server(library.Server):  # type: ignore[misc, name-defined]
        def handle_completions(self, body: Any, callback: Any) -> None:
            super().handle_completions(body, callback)
            steps.append("answered")

    monkeypatch.setattr(library, "Server", Server)
    runtime = Runtime(find(), slots=1, context=64)
    assert steps == ["answered"]
    runtime.close()


def test_openmp_was_told_not_to_spin(runtime: Runtime) -> None:
    assert os.environ["GOMP_SPINCOUNT"] == "0"


def test_without_the_library_the_error_is_one_line_with_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(ModelError) as caught:
        Runtime(find(), slots=1, context=64)
    assert str(caught.value) == f"xllamacpp is not installed: {how_to_install('llama')}"


def test_a_model_file_that_is_cut_short_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    with find().open("rb") as whole:
        path.write_bytes(whole.read(4_000_000))
    with pytest.raises(ModelError, match=r"cut\.gguf cannot be loaded by llama\.cpp"):
        Runtime(path, slots=1, context=64)
