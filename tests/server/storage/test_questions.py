"""Moments and groups in words."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tieline_server.storage.base import Question
from tieline_server.storage.questions import QuestionError, group, moment, question

NOW = datetime(2026, 11, 29, 18, 30, tzinfo=UTC).timestamp()


def at(*parts: int, hours: int = 0) -> float:
    return datetime(*parts, tzinfo=timezone(timedelta(hours=hours))).timestamp()  # type: ignore[arg-type,misc]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-01", at(2026, 11, 1)),
        ("2028-02-29", at(2028, 2, 29)),
        ("1969-12-31", -86_400.0),
        ("2026-11-01T12:30", at(2026, 11, 1, 12, 30)),
        ("2026-11-01 12:30:05", at(2026, 11, 1, 12, 30, 5)),
        ("2026-11-01T12:30:05.250Z", at(2026, 11, 1, 12, 30, 5) + 0.25),
        ("2026-11-01T12:30:05+02:00", at(2026, 11, 1, 12, 30, 5, hours=2)),
        ("2026-11-01T12:30:05-05:00", at(2026, 11, 1, 12, 30, 5, hours=-5)),
        ("90s", NOW - 90),
        ("30m", NOW - 1_800),
        ("24h", NOW - 86_400),
        ("7d", NOW - 7 * 86_400),
        ("2w", NOW - 14 * 86_400),
        ("0d", NOW),
    ],
)
def test_a_moment_is_a_date_a_timestamp_or_a_duration_before_now(
    text: str, expected: float
) -> None:
    assert moment(text, now=NOW) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "7",
        "7y",
        "-7d",
        "7.5d",
        "7d ",
        "\N{ARABIC-INDIC DIGIT SEVEN}d",
        "9999999999d",
        "20261101",
        "2026-W44",
        "2026-02-30",
        "2026-13-01",
        "0000-01-01",
        "2026-11-01T25:00",
        "2026-11-01T",
        "2026-11-01T12:30:05 02:00",
        "1793491200",
        "x" * 100_000,
    ],
)
@pytest.mark.parametrize("param", ["since", "until"])
def test_what_is_none_of_these_is_an_error_that_names_the_part(text: str, param: str) -> None:
    asked: dict[str, Any] = {"since": None, "until": None, param: text}
    with pytest.raises(QuestionError, match="expected a date, an ISO timestamp") as wrong:
        question(by="day", owner=None, now=NOW, **asked)
    assert wrong.value.param == param
    assert len(str(wrong.value)) < 100


def test_a_question_has_what_was_asked() -> None:
    asked = question(by="model", owner="ann", since="2026-11-01", until="24h", now=NOW)
    expected = Question(by="model", owner="ann", since=at(2026, 11, 1), until=NOW - 86_400)
    assert asked == expected
    everything = question(by="key", owner=None, since=None, until=None, now=NOW)
    assert everything == Question(by="key")


@pytest.mark.parametrize("until", ["2026-11-01", "2026-10-31", "2026-11-01T00:00:00Z"])
def test_an_end_that_is_not_after_the_beginning_is_an_error(until: str) -> None:
    with pytest.raises(QuestionError, match="not after 'since'") as wrong:
        question(by="day", owner=None, since="2026-11-01", until=until, now=NOW)
    assert wrong.value.param == "until"


def test_a_group_is_one_of_those_that_may_be_asked_for() -> None:
    assert [group(name) for name in ("key", "model", "day")] == ["key", "model", "day"]
    for name in ("key", "week", "", "Day"):
        with pytest.raises(QuestionError, match="expected one of model, day") as wrong:
            group(name, among=("model", "day"))
        assert wrong.value.param == "by"
