"""Questions as people ask them: moments and groups in words."""

import re
from datetime import UTC, date, datetime
from typing import Final, get_args

from tieline_server.storage.base import By, Question

FORMS: Final = "a date, an ISO timestamp, or a duration such as 24h or 7d"

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION: Final = re.compile(r"([0-9]{1,9})([smhdw])")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIMESTAMP: Final = re.compile(_DATE.pattern + r"[T ][0-9:.]+(Z|[+-][0-9]{2}:[0-9]{2})?")


class QuestionError(ValueError):
    """A question that cannot be answered; ``param`` names the part that is wrong."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


def question(
    *, by: By, owner: str | None, since: str | None, until: str | None, now: float
) -> Question:
    """A question with its moments read; raises :class:`QuestionError`.

    ``now`` is the moment that durations count back from, Unix seconds.
    """
    begin = None if since is None else _read("since", since, now=now)
    end = None if until is None else _read("until", until, now=now)
    if begin is not None and end is not None and begin >= end:
        raise QuestionError("until", "it is not after 'since'")
    return Question(by=by, owner=owner, since=begin, until=end)


def group(name: str, *, among: tuple[By, ...] = get_args(By)) -> By:
    """What sums are grouped by; raises :class:`QuestionError`."""
    for each in among:
        if each == name:
            return each
    raise QuestionError("by", f"expected one of {', '.join(among)}")


def moment(text: str, *, now: float) -> float:
    """Unix seconds of a moment in words; raises :class:`ValueError`.

    A date is the beginning of that day; it, and a timestamp without an offset, is UTC, as are
    the days of a ledger. A duration is so long before ``now``.

    >>> moment("1970-01-02", now=0.0)
    86400.0
    >>> moment("1970-01-01T02:00:00+01:00", now=0.0)
    3600.0
    >>> moment("24h", now=100_000.0)
    13600.0
    """
    duration = _DURATION.fullmatch(text)
    if duration is not None:
        return now - int(duration[1]) * _UNITS[duration[2]]
    if _DATE.fullmatch(text):
        day = date.fromisoformat(text)
        return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()
    if _TIMESTAMP.fullmatch(text):
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
    raise ValueError("neither a date nor a timestamp nor a duration")


def _read(param: str, text: str, *, now: float) -> float:
    try:
        return moment(text, now=now)
    except (ValueError, OverflowError):
        raise QuestionError(param, f"expected {FORMS}") from None
