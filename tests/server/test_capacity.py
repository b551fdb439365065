"""Capacity of one process."""

from tieline_server.capacity import LocalCapacity


def test_so_many_can_be_taken_and_one_that_is_given_back_again() -> None:
    capacity = LocalCapacity(2)
    assert [capacity.take(), capacity.take(), capacity.take()] == [True, True, False]
    capacity.give_back()
    assert [capacity.take(), capacity.take()] == [True, False]
    assert (capacity.most, capacity.taken) == (2, 2)
