"""What the loop itself writes to a transport, as long as the peer keeps up."""

import asyncio
from collections.abc import Awaitable, Callable

from tieline_server.transports.writer_timer import WriterTimer


class TransportWriter:
    """The writes of the coroutine that ``pulse`` watches, which need not be woken for each.

    ``behind`` is how many bytes may wait for the peer; ``drain`` returns when it has caught up.
    """

    __slots__ = ("_behind", "_drain", "_pulse", "_transport")

    def __init__(
        self,
        transport: asyncio.WriteTransport | None,
        pulse: WriterTimer,
        *,
        behind: int,
        drain: Callable[[], Awaitable[object]],
    ) -> None:
        self._transport = transport
        self._pulse = pulse
        self._behind = behind
        self._drain = drain

    def put(self, data: bytes) -> bool:
        """Hands bytes over; False when the peer is behind, and a write in flight.

        Raises :class:`ConnectionResetError` where the peer is gone.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the peer is gone")
        transport.write(data)
        size = transport.get_write_buffer_size()
        if size > self._behind:
            self._pulse.begin(size)
            return False
        self._pulse.end()
        return True

    async def drain(self) -> None:
        """Waits until the peer has caught up with the write in flight.

        Raises :class:`Stuck` where that takes too long.
        """
        try:
            await self._drain()
        except asyncio.CancelledError:
            raise self._pulse.interruption() from None
        self._pulse.end()
