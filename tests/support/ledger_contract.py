"""What every ledger must do: a test class inherits it and opens a ledger."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any, get_args

import pytest

from tieline_server.core.values import Outcome, UsageRecord
from tieline_server.storage.base import By, Ledger, Question, Sum

DAY = 86_400.0
NOON = 1_793_534_400.0
"""2026-11-01, 12:00 UTC."""


def usage_record(response_id: str, **changes: Any) -> UsageRecord:
    """A completed response of ann's, with these members changed."""
    members: dict[str, Any] = {
        "response_id": response_id,
        "owner": "ann",
        "model": "m",
        "transport": "test",
        "outcome": "completed",
        "kind": "turn",
        "reason": None,
        "error_code": None,
        "input_tokens": 100,
        "cached_tokens": 60,
        "output_tokens": 20,
        "reasoning_tokens": 5,
        "phases": {"prefill": 200_000, "total": 500_000},
        "started_at": NOON - 0.5,
        "ended_at": NOON,
        "stored": False,
    }
    return UsageRecord(**(members | changes))


def total(group: str, *counts: int) -> Sum:
    """A sum: responses, input, cached, output, reasoning."""
    responses, given, cached, made, reasoned = counts
    return Sum(
        group=group,
        responses=responses,
        input_tokens=given,
        cached_tokens=cached,
        output_tokens=made,
        reasoning_tokens=reasoned,
    )


async def groups(ledger: Ledger, **asked: Any) -> list[tuple[str, int]]:
    """(group, responses) of each sum that answers the question."""
    return [(each.group, each.responses) for each in await ledger.usage(Question(**asked))]


async def count(ledger: Ledger, **asked: Any) -> int:
    """How many rows a question takes in."""
    return sum(each.responses for each in await ledger.usage(Question(**asked)))


class LedgerContract:
    """The tests; ``opened`` is an empty ledger, closed at its end."""

    def opened(self) -> AbstractAsyncContextManager[Ledger]:
        raise NotImplementedError

    @pytest.mark.parametrize("by", get_args(By))
    async def test_an_empty_ledger_has_no_sums(self, by: By) -> None:
        async with self.opened() as ledger:
            assert list(await ledger.usage(Question(by=by))) == []

    async def test_what_was_booked_is_in_the_next_answer(self) -> None:
        async with self.opened() as ledger:
            for number in range(1, 4):
                ledger.add(usage_record(f"resp_{number}"))
                assert await count(ledger) == number

    async def test_a_response_that_is_booked_twice_has_its_first_row(self) -> None:
        async with self.opened() as ledger:
            ledger.add(usage_record("resp_1"))
            ledger.add(usage_record("resp_1", outcome="failed", input_tokens=999, model="other"))
            expected = [total("m", 1, 100, 60, 20, 5)]
            assert list(await ledger.usage(Question(by="model"))) == expected
            ledger.add(usage_record("resp_1", input_tokens=999))
            assert list(await ledger.usage(Question(by="model"))) == expected

    async def test_every_count_of_a_group_is_added_up_by_itself(self) -> None:
        async with self.opened() as ledger:
            ledger.add(usage_record("resp_1"))
            counts = {"input_tokens": 1, "cached_tokens": 2, "output_tokens": 4}
            ledger.add(usage_record("resp_2", **counts, reasoning_tokens=8))
            expected = [total("m", 2, 101, 62, 24, 13)]
            assert list(await ledger.usage(Question(by="model"))) == expected

    async def test_sums_are_by_key_by_model_or_by_day(self) -> None:
        async with self.opened() as ledger:
            ledger.add(usage_record("resp_1", model="small"))
            ledger.add(usage_record("resp_2", model="large", ended_at=NOON + DAY))
            ledger.add(usage_record("resp_3", model="small", owner="bob"))
            assert await groups(ledger, by="key") == [("ann", 2), ("bob", 1)]
            assert await groups(ledger, by="model") == [("large", 1), ("small", 2)]
            assert await groups(ledger, by="day") == [("2026-11-01", 2), ("2026-11-02", 1)]

    async def test_a_day_is_that_of_the_end_in_utc(self) -> None:
        async with self.opened() as ledger:
            midnight = NOON + DAY / 2
            begun, before = {"started_at": midnight - 30.0}, midnight - 0.0004
            ledger.add(usage_record("resp_1", **begun, ended_at=before))
            ledger.add(usage_record("resp_2", **begun, ended_at=midnight))
            ledger.add(usage_record("resp_3", **begun, ended_at=midnight + 1))
            leap = 1_835_438_399.0
            ledger.add(usage_record("resp_4", ended_at=leap))
            assert await groups(ledger, by="day") == [
                ("2026-11-01", 1),
                ("2026-11-02", 2),
                ("2028-02-29", 1),
            ]

    async def test_groups_come_in_the_order_of_their_code_points(self) -> None:
        async with self.opened() as ledger:
            names = ["b", "a", "B", "_", "é", "a-1", "a.1", "10", "9", "", "it's", "100%"]
            for number, name in enumerate(names):
                ledger.add(usage_record(f"resp_{number}", model=name))
            found = [group for group, _ in await groups(ledger, by="model")]
            assert found == sorted(names)

    async def test_since_is_inclusive_and_until_is_not(self) -> None:
        async with self.opened() as ledger:
            for number, at in enumerate((NOON - 0.25, NOON, NOON + 0.25)):
                ledger.add(usage_record(f"resp_{number}", ended_at=at))
            assert await count(ledger, since=NOON) == 2
            assert await count(ledger, until=NOON) == 1
            assert await count(ledger, since=NOON, until=NOON + 0.25) == 1
            assert await count(ledger, since=NOON, until=NOON) == 0
            assert await count(ledger, since=0.0, until=NOON + DAY) == 3

    async def test_an_owner_is_told_of_its_own_rows_alone(self) -> None:
        async with self.opened() as ledger:
            ledger.add(usage_record("resp_1"))
            ledger.add(usage_record("resp_2", owner="bob", input_tokens=7))
            ledger.add(usage_record("resp_3", owner="Ann"))
            assert [
                (each.group, each.responses, each.input_tokens)
                for each in await ledger.usage(Question(by="model", owner="bob"))
            ] == [("m", 1, 7)]
            for name, expected in {"ann": 1, "Ann": 1, "a%": 0, "": 0, "ann' OR '1": 0}.items():
                assert await count(ledger, owner=name) == expected

    async def test_the_parts_of_a_question_hold_together(self) -> None:
        async with self.opened() as ledger:
            ledger.add(usage_record("resp_1", ended_at=NOON - DAY))
            ledger.add(usage_record("resp_2"))
            ledger.add(usage_record("resp_3", owner="bob"))
            ledger.add(usage_record("resp_4", ended_at=NOON + DAY))
            window = {"since": NOON, "until": NOON + DAY}
            assert await groups(ledger, by="day", owner="ann", **window) == [("2026-11-01", 1)]

    @pytest.mark.parametrize("outcome", [each for each in get_args(Outcome) if each != "refused"])
    async def test_a_response_counts_however_it_ended(self, outcome: Outcome) -> None:
        async with self.opened() as ledger:
            why = {"reason": "max_output_tokens"} if outcome == "incomplete" else {}
            error = {"error_code": "server_error"} if outcome == "failed" else {}
            ledger.add(usage_record("resp_1", outcome=outcome, stored=True, **why, **error))
            expected = [total("m", 1, 100, 60, 20, 5)]
            assert list(await ledger.usage(Question(by="model"))) == expected

    async def test_a_warm_up_counts_with_its_input(self) -> None:
        async with self.opened() as ledger:
            nothing = {"output_tokens": 0, "reasoning_tokens": 0}
            warm_up = {"kind": "prewarm", "input_tokens": 90, "cached_tokens": 0}
            ledger.add(usage_record("resp_1", **warm_up, **nothing))
            ledger.add(usage_record("resp_2"))
            expected = [total("m", 2, 190, 60, 20, 5)]
            assert list(await ledger.usage(Question(by="model"))) == expected

    async def test_a_row_without_tokens_or_phases_is_a_row(self) -> None:
        async with self.opened() as ledger:
            none = dict.fromkeys(
                ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"), 0
            )
            ledger.add(usage_record("resp_1", outcome="cancelled", model="", phases={}, **none))
            assert list(await ledger.usage(Question(by="model"))) == [total("", 1, 0, 0, 0, 0)]

    async def test_large_numbers_are_added_exactly(self) -> None:
        async with self.opened() as ledger:
            large = 2**53 + 1
            for number in range(3):
                ledger.add(usage_record(f"resp_{number}", input_tokens=large))
            (found,) = await ledger.usage(Question(by="model"))
            assert found.input_tokens == 3 * large

    async def test_a_burst_is_kept_whole(self) -> None:
        async with self.opened() as ledger:
            for number in range(2_000):
                ledger.add(usage_record(f"resp_{number}", output_tokens=number))
            (found,) = await ledger.usage(Question(by="key"))
            assert (found.responses, found.output_tokens) == (2_000, 1_999_000)

    async def test_questions_beside_bookings_lose_nothing(self) -> None:
        async with self.opened() as ledger:

            async def book(part: int) -> None:
                for number in range(50):
                    ledger.add(usage_record(f"resp_{part}_{number}"))
                    await asyncio.sleep(0)

            async def ask() -> list[int]:
                return [await count(ledger) for _ in range(20)]

            first, second, *_ = await asyncio.gather(ask(), ask(), book(1), book(2))
            for seen in (first, second):
                assert seen == sorted(seen), "what was counted once counts for ever"
            assert await count(ledger) == 100
