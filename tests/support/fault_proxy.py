"""A TCP proxy that breaks connections, each by a plan that is drawn from a seed.

What a plan does is what networks do: a half of a connection ends (FIN), a side is told that it
is gone (RST) while the other hears nothing, bytes come late or in pieces, or nothing comes any
more and nobody is told.
"""

import asyncio
import random
import socket
import struct
from collections import Counter
from contextlib import suppress
from enum import Enum
from typing import Any, Final, Self

from msgspec import Struct

LARGEST_READ: Final = 65536
HOST: Final = "127.0.0.1"


class Way(Enum):
    """Which way bytes go."""

    UP = "client to server"
    DOWN = "server to client"


BOTH: Final = frozenset(Way)


class Fault(Enum):
    """How a connection breaks."""

    NONE = "none"
    FIN = "fin"
    """The ways that are hit end, as if their senders had ended them."""
    RST = "rst"
    """The receivers at the ends of the ways that are hit are reset; the others hear nothing."""
    STALL = "stall"
    """Nothing goes the ways that are hit any more, and nobody is told."""


class Plan(Struct, frozen=True, kw_only=True):
    """What one connection meets."""

    fault: Fault = Fault.NONE
    hit: frozenset[Way] = BOTH
    counted: Way = Way.DOWN
    """The way whose bytes decide when."""
    after: int = 0
    """So many bytes pass that way; 0: it breaks before the first."""
    piece: int | None = None
    """Writes are cut into random pieces of at most so many bytes."""
    delay: float = 0.0
    """The longest wait before each write, in seconds."""
    refuse: float = 0.0
    """Seconds after the break for which nobody listens."""


class Faults(Struct, frozen=True, kw_only=True):
    """From what plans are drawn: shares of connections, and the largest of each number."""

    broken: float = 0.6
    kinds: tuple[Fault, ...] = (Fault.FIN, Fault.RST, Fault.RST, Fault.STALL)
    after: int = 12_000
    split: float = 0.4
    piece: int = 700
    delayed: float = 0.3
    delay: float = 0.004
    refused: float = 0.3
    refuse: float = 0.1

    def plan(self, seed: int | str, number: int) -> Plan:
        """The plan of the connection of this number, from 0: always the same one.

        >>> Faults().plan(7, 3) == Faults().plan(7, 3)
        True
        """
        dice = random.Random(f"{seed}:{number}")
        # Each is drawn whether it is used or not, so that a changed share moves no other draw.
        broken, split, delayed, refused = (
            dice.random() < share for share in (self.broken, self.split, self.delayed, self.refused)
        )
        fault = dice.choice(self.kinds)
        hit = dice.choice((BOTH, BOTH, frozenset({Way.UP}), frozenset({Way.DOWN})))
        counted = dice.choice(tuple(Way))
        # As often within the first hundred bytes as within the last thousands.
        after = round(self.after ** dice.random()) - 1
        piece, delay, refuse = dice.randint(1, self.piece), dice.random(), dice.random()
        return Plan(
            fault=fault if broken else Fault.NONE,
            hit=hit,
            counted=counted,
            after=after,
            piece=piece if split else None,
            delay=self.delay * delay if delayed else 0.0,
            refuse=self.refuse * refuse if broken and refused else 0.0,
        )


class FaultProxy:
    """Stands between clients and the server on ``target``; listens on ``port``.

    ``plans`` that are given are those of the first connections; the further ones are drawn.
    """

    def __init__(
        self,
        target: int,
        *,
        seed: int | str = 0,
        faults: Faults | None = None,
        plans: tuple[Plan, ...] = (),
    ) -> None:
        self._target = target
        self._seed = seed
        self._faults = faults or Faults()
        self._plans = plans
        self._reserved = _socket(HOST, 0)
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._refusing: asyncio.Task[None] | None = None
        self._ended = False
        self.port: int = self._reserved.getsockname()[1]
        self.listening = asyncio.Event()
        """Cleared while connections are refused."""
        self.connections = 0
        """How many were let in so far."""
        self.struck: Counter[Fault] = Counter()
        """Faults that have come to be."""

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ended = True
        if self._refusing is not None:
            self._refusing.cancel()
            await asyncio.wait([self._refusing])
        self._close()
        # Those that were accepted last begin, and so will end what they hold.
        await asyncio.sleep(0)
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        self._reserved.close()

    def plan(self, number: int) -> Plan:
        """What the connection of this number meets."""
        if number < len(self._plans):
            return self._plans[number]
        return self._faults.plan(self._seed, number)

    async def _listen(self) -> None:
        # The reserved socket never listens: the port stays ours while connections are refused.
        listening = _socket(HOST, self.port)
        self._server = await asyncio.start_server(self._accept, sock=listening)
        self.listening.set()

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self.listening.clear()

    async def _refuse(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._listen()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._ended:
            # It was on its way as we ended.
            writer.transport.abort()
            return
        number, self.connections = self.connections, self.connections + 1
        task = asyncio.create_task(self._serve(number, reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, self._target)
            try:
                streams = {Way.UP: (reader, far_writer), Way.DOWN: (far_reader, writer)}
                await self._pass(number, streams)
            finally:
                await _abort(far_writer)
        except OSError:
            # The server is gone: to the client it is as if it had refused.
            _reset(writer)
        finally:
            await _abort(writer)

    async def _pass(self, number: int, streams: "Streams") -> None:
        plan = self.plan(number)
        dice = random.Random(f"{self._seed}:{number}:pieces")
        connection = _Connection(streams, plan, dice)
        try:
            await connection.run()
            if connection.struck:
                self._strike(plan)
                # Sides that were told nothing still have a connection.
                await connection.rest()
        finally:
            connection.stop()

    def _strike(self, plan: Plan) -> None:
        self.struck[plan.fault] += 1
        if plan.refuse and self.listening.is_set():
            self._close()
            self._refusing = asyncio.create_task(self._refuse(plan.refuse))


Streams = dict[Way, tuple[asyncio.StreamReader, asyncio.StreamWriter]]


class _Connection:
    """One connection: a pump each way, until its plan strikes or both ways have ended."""

    def __init__(self, streams: Streams, plan: Plan, dice: random.Random) -> None:
        self._streams = streams
        self._plan = plan
        self._dice = dice
        self._left = plan.after
        self._strike = asyncio.Event()
        self._broken = asyncio.Event()
        self._pumps: dict[Way, asyncio.Task[None]] = {}
        for _, writer in streams.values():
            # What has passed is with the kernel, and no end of ours can take it back.
            writer.transport.set_write_buffer_limits(0)

    @property
    def struck(self) -> bool:
        """Whether the plan has come to be."""
        return self._strike.is_set()

    async def run(self) -> None:
        """Passes bytes until the plan strikes, or until both ways have ended."""
        self._pumps = {way: asyncio.create_task(self._pump(way)) for way in Way}
        if self._plan.fault is not Fault.NONE and self._plan.after == 0:
            self._strike.set()
        first: set[asyncio.Task[Any]] = {
            asyncio.create_task(self._strike.wait()),
            asyncio.create_task(asyncio.wait(self._pumps.values())),
        }
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if self.struck:
                await self._break()
        finally:
            for task in first:
                task.cancel()

    async def rest(self) -> None:
        """After the break: until a way that goes on has ended; for ever where none does."""
        going = [pump for pump in self._pumps.values() if not pump.cancelled()]
        if going:
            await asyncio.wait(going)
        if self._plan.fault is not Fault.FIN:
            await asyncio.Event().wait()

    def stop(self) -> None:
        """Passes nothing any more."""
        for pump in self._pumps.values():
            pump.cancel()

    async def _break(self) -> None:
        plan = self._plan
        # A side that is reset neither reads nor writes: no way goes on.
        stopped = BOTH if plan.fault is Fault.RST else plan.hit
        for way in stopped:
            self._pumps[way].cancel()
        await asyncio.wait([self._pumps[way] for way in stopped])
        for way in plan.hit:
            _, writer = self._streams[way]
            if plan.fault is Fault.RST:
                _reset(writer)
            elif plan.fault is Fault.FIN:
                _finish(writer)
        self._broken.set()

    async def _pump(self, way: Way) -> None:
        reader, writer = self._streams[way]
        try:
            while data := await reader.read(LARGEST_READ):
                for piece in self._pieces(data):
                    if self._plan.delay:
                        await asyncio.sleep(self._dice.random() * self._plan.delay)
                    await self._pass(way, writer, piece)
        except ConnectionError:
            # One side is gone without a word, and so the other is told.
            _reset(self._streams[Way.UP if way is Way.DOWN else Way.DOWN][1])
            _reset(writer)
            return
        _finish(writer)

    async def _pass(self, way: Way, writer: asyncio.StreamWriter, piece: bytes) -> None:
        plan = self._plan
        if plan.fault is not Fault.NONE and way is plan.counted and not self.struck:
            now, piece = piece[: self._left], piece[self._left :]
            self._left -= len(now)
            await _write(writer, now)
            if self._left > 0:
                return
            self._strike.set()
            # A way that is hit ends here: its pump is cancelled.
            await self._broken.wait()
        await _write(writer, piece)

    def _pieces(self, data: bytes) -> list[bytes]:
        most = self._plan.piece
        if most is None:
            return [data]
        pieces, start = [], 0
        while start < len(data):
            end = start + self._dice.randint(1, most)
            pieces.append(data[start:end])
            start = end
        return pieces


def _socket(host: str, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((host, port))
    bound.setblocking(False)
    return bound


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Ends a connection with RST: nothing that is still to be sent is sent (RFC 9293 3.10.5)."""
    if writer.transport.is_closing():
        return
    plain: socket.socket = writer.get_extra_info("socket")
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _finish(writer: asyncio.StreamWriter) -> None:
    """Ends one way with FIN, once what was written has been sent."""
    if not writer.transport.is_closing() and writer.can_write_eof():
        try:
            writer.write_eof()
        except OSError:
            # The other side has gone meanwhile (ENOTCONN).
            writer.transport.abort()
