"""What a process holds, read from /proc: memory, descriptors, and whether it rests."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

KIB: Final = 1024
LOOK: Final = 0.05
"""Seconds between two looks at how much CPU time a process has used."""

QUIET: Final = 6
"""Looks in a row without any, after which it rests."""

PATIENCE: Final = 120.0
"""Seconds after which what is waited for will never be."""


class ProcessState:
    """A live process."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")

    @property
    def memory(self) -> int:
        """Bytes of RAM that it has (RSS)."""
        status = (self._folder / "status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * KIB

    @property
    def descriptors(self) -> int:
        """How many files and sockets it has open."""
        return len(os.listdir(self._folder / "fd"))

    @property
    def _ticks(self) -> int:
        fields = (self._folder / "stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[11]) + int(fields[12])

    def rest(self) -> None:
        """Returns when it has done all it can do for now."""
        last, quiet = self._ticks, 0

        def rests() -> bool:
            nonlocal last, quiet
            now = self._ticks
            quiet = quiet + 1 if now == last else 0
            last = now
            return quiet == QUIET

        until(rests)


def until(condition: Callable[[], bool]) -> None:
    """Waits until something holds of another process, which tells nobody when it comes to."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(LOOK)
