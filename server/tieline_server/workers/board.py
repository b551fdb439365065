"""The board of places: caps that all workers count together, exactly.

A file in shared memory with a row for each worker and a number in it for each cap. A worker
changes its own row only; the sum is what counts. Whoever died has its row cleared by the
supervisor. The lock is the kernel's: it goes with the process that holds it.
"""

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct as Layout
from typing import Final, Self

CAPS: Final = ("connections", "calls")
"""What is counted: connections of HTTP and WebSocket, calls of gRPC."""

_COUNT: Final = Layout("<q")
_ROW: Final = _COUNT.size * len(CAPS)


class Board:
    """An open board."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._memory = mmap.mmap(descriptor, 0)

    @classmethod
    def make(cls, path: Path, *, rows: int) -> Self:
        """A new one, with all places free."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.ftruncate(descriptor, rows * _ROW)
        return cls(descriptor)

    @classmethod
    def open(cls, path: Path) -> Self:
        """One that is there."""
        return cls(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def take(self, row: int, cap: int, *, most: int) -> bool:
        """Takes a place for a row; False where all rows together have ``most``."""
        with self._locked():
            taken = sum(self._column(cap))
            if taken >= most:
                return False
            self._add(row, cap, 1)
            return True

    def give_back(self, row: int, cap: int) -> None:
        """One less for a row."""
        with self._locked():
            self._add(row, cap, -1)

    def clear(self, row: int) -> None:
        """Gives all places of a row back: its worker has ended."""
        with self._locked():
            self._memory[row * _ROW : (row + 1) * _ROW] = bytes(_ROW)

    def close(self) -> None:
        """Lets go of the file."""
        self._memory.close()
        os.close(self._descriptor)

    def _column(self, cap: int) -> Iterator[int]:
        for start in range(cap * _COUNT.size, len(self._memory), _ROW):
            yield _COUNT.unpack_from(self._memory, start)[0]

    def _add(self, row: int, cap: int, change: int) -> None:
        start = row * _ROW + cap * _COUNT.size
        _COUNT.pack_into(self._memory, start, _COUNT.unpack_from(self._memory, start)[0] + change)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Microseconds: whoever holds it only counts."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)


class BoardPlaces:
    """The places of one cap, for one worker. See ``places.Places``."""

    __slots__ = ("_board", "_cap", "_row", "most")

    def __init__(self, board: Board, *, row: int, cap: str, most: int) -> None:
        self._board = board
        self._row = row
        self._cap = CAPS.index(cap)
        self.most = most

    def take(self) -> bool:
        """Takes one; False where all workers together have all."""
        return self._board.take(self._row, self._cap, most=self.most)

    def give_back(self) -> None:
        """Gives one back."""
        self._board.give_back(self._row, self._cap)
