"""What the rules ask of the runtime: counters of work, who asks by default, public names."""

from tests.support.records import turn
from tieline_server.core.effects import Principal, Work


def test_total_is_the_sum_of_all_stages() -> None:
    assert Work(decode=1, validate=2, render=4, encode=8).total == 15


def test_since_is_what_was_done_after_the_copy_alone() -> None:
    work = Work(decode=10, validate=20, render=30, encode=40)
    before = work.copy()
    work.decode += 1
    work.validate += 2
    work.render += 3
    work.encode += 4
    assert work.since(before) == Work(1, 2, 3, 4)


def test_a_copy_does_not_move_with_its_original() -> None:
    work = Work()
    copy = work.copy()
    work.decode = 7
    assert copy.decode == 0


def test_without_keys_everybody_is_local_and_may_use_every_model() -> None:
    assert Principal() == Principal(owner="local", models=None)


def test_a_model_has_a_public_name_where_it_was_resolved() -> None:
    assert turn(model="m").public_model == "m"
    assert turn(model="m", outcome="disconnected").public_model == "m"
    assert turn(model="m", outcome="cancelled", settled=False).public_model == ""
    assert turn(model="m", outcome="refused").public_model == ""
