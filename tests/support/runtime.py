"""A process with one connection on it, driven for real, and an engine of the test's own making."""

import asyncio
import itertools
import os
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any

from msgspec import UnsetType, structs

from tests.support.core import LOCAL, catalog, create_of
from tieline import events
from tieline.ids import IdSource
from tieline.requests import Resume
from tieline_server.auth.keys import Keys
from tieline_server.auth.sealing import Keyring
from tieline_server.core.create.limits import Limits
from tieline_server.core.deltas import Accepted, CallDelta, CallStart, Delta, Finish, TextDelta
from tieline_server.core.effects import Prompt
from tieline_server.core.history.chain import Saved
from tieline_server.core.history.holdings import Budget
from tieline_server.core.stream.replay_log import ReplayLog
from tieline_server.core.values import Principal, TurnRecord, UsageRecord
from tieline_server.engines.base import Model
from tieline_server.runtime import ConnectionDriver, Running, Services
from tieline_server.storage.memory import MemoryJournal, MemoryLedger, MemoryStore

Step = Sequence[Delta]
Answer = Callable[[Prompt], AsyncGenerator[Step, None]]

PATIENCE = 10.0
"""Seconds after which a test that waits for an event has hung."""

TURNS = 10_000
"""Turns of the loop after which a condition that does not hold never will."""

SECRET = "secret-in-the-exception"


class Speaker:
    """Samples what the test's generator yields, and notes how each sampling ended."""

    name = "e"

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.prompts: list[Prompt] = []
        self.warmed: list[Prompt] = []
        """Prompts that it only had to prepare for."""
        self.steps = 0
        self.finished = 0
        """Samplings that got to their end."""
        self.stopped = 0
        """Samplings that were closed before it."""

    def models(self) -> Sequence[Model]:
        """One model."""
        return (Model(id="m"),)

    async def sample(self, prompt: Prompt) -> AsyncGenerator[Step, None]:
        """The test's answer."""
        if not prompt.settings.generate:
            self.warmed.append(prompt)
            yield [Accepted(input_tokens=await self.count(prompt)), Finish(output_tokens=0)]
            return
        self.prompts.append(prompt)
        done = False
        try:
            async with aclosing(self.answer(prompt)) as steps:
                async for step in steps:
                    self.steps += 1
                    done = bool(step) and isinstance(step[-1], Finish)
                    yield step
            done = True
        finally:
            self.finished += done
            self.stopped += not done

    async def count(self, prompt: Prompt) -> int:
        """A token for each byte of the context."""
        return sum(len(item.raw) for item in prompt.chain.items_of_chain())

    async def close(self) -> None:
        """Nothing to free."""


class Failing(MemoryStore):
    """A store that fails, or waits until it is let go."""

    def __init__(
        self,
        *,
        put: bool = False,
        get: bool = False,
        add_usage: Callable[[UsageRecord], None] = lambda record: None,
    ) -> None:
        super().__init__(add_usage=add_usage)
        self.put_fails = put
        self.get_fails = get
        self.gate = asyncio.Event()
        self.gate.set()

    async def put(self, record: Saved, usage_record: UsageRecord) -> None:
        """Keeps it, or fails."""
        await self.gate.wait()
        if self.put_fails:
            raise OSError(SECRET)
        await super().put(record, usage_record)

    async def get(self, owner: str, response_id: str) -> Saved | None:
        """Finds it, or fails."""
        await self.gate.wait()
        if self.get_fails:
            raise OSError(SECRET)
        return await super().get(owner, response_id)


class Client:
    """A client's end of one connection, and what it has read."""

    def __init__(self, driver: ConnectionDriver) -> None:
        self.driver = driver
        self.seen: list[events.Event] = []

    def create(self, input: object = "hi", **members: Any) -> None:
        """A create on the connection, ``store`` false unless said."""
        body = {"model": "m", "store": False, "input": input, **members}
        self.driver.receive(create_of(**body))

    async def until(self, kind: type[events.Event] | None = None) -> Any:
        """Reads until an event of this class, or until the connection has closed for None."""
        async with asyncio.timeout(PATIENCE):
            while True:
                event = self.driver.next_event()
                if event is not None:
                    self.seen.append(event)
                    if kind is not None and isinstance(event, kind):
                        return event
                elif self.driver.closed:
                    assert kind is None, f"closed without {kind}: {self.seen}"
                    return None
                else:
                    await self.driver.wait()

    @property
    def types(self) -> list[str]:
        """The types of what was read, without the ``response.`` before them."""
        return [event.type.removeprefix("response.") for event in self.seen]

    def resume(self, response_id: str, after: int | None = None, **members: Any) -> None:
        """A resume on the connection."""
        self.driver.receive(Resume(response_id=response_id, after=after, **members))

    @property
    def numbers(self) -> list[int | UnsetType]:
        """The numbers of what was read."""
        return [event.sequence_number for event in self.seen]


class Stage(Client):
    """A process with one connection on it."""

    def __init__(
        self,
        answer: Answer,
        *,
        store: MemoryStore | None = None,
        ledger: MemoryLedger | None = None,
        journal: MemoryJournal | None = None,
        limits: Limits | None = None,
        authenticate: Callable[[], Principal] = Principal,
        merge: bool = False,
    ) -> None:
        self.engine = Speaker(answer)
        self.records: list[tuple[TurnRecord, str]] = []
        self.booked = asyncio.Event()
        """Set when a turn has left its record."""
        self.ledger = ledger = MemoryLedger() if ledger is None else ledger
        journal = MemoryJournal(now=time.time) if journal is None else journal
        self.services = Services(
            engines={"e": self.engine},
            catalog=catalog(),
            store=MemoryStore(add_usage=ledger.add, journal=journal) if store is None else store,
            ledger=ledger,
            journal=journal,
            budget=Budget(),
            keys=Keys(None, clock=time.monotonic, warn=print),
            limits=limits or Limits(),
            observe=self._observe,
            clock=time.monotonic,
            now=time.time,
            ids=IdSource(os.urandom),
            running=Running(),
            sealer=Keyring.random(os.urandom),
        )
        self.authenticate = authenticate
        self.merge = merge
        super().__init__(self.open())

    def replace(self, **members: Any) -> None:
        """Replaces members of the services, and opens a connection that has them."""
        self.services = structs.replace(self.services, **members)
        self.driver = self.open()

    def _observe(self, record: TurnRecord, transport: str) -> None:
        self.records.append((record, transport))
        self.booked.set()

    def open(self) -> ConnectionDriver:
        """One more connection."""
        return ConnectionDriver(
            self.services, transport="test", authenticate=self.authenticate, merge=self.merge
        )

    def kept(self, response_id: str) -> ReplayLog:
        """What is kept of a response, of which something is."""
        kept = self.services.running.logs.find(LOCAL.owner, response_id)
        assert kept is not None
        return kept

    def client(self) -> Client:
        """A client on a connection of its own."""
        return Client(self.open())


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs a test's coroutine; what it leaves running is a failure."""

    async def main() -> None:
        await test()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert left == set(), "a task outlived its connection"

    asyncio.run(main())


async def loop_turns(count: int = 50) -> None:
    """Lets everything run that can."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop run until this holds; what the test waits for needs no time, only turns."""
    for _ in range(TURNS):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to hold")


async def hello(prompt: Prompt) -> AsyncGenerator[Step, None]:
    """Two deltas of text."""
    yield [Accepted(input_tokens=3)]
    yield [TextDelta("Hello, "), TextDelta("world.")]
    yield [Finish()]


async def endless(prompt: Prompt) -> AsyncGenerator[Step, None]:
    """A number a step, for ever."""
    yield [Accepted(input_tokens=3)]
    for number in itertools.count():
        yield [TextDelta(f"{number} ")]
        await asyncio.sleep(0)


async def silent(prompt: Prompt) -> AsyncGenerator[Step, None]:
    """Never accepts."""
    await asyncio.get_running_loop().create_future()
    yield []


async def mute(prompt: Prompt) -> AsyncGenerator[Step, None]:
    """Accepts and says nothing."""
    yield [Accepted(input_tokens=3)]
    await asyncio.get_running_loop().create_future()


async def looker(prompt: Prompt) -> AsyncGenerator[Step, None]:
    """A call until its output is there, then text."""
    yield [Accepted(input_tokens=3)]
    if prompt.chain.items[-1].answers is None:
        yield [CallStart(kind="function_call", name="look"), CallDelta("{}"), Finish()]
    else:
        yield [TextDelta("seen"), Finish()]


def raising(error: Exception, *, accepted: bool) -> Answer:
    """An answer that breaks, before or after the engine has accepted."""

    async def answer(prompt: Prompt) -> AsyncGenerator[Step, None]:
        if accepted:
            yield [Accepted(input_tokens=3), TextDelta("half")]
        raise error

    return answer
