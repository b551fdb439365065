"""The fork server as its supervisor sees it: real processes that are spawned, die, or fail."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.forking import SIGNS, Orders, fork_server
from tests.support.process_state import PATIENCE
from tests.support.several import alive
from tests.support.worker_process import gone
from tieline_server.workers.child import Child, NotServing
from tieline_server.workers.fork_server import ForkServer


def run(case: Callable[[ForkServer, list[Child]], Awaitable[None]], **does: str) -> None:
    """Runs a case with a fork server and the workers that it has spawned; a hang fails."""

    async def main() -> None:
        spawned: list[Child] = []
        server = fork_server(attend=spawned.append, **does)
        try:
            async with asyncio.timeout(PATIENCE):
                await case(server, spawned)
        finally:
            server.close()
            for child in spawned:
                child.kill()
                await gone(child)

    asyncio.run(main())


async def asked(server: ForkServer) -> asyncio.Task[Child]:
    """Waits for a worker that the fork server has been asked for."""
    waiting = asyncio.create_task(server.spawn())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    return waiting


def test_a_worker_is_attended_to_before_it_is_handed_over_and_waits_for_its_order(
    tmp_path: Path,
) -> None:
    async def case(server: ForkServer, spawned: list[Child]) -> None:
        child = await server.spawn()
        assert spawned == [child]
        assert not child.serves
        await child.serve(Orders(tmp_path).new())
        assert alive(child.pid)

    run(case)


def test_workers_that_are_spawned_side_by_side_each_hear_their_own_order(tmp_path: Path) -> None:
    async def case(server: ForkServer, spawned: list[Child]) -> None:
        orders = Orders(tmp_path)
        children = await asyncio.gather(*(server.spawn() for _ in range(4)))
        told = [orders.new() for _ in children]
        await asyncio.gather(
            *(child.serve(order) for child, order in zip(children, told, strict=True))
        )
        written = [int((tmp_path / order.tag.hex()).read_text()) for order in told]
        assert written == [child.pid for child in children]
        assert sorted(child.pid for child in spawned) == sorted(written)

    run(case, serve=SIGNS)


def test_how_a_worker_ended_is_told_to_its_child(tmp_path: Path) -> None:
    async def case(server: ForkServer, _: list[Child]) -> None:
        orders = Orders(tmp_path)
        killed, failed = await server.spawn(), await server.spawn()
        await killed.serve(orders.new())
        os.kill(killed.pid, signal.SIGKILL)
        with pytest.raises(NotServing):
            await failed.serve(orders.new(store="nonsense"))
        for child, status in ((killed, -signal.SIGKILL), (failed, 2)):
            await child.close()
            assert child.status == status

    run(case)


def test_what_cannot_be_prepared_is_said_in_one_line_to_each_call_for_a_worker() -> None:
    async def case(server: ForkServer, _: list[Child]) -> None:
        for _again in range(2):
            with pytest.raises(NotServing, match=r"^no such thing$"):
                await server.spawn()

    run(case, prepare="raise TielineError('no such thing')")


def test_when_it_dies_no_worker_is_spawned_and_those_that_live_go_on(tmp_path: Path) -> None:
    async def case(server: ForkServer, spawned: list[Child]) -> None:
        child = await server.spawn()
        await child.serve(Orders(tmp_path).new())
        os.kill(server.pid, signal.SIGSTOP)
        waiting = await asked(server)
        os.kill(server.pid, signal.SIGKILL)
        await server.ended.wait()
        for spawning in (waiting, server.spawn()):
            with pytest.raises(NotServing, match="the process that starts workers ended"):
                await spawning
        assert spawned == [child]
        assert alive(child.pid)
        child.kill()
        await child.close()
        assert child.status is None

    run(case)


def test_it_is_closed_once_and_takes_no_worker_with_it(tmp_path: Path) -> None:
    async def case(server: ForkServer, _: list[Child]) -> None:
        child = await server.spawn()
        await child.serve(Orders(tmp_path).new())
        server.close()
        server.close()
        assert server.ended.is_set()
        assert not alive(server.pid)
        assert alive(child.pid)

    run(case)


def test_a_worker_whose_call_was_cancelled_is_ended() -> None:
    async def case(server: ForkServer, spawned: list[Child]) -> None:
        first = await server.spawn()
        os.kill(server.pid, signal.SIGSTOP)
        waiting = await asked(server)
        waiting.cancel()
        await asyncio.wait([waiting])
        os.kill(server.pid, signal.SIGCONT)
        third = await server.spawn()
        assert (spawned[0], spawned[2:]) == (first, [third])
        await spawned[1].ended.wait()
        assert alive(third.pid)

    run(case)


def test_it_has_no_settings_but_those_that_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def case(server: ForkServer, _: list[Child]) -> None:
        with pytest.raises(NotServing, match=r"^memory None$"):
            await server.spawn()

    monkeypatch.setenv("TIELINE_STORE", "nonsense")
    run(case, prepare="raise TielineError(f'{config.store} {os.environ.get(\"TIELINE_STORE\")}')")


def test_what_it_prints_is_no_address_that_anybody_reads(capfd: pytest.CaptureFixture[str]) -> None:
    async def case(server: ForkServer, _: list[Child]) -> None:
        await server.spawn()

    run(case, prepare="print('hello', flush=True)")
    assert capfd.readouterr() == ("", "hello\n")
