"""How long the place of a worker that died stays empty."""

from tieline_server.workers.pace import FREE, LONGEST, SOON, Pace


def test_a_death_after_some_time_costs_no_wait_however_often() -> None:
    pace = Pace()
    assert [pace.died(SOON) for _ in range(100)] == [0.0] * 100


def test_deaths_that_come_soon_cost_more_and_more_up_to_a_bound() -> None:
    pace = Pace()
    waits = [pace.died(0.0) for _ in range(2000)]
    assert waits[: FREE + 4] == [0.0] * FREE + [0.2, 0.4, 0.8, 1.6]
    assert waits == sorted(waits)
    assert waits[-1] == LONGEST


def test_a_worker_that_lived_starts_the_count_anew() -> None:
    pace = Pace()
    for _ in range(50):
        pace.died(0.0)
    assert [pace.died(SOON), pace.died(0.0)] == [0.0, 0.0]
