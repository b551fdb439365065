"""The split of a turn's time, and the table that shows it."""

from tieline_client.agent.timing import TurnTiming, split, table


def test_phases_of_a_held_response_are_told_by_difference() -> None:
    before = {"overhead": 100, "prefill": 200, "decode": 300, "render": 50}
    after = {"overhead": 150, "prefill": 200, "decode": 1300, "render": 60}
    assert split(before, None) == (0.0001, 0.00045)
    assert split(after, before) == (0.00005, 0.00099)


def test_a_server_that_does_not_tell_leaves_the_cells_empty() -> None:
    assert split(None, None) == (None, None)
    lines = table([TurnTiming(wall=0.001), TurnTiming(wall=0.002, client=0.5)]).splitlines()
    assert [line.split() for line in lines] == [
        ["turn", "service", "engine", "client", "wall"],
        ["1", "-", "-", "0.0", "1.0"],
        ["2", "-", "-", "500.0", "2.0"],
        ["sum", "-", "-", "500.0", "3.0"],
    ]


def test_the_sum_is_of_what_is_known() -> None:
    timings = [TurnTiming(wall=1, service=0.25, engine=0.5), TurnTiming(wall=1)]
    assert table(timings).splitlines()[-1].split() == ["sum", "250.0", "500.0", "0.0", "2000.0"]
