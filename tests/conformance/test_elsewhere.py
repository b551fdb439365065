"""What a turn is asked from a connection that is at the other worker: as if it were at its own.

Each case has its turn at one of two workers, in turn, and asks from the other one. The
transports of both sides change from one to the next.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from tests.conformance import generated
from tests.conformance.placed import events, placed
from tests.conformance.wire import Peer
from tests.support.server_process import write_script
from tests.support.several import Several, several, tag_of

Json = dict[str, Any]

TEXT: Final = "one two three four five six seven eight nine ten and so on to the very end of it"
RULES: Final = [
    {"id": "hi", "when": {"user_contains": "hi"}, "emit": {"type": "message", "text": "hi"}},
    {
        "id": "context",
        "when": {"user_contains": "context?"},
        "emit": {"type": "message", "text": "{context}"},
    },
    {
        "id": "slow",
        "when": {"user_contains": "slow"},
        "emit": {"type": "message", "text": TEXT * 60},
        "pace": {"tokens_per_second": 20},
    },
    {
        "id": "answer",
        "emit": {"type": "message", "text": TEXT},
        "pace": {"tokens_per_second": 250},
    },
]
HANG: Final = 60.0
"""Seconds after which a case that has not ended hangs."""


class Case(Struct):
    """One turn at a worker, and somebody at the other one."""

    number: int
    server: Several
    here: str
    there: str
    begins: str
    """The transport on which the turn begins."""
    asks: str
    """The transport of whoever asks elsewhere."""
    dice: random.Random

    @property
    def create(self) -> Json:
        """A create of this case."""
        return {
            "type": "response.create",
            "model": "scripted",
            "input": f"case {self.number}",
            "store": bool(self.number % 2),
        }

    async def begin(self, peer: Peer, **members: Any) -> list[Json]:
        """Begins a turn, and hears a part of it."""
        await peer.send({**self.create, **members})
        heard = await events(peer, most=self.dice.randint(1, 12))
        assert tag_of(id_of(heard)) == self.here
        return heard


Ask = Callable[[Case], Awaitable[None]]


def id_of(heard: list[Json]) -> str:
    """The id of the response that these events begin."""
    assert heard[0]["type"] == "response.created", heard
    return str(heard[0]["response"]["id"])


def whole(heard: list[Json]) -> Json:
    """Events from the first to the last, each once: the response that they end with."""
    assert [event["sequence_number"] for event in heard] == list(range(len(heard)))
    said = [event["delta"] for event in heard if event["type"] == "response.output_text.delta"]
    response: Json = heard[-1]["response"]
    assert heard[-1]["type"] == "response.completed"
    assert "".join(said) == response["output"][0]["content"][0]["text"] == TEXT
    return response


@contextmanager
def serving(folder: Path) -> Iterator[Several]:
    """Two workers that live, and say nothing else."""
    with several(folder, "--script", write_script(folder, rules=RULES)) as server:
        yield server
        failed = [line for line in server.lines() if line["level"] not in ("info", "debug")]
        assert not failed


def run_cases(folder: Path, ask: Ask, count: int, *, begins: str, asks: str) -> None:
    """So many cases, one after the other, over every pair of these transports."""
    pairs = list(product(begins.split(), asks.split()))

    async def main(server: Several) -> None:
        tags = sorted(server.workers)
        for number in range(count):
            here, there = tags if number % 4 < 2 else reversed(tags)
            pair = pairs[number % len(pairs)]
            case = Case(number, server, here, there, *pair, random.Random(number))
            async with asyncio.timeout(HANG):
                await ask(case)

    with serving(folder) as server:
        server.whole()
        asyncio.run(main(server))


async def _resume(case: Case) -> None:
    """The rest of the events, on a line elsewhere, which then goes on from there."""
    async with (
        placed(case.server, case.begins, case.here) as origin,
        placed(case.server, case.asks, case.there) as other,
    ):
        heard = await case.begin(origin, resumable=True)
        response_id, after = id_of(heard), heard[-1]["sequence_number"]
        drops = case.dice.random() < 0.5
        if drops:
            await origin.abort()
        lane = {"stream_id": f"lane-{case.number}"}
        resume = {"type": "response.resume", "response_id": response_id, "after": after}
        await other.send({**resume, **lane})
        whole(heard + await events(other))
        if not drops:
            (*_, last) = await events(origin)
            assert (last["type"], last["error"]["code"]) == ("error", "resumed_elsewhere")
        more = {**case.create, "input": "context?", "previous_response_id": response_id}
        await other.send({**more, **lane})
        said = (await events(other))[-1]["response"]["output"][0]["content"][0]["text"]
        assert [f"case {case.number}" in said, TEXT in said] == [True, True]


def test_a_turn_is_resumed_on_a_line_at_the_other_worker(
    tmp_path: Path, repeats: Callable[[int], int]
) -> None:
    """200 times under --soak; half of the first lines are dropped, the others are told."""
    run_cases(tmp_path, _resume, repeats(200), begins="grpc ws http", asks="grpc ws")


async def _read(case: Case) -> None:
    """The events behind some number, while the first reader reads on."""
    async with (
        placed(case.server, case.begins, case.here) as origin,
        placed(case.server, case.asks, case.there) as other,
    ):
        heard = await case.begin(origin, resumable=True)
        after = case.dice.choice((None, heard[-1]["sequence_number"]))
        read = await other.read(id_of(heard), after)
        heard += await events(origin)
        whole(heard)
        assert read == heard[0 if after is None else after + 1 :]


def test_a_turn_is_read_from_the_other_worker_beside_its_own_reader(
    tmp_path: Path, repeats: Callable[[int], int]
) -> None:
    """200 times under --soak."""
    run_cases(tmp_path, _read, repeats(200), begins="grpc ws http", asks="grpc http")


async def _cancel(case: Case) -> None:
    """By id; the first reader hears the end, and the answer is that same end."""
    async with (
        placed(case.server, case.begins, case.here) as origin,
        placed(case.server, case.asks, case.there) as other,
    ):
        heard = await case.begin(origin, input=f"slow {case.number}")
        cut = None
        if case.asks == "ws":
            await other.send({"type": "response.cancel", "response_id": id_of(heard)})
        else:
            cut = await other.cancel(id_of(heard))
        heard += await events(origin)
        last = heard[-1]
        assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
        assert last["response"]["usage"]["output_tokens"] < 100
        if cut is not None:
            assert (cut["id"], cut["status"]) == (id_of(heard), "cancelled")
            assert cut["usage"] == last["response"]["usage"]


def test_a_turn_is_cancelled_from_the_other_worker(
    tmp_path: Path, repeats: Callable[[int], int]
) -> None:
    """200 times under --soak."""
    run_cases(tmp_path, _cancel, repeats(200), begins="grpc ws http", asks="grpc ws http")


async def _attach(case: Case) -> None:
    """The same create under the same key: the same response from its first event on."""
    async with (
        placed(case.server, case.begins, case.here) as origin,
        placed(case.server, case.asks, case.there) as other,
    ):
        key = {"idempotency_key": f"key {case.number}"}
        heard = await case.begin(origin, **key)
        await other.send({**case.create, **key})
        again = await events(other)
        heard += await events(origin)
        assert whole(again) == whole(heard)


def test_a_create_that_comes_again_at_the_other_worker_is_made_once(
    tmp_path: Path, repeats: Callable[[int], int]
) -> None:
    """200 times under --soak; the ledger has one row for both."""
    count = repeats(200)
    run_cases(tmp_path, _attach, count, begins="grpc ws http", asks="grpc ws http")
    rows = generated.read(tmp_path / "tieline.db").rows.values()
    # A killed server can lose what is not stored: such rows are written every 50 ms.
    made = [row for row in rows if row.output_tokens > 1]
    assert count - 1 <= len(made) <= count
    assert len([row for row in made if row.stored]) == count // 2


async def _background(case: Case) -> None:
    """It is found while it runs, streamed from any number, and found when it has ended."""
    async with (
        placed(case.server, case.begins, case.here) as origin,
        placed(case.server, case.asks, case.there) as other,
    ):
        create = {name: value for name, value in case.create.items() if name != "type"}
        begun = await origin.begin(**{**create, "background": True, "store": True})
        assert begun["status"] in ("queued", "in_progress")
        assert tag_of(begun["id"]) == case.here
        running = await other.retrieve(begun["id"])
        assert running["status"] in ("queued", "in_progress")
        heard = await other.read(begun["id"])
        ended = whole(heard)
        after = case.dice.randrange(len(heard))
        assert await other.read(begun["id"], after) == heard[min(after + 1, len(heard) - 1) :]
        assert await other.retrieve(begun["id"]) == await origin.retrieve(begun["id"]) == ended


def test_a_background_turn_is_read_from_the_other_worker(
    tmp_path: Path, repeats: Callable[[int], int]
) -> None:
    """200 times under --soak."""
    run_cases(tmp_path, _background, repeats(200), begins="grpc http", asks="grpc http")
