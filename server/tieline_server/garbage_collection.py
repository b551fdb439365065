"""When Python looks for garbage, and how the code leaves none: the rules of it, in one place.

A turn is freed by its reference counts, in the moment that the last reference to it goes. The
collector is there for reference cycles, and each time it looks, it walks through all objects that
can be in one. Four rules keep it from work:

1. What is there when the server has started stays, and is frozen (:func:`freeze`): the modules
   alone are some 200,000 objects, through which a full collection walks for 50 ms and more while
   no turn goes on and no write leaves.
2. The collector looks seldom (:func:`look_seldom`), since turns leave no cycle.
3. A struct of which there are many, and whose members cannot lead back to it, says ``gc=False``:
   the collector then does not know it. What a struct holds that says so must be freed without
   the collector's help.
4. An exception holds the frames that it went through, and a frame holds its variables. One that is
   kept by what is in those frames (a call, a task, a parser) would be in a cycle with the request
   and the chain of a turn. Who keeps it forgets the frames (:func:`forget_frames`, and
   :meth:`tieline.errors.ApiError.bare`); a variable that refers to what keeps it is deleted.

A long text is parsed with the collector off (``tieline.codecs.json``). The tests count what a turn
and a connection leave (tests/support/garbage.py).
"""

import gc
from typing import Final

THRESHOLDS: Final = (10_000, 10, 10)
"""Objects more than at the last collection of the youngest generation, and collections of each
younger generation, from which on the next one is collected. Python's own first threshold (700)
cost a resumable turn over SSE some 10 microseconds. A cycle that a library leaves goes when there
are a million objects more than before."""


def freeze() -> None:
    """Collects once, then takes what is there out of every later collection.

    In a process that forks workers this also keeps memory shared: a collection writes to the
    objects that it looks at, and so would copy their pages into each worker.
    """
    gc.collect()
    gc.freeze()


def look_seldom() -> None:
    """Has the collector look when many more objects are there than at the last time."""
    gc.set_threshold(*THRESHOLDS)


def forget_frames(error: BaseException) -> None:
    """Takes from an exception the frames that it went through, and the exceptions before it."""
    error.__traceback__ = error.__context__ = None
