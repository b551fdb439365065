"""Interleaved rounds and what is made of them."""

import pytest

from tieline_bench.rounds import interleaved, percentile, ratio


def test_each_round_measures_everyone_and_the_order_turns_round() -> None:
    order: list[str] = []

    def contender(name: str, cost: float) -> float:
        order.append(name)
        return cost

    found = interleaved(
        {"product": lambda: contender("product", 2.0), "bare": lambda: contender("bare", 1.0)}, 3
    )
    assert order == ["product", "bare", "bare", "product", "product", "bare"]
    assert found == {"product": [2.0] * 3, "bare": [1.0] * 3}


def test_a_ratio_is_of_medians_so_one_disturbed_round_means_nothing() -> None:
    assert ratio([3.0, 900.0, 3.0], [1.0, 1.0, 0.001]) == 3.0


@pytest.mark.parametrize(("share", "value"), [(0.0, 1.0), (0.5, 51.0), (0.99, 100.0), (1.0, 100.0)])
def test_a_percentile_is_one_of_the_values(share: float, value: float) -> None:
    assert percentile([float(n) for n in range(100, 0, -1)], share) == value
