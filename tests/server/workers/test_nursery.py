"""The nursery as its supervisor sees it: real processes that are born, die, or never come."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.nursery_process import SIGNS, Orders, nursery
from tests.support.process_state import PATIENCE
from tests.support.several import alive
from tests.support.worker_process import gone
from tieline_server.workers.child import Child, NotServing
from tieline_server.workers.nursery import Nursery


def run(case: Callable[[Nursery, list[Child]], Awaitable[None]], **does: str) -> None:
    """Runs a case with a nursery and those that it has borne; a hang fails."""

    async def main() -> None:
        born: list[Child] = []
        home = nursery(attend=born.append, **does)
        try:
            async with asyncio.timeout(PATIENCE):
                await case(home, born)
        finally:
            home.close()
            for child in born:
                child.kill()
                await gone(child)

    asyncio.run(main())


async def asked(home: Nursery) -> asyncio.Task[Child]:
    """Somebody who waits for a worker that the nursery has been asked for."""
    waiting = asyncio.create_task(home.bear())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    return waiting


def test_a_worker_is_attended_to_before_it_is_handed_over_and_waits_for_its_order(
    tmp_path: Path,
) -> None:
    async def case(home: Nursery, born: list[Child]) -> None:
        child = await home.bear()
        assert born == [child]
        assert not child.serves
        await child.serve(Orders(tmp_path).new())
        assert alive(child.pid)

    run(case)


def test_workers_that_are_borne_side_by_side_each_hear_their_own_order(tmp_path: Path) -> None:
    async def case(home: Nursery, born: list[Child]) -> None:
        orders = Orders(tmp_path)
        children = await asyncio.gather(*(home.bear() for _ in range(4)))
        told = [orders.new() for _ in children]
        await asyncio.gather(
            *(child.serve(order) for child, order in zip(children, told, strict=True))
        )
        written = [int((tmp_path / order.mark.hex()).read_text()) for order in told]
        assert written == [child.pid for child in children]
        assert sorted(child.pid for child in born) == sorted(written)

    run(case, serve=SIGNS)


def test_how_a_worker_ended_is_told_to_its_child(tmp_path: Path) -> None:
    async def case(home: Nursery, _: list[Child]) -> None:
        orders = Orders(tmp_path)
        killed, failed = await home.bear(), await home.bear()
        await killed.serve(orders.new())
        os.kill(killed.pid, signal.SIGKILL)
        with pytest.raises(NotServing):
            await failed.serve(orders.new(store="nonsense"))
        for child, status in ((killed, -signal.SIGKILL), (failed, 2)):
            await child.close()
            assert child.status == status

    run(case)


def test_what_cannot_be_prepared_is_said_in_one_line_to_whoever_wants_a_worker() -> None:
    async def case(home: Nursery, _: list[Child]) -> None:
        for _again in range(2):
            with pytest.raises(NotServing, match=r"^no such thing$"):
                await home.bear()

    run(case, prepare="raise TielineError('no such thing')")


def test_when_it_dies_nobody_is_born_any_more_and_those_that_live_go_on(tmp_path: Path) -> None:
    async def case(home: Nursery, born: list[Child]) -> None:
        child = await home.bear()
        await child.serve(Orders(tmp_path).new())
        os.kill(home.pid, signal.SIGSTOP)
        waiting = await asked(home)
        os.kill(home.pid, signal.SIGKILL)
        await home.ended.wait()
        for bearing in (waiting, home.bear()):
            with pytest.raises(NotServing, match="the process that starts workers ended"):
                await bearing
        assert born == [child]
        assert alive(child.pid)
        child.kill()
        await child.close()
        assert child.status is None

    run(case)


def test_it_is_closed_once_and_takes_no_worker_with_it(tmp_path: Path) -> None:
    async def case(home: Nursery, _: list[Child]) -> None:
        child = await home.bear()
        await child.serve(Orders(tmp_path).new())
        home.close()
        home.close()
        assert home.ended.is_set()
        assert not alive(home.pid)
        assert alive(child.pid)

    run(case)


def test_a_worker_that_nobody_waits_for_any_more_is_ended() -> None:
    async def case(home: Nursery, born: list[Child]) -> None:
        first = await home.bear()
        os.kill(home.pid, signal.SIGSTOP)
        waiting = await asked(home)
        waiting.cancel()
        await asyncio.wait([waiting])
        os.kill(home.pid, signal.SIGCONT)
        third = await home.bear()
        assert (born[0], born[2:]) == (first, [third])
        await born[1].ended.wait()
        assert alive(third.pid)

    run(case)


def test_it_has_no_settings_but_those_that_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def case(home: Nursery, _: list[Child]) -> None:
        with pytest.raises(NotServing, match=r"^memory None$"):
            await home.bear()

    monkeypatch.setenv("TIELINE_STORE", "nonsense")
    run(case, prepare="raise TielineError(f'{config.store} {os.environ.get(\"TIELINE_STORE\")}')")


def test_what_it_prints_is_no_address_that_anybody_reads(capfd: pytest.CaptureFixture[str]) -> None:
    async def case(home: Nursery, _: list[Child]) -> None:
        await home.bear()

    run(case, prepare="print('hello', flush=True)")
    assert capfd.readouterr() == ("", "hello\n")
