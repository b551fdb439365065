"""Workers that are killed under load, again and again: what was acknowledged stays.

Callers on every transport talk in chains of stored responses, and begin responses in the
background. Whoever loses a connection makes a new one, which is at whichever worker lives, and
goes on from the last response whose end was told.
"""

import asyncio
import errno
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import ClientConnectionError, ClientSession

from tests.conformance import generated
from tests.support.process_state import until
from tests.support.server_process import write_script
from tests.support.several import Several, several
from tieline.errors import ApiError
from tieline.responses import Response, encode
from tieline_client import Connection, connect
from tieline_client.errors import ConnectionLost

Json = dict[str, Any]

WHOLE: Final = 2.0
"""Seconds within which a fleet is whole again (under --soak; else the machine may be full)."""

HANG: Final = 60.0
"""Seconds after which a caller that has not come to an end hangs."""

TEXT: Final = "So be it, and so on."
LONG: Final = "And so it goes on and on. " * 10
RUNS: Final = frozenset({"queued", "in_progress"})
RULES: Final = [
    {
        "id": "context",
        "when": {"user_contains": "context?"},
        "emit": {"type": "message", "text": "{context}"},
    },
    {
        "id": "long",
        "when": {"user_contains": "long"},
        "emit": {"type": "message", "text": LONG},
        "pace": {"tokens_per_second": 100},
    },
    {
        "id": "answer",
        "emit": {"type": "message", "text": TEXT},
        "pace": {"tokens_per_second": 400},
    },
]


class Seen:
    """What the callers were told."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.stored: dict[str, Json] = {}
        """Response id -> the response that its terminal event carried."""
        self.said: dict[str, list[str]] = {}
        """The last response of each chain -> what was said in it, in order."""
        self.background: dict[str, Json] = {}
        """Response id -> how it stood when it had ended."""
        self.broken: Counter[str] = Counter()
        """Typed errors that callers met."""
        self.whole: list[float] = []
        """Seconds from each kill until the fleet was whole."""


async def _talk(url: str, seen: Seen, name: str) -> None:
    """Talks in one chain; a turn that was lost is said again in other words."""
    said: list[str] = []
    last: str | None = None
    tries = 0
    while not seen.stop.is_set():
        try:
            async with connect(url) as line:
                while not seen.stop.is_set():
                    tries += 1
                    words = f"fact {name} {tries}."
                    response = await _turn(line, words, last)
                    assert response.status == "completed"
                    said.append(words)
                    last = response.id
                    seen.stored[last] = msgspec.json.decode(encode(response))
        except (ConnectionLost, ApiError) as error:
            seen.broken[_name(error)] += 1
    if last is not None:
        seen.said[last] = said


async def _turn(line: Connection, words: str, last: str | None) -> Response:
    stream = await line.create(input=words, store=True, previous_response_id=last)
    return await stream.response()


def _name(error: ConnectionLost | ApiError | ClientConnectionError) -> str:
    if isinstance(error, ApiError):
        return error.code or ""
    number = error.errno if isinstance(error, OSError) else None
    return type(error).__name__ + (f" {errno.errorcode[number]}" if number else "")


async def _begin(url: str, seen: Seen) -> None:
    """Begins a response in the background and asks for it until it has ended, and then again."""
    while not seen.stop.is_set():
        async with ClientSession() as session:
            body = {"model": "scripted", "input": "long", "background": True}
            try:
                async with session.post(url, json=body) as answer:
                    assert answer.status == 200, await answer.text()
                    begun = await answer.json()
            except ClientConnectionError as error:
                seen.broken[_name(error)] += 1
                continue
        assert begun["status"] in RUNS
        seen.background[begun["id"]] = await _ended(f"{url}/{begun['id']}", seen)


async def _ended(url: str, seen: Seen) -> Json:
    while True:
        try:
            # A connection of its own each time: at either worker.
            async with ClientSession() as session, session.get(url) as answer:
                assert answer.status == 200, (url, await answer.text())
                standing: Json = await answer.json()
        except ClientConnectionError as error:
            seen.broken[_name(error)] += 1
            continue
        if standing["status"] not in RUNS:
            return standing
        await asyncio.sleep(0.05)


async def _kill(server: Several, seen: Seen, moments: random.Random) -> None:
    """Kills the worker that has lived longest, at some moment, and waits for the next one."""
    await asyncio.sleep(moments.uniform(0.1, 0.6))
    # Workers that die within a second of their start are not replaced as fast.
    eldest = next(iter(server.workers.values()))
    served = len(server.lines("worker_serves"))
    os.kill(eldest, signal.SIGKILL)
    killed_at = time.monotonic()

    def whole() -> bool:
        return len(server.lines("worker_serves")) > served and len(server.workers) == 2

    await asyncio.to_thread(until, whole)
    seen.whole.append(time.monotonic() - killed_at)


async def _load(server: Several, seen: Seen, kills: int, moments: random.Random) -> None:
    """Callers of every kind, until so many workers have been killed under them."""
    urls = {each: f"{each}://{server.http}" for each in ("ws", "http")}
    urls["grpc"] = f"grpc://{server.address}"
    work = [
        _talk(url, seen, f"{scheme}-{number}") for scheme, url in urls.items() for number in (1, 2)
    ]
    work += [_begin(f"http://{server.http}/v1/responses", seen) for _ in range(3)]
    async with asyncio.TaskGroup() as callers:
        tasks = [callers.create_task(each) for each in work]
        for _ in range(kills):
            await _kill(server, seen, moments)
        seen.stop.set()
        # Nobody waits for what a dead worker would have said.
        _, hanging = await asyncio.wait(tasks, timeout=HANG)
        assert not hanging


async def _check(server: Several, seen: Seen) -> None:
    """Everything that was told is there, and each chain has all that was said in it."""
    url = f"http://{server.http}/v1/responses"
    async with ClientSession() as session:
        for response_id, told in {**seen.stored, **seen.background}.items():
            async with session.get(f"{url}/{response_id}") as answer:
                assert answer.status == 200, (response_id, await answer.text())
                assert await answer.json() == told
    async with connect(f"grpc://{server.address}") as line:
        for last, said in seen.said.items():
            again = await line.create(input="context?", store=False, previous_response_id=last)
            context = (await again.result()).text
            places = [context.index(words) for words in said]
            assert places == sorted(places)
            assert all(context.count(words) == 1 for words in said)


def _booked(database: Path, seen: Seen) -> None:
    """Each of them is in the ledger once, as it ended."""
    books = generated.read(database)
    for response_id, told in {**seen.stored, **seen.background}.items():
        row = books.rows[response_id]
        assert (row.outcome, row.stored) == (told["status"], True)
        assert row.output_tokens == told["usage"]["output_tokens"]
    standing = {response["status"] for response in books.responses.values()}
    assert standing <= {"completed", "failed", "incomplete", "cancelled"}


def _report(seen: Seen) -> None:
    ends = Counter(each["status"] for each in seen.background.values())
    print(
        f"{len(seen.whole)} workers killed, whole again after {max(seen.whole):.2f} s at most;"
        f" {len(seen.stored)} responses stored, {dict(ends)} in the background;"
        f" callers met {dict(seen.broken)}"
    )


def test_whichever_worker_is_killed_nothing_acknowledged_is_lost_and_nobody_hangs(
    tmp_path: Path, repeats: Callable[[int], int]
) -> None:
    """50 times under --soak, on one database that grows; seeded moments."""
    kills = repeats(50)
    script = write_script(tmp_path, rules=RULES)

    async def main(server: Several) -> Seen:
        seen = Seen()
        await _load(server, seen, kills, random.Random(20_261_130))
        await _check(server, seen)
        return seen

    with several(tmp_path, "--script", script) as server:
        server.whole()
        seen = asyncio.run(main(server))
        # The others have not noticed.
        assert len(server.lines("worker_died")) == kills
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    _booked(tmp_path / "tieline.db", seen)
    _report(seen)
    for ended in seen.background.values():
        if ended["status"] == "completed":
            assert ended["output"][0]["content"][0]["text"] == LONG
        else:
            assert (ended["status"], ended["error"]["code"]) == ("failed", "server_error")
    # A turn that was acknowledged is never forgotten.
    assert "previous_response_not_found" not in seen.broken
    assert sum(seen.broken.values()) >= kills
    assert len(seen.stored) > 10 * kills
    if kills == 50:
        assert max(seen.whole) < WHOLE
