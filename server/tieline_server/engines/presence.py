"""Which engines are there: those that ask other servers come with these, and may go with them.

An upstream that does not answer when the server starts is no mistake of who starts it: it is
asked again until it answers. One that was there is asked only when turns have found it away, so
that a process which gets no turns any more learns that it is back.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from tieline.errors import TielineError
from tieline_server.engines.base import Engine, EngineAway, Probing

logger: Final = logging.getLogger("tieline.engines")

PERIOD: Final = 1.0
"""Seconds between two looks."""

SILENT: Final = "nothing answers there any more"


class Presence:
    """Which of ``engines`` are there.

    ``arrived`` is called when one that was awaited knows its models, and may raise
    :class:`TielineError` where they cannot be used; ``changed`` with an engine's name, and why it
    is away, or None where it is there.
    """

    def __init__(
        self,
        engines: Mapping[str, Engine],
        *,
        arrived: Callable[[], None],
        changed: Callable[[str, str | None], None],
    ) -> None:
        self._engines = engines
        self._arrived = arrived
        self._changed = changed
        self._away: dict[str, str] = {}
        self._awaited: set[str] = set()

    def missing(self, name: str, error: EngineAway) -> None:
        """One did not answer as it was opened."""
        self._awaited.add(name)
        self._say(name, str(error))

    @property
    def all_away(self) -> bool:
        """Whether no engine can be asked."""
        return len(self._away) == len(self._engines)

    async def watch(self) -> None:
        """Looks for all of them, until it is cancelled."""
        asking = {name: each for name, each in self._engines.items() if isinstance(each, Probing)}
        while asking:
            await asyncio.sleep(PERIOD)
            await asyncio.gather(*(self._look(name, engine) for name, engine in asking.items()))

    async def _look(self, name: str, engine: Probing) -> None:
        try:
            if name not in self._awaited:
                self._say(name, None if await engine.answers() else SILENT)
                return
            if not engine.probed:
                await engine.probe()
            self._arrived()
        except TielineError as error:
            self._say(name, str(error))
        except Exception:
            logger.exception("a look at an engine failed", extra={"engine": name})
        else:
            self._awaited.discard(name)
            self._say(name, None)

    def _say(self, name: str, reason: str | None) -> None:
        if reason == self._away.get(name):
            return
        self._away.pop(name, None)
        if reason is not None:
            self._away[name] = reason
        self._changed(name, reason)
