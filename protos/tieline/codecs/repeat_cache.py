"""What each lane of a connection said last, so that saying it again costs a comparison.

Tools, instructions and other settings come in full with every create and go out in full with
every lifecycle event; lanes of one connection mostly share them.
"""

from typing import Any, Final, Generic, TypeVar

_T = TypeVar("_T")

MAX_NAME: Final = 256
"""Characters of a lane's name that count: a longer one names no lane, and is not to be kept."""

MAX_BYTES: Final = 1024 * 1024
"""Bytes of one value that is worth remembering: agents repeat some 40 kB."""

MAX_LANES: Final = 64
"""Lanes remembered: more than a connection may name, so that a flood of names costs no memory."""


class RepeatCache(Generic[_T]):
    """The last value of each name on each lane, found again by what it was made of.

    >>> memory = RepeatCache[int]()
    >>> memory.keep("", "tools", b"[1]", 5)
    >>> memory.recall("other", "tools", b"[1]")
    5
    """

    __slots__ = ("_lanes", "_latest")

    def __init__(self) -> None:
        self._lanes: dict[Any, dict[str, tuple[Any, _T]]] = {}
        self._latest: dict[str, tuple[Any, _T]] = {}

    def recall(self, lane: Any, name: str, said: Any) -> _T | None:
        """What was kept for an equal ``said``, last on this lane or last on any; else None."""
        own = self._lanes.get(lane)
        entry = None if own is None else own.get(name)
        if entry is not None and entry[0] == said:
            return entry[1]
        latest = self._latest.get(name)
        if latest is None or latest is entry or latest[0] != said:
            return None
        self._put(lane, name, latest)
        return latest[1]

    def keep(self, lane: Any, name: str, said: Any, value: _T) -> None:
        """Remembers ``value`` as what was made of ``said``."""
        self._put(lane, name, (said, value))

    def _put(self, lane: Any, name: str, entry: tuple[Any, _T]) -> None:
        if lane not in self._lanes and len(self._lanes) >= MAX_LANES:
            self._lanes.clear()
        self._lanes.setdefault(lane, {})[name] = entry
        self._latest[name] = entry
