"""The remote guard against a real local server that behaves and misbehaves."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.moderation_server import (
    Answer,
    ModerationServer,
    cutting,
    hanging,
    moderation,
    replying,
)
from tieline_server.config.toml_tables import GuardSettings
from tieline_server.guards.base import Piece, Unchecked
from tieline_server.guards.remote import BATCH, LARGEST, LONGEST, ROOM, RemoteGuard


@asynccontextmanager
async def opened(server: ModerationServer, **options: Any) -> AsyncIterator[RemoteGuard]:
    guard = RemoteGuard("remote", options.pop("url", server.url), **options)
    try:
        yield guard
    finally:
        await guard.close()


def pieces(*texts: str) -> list[Piece]:
    return [Piece(text) for text in texts]


async def test_one_request_asks_about_all_pieces_and_names_the_first_that_is_flagged() -> None:
    async with moderation("s3cret") as server, opened(server, key="s3cret", model="m") as guard:
        assert await guard.first_flagged(pieces("fine", "so bad", "bad")) == 1
        assert server.bodies == [{"model": "m", "input": ["fine", "so bad", "bad"]}]
        assert await guard.first_flagged(pieces("fine")) is None
        assert await guard.first_flagged([]) is None
        assert len(server.bodies) == 2
        assert len(server.connections) == 1


async def test_a_url_without_a_path_gets_that_of_the_api() -> None:
    async with moderation() as server:
        bare = server.url.removesuffix("/v1")
        async with opened(server, url=bare) as guard:
            assert await guard.first_flagged(pieces("bad")) == 0


async def test_only_the_categories_of_the_settings_count_where_they_name_any() -> None:
    counted = ("spam", "unused", "absent")
    async with moderation() as server, opened(server, categories=counted) as guard:
        assert await guard.first_flagged(pieces("bad", "spam")) == 1


async def test_many_and_long_texts_are_asked_about_in_requests_of_bounded_size() -> None:
    async with moderation() as server, opened(server) as guard:
        many = pieces(*(f"text {number}" for number in range(2 * BATCH + 1)))
        assert await guard.first_flagged(many) is None
        assert [len(body["input"]) for body in server.bodies] == [BATCH, BATCH, 1]
        server.bodies.clear()
        long = "word " * (ROOM // 4)
        assert await guard.first_flagged([Piece("fine"), Piece(long + "bad")]) == 1
        assert all(len(text) <= LONGEST for text in server.inputs)
        assert all(sum(map(len, body["input"])) <= ROOM for body in server.bodies)
        assert "".join(server.inputs[1:]) == long + "bad"
        server.bodies.clear()
        assert await guard.first_flagged([Piece("x" * (LONGEST + 1))]) is None
        assert [len(text) for text in server.inputs] == [LONGEST, 1]


async def test_each_image_is_asked_about_unless_images_are_off() -> None:
    seen = Piece("see", ("https://example.com/good.png", "https://example.com/bad.png"))
    async with moderation() as server:
        async with opened(server) as guard:
            assert await guard.first_flagged([Piece("fine"), seen]) == 1
        assert [body["input"] for body in server.bodies] == [
            ["fine", "see"],
            *([{"type": "image_url", "image_url": {"url": url}}] for url in seen.images),
        ]
        async with opened(server, images=False) as guard:
            assert await guard.first_flagged([seen]) is None


FINE = b'{"results":[{"flagged":false}]}'

WRONG: list[Answer] = [
    replying(500),
    replying(429),
    replying(401),
    replying(307, Location="/v1/moderations"),
    replying(body=b""),
    replying(body=b"<html>"),
    replying(body=b'{"results":[{"flagged":"no"}]}'),
    replying(body=b'{"results":[]}'),
    replying(body=b'{"results":[{"flagged":false},{"flagged":false}]}'),
    replying(body=b"[" * 100_000),
    replying(body=FINE + b" " * LARGEST),
    cutting(FINE),
    hanging(),
]


@pytest.mark.parametrize("wrong", WRONG)
async def test_what_is_no_answer_is_told_and_the_next_one_is_right_again(
    wrong: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="tieline.guards"):
        async with moderation() as server, opened(server, timeout=0.3, key="s3cret") as guard:
            server.answers += [wrong, wrong]
            with pytest.raises(Unchecked) as caught:
                await guard.first_flagged(pieces("bad"))
            assert str(caught.value) == ""
            server.answers.clear()
            assert await guard.first_flagged(pieces("bad")) == 0
    assert len(caplog.messages) == 1
    assert not any("s3cret" in line or "bad" in line for line in caplog.messages)


async def test_after_a_request_without_an_answer_none_is_made_and_a_hit_before_it_counts() -> None:
    many = pieces(*(f"text {number}" for number in range(3 * BATCH)))
    async with moderation() as server, opened(server) as guard:
        server.answers.append(replying(500))
        with pytest.raises(Unchecked):
            await guard.first_flagged(many)
        assert len(server.bodies) == 1
        seen = Piece("fine", ("https://example.com/good.png",))
        fine = b'{"results":[{"flagged":false},{"flagged":true}]}'
        server.answers += [replying(body=fine), replying(500)]
        assert await guard.first_flagged([seen, Piece("bad")]) == 1


async def test_where_nobody_listens_it_cannot_be_asked() -> None:
    async with moderation() as server:
        url = server.url
    async with opened(server, url=url, on_error="open") as guard:
        assert guard.lenient
        with pytest.raises(Unchecked):
            await guard.first_flagged(pieces("bad"))
    async with opened(server, url=url) as guard:
        assert not guard.lenient


async def test_a_connection_that_broke_before_its_answer_is_made_anew_once() -> None:
    async with moderation() as server, opened(server) as guard:
        server.answers.append(cutting())
        assert await guard.first_flagged(pieces("bad")) == 0
        server.answers += [cutting(), cutting()]
        with pytest.raises(Unchecked):
            await guard.first_flagged(pieces("bad"))
        assert len(server.bodies) == 4


async def test_so_many_requests_run_at_once_and_no_more() -> None:
    async with moderation() as server, opened(server, requests=2) as guard:
        server.gate.clear()
        asked = [asyncio.ensure_future(guard.first_flagged(pieces("bad"))) for _ in range(6)]
        await server.signal.until(lambda: server.running == 2)
        server.gate.set()
        assert await asyncio.gather(*asked) == [0] * 6
        assert server.most == 2


async def test_a_verdict_that_nobody_waits_for_any_more_closes_its_request() -> None:
    async with moderation() as server, opened(server, requests=1) as guard:
        server.gate.clear()
        asked = asyncio.ensure_future(guard.first_flagged(pieces("bad")))
        await server.signal.until(lambda: server.running == 1)
        asked.cancel()
        await asyncio.wait((asked,))
        await server.signal.until(lambda: server.running == 0)
        server.gate.set()
        assert await guard.first_flagged(pieces("bad")) == 0


async def test_a_table_says_all_of_it() -> None:
    async with moderation("s3cret") as server:
        table = GuardSettings(
            kind="remote",
            applies=("input",),
            url=server.url,
            model="omni",
            message="No.",
            categories=("spam",),
            on_error="open",
            timeout=3.0,
            images=False,
            requests=1,
        )
        guard = RemoteGuard.of("g", table, key="s3cret")
        try:
            assert (guard.name, guard.message) == ("g", "No.")
            assert sorted(guard.applies) == ["input"]
            assert await guard.first_flagged(pieces("bad", "spam")) == 1
            assert server.bodies[-1]["model"] == "omni"
        finally:
            await guard.close()
