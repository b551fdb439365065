"""The client of each language does what it should against real servers: tests/interop/runners.py.

A language whose toolchain is not here is skipped by name. What a runner builds it fetches first.
"""

import asyncio
import json
from typing import Final

import pytest

from tests.interop import runners
from tests.interop.runners import LANGUAGES, Outcome

LONG: Final = 900
"""Seconds for a first build, the quiet connection, and the rest."""


@pytest.mark.parametrize("name", LANGUAGES)
def test_every_scenario_goes_as_it_is_written(name: str) -> None:
    language = LANGUAGES[name]
    if language.lacks:
        pytest.skip(f"{language.name}: {' and '.join(language.lacks)} not found")
    outcomes = asyncio.run(runners.run(language))
    assert [each for each in outcomes if not each.ok] == []
    assert [each.scenario for each in outcomes] == runners.names()


def test_a_scenario_of_which_a_runner_says_nothing_has_failed() -> None:
    silent = runners.Language("Silent", ("true",))
    (outcome,) = asyncio.run(runners.run(silent, "turn"))
    assert outcome.ok is False
    assert "exit 0" in outcome.why


def test_the_table_has_a_row_a_scenario_and_a_column_a_language() -> None:
    went = [
        Outcome(name, ok) for name, ok in zip(runners.names(), (True, False, None), strict=False)
    ]
    went += [Outcome(name, True) for name in runners.names()[3:]]
    rows = runners.table({"python": went, "go": went}).splitlines()
    assert rows[0] == "| scenario | Python | Go |"
    assert [row.split("|")[3].strip() for row in rows[2:5]] == ["yes", "NO", "-"]
    assert len(rows) == len(runners.names()) + 2


def test_each_scenario_says_what_it_does() -> None:
    scenarios = json.loads(runners.SCENARIOS.read_text())["scenarios"]
    assert all(each["does"].endswith(".") for each in scenarios)
    assert len({each["name"] for each in scenarios}) == len(scenarios)
