"""Memory that a process touches as it starts.

The first touch of a page interrupts whoever writes there: the kernel finds a page and clears it,
and under a hypervisor that has to find one as well this takes microseconds. What turns keep grows
by about a page a turn. Once what has been kept for long enough goes, its memory is used again;
until then, memory that was touched ahead takes its place.
"""

from typing import Final

ARENA: Final = 1024 * 1024
"""Bytes that CPython's allocator of small objects takes from the kernel, and gives back, at once
(``ARENA_BITS`` in Objects/obmalloc.c, from 3.10 on)."""

BLOCK: Final = 512
"""Bytes of the largest objects that it serves."""

HEAD: Final = b"".__sizeof__()
"""Bytes of an object of bytes beside its bytes."""


def pretouch(size: int) -> list[bytes]:
    """Touches so many bytes, by whole arenas, and gives them to the allocator of small objects.

    They stay with the process as long as the result is kept: an arena is given back when nothing
    is in it, and in each there is one of these objects. Takes a millisecond for each MiB.

    >>> len(pretouch(3 * ARENA))
    3
    """
    # A pool of blocks has a head of its own: a few less than would fit.
    blocks = ARENA // BLOCK - ARENA // (16 * 1024)
    filled = [[bytes(BLOCK - HEAD) for _ in range(blocks)] for _ in range(size // ARENA)]
    return [arena[0] for arena in filled]
