"""Nothing is lost when the line drops: agent loops through a network that breaks.

Every connection of a loop goes through a proxy of its own, which cuts, delays, splits and stalls
it by plans that are drawn from the loop's name. The server has two workers, and whatever comes
again after a break comes to either.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conformance import generated
from tests.conformance.agent_loops import RULES, Kind, Loop, loops
from tests.conformance.generated import Books
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.server_process import ServerProcess, serving, write_script
from tieline_client import Backoff, Options, Policy, connect_session
from tieline_server.engines import bpe

AT_ONCE: Final = 16
"""Loops that run side by side."""

HANG: Final = 120.0
"""Seconds after which a loop that has not ended hangs."""

PACE: Final = {"ttft_ms": 5, "tokens_per_second": 500}
"""Slow enough that connections break while tokens come."""

OPTIONS: Final = Options(
    connect_timeout=3.0,
    close_timeout=1.0,
    idle_timeout=3.0,
    # The server takes a ping every 5 s.
    keepalive=5.5,
    keepalive_timeout=2.0,
)
POLICY: Final = Policy(backoff=Backoff(first=0.05, longest=1.0, max_retries=6))

KINDS: Final = {
    "grpc": (Kind.LONG, Kind.HELD, Kind.LONG, Kind.PASSING),
    "ws": (Kind.LONG, Kind.HELD, Kind.LONG, Kind.PASSING),
    # HTTP has no append, and remembers nothing that is not stored.
    "http": (Kind.LONG,),
}


class Breaks:
    """What the proxies of a run did."""

    def __init__(self) -> None:
        self.connections = 0
        self.struck: Counter[Fault] = Counter()

    def add(self, proxy: FaultProxy) -> None:
        """Takes in what one proxy did."""
        self.connections += proxy.connections
        self.struck += proxy.struck


async def _run(loop: Loop, scheme: str, port: int, breaks: Breaks) -> None:
    async with FaultProxy(port, seed=loop.name) as proxy:
        try:
            async with (
                asyncio.timeout(HANG),
                connect_session(
                    f"{scheme}://127.0.0.1:{proxy.port}", options=OPTIONS, policy=POLICY
                ) as session,
            ):
                await loop.run(session)
        finally:
            breaks.add(proxy)


async def _run_all(run: Iterable[Loop], scheme: str, server: ServerProcess) -> Breaks:
    breaks = Breaks()
    left = iter(run)
    port = int((server.address if scheme == "grpc" else server.http).rpartition(":")[2])

    async def work() -> None:
        for loop in left:
            await _run(loop, scheme, port, breaks)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())
    return breaks


@pytest.mark.parametrize("scheme", KINDS)
def test_every_loop_ends_and_nothing_is_done_or_paid_twice(
    scheme: str, tmp_path: Path, repeats: Callable[[int], int]
) -> None:
    """1,000 loops under --soak."""
    run = loops(repeats(1000), KINDS[scheme], prefix=scheme)
    database = tmp_path / "tieline.db"
    script = write_script(tmp_path, rules=RULES, pace=PACE)
    store = ("--store", f"sqlite:///{database}", "--resume-window", "30")
    with serving("--script", script, *store, "--workers", "2", "--log-level", "warning") as server:
        breaks = asyncio.run(_run_all(run, scheme, server))
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        complaints = server.log()
    _report(scheme, run, breaks)
    assert not complaints
    assert not {loop.name: loop.wrong for loop in run if loop.wrong}
    books = generated.read(database)
    _ran_once(run)
    _generated_once(run, books)
    _booked_once(run, books, generated.summed(database))
    # The test would show nothing if little broke, or if little was mended.
    assert sum(breaks.struck.values()) > len(run) // 2
    assert sum(loop.right for loop in run) > len(run) // 2


def _report(scheme: str, run: list[Loop], breaks: Breaks) -> None:
    right = sum(loop.right for loop in run)
    errors = Counter(type(loop.error).__name__ for loop in run if loop.error is not None)
    struck = {fault.value: count for fault, count in breaks.struck.items()}
    print(
        f"{scheme}: {right} of {len(run)} loops right ({right / len(run):.1%}),"
        f" typed errors {dict(errors)};"
        f" {breaks.connections} connections, broken {struck}"
    )


def _ran_once(run: list[Loop]) -> None:
    """Each side effect at most once, and exactly once where the answer rests on it."""
    for loop in run:
        acts = {call: times for call, times in loop.executions.items() if call[0] == "act"}
        assert set(acts) <= set(loop.acts)
        assert set(acts.values()) <= {1}, (loop.name, acts)
        if loop.right:
            assert set(acts) == set(loop.acts)


def _generated_once(run: list[Loop], books: Books) -> None:
    """No create of a loop was sampled twice: each of its responses follows another one."""
    parents: Counter[tuple[str, Any]] = Counter()
    for response in books.responses.values():
        parents[response["metadata"]["loop"], response["previous_response_id"]] += 1
    twice = {parent: times for parent, times in parents.items() if times > 1}
    assert not twice
    turns = {Kind.LONG: 4, Kind.HELD: 1, Kind.PASSING: 0}
    made = Counter(loop for loop, _ in parents)
    for loop in run:
        assert made[loop.name] <= turns[loop.kind]
        if loop.right:
            assert made[loop.name] == turns[loop.kind]
    # What was not stored tells of itself by its row alone: beside those whose end was seen there
    # is one at most for each loop, that of the turn in which it failed.
    ran = [row for row in books.rows.values() if row.input_tokens or row.output_tokens]
    assert len(ran) <= sum(len(loop.seen) + (loop.error is not None) for loop in run)


def _booked_once(run: list[Loop], books: Books, sums: dict[str, int]) -> None:
    """The ledger has each response once, with the tokens that were made for it."""
    count = bpe.shipped().count
    for response_id, response in books.responses.items():
        row, made = books.rows[response_id], generated.tokens(response, count)
        assert row.stored
        assert row.outcome == response["status"], (response_id, row)
        assert row.output_tokens == response["usage"]["output_tokens"]
        # Of a call that was cut the tokens are used, and not in the output.
        assert row.output_tokens == made or (
            row.outcome != "completed" and row.output_tokens > made
        )
    lost = {
        response_id: row
        for response_id, row in books.rows.items()
        # What a line that is not resumable leaves behind is booked, and not stored.
        if row.stored and row.outcome != "disconnected" and response_id not in books.responses
    }
    assert not lost
    for loop in run:
        for response_id, seen in loop.seen.items():
            assert seen.usage is not None
            assert books.rows[response_id].output_tokens == seen.usage.output_tokens
    assert sums["responses"] == len(books.rows)
    assert sums["output_tokens"] == sum(row.output_tokens for row in books.rows.values())
