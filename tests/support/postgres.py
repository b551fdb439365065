"""A PostgreSQL server of the tests' own: a new cluster in a folder of its own, on a Unix socket.

It needs Debian's package ``postgresql`` (or any ``initdb`` on the PATH), not its service.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
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
OPTIONS: Final = (
    "-c",
    "listen_addresses=",
    "-c",
    "fsync=off",
    "-c",
    "full_page_writes=off",
    "-c",
    "max_connections=50",
)

WATCH: Final = '"$0" "$@" & read -r _; kill -INT $!; wait $!'
"""Runs a server until the pipe to it closes: however the tests end, it does not outlive them."""


def binaries() -> Path | None:
    """The folder of PostgreSQL's commands, or None: Debian keeps them off the PATH."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = installed[-1] if installed else shutil.which("initdb")
    return Path(found).parent if found else None


def _account() -> pwd.struct_passwd | None:
    """The account that runs it, if it is not ours: PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return None
    names = {account.pw_name for account in pwd.getpwall()}
    return pwd.getpwnam("postgres" if "postgres" in names else "nobody")


def _as_account(account: pwd.struct_passwd | None) -> list[str]:
    """The words before a command that is to run as this account.

    The ``user`` of a :mod:`subprocess` has it fork, and gRPC, which other tests of this process
    use, hangs or writes to stderr in a fork.
    """
    if account is None:
        return []
    return ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]


class Cluster:
    """A cluster in ``folder``. ``start`` and ``stop`` may follow each other."""

    def __init__(self, commands: Path, folder: Path) -> None:
        self._commands = commands
        self._folder = folder
        self._here = ("-D", str(folder / "data"))
        account = _account()
        self._before = _as_account(account)
        if account is not None:
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
        self._watch: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns once it takes connections."""
        server = [str(self._commands / "postgres"), *self._here, "-k", str(self._folder)]
        with (self._folder / "log").open("a") as log:
            self._watch = subprocess.Popen(
                [*self._before, "sh", "-c", WATCH, *server, *OPTIONS],
                cwd=self._folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # Ctrl-C is for the tests; they end it.
                start_new_session=True,
            )
        give_up = time.monotonic() + TIMEOUT
        while not self._ready():
            if self._watch.poll() is not None or time.monotonic() > give_up:
                raise AssertionError(f"postgres did not start\n{self._log()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Ends it as a restart does: connections are cut."""
        assert self._watch is not None
        self._watch.communicate(timeout=TIMEOUT)

    def _ready(self) -> bool:
        command = [str(self._commands / "pg_isready"), "-q", "-h", str(self._folder)]
        return subprocess.run(command, timeout=TIMEOUT, check=False).returncode == 0

    def _log(self) -> str:
        return (self._folder / "log").read_text()

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self._folder / ".s.PGSQL.5432"

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
            [*self._before, str(self._commands / command), *arguments],
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        if done.returncode != 0:
            raise AssertionError(f"{command} failed\n{done.stdout}{done.stderr}")


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
