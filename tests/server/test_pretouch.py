"""Memory that is touched ahead: small objects that come later find it, and no page faults."""

import resource
import subprocess
import sys

from tieline_server.pretouch import ARENA, pretouch

COUNT = """
import ctypes, resource
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE
from tieline_server.pretouch import pretouch
kept = pretouch({size})
if {lets_go}:
    kept.clear()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
objects = [str(number) * 10 for number in range(100_000)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
"""Page faults of about 10 MB of small objects, and of the list that holds them; no page is huge."""


def faults(size: int, *, lets_go: bool = False) -> int:
    words = [sys.executable, "-c", COUNT.format(size=size, lets_go=lets_go)]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def test_objects_that_come_later_touch_no_new_page_but_for_what_is_large() -> None:
    without = faults(0)
    assert without > 8_000_000 / resource.getpagesize()
    assert faults(32 * ARENA) < without / 4


def test_memory_that_nothing_keeps_goes_back_to_the_kernel() -> None:
    assert faults(32 * ARENA, lets_go=True) > faults(0) / 2


def test_one_small_object_keeps_each_arena() -> None:
    assert len(pretouch(5 * ARENA + 1)) == 5
    assert pretouch(0) == []
