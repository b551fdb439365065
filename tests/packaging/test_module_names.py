"""A module's name says what it is: the same name stands for the same role in parallel packages.

An editor shows the name of a file alone. Where two tabs say the same, they must be two answers to
one question: the engine of each engine's folder, the server of each transport.
"""

from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "protos/tieline",
    "server/tieline_server",
    "client/tieline_client",
    "client/tieline_bench",
)

ROLES = {
    "__init__": "what a package is, and its table",
    "__main__": "a command",
    "_aiohttp": "the private names of aiohttp that one root stands on",
    "_grpcio": "the private names of grpcio that one root stands on",
    "app": "the composition of a command",
    "base": "an interface that the package's other modules have",
    "config": "the settings of one transport",
    "connection": "one connection: its rules, and the client's",
    "creates": "the calls of one transport that make responses",
    "engine": "the engine of one kind",
    "errors": "the errors of one package",
    "events": "the vocabulary, and its schema in one codec",
    "grpc": "gRPC as one package speaks it",
    "items": "the vocabulary, and its form for one engine",
    "requests": "the vocabulary, and its form in one codec or face",
    "responses": "the vocabulary, and its form for one engine or database",
    "server": "what listens for one transport",
    "sse": "server-sent events as one package speaks them",
    "stored": "the calls of one transport about what is stored",
    "stream": "the two ends of a stream in one transport or face",
    "websocket": "WebSocket as one package speaks it",
}
"""Name -> its role in each package that has it."""

YET_TO_DIFFER = {
    "answers", "calls", "frames", "limits", "output", "pace", "pattern", "processes", "running",
    "sampling", "schema", "tokens", "tools", "usage",
}  # fmt: skip
"""Names of two roles, each of which is to have a name of its own."""


def names() -> dict[str, list[str]]:
    """Name -> the modules that have it, of those that people write."""
    found: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if not path.stem.endswith(("_pb2", "_pb2_grpc")):
                found[path.stem].append(str(path.relative_to(ROOT)))
    return found


def test_a_name_that_several_modules_have_is_of_one_role() -> None:
    repeated = {name: paths for name, paths in names().items() if len(paths) > 1}
    strangers = {
        name: paths for name, paths in repeated.items() if name not in {*ROLES, *YET_TO_DIFFER}
    }
    assert strangers == {}


@pytest.mark.parametrize("name", ROLES)
def test_a_role_that_is_listed_is_that_of_several_modules(name: str) -> None:
    assert len(names()[name]) > 1
