"""A peer that behaves as a real one without the runtime: a test says how its turns go on."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing

from msgspec import structs

from tests.support.event_samples import response
from tieline.errors import ApiError
from tieline.events import Event
from tieline.requests import Request, Resume
from tieline.responses import Response
from tieline_server.core.values import Principal


def not_found() -> ApiError:
    """No such response, or another's."""
    return ApiError.of("response_not_found", "Response not found.", param="response_id")


class ScriptedTurn:
    """A turn: its events so far, each handed over in a batch of its own."""

    def __init__(self, response_id: str) -> None:
        self.id = response_id
        self.status = "in_progress"
        self.events: list[Event] = []
        self.taken = 0
        """Events that a reader was given."""
        self.followers = 0
        self.over = False
        self.changed = asyncio.Event()

    def add(self, events: Iterable[Event], *, over: bool = False) -> None:
        """It goes on."""
        self.events += events
        self.over = over
        self._tell()

    def snapshot(self) -> Response:
        """It as it stands."""
        return response(id=self.id, status=self.status)

    async def read(self, after: int | None) -> AsyncGenerator[Sequence[Event], None]:
        """Its events behind one, as they come."""
        self.followers += 1
        try:
            place = 0 if after is None else after + 1
            while True:
                if place < len(self.events):
                    self.taken += 1
                    place += 1
                    yield [self.events[place - 1]]
                elif self.over:
                    return
                else:
                    await self.changed.wait()
        finally:
            self.followers -= 1
            self._tell()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Returns when something holds of it."""
        while not holds():
            await self.changed.wait()

    def _tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class ScriptedLane:
    """A lane elsewhere: what is sent here is written down."""

    def __init__(self, peer: "ScriptedPeer", turn: ScriptedTurn, after: int | None) -> None:
        self._peer = peer
        self._turn = turn
        self._after = after

    def send(self, request: Request, principal: Principal) -> None:
        """See ``RemoteLane``."""
        self._peer.heard.append((request, principal))
        self._peer.news.set()

    def events(self) -> AsyncGenerator[Sequence[Event], None]:
        """See ``RemoteLane``."""
        return self._turn.read(self._after)

    async def close(self) -> None:
        """See ``RemoteLane``."""
        self._peer.closed += 1
        self._peer.news.set()


class ScriptedPeer:
    """See ``Peer``. Every turn is Ann's; ``broken`` makes every call fail as a bug would."""

    def __init__(self) -> None:
        self.turns: dict[str, ScriptedTurn] = {}
        self.heard: list[tuple[Request, Principal]] = []
        self.transports: list[str] = []
        self.closed = 0
        self.news = asyncio.Event()
        self.broken = False

    def turn(self, response_id: str) -> ScriptedTurn:
        """A new turn."""
        turn = self.turns[response_id] = ScriptedTurn(response_id)
        return turn

    async def cancel(self, owner: str, response_id: str) -> Response | None:
        """See ``Peer``."""
        turn = self._find(owner, response_id)
        if turn is None or turn.status != "in_progress":
            return None
        turn.status = "cancelled"
        return turn.snapshot()

    async def look(self, owner: str, response_id: str) -> Response | None:
        """See ``Peer``."""
        turn = self._find(owner, response_id)
        return None if turn is None else turn.snapshot()

    async def follow(
        self, owner: str, response_id: str, *, after: int | None
    ) -> AsyncGenerator[Sequence[Event], None]:
        """See ``Peer``."""
        turn = self._find(owner, response_id)
        if turn is None:
            raise not_found()
        async with aclosing(turn.read(after)) as batches:
            async for batch in batches:
                yield batch

    async def resume(self, resume: Resume, principal: Principal, *, transport: str) -> ScriptedLane:
        """See ``Peer``."""
        turn = self._find(principal.owner, resume.response_id or "")
        if turn is None:
            raise not_found()
        self.transports.append(transport)
        lane = ScriptedLane(self, turn, resume.after)
        lane.send(structs.replace(resume), principal)
        return lane

    async def forget(self, owner: str, response_id: str) -> None:
        """See ``Peer``."""
        if self._find(owner, response_id) is not None:
            del self.turns[response_id]

    async def metrics(self) -> bytes:
        """See ``Peer``."""
        self._check()
        return f"turns {len(self.turns)}\n".encode()

    async def drain(self, seconds: float) -> None:
        """See ``DrainablePeer``."""
        for turn in self.turns.values():
            turn.add((), over=True)

    def _find(self, owner: str, response_id: str) -> ScriptedTurn | None:
        self._check()
        return self.turns.get(response_id) if owner == "ann" else None

    def _check(self) -> None:
        if self.broken:
            raise RuntimeError("a secret")
