"""What owners share of a process."""

from tieline_server.core.share import Share


def test_cn_21_an_owner_has_a_bound_and_so_have_all_together() -> None:
    share = Share(each=3, total=4)
    assert [share.take("a"), share.take("a", 2), share.take("a")] == [True, True, False]
    assert not share.take("b", 2)
    assert share.take("b")
    assert (share.held_by("a"), share.held_by("b"), share.taken) == (3, 1, 4)
    assert (share.fits("a"), share.fits("b", 2), share.fits("c", 4)) == (False, True, False)
    room = (share.has_room("a", 0), share.has_room("b"), share.has_room("c", 0))
    assert room == (True, False, True), "there is no more for all together"
    share.give_back("a", 3)
    assert (share.held_by("a"), share.taken) == (0, 1)
    assert share.take("b", 2)


def test_an_owner_that_has_nothing_is_not_remembered() -> None:
    share = Share()
    for name in range(100):
        share.take(str(name))
        share.give_back(str(name))
    assert share._owners == {}


def test_what_is_there_already_counts_whatever_the_bounds() -> None:
    share = Share(each=3, total=4)
    share.add("a", 5)
    assert (share.held_by("a"), share.taken) == (5, 5)
    assert not share.take("b")
    share.give_back("a", 5)
    assert share.take("b")
