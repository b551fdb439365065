"""The distribution as a user gets it: installed into a fresh environment, away from the tree."""

import json
from pathlib import Path

import pytest

from tests.packaging.artifacts import Artifacts, install, run_isolated
from tieline.errors import how_to_install

# Imports every module below the given packages, less the given ones and what is below them.
WALK = """
import importlib, json, pkgutil, sys
packages, without = json.loads(sys.argv[1])
for package in packages:
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        # A package's __main__ runs when it is imported; its commands are run elsewhere.
        named = module.name.rpartition(".")[2] != "__main__"
        if named and not any((module.name + ".").startswith(name + ".") for name in without):
            importlib.import_module(module.name)
print(json.dumps(sorted(sys.modules)))
"""

EXPORTS = """
import importlib, json
print(json.dumps([
    f"{package}.{name}"
    for package in ("tieline", "tieline_client", "tieline_bench", "tieline_server")
    for name in getattr(importlib.import_module(package), "__all__", ())
    if not hasattr(importlib.import_module(package), name)
]))
"""

CLIENT = ["tieline", "tieline_client"]
BEYOND_BARE = ["tieline_client.cli"]


@pytest.fixture(scope="module")
def bare(artifacts: Artifacts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(str(artifacts.wheel), tmp_path_factory.mktemp("bare") / "venv")


@pytest.fixture(scope="module")
def everything(artifacts: Artifacts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    requirement = f"{artifacts.sdist}[server,llama,otel,postgres,cli,bench]"
    return install(requirement, tmp_path_factory.mktemp("everything") / "venv")


def walk(python: Path, packages: list[str], without: list[str]) -> set[str]:
    done = run_isolated(python, "-c", WALK, json.dumps([packages, without]))
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def test_a_bare_wheel_imports_the_whole_client_and_nothing_of_the_server(bare: Path) -> None:
    imported = walk(bare, CLIENT, BEYOND_BARE)
    assert {"tieline", "tieline_client"} <= imported
    assert not [name for name in imported if name.split(".")[0] == "tieline_server"]


def test_the_client_command_without_its_extra_says_what_to_install_in_one_line(bare: Path) -> None:
    done = run_isolated(bare, str(bare.parent / "tieline"))
    assert done.returncode != 0
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert how_to_install("cli") in done.stderr


def test_the_server_command_without_its_extra_says_what_to_install_in_one_line(bare: Path) -> None:
    done = run_isolated(bare, str(bare.parent / "tieline-server"))
    assert done.returncode != 0
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert how_to_install("server") in done.stderr


@pytest.mark.parametrize(
    ("extra", "commands"),
    [
        ("server", ["tieline-server"]),
        ("llama", []),
        ("otel", []),
        ("postgres", []),
        ("cli", ["tieline"]),
        ("bench", ["tieline", "tieline-server"]),
    ],
)
def test_each_extra_installs_and_its_commands_answer(
    extra: str, commands: list[str], artifacts: Artifacts, tmp_path: Path
) -> None:
    python = install(f"{artifacts.wheel}[{extra}]", tmp_path / "venv")
    walk(python, CLIENT, BEYOND_BARE)
    for command in commands:
        done = run_isolated(python, str(python.parent / command), "--help")
        assert done.returncode == 0, done.stderr
        assert command in done.stdout


def test_an_sdist_with_every_extra_imports_every_module(everything: Path) -> None:
    imported = walk(everything, [*CLIENT, "tieline_bench", "tieline_server"], [])
    assert {
        "tieline_client.cli",
        "tieline_server.app",
        "tieline_server.storage.sql.migrations.versions.v0002_ledger",
        "tieline_server.storage.sql.migrations.versions.v0003_journal",
    } <= imported


def test_every_exported_name_exists(everything: Path) -> None:
    done = run_isolated(everything, "-c", EXPORTS)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
