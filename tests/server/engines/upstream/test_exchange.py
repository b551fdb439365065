"""When an upstream says to come again. The rest is in test_engine.py, with real servers."""

from datetime import UTC, datetime

import pytest

from tieline_server.engines.upstream.exchange import retry_after

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("1e9", 3600.0),
        ("nan", None),
        ("soon", None),
        ("Thu, 01 Jan 2026 12:00:09 GMT", 9.0),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0),
    ],
)
def test_retry_after_is_a_number_or_a_date(value: str | None, seconds: float | None) -> None:
    assert retry_after(value, now=NOW) == seconds
