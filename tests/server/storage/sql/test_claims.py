"""Rows of idempotency keys: who holds one, and for how long."""

from functools import partial

import pytest

from tests.support.database import made, rows
from tests.support.journal_contract import claim
from tieline_server.storage.base import Claim
from tieline_server.storage.sql import claims
from tieline_server.storage.sql.processes import Others

NOW = 1_000_000.0


async def take(address: str, response_id: str, process: str, *dead: str) -> Claim:
    """The claim that holds once a process has wanted the key for a response."""
    others = Others(process, lambda name: name not in dead)
    wanted = partial(claims.take, claim=claim(response_id), others=others, now=NOW)
    (holds,) = await made(address, wanted)
    return holds


async def test_a_claim_that_runs_twice_is_its_own(address: str) -> None:
    first, again = [await take(address, "resp_1", "one") for _ in range(2)]
    assert first == again == claim("resp_1")


@pytest.mark.parametrize(
    ("until", "dead", "holds"),
    [
        (None, (), True),
        (NOW + 1, (), True),
        (NOW, (), False),
        (None, ("one",), False),
        (NOW + 1, ("one",), False),
    ],
)
async def test_a_claim_holds_while_its_process_lives_and_its_time_is_not_over(
    address: str, until: float | None, dead: tuple[str, ...], holds: bool
) -> None:
    await take(address, "resp_1", "one")
    if until is not None:
        await made(address, partial(claims.expire, claim=claim("resp_1"), at=until))
    second = await take(address, "resp_2", "two", *dead)
    assert second == claim("resp_1" if holds else "resp_2")
    (row,) = await rows(address, "SELECT response, process, until FROM claims")
    assert row == (("resp_1", "one", until) if holds else ("resp_2", "two", None))
