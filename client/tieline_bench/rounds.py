"""Interleaved rounds: each contender is measured in every round, so that drift hits all alike."""

from collections.abc import Callable, Mapping
from statistics import median

Measure = Callable[[], float]
"""Measures one contender once."""


def interleaved(contenders: Mapping[str, Measure], rounds: int) -> dict[str, list[float]]:
    """Measures every contender in each of ``rounds`` rounds, the order reversed in every other."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        names = list(contenders) if number % 2 == 0 else list(contenders)[::-1]
        for name in names:
            found[name].append(contenders[name]())
    return found


def ratio(product: list[float], bare: list[float]) -> float:
    """Median of one over median of the other.

    >>> ratio([3.0, 4.0, 50.0], [2.0, 1.0, 2.0])
    2.0
    """
    return median(product) / median(bare)


def percentile(values: list[float], share: float) -> float:
    """The value below which ``share`` of all are, from 0 to 1.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 0.5)
    3.0
    """
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
