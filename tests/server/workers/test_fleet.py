"""The workers that serve, one for each slot: real processes that die, hang, or never serve."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture
from structlog.typing import EventDict

from tests.support.forking import SERVES, command
from tests.support.process_state import PATIENCE
from tests.support.several import alive
from tests.support.signal import Signal
from tieline_server.workers import fleet as fleet_module
from tieline_server.workers.child import NotServing
from tieline_server.workers.fleet import (
    DIED,
    KILLED,
    NOT_SERVING,
    PACED,
    Fleet,
    Shared,
)
from tieline_server.workers.fleet import (
    SERVES as SERVING,
)
from tieline_server.workers.fork_server import ForkServer
from tieline_server.workers.shared_counters import SharedCounters
from tieline_server.workers.worker_context import COUNTERS
from tieline_server.workers.worker_peers import socket_path

SETTINGS = {"drain_timeout": 60.0}
SEATS = 2


class Watched:
    """A fleet of two, and what it has said."""

    def __init__(self, folder: Path, *, prepare: str = "pass", serve: str = SERVES) -> None:
        self.news = Signal()
        self._said = LogCapture()
        self._words = command(prepare=prepare, serve=serve)
        self.fork_servers: list[ForkServer] = []
        self.counters = SharedCounters.make(folder / COUNTERS, rows=8)
        self.fleet = Fleet(
            self._open,
            SETTINGS,
            Shared(folder, self.counters, rows=8, seal_key="k"),
            slots=SEATS,
            log=structlog.wrap_logger(None, processors=[self._tell, self._said]),
        )

    def said(self, event: str) -> list[Any]:
        """What was logged of one kind."""
        return [entry for entry in self._said.entries if entry["event"] == event]

    @property
    def serving(self) -> list[int]:
        """The processes that were said to serve, in order."""
        return [entry["worker"] for entry in self.said(SERVING)]

    async def until(self, event: str, count: int) -> None:
        """Waits until something was logged so often."""
        await self.news.until(lambda: len(self.said(event)) >= count)

    def _open(self, settings: dict[str, Any], attend: Any) -> ForkServer:
        self.fork_servers.append(ForkServer(self._words, settings, attend=attend))
        self.news.notify()
        return self.fork_servers[-1]

    def _tell(self, _logger: Any, _method: str, entry: EventDict) -> EventDict:
        # Heard of once it is written down.
        asyncio.get_running_loop().call_soon(self.news.notify)
        return entry


Case = Callable[[Watched], Awaitable[None]]


def run(case: Case, folder: Path, **does: str) -> None:
    """Runs a case with a fleet that is started and closed; a hang fails."""

    async def main() -> None:
        watched = Watched(folder, **does)
        try:
            async with asyncio.timeout(PATIENCE):
                await case(watched)
        finally:
            await watched.fleet.close()
            watched.counters.close()

    asyncio.run(main())


class TestShared:
    def test_each_worker_has_a_tag_and_a_row_that_no_other_living_one_has(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fleet_module, "TAGS", 8)
        counters = SharedCounters.make(tmp_path / COUNTERS, rows=3)
        shared = Shared(tmp_path, counters, rows=3, seal_key="k")
        orders = [shared.order(SETTINGS) for _ in range(3)]
        assert {order.row for order in orders} == {0, 1, 2}
        assert len({order.tag for order in orders}) == 3
        assert {(order.folder, order.seal_key) for order in orders} == {(str(tmp_path), "k")}
        shared.ended(orders[1])
        again = [shared.order(SETTINGS)]
        for _ in range(8):
            shared.ended(again[-1])
            again.append(shared.order(SETTINGS))
        assert {order.row for order in again} == {orders[1].row}
        living = {orders[0].tag, orders[2].tag}
        assert not living & {order.tag for order in again}
        counters.close()

    def test_what_a_worker_that_ended_had_is_free(self, tmp_path: Path) -> None:
        counters = SharedCounters.make(tmp_path / COUNTERS, rows=1)
        shared = Shared(tmp_path, counters, rows=1, seal_key="k")
        order = shared.order(SETTINGS)
        left = socket_path(tmp_path, order.tag)
        left.touch()
        assert counters.take(order.row, 0, most=1)
        assert not counters.take(order.row, 0, most=1)
        shared.ended(order)
        assert not left.exists()
        assert counters.take(shared.order(SETTINGS).row, 0, most=1)
        counters.close()


class TestSeats:
    def test_every_slot_is_filled_at_the_start(self, tmp_path: Path) -> None:
        async def case(watched: Watched) -> None:
            await watched.fleet.start()
            assert len(set(watched.serving)) == SEATS
            assert all(map(alive, watched.serving))

        run(case, tmp_path)

    def test_where_none_can_serve_the_start_says_why(self, tmp_path: Path) -> None:
        async def case(watched: Watched) -> None:
            with pytest.raises(NotServing, match="no such file"):
                await watched.fleet.start()
            assert watched.serving == []

        run(case, tmp_path, serve="raise TielineError('no such file')")

    def test_one_that_dies_is_told_of_and_its_slot_is_filled_again(self, tmp_path: Path) -> None:
        async def case(watched: Watched) -> None:
            await watched.fleet.start()
            first, second = watched.serving
            os.kill(first, signal.SIGKILL)
            await watched.until(SERVING, 3)
            (died,) = watched.said(DIED)
            assert (died["worker"], died["status"]) == (first, -signal.SIGKILL)
            assert alive(second)

        run(case, tmp_path)

    def test_those_that_die_at_once_are_paced(self, tmp_path: Path) -> None:
        dies = tmp_path / "dies"

        async def case(watched: Watched) -> None:
            await watched.fleet.start()
            dies.touch()
            for pid in watched.serving:
                os.kill(pid, signal.SIGKILL)
            await watched.until(PACED, 1)

        run(case, tmp_path, serve=f"{SERVES} if not Path({str(dies)!r}).exists() else None")

    def test_a_slot_that_cannot_be_filled_is_told_of_and_tried_again(self, tmp_path: Path) -> None:
        works = tmp_path / "works"
        works.touch()

        async def case(watched: Watched) -> None:
            await watched.fleet.start()
            works.unlink()
            os.kill(watched.serving[0], signal.SIGKILL)
            await watched.until(NOT_SERVING, 2)
            works.touch()
            await watched.until(SERVING, 3)
            assert {each["reason"] for each in watched.said(NOT_SERVING)} == {"it does not work"}

        check = f"if not Path({str(works)!r}).exists(): raise TielineError('it does not work')"
        run(case, tmp_path, serve=f"{check}\n{SERVES}")

    def test_a_fork_server_that_died_is_replaced_before_it_is_needed(self, tmp_path: Path) -> None:
        async def case(watched: Watched) -> None:
            await watched.fleet.start()
            (fork_server,) = watched.fork_servers
            os.kill(fork_server.pid, signal.SIGKILL)
            await fork_server.ended.wait()
            await watched.news.until(lambda: len(watched.fork_servers) == 2)
            os.kill(watched.serving[0], signal.SIGKILL)
            await watched.until(SERVING, 3)

        run(case, tmp_path)


class TestRestart:
    def test_each_slot_gets_another_worker_with_the_new_settings(self, tmp_path: Path) -> None:
        async def case(watched: Watched) -> None:
            await watched.fleet.start()
            before = watched.serving
            await watched.fleet.restart({**SETTINGS, "max_active": 3})
            after = watched.serving[SEATS:]
            assert len(set(after)) == SEATS
            assert not any(map(alive, before))
            told = [(tmp_path / str(pid)).read_text() for pid in (*before, *after)]
            assert told == ["16", "16", "3", "3"]
            assert all((tmp_path / f"{pid} drained").exists() for pid in before)
            assert len(watched.fork_servers) == 2
            assert watched.said(DIED) == []

        signs = "Path(context.folder, str(os.getpid())).write_text(str(config.max_active))"
        drains = "Path(context.folder, f'{os.getpid()} drained').touch()"
        run(case, tmp_path, serve=f"{signs}\n{SERVES}\n{drains}")

    def test_settings_that_none_can_serve_with_change_nothing(self, tmp_path: Path) -> None:
        async def case(watched: Watched) -> None:
            await watched.fleet.start()
            before = watched.serving
            with pytest.raises(NotServing, match="three"):
                await watched.fleet.restart({**SETTINGS, "max_active": 3})
            assert all(map(alive, before))
            os.kill(before[0], signal.SIGKILL)
            await watched.until(SERVING, 3)

        check = "if config.max_active == 3: raise TielineError('three')"
        run(case, tmp_path, serve=f"{check}\n{SERVES}")


class TestEnd:
    def test_all_are_told_to_drain_and_the_end_waits_for_theirs(self, tmp_path: Path) -> None:
        async def case(watched: Watched) -> None:
            await watched.fleet.start()
            await watched.fleet.end(60.0)
            assert not any(map(alive, watched.serving))
            told = [(tmp_path / str(pid)).read_text() for pid in watched.serving]
            assert told == ["Drain(insist=False)"] * SEATS
            assert watched.said(DIED) == []

        signs = "Path(context.folder, str(os.getpid())).write_text(str(order))"
        run(case, tmp_path, serve=f"{SERVES}\n{signs}")

    def test_one_that_hangs_is_killed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fleet_module, "SLACK", 0.5)

        async def case(watched: Watched) -> None:
            await watched.fleet.start()
            os.kill(watched.serving[0], signal.SIGSTOP)
            await watched.fleet.end(0.0)
            # On a busy machine the other one may seem to hang as well.
            assert watched.serving[0] in [each["worker"] for each in watched.said(KILLED)]
            await watched.fleet.close()
            assert not any(map(alive, watched.serving))

        run(case, tmp_path)

    def test_who_insists_is_heard_by_those_that_still_drain(self, tmp_path: Path) -> None:
        async def case(watched: Watched) -> None:
            await watched.fleet.start()
            ending = asyncio.create_task(watched.fleet.end(3600.0))
            await asyncio.sleep(0)
            watched.fleet.insist()
            await ending

        drains = "while not order.insist: order = TO_WORKER.receive(context._control)"
        run(case, tmp_path, serve=f"{SERVES}\n{drains}")

    def test_it_is_closed_with_all_that_is_left_of_it(self, tmp_path: Path) -> None:
        async def case(watched: Watched) -> None:
            await watched.fleet.start()
            await watched.fleet.close()
            await watched.fleet.close()
            assert not any(map(alive, watched.serving))
            assert not alive(watched.fork_servers[0].pid)

        run(case, tmp_path)
