"""The client of each language does what it should against real servers: tests/interop/runners.py.

A language whose toolchain is not here is skipped by name. What a runner builds it fetches first:
what takes minutes for that, and the clients' own tests, run by ``make soak ARGS=tests/interop``.
"""

import asyncio
import json
import subprocess
from typing import Final

import pytest

from tests.interop import runners
from tests.interop.runners import LANGUAGES, Outcome

CHECKED: Final = [name for name in LANGUAGES if name != "python"]


@pytest.fixture(scope="module")
def soak(pytestconfig: pytest.Config) -> bool:
    return bool(pytestconfig.getoption("--soak"))


def wanted(name: str, *, quick: bool) -> None:
    """Skips the test of a language whose toolchain is not here, and by choice what is slow."""
    language = LANGUAGES[name]
    if language.lacks:
        pytest.skip(f"{language.name}: {' and '.join(language.lacks)} not found")
    if not quick:
        pytest.skip(f"{language.name}: by make soak ARGS=tests/interop")


@pytest.fixture(scope="module")
def outcomes(soak: bool) -> dict[str, list[Outcome]]:
    """How all scenarios went, by language."""
    here = (name for name, each in LANGUAGES.items() if not each.lacks and (soak or each.quick))
    return asyncio.run(runners.run_all(here))


@pytest.mark.parametrize("name", LANGUAGES)
def test_every_scenario_goes_as_it_is_written(
    name: str, outcomes: dict[str, list[Outcome]], soak: bool
) -> None:
    wanted(name, quick=soak or LANGUAGES[name].quick)
    assert [each for each in outcomes[name] if not each.ok] == []
    assert [each.scenario for each in outcomes[name]] == runners.names()


@pytest.mark.parametrize("name", CHECKED)
def test_its_own_tests_pass_and_its_stubs_are_those_of_the_schema(name: str, soak: bool) -> None:
    wanted(name, quick=soak)
    folder = runners.ROOT / LANGUAGES[name].command[0]
    done = subprocess.run(
        ["make", "--silent", "--directory", str(folder.parent), "check"],
        capture_output=True,
        text=True,
        timeout=runners.TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


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
