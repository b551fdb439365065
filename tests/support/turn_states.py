"""A turn in each state that a case may begin from; ``members`` are added to its create."""

from typing import Any

from tests.support.core import TEN, Lockstep
from tieline_server.core.deltas import TextDelta


def loading(driver: Lockstep, **members: Any) -> str:
    """A turn whose parent is asked of the store."""
    return driver.create("hi", previous_response_id="resp_x", **members)


def starting(driver: Lockstep, **members: Any) -> str:
    """A turn that the engine has been asked for, and has not answered."""
    return driver.create("hi", append=True, **members)


def sampling(driver: Lockstep, **members: Any) -> str:
    """A turn that has said its first word."""
    turn = starting(driver, **members)
    driver.say(turn, TEN, TextDelta("x"))
    return turn


def steered(driver: Lockstep, **members: Any) -> str:
    """A turn that samples and has accepted a steer."""
    turn = sampling(driver, **members)
    driver.steer(turn)
    return turn


def held(driver: Lockstep, **members: Any) -> str:
    """A turn that waits for the output of its call."""
    turn = starting(driver, **members)
    driver.call(turn)
    return turn


def saving(driver: Lockstep, **members: Any) -> str:
    """A turn that is being stored."""
    turn = driver.create("hi", store=True, **members)
    driver.answer(turn)
    return turn
