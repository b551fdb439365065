"""The client of each language does what it should against real servers: tests/interop/runners.py.

A language whose toolchain is not here is skipped by name. What a runner builds it fetches first.
"""

import asyncio
import json

import pytest

from tests.interop import runners
from tests.interop.runners import LANGUAGES, Outcome


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
    first = {0: True, 1: False, 2: None}
    went = [Outcome(name, first.get(at, True)) for at, name in enumerate(runners.names())]
    rows = runners.table({"python": went}).splitlines()
    assert rows[0] == "| scenario | Python |"
    assert [row.split("|")[2].strip() for row in rows[2:5]] == ["yes", "NO", "-"]
    assert len(rows) == len(runners.names()) + 2


def test_each_scenario_says_what_it_does() -> None:
    scenarios = json.loads(runners.SCENARIOS.read_text())["scenarios"]
    assert all(each["does"].endswith(".") for each in scenarios)
    assert len({each["name"] for each in scenarios}) == len(scenarios)
