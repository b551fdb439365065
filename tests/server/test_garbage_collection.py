"""The rules of the collector: what is frozen, how seldom it looks, what forgets its frames."""

import gc
from collections.abc import Iterator

import pytest

from tests.support.garbage import none_left
from tieline_server.garbage_collection import THRESHOLDS, forget_frames, freeze, look_seldom


@pytest.fixture
def collector() -> Iterator[None]:
    """The collector as it was, whatever a test has done to it."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.usefixtures("collector")
def test_what_is_there_is_frozen_and_what_was_garbage_is_gone() -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    with none_left(Marker):
        cycle.append(Marker())
        del cycle
        freeze()
    assert gc.get_freeze_count() > 10_000


@pytest.mark.usefixtures("collector")
def test_the_collector_looks_seldom() -> None:
    look_seldom()
    assert gc.get_threshold() == THRESHOLDS


class Marker:
    """What a frame holds."""


class Keeper:
    """What keeps an error that went through a frame which holds the keeper."""

    error: Exception | None = None


def fail(keeper: Keeper, *, forget: bool) -> None:
    marker = Marker()
    try:
        try:
            raise KeyError(marker.__class__)
        except KeyError:
            raise ValueError from None
    except ValueError as error:
        if forget:
            forget_frames(error)
        keeper.error = error


def test_an_error_that_has_forgotten_its_frames_keeps_nothing_of_them() -> None:
    with none_left(Marker, Keeper):
        fail(Keeper(), forget=True)


def test_an_error_with_its_frames_keeps_them_in_a_cycle() -> None:
    with pytest.raises(AssertionError), none_left(Marker, Keeper):
        fail(Keeper(), forget=False)
    gc.collect()
