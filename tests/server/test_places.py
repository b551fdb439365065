"""Places of one process, and what owners share."""

from tieline_server.places import OwnPlaces, Share


def test_so_many_can_be_taken_and_one_that_is_given_back_again() -> None:
    places = OwnPlaces(2)
    assert [places.take(), places.take(), places.take()] == [True, True, False]
    places.give_back()
    assert [places.take(), places.take()] == [True, False]
    assert (places.most, places.taken) == (2, 2)


def test_cn_21_an_owner_has_a_bound_and_so_have_all_together() -> None:
    share = Share(each=3, total=4)
    assert [share.take("a"), share.take("a", 2), share.take("a")] == [True, True, False]
    assert not share.take("b", 2)
    assert share.take("b")
    assert (share.held_by("a"), share.held_by("b"), share.taken) == (3, 1, 4)
    assert (share.fits("a"), share.fits("b", 2), share.fits("c", 4)) == (False, True, False)
    share.give_back("a", 3)
    assert (share.held_by("a"), share.taken) == (0, 1)
    assert share.take("b", 2)


def test_an_owner_that_has_nothing_is_not_remembered() -> None:
    share = Share()
    for name in range(100):
        share.take(str(name))
        share.give_back(str(name))
    assert share._owners == {}
