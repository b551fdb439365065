"""Waiting for something to become true without asking again and again."""

import asyncio
from collections.abc import Callable
from typing import Final

PATIENCE: Final = 20.0
"""Seconds after which a test that waits has failed. Never slept."""


class Signal:
    """Whoever changes what tests look at calls ``notify``; tests wait with ``until``."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Something changed."""
        self._changed.set()

    async def until(self, condition: Callable[[], bool], *, seconds: float = PATIENCE) -> None:
        """Returns once the condition holds; raises :class:`TimeoutError` after ``seconds``."""
        async with asyncio.timeout(seconds):
            while not condition():
                self._changed.clear()
                await self._changed.wait()
