"""What would wait for the garbage collector, which looks for garbage rarely."""

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def none_left(*kinds: type) -> Iterator[None]:
    """Fails where objects of these kinds outlive what runs in it, none of it being collected."""

    def count() -> Counter[type]:
        return Counter(type(each) for each in gc.get_objects() if type(each) in kinds)

    gc.collect()
    gc.disable()
    try:
        before = count()
        yield
        assert count() == before, "held by a reference cycle"
    finally:
        gc.enable()
