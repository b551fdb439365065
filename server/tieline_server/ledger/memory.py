"""A ledger in this process's memory: gone when it ends, bounded while it runs."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Final, Self

from msgspec.structs import replace

from tieline_server.config import Config
from tieline_server.core.values import Booking
from tieline_server.ledger.base import By, Question, Sum

ROWS: Final = 10_000
"""Rows that are kept; past it the oldest go."""


class MemoryLedger:
    """Rows in order of their booking; past ``most`` the oldest go."""

    keeps_phases = False

    def __init__(self, *, most: int = ROWS) -> None:
        self._most = most
        self._rows: OrderedDict[str, Booking] = OrderedDict()

    @classmethod
    async def open(cls, config: Config, stack: AsyncExitStack) -> Self:
        """An empty ledger, of which the settings say nothing; ``stack`` closes it."""
        ledger = cls()
        stack.push_async_callback(ledger.close)
        return ledger

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Booking]:
        """The rows, the first booked first."""
        return iter(self._rows.values())

    def book(self, booking: Booking) -> None:
        """Takes a row; a response id that has one keeps it. Its phases, half of it, are let go."""
        row = replace(booking, phases={}) if booking.phases else booking
        self._rows.setdefault(booking.response_id, row)
        if len(self._rows) > self._most:
            self._rows.popitem(last=False)

    async def usage(self, question: Question) -> Sequence[Sum]:
        """Sums in order of their group."""
        groups: dict[str, list[Booking]] = {}
        for row in self._rows.values():
            if _asked_for(row, question):
                groups.setdefault(_group(row, question.by), []).append(row)
        return [_sum(group, rows) for group, rows in sorted(groups.items())]

    async def close(self) -> None:
        """Forgets everything."""
        self._rows.clear()


def _asked_for(row: Booking, question: Question) -> bool:
    return (
        (question.owner is None or row.owner == question.owner)
        and (question.since is None or row.ended_at >= question.since)
        and (question.until is None or row.ended_at < question.until)
    )


def _group(row: Booking, by: By) -> str:
    if by == "day":
        return datetime.fromtimestamp(row.ended_at, UTC).date().isoformat()
    return row.owner if by == "key" else row.model


def _sum(group: str, rows: Iterable[Booking]) -> Sum:
    counted = [
        (1, row.input_tokens, row.cached_tokens, row.output_tokens, row.reasoning_tokens)
        for row in rows
    ]
    responses, given, cached, made, reasoned = map(sum, zip(*counted, strict=True))
    return Sum(
        group=group,
        responses=responses,
        input_tokens=given,
        cached_tokens=cached,
        output_tokens=made,
        reasoning_tokens=reasoned,
    )
