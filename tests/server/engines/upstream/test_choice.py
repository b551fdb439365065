"""Which mode an upstream is asked in."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import aiohttp
import pytest
from msgspec.structs import replace

from tests.support.engine_contract import prompt
from tests.support.upstream_server import MODEL, Handler, UpstreamServer, refusing, upstream
from tests.support.upstream_shapes import CHAT, COMPLETIONS, SHAPES, Shape, talk
from tieline_server.engines.upstream.choice import Wanted, chosen
from tieline_server.engines.upstream.modes import Mode
from tieline_server.engines.upstream.probe import Prober, UpstreamError
from tieline_server.engines.upstream.replicas import Replica

T = TypeVar("T")

ALL = ("chat/completions", "completions", "responses")


def run(main: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(30):
            return await main

    return asyncio.run(bounded())


async def choose(server: UpstreamServer, wanted: Wanted, plan: Handler = talk) -> Mode:
    """What is chosen for a server that answers so."""
    server.otherwise = plan
    async with aiohttp.ClientSession() as session:
        return await chosen(wanted, Prober(session, Replica(server.url, places=1), MODEL), {})


def choice(paths: tuple[str, ...], wanted: Wanted) -> Mode:
    """What is chosen where an upstream has these paths."""

    async def main() -> Mode:
        async with upstream(paths=paths) as server:
            return await choose(server, wanted)

    return run(main())


def refusal(paths: tuple[str, ...], wanted: Wanted) -> str:
    """Why nothing can be chosen."""
    with pytest.raises(UpstreamError) as caught:
        choice(paths, wanted)
    (line,) = str(caught.value).splitlines()
    return line


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_mode_that_the_settings_name_is_the_one(shape: Shape) -> None:
    path = "chat/completions" if shape is CHAT else shape.name
    assert choice(ALL, shape.how).path == path


@pytest.mark.parametrize(
    ("paths", "wanted", "path"),
    [
        (ALL, Wanted(), "chat/completions"),
        (("responses",), Wanted(), "responses"),
        (ALL, Wanted(tokenizer=COMPLETIONS.how.tokenizer), "completions"),
    ],
    ids=["chat first", "then responses", "completions with a tokenizer"],
)
def test_where_the_settings_name_none_it_is_what_the_upstream_has(
    paths: tuple[str, ...], wanted: Wanted, path: str
) -> None:
    assert choice(paths, wanted).path == path


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_mode_that_the_upstream_has_not_is_said_in_one_line(shape: Shape) -> None:
    others = tuple(path for path in ALL if path != choice(ALL, shape.how).path)
    line = refusal(others, shape.how)
    assert line.endswith("answers with status 404: it has no such path")


def test_where_it_has_none_the_first_that_was_tried_is_named() -> None:
    assert "/v1/chat/completions answers with" in refusal((), Wanted())


async def test_state_is_of_the_mode_responses_and_nothing_else_is_tried() -> None:
    async with upstream() as server:
        with pytest.raises(UpstreamError, match="/v1/responses keeps no responses"):
            await choose(server, Wanted(state=True), refusing(501))


@pytest.mark.parametrize("mode", ["chat", "completions"])
def test_state_in_a_mode_that_has_none_is_said_in_one_line(mode: Any) -> None:
    line = refusal(ALL, Wanted(mode=mode, state=True))
    assert line == f"upstream_state is of the mode responses, not of {mode}"


def test_completions_without_a_tokenizer_are_refused_in_one_line() -> None:
    assert "need the model's GGUF" in refusal(ALL, Wanted(mode="completions"))


def test_a_mode_is_ready_when_it_is_chosen() -> None:
    async def main() -> list[dict[str, Any]]:
        async with upstream() as server:
            await choose(server, COMPLETIONS.how)
            return server.bodies

    probed = run(main())
    assert any("structured_outputs" in body for body in probed)


def test_owners_have_a_name_that_tells_nothing_of_them_and_differs_between_servers() -> None:
    def salt(wanted: Wanted) -> Any:
        mode: Any = choice(ALL, wanted)
        given = prompt(model=MODEL)
        return mode._salt(given.owner), given.owner

    wanted = COMPLETIONS.how
    (first, owner), (second, _) = salt(wanted), salt(wanted)
    assert first != second
    assert owner not in (first, second)
    assert salt(replace(wanted, salt=str.upper))[0] == owner.upper()
