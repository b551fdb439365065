"""One CPU for the load client and every server, so that the kernel's placing is no figure."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def on_one_cpu() -> Iterator[int]:
    """Pins the calling thread, and with it what is started meanwhile, to one CPU; yields which.

    A client and a server that answer each other never run at once, so one CPU serves both and
    they take turns. On two, each message wakes a thread on a CPU that has gone idle. On a virtual
    machine that is an exit to the host of 20 to 50 µs, charged to the sender, and only where
    the kernel happens to place the two apart: a bare WebSocket turn read 12 µs or 70 by luck. A
    server that is busy with other connections finds its peers awake and does not pay it.

    Processes and threads inherit the CPU from the thread that starts them, so a server's threads
    are bound before they run. It is one of those that the caller may use; afterwards the caller
    has all of them again, while what it started stays.
    """
    allowed = os.sched_getaffinity(0)
    chosen = max(allowed)
    os.sched_setaffinity(0, {chosen})
    try:
        yield chosen
    finally:
        os.sched_setaffinity(0, allowed)
