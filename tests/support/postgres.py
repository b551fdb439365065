"""A PostgreSQL server of the tests' own: a new cluster in a folder of its own, on a Unix socket.

It needs Debian's package ``postgresql`` (or any ``initdb`` on the PATH), not its service.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

REQUIRED: Final = "REQUIRE_POSTGRESQL"
"""Environment variable that makes a missing PostgreSQL a failure instead of a skip."""

MISSING: Final = "no PostgreSQL here; on Debian: apt-get install -y postgresql"

TIMEOUT: Final = 60.0
"""Seconds after which a command of PostgreSQL is given up."""

# A server that is thrown away needs no durability.
OPTIONS: Final = "-c listen_addresses= -c fsync=off -c full_page_writes=off -c max_connections=50"


def binaries() -> Path | None:
    """The folder of PostgreSQL's commands, or None: Debian keeps them off the PATH."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = installed[-1] if installed else shutil.which("initdb")
    return Path(found).parent if found else None


def _user() -> str | None:
    """Who runs it, if not we: PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return None
    names = {account.pw_name for account in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


class Cluster:
    """A cluster in ``folder``. ``start`` and ``stop`` may follow each other."""

    def __init__(self, commands: Path, folder: Path) -> None:
        self._commands = commands
        self._folder = folder
        self._here = ("-D", str(folder / "data"))
        self._user = _user()
        if self._user is not None:
            account = pwd.getpwnam(self._user)
            os.chown(folder, account.pw_uid, account.pw_gid)
        self._run(
            "initdb",
            *self._here,
            "-U",
            "tieline",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        )
        self._made = 0

    def start(self) -> None:
        """Returns once it takes connections."""
        options = f"-k {self._folder} {OPTIONS}"
        self._run(
            "pg_ctl", *self._here, "-w", "-l", str(self._folder / "log"), "-o", options, "start"
        )

    def stop(self) -> None:
        """Ends it as a restart does: connections are cut."""
        self._run("pg_ctl", *self._here, "-w", "-m", "fast", "stop")

    def address(self, database: str) -> str:
        """Where a database of this cluster is."""
        return f"postgresql://tieline@/{database}?host={self._folder}"

    def new_database(self) -> str:
        """Makes an empty database; returns its address."""
        self._made += 1
        name = f"test_{self._made}"
        self._run("createdb", "-h", str(self._folder), "-U", "tieline", name)
        return self.address(name)

    def _run(self, command: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._commands / command), *arguments],
            user=self._user,
            cwd=self._folder,
            # A file, not a pipe: the server inherits it, and a pipe would stay open.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT,
            check=False,
        )
        if done.returncode != 0:
            log = self._folder / "log"
            said = log.read_text() if log.exists() else ""
            raise AssertionError(f"{command} {' '.join(arguments)} failed\n{said}")


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    """A server that runs, gone with its folder at the end."""
    commands = binaries()
    assert commands is not None, MISSING
    # Not below a folder of pytest's: those are closed to the other user.
    with tempfile.TemporaryDirectory(prefix="tieline-postgresql-") as folder:
        cluster = Cluster(commands, Path(folder))
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop()
