"""Options and fixtures of the whole suite."""

import asyncio
import os
import signal
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvloop
from hypothesis import HealthCheck, settings

from tests.support import loop, postgres

# Speed is no property of the code under test: a busy machine must not turn a test red.
settings.register_profile(
    "ci",
    max_examples=100,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "soak",
    max_examples=1000,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak",
        action="store_true",
        help="run repeated tests whole and property tests on fresh seeds (default: a tenth, fixed)",
    )
    parser.addoption(
        "--schema-suite",
        metavar="FOLDER",
        help="a folder of files as JSON-Schema-Test-Suite has them, instead of our own few",
    )
    parser.addoption(
        "--tool-schemas",
        metavar="FILE",
        help="a JSON list of schemas of tools' parameters, instead of our own few",
    )


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("soak" if config.getoption("--soak") else "ci")
    # A shell ignores SIGINT for what it runs in the background, and so would all that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def nothing_left_open() -> Iterator[None]:
    """Fails where a loop of uvloop's is closed with a transport open on it.

    Its warning of that must not be an error when it is given: raised there, it keeps the transport
    from being closed, and the closing of the loop then waits for it for ever.
    """
    with warnings.catch_warnings(record=True) as given:
        warnings.filterwarnings("always", "unclosed resource", ResourceWarning)
        yield
    left = [str(each.message) for each in given if each.category is ResourceWarning]
    if left:
        pytest.fail(f"left open when its loop was closed: {', '.join(left)}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, None, None]:
    with nothing_left_open():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    with nothing_left_open():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    with nothing_left_open():
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """A test that is an ``async def`` runs on a loop of its own, of the kind that its half uses."""
    client = Path(__file__).parent / "client"
    loop.make_synchronous(
        pyfuncitem,
        loop=asyncio.new_event_loop if client in pyfuncitem.path.parents else uvloop.new_event_loop,
        limit=loop.LIMIT * (10 if pyfuncitem.config.getoption("--soak") else 1),
    )


@pytest.fixture(scope="session")
def repeats(pytestconfig: pytest.Config) -> Callable[[int], int]:
    """How often to repeat what a soak repeats `n` times: `n` under --soak, else a tenth of it.

    A test that repeats itself says `for seed in range(repeats(1000))` and takes its randomness
    from `seed` alone, so that the tenth is the same in every run.
    """
    soak = bool(pytestconfig.getoption("--soak"))
    return lambda n: n if soak else max(1, n // 10)


@pytest.fixture(scope="session")
def cluster() -> Iterator[postgres.Cluster]:
    """The tests' own PostgreSQL server."""
    if postgres.binaries() is None and not os.environ.get(postgres.REQUIRED):
        pytest.skip(postgres.MISSING)
    with postgres.running_cluster() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty database is: a test that asks for it runs on each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tieline.db"
    running: postgres.Cluster = request.getfixturevalue("cluster")
    return running.new_database()


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """A command that is run in this process leaves SIGINT as its own process would have it."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)
