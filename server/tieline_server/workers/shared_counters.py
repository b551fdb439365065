"""Counters in shared memory: caps that all workers count together, exactly.

A file has a row for each worker and a number in it for each cap. A worker changes its own row
only; the sum of a column is what counts against its cap. The supervisor clears the row of a
worker that died. The lock is the kernel's, which releases it with the process that holds it: a
``multiprocessing.Lock`` would stay held by a worker that is killed while it counts.
"""

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

CAPS: Final = ("connections", "calls")
"""What is counted: connections of HTTP and WebSocket, calls of gRPC."""

_ROW: Final = 8 * len(CAPS)
"""Bytes: each number has eight."""


class SharedCounters:
    """The counters of one server, opened from their file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._counts = memoryview(mmap.mmap(descriptor, 0)).cast("q")

    @classmethod
    def make(cls, path: Path, *, rows: int) -> Self:
        """Makes the file; every number in it is zero."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.ftruncate(descriptor, rows * _ROW)
        return cls(descriptor)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Opens a file that another process made."""
        return cls(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def take(self, row: int, cap: int, *, most: int) -> bool:
        """Counts one more in a row; False where all rows together have ``most``."""
        with self._locked():
            if sum(self._counts[cap :: len(CAPS)]) >= most:
                return False
            self._counts[row * len(CAPS) + cap] += 1
            return True

    def give_back(self, row: int, cap: int) -> None:
        """Counts one less in a row."""
        with self._locked():
            self._counts[row * len(CAPS) + cap] -= 1

    def clear(self, row: int) -> None:
        """Sets a row to zero: its worker has ended."""
        with self._locked():
            for cap in range(len(CAPS)):
                self._counts[row * len(CAPS) + cap] = 0

    def close(self) -> None:
        """Closes the file."""
        self._counts.release()
        os.close(self._descriptor)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Holds the lock for some microseconds: its holder only counts."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)


class SharedCapacity:
    """The capacity that one worker has of a cap together with the others; see ``Capacity``."""

    __slots__ = ("_cap", "_counters", "_row", "most")

    def __init__(self, counters: SharedCounters, *, row: int, cap: str, most: int) -> None:
        self._counters = counters
        self._row = row
        self._cap = CAPS.index(cap)
        self.most = most

    def take(self) -> bool:
        """Takes one; False where all workers together have ``most``."""
        return self._counters.take(self._row, self._cap, most=self.most)

    def give_back(self) -> None:
        """Gives one back."""
        self._counters.give_back(self._row, self._cap)
