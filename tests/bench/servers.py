"""The model and the product before it, as processes, for the measurements that need both."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tieline_bench import workload
from tieline_bench.processes import Server, before, model

TOKENS = 4


class Pair(NamedTuple):
    """Both, listening."""

    model: Server
    product: Server


@contextmanager
def pair(folder: Path, *options: str) -> Iterator[Pair]:
    """A model whose long answers have ``TOKENS``, fast; the product with ``options`` before it."""
    keys = workload.write(folder, tokens=1).keys
    with model(tokens=TOKENS, rate=200) as behind, before(behind, keys, *options) as product:
        yield Pair(behind, product)
