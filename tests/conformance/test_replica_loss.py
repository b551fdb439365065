"""One of two replicas is killed under load, over every transport at once."""

import asyncio
from collections import Counter
from collections.abc import Callable

from msgspec import Struct

from tests.conformance.server import Served, run
from tests.conformance.server import serve as serve_behind
from tests.conformance.transcript import TERMINAL
from tests.conformance.wire import WIRES, Json, Peer, Wire
from tests.support.replica_process import WORDS, replica

PEERS = 3
"""Of each transport."""
TURNS = 2
"""Of each peer, one after the other."""
BEGUN = 4
"""Answers of the dying replica that have begun when it is killed."""


class Turn(Struct):
    """What a client heard of one turn. A call that waits for the whole hears an error alone."""

    streams: bool
    words: list[str]
    event: Json

    @property
    def response(self) -> Json | None:
        """The response, where it was told."""
        return self.event.get("response")

    @property
    def end(self) -> str:
        """How it ended."""
        said = self.response or self.event
        return str(said["status"] if said["error"] is None else said["error"]["code"])


async def say(peer: Peer, wire: Wire, key: str, hear: Callable[[str, str], None]) -> Turn:
    """One turn; ``hear`` is told of each word."""
    create = {"type": "response.create", "model": "scripted", "input": "go", "store": False}
    await peer.send({**create, "prompt_cache_key": key})
    words: list[str] = []
    while True:
        event = await peer.receive()
        if event["type"] == "response.output_text.delta":
            words.append(event["delta"].strip())
            hear(key, words[-1])
        if event["type"] in TERMINAL:
            return Turn("events" in wire.offers, words, event)


async def load(served: Served, hear: Callable[[str, str], None]) -> list[Turn]:
    """All turns of all peers of all transports."""

    async def talk(wire: Wire, name: str) -> list[Turn]:
        # What is heard is looked at once, in the end: a load is not checked event by event.
        async with wire.connect(served) as peer:
            return [await say(peer, wire, f"{name} {at}", hear) for at in range(TURNS)]

    peers = [(wire, f"{name} {at}") for name, wire in WIRES.items() for at in range(PEERS)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(talk(*each)) for each in peers]
    return [turn for task in tasks for turn in task.result()]


def check(turns: list[Turn], served: Served) -> Counter[str]:
    """Holds what was heard against what was promised; returns how many ended in which way."""
    booked = {row.response_id: row.output_tokens for row in served.rows}
    assert len(booked) == len(served.rows) == len(turns)
    for turn in turns:
        assert turn.response is not None or not turn.streams
        if turn.response is not None:
            used = turn.response["usage"]["output_tokens"]
            assert booked.pop(turn.response["id"]) == used
            assert not turn.streams or len(turn.words) == used
            # A turn that was sent again had not begun: no client heard of two replicas.
            assert len(set(turn.words)) <= 1
            assert (used == WORDS) == (turn.end == "completed")
        if turn.end != "completed":
            assert turn.end == "server_error"
            assert set(turn.words) == ({"dying"} if turn.streams else set())
    # Of those whose clients heard an error alone.
    assert all(1 <= used < WORDS for used in booked.values())
    return Counter(turn.end for turn in turns)


def test_no_turn_is_lost_that_had_not_begun_and_those_that_had_fail_with_their_usage(
    repeats: Callable[[int], int],
) -> None:
    async def case(seed: int) -> None:
        with replica("dying", seed=seed) as dying, replica("other", seed=seed + 1) as other:
            begun: set[str] = set()

            def hear(key: str, word: str) -> None:
                begun.update([key] if word == "dying" else [])
                if len(begun) == BEGUN and dying.process.poll() is None:
                    dying.kill()

            urls = f"{dying.url},{other.url}"
            async with serve_behind(upstream=(urls, "")) as served:
                ends = check(await load(served, hear), served)
            assert ends.keys() == {"completed", "server_error"}
            assert ends.total() == len(WIRES) * PEERS * TURNS
            print(f"seed {seed}: {dict(ends)}")

    for seed in range(repeats(10)):
        run(case(seed))
