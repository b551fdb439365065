"""Places of one process."""

from tieline_server.places import OwnPlaces


def test_so_many_can_be_taken_and_one_that_is_given_back_again() -> None:
    places = OwnPlaces(2)
    assert [places.take(), places.take(), places.take()] == [True, True, False]
    places.give_back()
    assert [places.take(), places.take()] == [True, False]
    assert (places.most, places.taken) == (2, 2)
