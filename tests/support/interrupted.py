"""A command that is interrupted while it imports, as by Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

TIMEOUT: Final = 60.0

_SITE: Final = '''
import os, signal, sys

class Watch:
    """Sees the first import of a module, and says so or interrupts there."""

    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPT_AT"]:
            sys.meta_path.remove(self)
            said = os.environ.get("INTERRUPT_SAYS")
            if said:
                os.write(int(said), b".")
            else:
                os.kill(os.getpid(), signal.SIGINT)
        return None

sys.meta_path.insert(0, Watch())
'''
"""What the interpreter runs of itself before the command."""


def _environment(folder: Path, module: str) -> dict[str, str]:
    (folder / "sitecustomize.py").write_text(_SITE)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "INTERRUPT_AT": module}


def at(module: str, command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command that gets SIGINT where it first imports the module."""
    return subprocess.run(
        command,
        env=_environment(folder, module),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def after(
    seconds: float, module: str, command: Sequence[str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Runs a command that gets SIGINT so long after it first imports the module."""
    reads, writes = os.pipe()
    with subprocess.Popen(
        command,
        env={**_environment(folder, module), "INTERRUPT_SAYS": str(writes)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=(writes,),
    ) as process:
        os.close(writes)
        try:
            assert os.read(reads, 1) == b".", "the command imports no such module"
            time.sleep(seconds)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=TIMEOUT)
        finally:
            os.close(reads)
            process.kill()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def script(name: str) -> str:
    """The command of this environment."""
    return str(Path(sys.executable).parent / name)
