"""What is inside the built wheel and sdist."""

import re
import shutil
import subprocess
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import PurePosixPath

import pytest

from tests.packaging.artifacts import PACKAGES, ROOT, Artifacts

CLIENT_NEEDS = {
    "aiohttp",
    "googleapis-common-protos",
    "grpcio",
    "grpcio-status",
    "msgspec",
    "protobuf",
}


@pytest.fixture(scope="module")
def wheel(artifacts: Artifacts) -> zipfile.ZipFile:
    return zipfile.ZipFile(artifacts.wheel)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    return Parser().parsestr(wheel.read("tieline-0.1.0.dist-info/METADATA").decode())


def test_the_wheel_holds_exactly_the_files_of_the_packages(wheel: zipfile.ZipFile) -> None:
    in_tree = {
        path.relative_to((ROOT / package).parent).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    in_wheel = {name for name in wheel.namelist() if not name.startswith("tieline-0.1.0.dist-info")}
    assert in_wheel == in_tree


def test_every_package_says_that_it_is_typed(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {f"{PurePosixPath(package).name}/py.typed" for package in PACKAGES} <= names


def test_the_wheel_runs_on_every_platform_and_brings_the_licence(wheel: zipfile.ZipFile) -> None:
    assert wheel.filename is not None
    assert wheel.filename.endswith("/tieline-0.1.0-py3-none-any.whl")
    assert "tieline-0.1.0.dist-info/licenses/LICENSE" in wheel.namelist()


def test_the_wheel_has_the_two_commands(wheel: zipfile.ZipFile) -> None:
    text = wheel.read("tieline-0.1.0.dist-info/entry_points.txt").decode()
    assert text.split() == [
        "[console_scripts]",
        *("tieline", "=", "tieline_client.cli:main"),
        *("tieline-server", "=", "tieline_server.__main__:main"),
        "[tieline.commands]",
        *("bench", "=", "tieline_bench.cli:app"),
    ]


def test_a_bare_install_requires_what_the_client_needs_and_no_more(metadata: Message) -> None:
    unconditional = {
        re.split(r"[<>=!~;\[ ]", requirement)[0]
        for requirement in metadata.get_all("Requires-Dist", [])
        if "extra ==" not in requirement
    }
    assert unconditional == CLIENT_NEEDS


def test_the_extras_are_those_that_the_documents_name(metadata: Message) -> None:
    assert set(metadata.get_all("Provides-Extra", [])) == {
        "server",
        "llama",
        "otel",
        "postgres",
        "cli",
        "bench",
    }
    assert metadata["Requires-Python"] == ">=3.11"


def test_the_sdist_has_all_that_building_and_checking_need(artifacts: Artifacts) -> None:
    with tarfile.open(artifacts.sdist) as archive:
        names = {PurePosixPath(name).relative_to("tieline-0.1.0") for name in archive.getnames()}
    tops = {path.parts[0] for path in names}
    needed = {"pyproject.toml", "Makefile", "LICENSE", "README.md", "CONTRIBUTING.md", "buf.yaml"}
    assert needed | {"protos", "client", "server", "tests"} <= tops
    assert not [path for path in names if "__pycache__" in path.parts]
    clients = {path.parts[1] for path in names if path.parts[0] == "client" and len(path.parts) > 1}
    assert clients == {"tieline_client", "tieline_bench"}


@pytest.mark.skipif(
    not (ROOT / ".git").exists() or shutil.which("git") is None, reason="no checkout"
)
def test_what_is_committed_is_files_alone_so_that_a_clone_leads_nowhere_else() -> None:
    """A link to an environment would have `make sync` of a clone change that of another one."""
    listed = subprocess.run(
        ["git", "ls-files", "--stage"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    modes = {line.split(maxsplit=1)[0] for line in listed.stdout.splitlines()}
    assert modes == {"100644", "100755"}
