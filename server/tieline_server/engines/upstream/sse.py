"""Bytes of a ``text/event-stream`` in pieces, to the data of its events (WHATWG HTML 9.2.6)."""

from typing import Final

MAX_EVENT: Final = 4 * 1024 * 1024
"""Bytes of one event; no upstream has reason for more."""

_LF: Final = ord("\n")
"""As a number: to look for bytes in bytes, CPython first raises and formats a TypeError."""


class EventTooLarge(Exception):
    """An event grows without end."""


class EventStream:
    """Cuts what comes into events. Names and ids of events mean nothing here."""

    __slots__ = ("_data", "_rest", "_size")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that ``piece`` completes. Raises :class:`EventTooLarge`."""
        if piece[:5] == b"data:" and piece[-2:] == b"\n\n" and not (self._rest or self._data):
            events = piece[5:-2].split(b"\n\ndata:")
            if _LF not in b"".join(events):
                # Most pieces are whole events, and most events one line.
                return list(map(bytes.strip, events))
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        events = []
        for line in lines:
            if line[:5] == b"data:":
                value = line[5:].strip()
                self._size += len(value)
                self._data.append(value)
            elif self._data and line in (b"", b"\r"):
                events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data, self._size = [], 0
        if self._size + len(self._rest) > MAX_EVENT:
            raise EventTooLarge
        return events
