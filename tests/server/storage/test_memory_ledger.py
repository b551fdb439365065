"""The memory ledger: the contract of all ledgers, its bound, and its rows."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from msgspec.structs import replace

from tests.support.ledger_contract import LedgerContract, booking, count
from tieline_server.config import Config
from tieline_server.storage.base import Ledger
from tieline_server.storage.memory import ROWS, MemoryLedger


class TestContract(LedgerContract):
    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Ledger]:
        ledger = MemoryLedger()
        yield ledger
        await ledger.close()


def test_past_the_bound_the_rows_that_were_booked_first_go() -> None:
    ledger = MemoryLedger(most=2)
    for number in range(4):
        ledger.book(booking(f"resp_{number}"))
    assert [row.response_id for row in ledger] == ["resp_2", "resp_3"]
    assert len(ledger) == 2


def test_a_row_that_comes_again_pushes_nothing_out() -> None:
    ledger = MemoryLedger(most=2)
    for response_id in ("resp_1", "resp_2", "resp_2", "resp_1"):
        ledger.book(booking(response_id))
    assert [row.response_id for row in ledger] == ["resp_1", "resp_2"]


def test_a_row_is_kept_as_it_was_booked_but_for_its_phases() -> None:
    ledger = MemoryLedger()
    row = booking("resp_1", outcome="failed", error_code="server_error", model="")
    ledger.book(row)
    assert list(ledger) == [replace(row, phases={})]


async def test_one_that_is_opened_has_the_usual_bound_until_its_stack_closes_it() -> None:
    async with AsyncExitStack() as stack:
        ledger = await MemoryLedger.open(Config.load({}), stack)
        for number in range(ROWS + 1):
            ledger.book(booking(f"resp_{number}"))
        assert len(ledger) == ROWS
    assert len(ledger) == 0


async def test_a_closed_ledger_is_empty() -> None:
    ledger = MemoryLedger()
    ledger.book(booking("resp_1"))
    await ledger.close()
    assert (await count(ledger)) == 0
