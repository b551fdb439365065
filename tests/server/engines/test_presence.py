"""Engines that ask others: they are awaited, found gone, and found again (OP-03)."""

import asyncio

import pytest

from tests.support.upstream_server import upstream
from tieline.errors import TielineError
from tieline_server.engines import presence
from tieline_server.engines.base import Engine, EngineAway
from tieline_server.engines.presence import SILENT, Presence
from tieline_server.engines.scripted import ScriptedEngine
from tieline_server.engines.upstream import UpstreamEngine
from tieline_server.engines.upstream.replicas import FAILURES

Changes = list[tuple[str, str | None]]


@pytest.fixture(autouse=True)
def _short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "PERIOD", 0.01)


class Heard:
    """What was told, and how often an engine has arrived."""

    def __init__(self) -> None:
        self.changes: Changes = []
        self.arrivals = 0
        self.refusals: list[TielineError] = []
        self._news = asyncio.Event()

    def arrived(self) -> None:
        self.arrivals += 1
        if self.refusals:
            raise self.refusals.pop()

    def changed(self, name: str, reason: str | None) -> None:
        self.changes.append((name, reason))
        self._news.set()

    async def once(self, many: int) -> None:
        async with asyncio.timeout(30):
            while len(self.changes) < many:
                self._news.clear()
                await self._news.wait()


async def test_an_engine_that_is_awaited_arrives_once() -> None:
    async with upstream() as server:
        await server.stop()
        engine, heard = UpstreamEngine([server.url]), Heard()
        found = Presence({"up": engine}, arrived=heard.arrived, changed=heard.changed)
        with pytest.raises(EngineAway) as away:
            await engine.probe()
        found.missing("up", away.value)
        assert found.all_away
        watching = asyncio.create_task(found.watch())
        await server.start()
        await heard.once(2)
        watching.cancel()
        await asyncio.wait([watching])
        await engine.close()
        reason = f"no upstream answers at {server.url}/models"
        assert heard.changes == [("up", reason), ("up", None)]
        assert heard.arrivals == 1
        assert not found.all_away


async def test_one_whose_models_cannot_be_used_is_told_with_the_reason_and_tried_again() -> None:
    async with upstream() as server:
        engine, heard = UpstreamEngine([server.url]), Heard()
        heard.refusals = [TielineError("models.x: the engine serves no 'x'")]
        found = Presence({"up": engine}, arrived=heard.arrived, changed=heard.changed)
        found.missing("up", EngineAway("not yet"))
        watching = asyncio.create_task(found.watch())
        await heard.once(3)
        watching.cancel()
        await asyncio.wait([watching])
        await engine.close()
        assert [reason for _, reason in heard.changes] == [
            "not yet",
            "models.x: the engine serves no 'x'",
            None,
        ]


async def test_one_that_turns_have_found_away_is_asked_until_it_answers() -> None:
    async with upstream() as server:
        engine, heard = UpstreamEngine([server.url]), Heard()
        await engine.probe()
        (replica,) = engine._replicas.all
        engines: dict[str, Engine] = {"up": engine, "other": ScriptedEngine()}
        found = Presence(engines, arrived=heard.arrived, changed=heard.changed)
        watching = asyncio.create_task(found.watch())
        await server.stop()
        for _ in range(FAILURES):
            engine._replicas.failed(replica)
        await heard.once(1)
        assert not found.all_away
        assert not replica.admits(engine._replicas._clock())
        await server.start()
        await heard.once(2)
        watching.cancel()
        await asyncio.wait([watching])
        # The next turn tries it, however long it would have been left alone.
        assert replica.admits(engine._replicas._clock())
        await engine.close()
        assert heard.changes == [("up", SILENT), ("up", None)]
        assert heard.arrivals == 0


async def test_engines_that_ask_nobody_are_always_there() -> None:
    heard = Heard()
    found = Presence({"own": ScriptedEngine()}, arrived=heard.arrived, changed=heard.changed)
    await found.watch()
    assert not found.all_away
