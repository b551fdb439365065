"""Server-sent events: bytes in, the data of events out (WHATWG HTML 9.2.6).

Lines end at CR LF, CR or LF and at nothing else: U+2028, U+0085 and their like are text. Bytes
stay bytes until an event is whole, so that no character is cut by how the bytes come in.
"""

from typing import Final

from tieline.errors import ApiError

_BOM: Final = b"\xef\xbb\xbf"
_COMMENT: Final = 58


class EventStream:
    """Takes a stream apart, however it is cut into chunks.

    >>> stream = EventStream(1000)
    >>> stream.feed(b"event: x\\ndata: {}\\n"), stream.feed(b"\\n")
    ([], [b'{}'])
    """

    __slots__ = ("_after_cr", "_begun", "_data", "_limit", "_rest", "_size")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self._begun = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that end in this chunk.

        Raises :class:`tieline.errors.RequestTooLarge` for an event of more than ``limit`` bytes.
        """
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._after_cr = False
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        lines = chunk.splitlines()
        tail = b"" if chunk.endswith((b"\r", b"\n")) else lines.pop()
        events: list[bytes] = []
        for line in lines:
            if self._rest:
                line, self._rest = bytes(self._rest + line), bytearray()
            self._take(line, events)
        self._rest += tail
        self._check(len(self._rest))
        return events

    def _take(self, line: bytes, events: list[bytes]) -> None:
        if not self._begun:
            self._begun = True
            line = line.removeprefix(_BOM)
        if not line:
            # An event without data is none.
            if data := b"\n".join(self._data):
                events.append(data)
            self._data, self._size = [], 0
        elif line[0] != _COMMENT:
            name, _, value = line.partition(b":")
            if name == b"data":
                value = value.removeprefix(b" ")
                self._size += len(value)
                self._check(0)
                self._data.append(value)

    def _check(self, more: int) -> None:
        if self._size + more > self._limit:
            raise ApiError.of(
                "event_too_large", f"An event was too large: more than {self._limit} bytes."
            )
