"""Builds the distribution and installs it into environments of its own."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "protos/tieline",
    "client/tieline_client",
    "client/tieline_bench",
    "server/tieline_server",
)


@dataclass(frozen=True, slots=True)
class Artifacts:
    wheel: Path
    sdist: Path


def uv() -> str | None:
    """The Makefile's uv, else one on the PATH; without either, pip and build do the same slower."""
    bootstrapped = ROOT / ".venv-tools/bin/uv"
    return str(bootstrapped) if bootstrapped.exists() else shutil.which("uv")


def build(out: Path) -> Artifacts:
    """Build the sdist from the tree, and the wheel from that sdist."""
    if (tool := uv()) is not None:
        _run(tool, "build", "--quiet", "--python", sys.executable, "--out-dir", str(out), str(ROOT))
    else:
        _run(sys.executable, "-m", "build", "--outdir", str(out), str(ROOT))
    (wheel,) = out.glob("*.whl")
    (sdist,) = out.glob("*.tar.gz")
    return Artifacts(wheel, sdist)


def install(requirement: str, into: Path) -> Path:
    """Make an environment that holds the requirement alone, and return its interpreter."""
    python = into / "bin/python"
    if (tool := uv()) is not None:
        _run(tool, "venv", "--quiet", "--python", sys.executable, str(into))
        _run(tool, "pip", "install", "--quiet", "--python", str(python), requirement)
    else:
        _run(sys.executable, "-m", "venv", str(into))
        _run(str(python), "-m", "pip", "install", "--quiet", requirement)
    return python


def run_isolated(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an installed interpreter where the source tree cannot be seen."""
    return subprocess.run(
        [str(python), "-I", *arguments],
        cwd="/",
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
