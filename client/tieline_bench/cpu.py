"""CPU time that another process has used, all its threads together, read from /proc."""

import os
import time
from pathlib import Path
from typing import Final

TICK: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
"""Nanoseconds of a clock tick: what ``stat`` counts in, where there is no ``schedstat``."""

QUIET: Final = 0.001
"""Seconds in which a process that waits for us uses nothing."""

AFTER: Final = 0.06
"""Seconds in which a server has done what it leaves for after a turn; the product books what was
used within 50 ms."""

TRIES: Final = 200
"""Looks at a process before it counts as one that never rests."""


class CpuMeter:
    """Reads what a process has used. A thread that ended keeps what it had used."""

    def __init__(self, pid: int) -> None:
        self._tasks = Path(f"/proc/{pid}/task")
        self._seen: dict[str, int] = {}

    def read(self) -> int:
        """Nanoseconds so far; raises :class:`ProcessLookupError` when the process is gone."""
        try:
            threads = os.listdir(self._tasks)
        except FileNotFoundError as error:
            raise ProcessLookupError(f"no process at {self._tasks}") from error
        for thread in threads:
            try:
                self._seen[thread] = _thread_time(self._tasks / thread)
            except (FileNotFoundError, ProcessLookupError):
                # It ended between the two looks.
                continue
        return sum(self._seen.values())

    def settled(self) -> int:
        """:meth:`read`, once the process sleeps: a running thread's time is not up to date."""
        last = self.read()
        for _ in range(TRIES):
            time.sleep(QUIET)
            now = self.read()
            if now == last:
                break
            last = now
        return last

    def rested(self) -> int:
        """:meth:`settled`, once what a server does after a turn is done too."""
        time.sleep(AFTER)
        return self.settled()


def _thread_time(task: Path) -> int:
    try:
        return int((task / "schedstat").read_bytes().split()[0])
    except FileNotFoundError:
        # The kernel has no scheduler statistics, or the thread is gone: then this raises again.
        fields = (task / "stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK
