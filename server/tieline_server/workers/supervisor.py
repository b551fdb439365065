"""The supervisor: holds ports and folder for its workers, and passes on what signals ask.

It serves nothing and imports none of what does. A worker ends by itself when it is gone.
"""

import asyncio
import os
import shutil
import signal
import tempfile
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

from structlog.typing import FilteringBoundLogger

from tieline_server.config import Config, ConfigError
from tieline_server.workers.cautions import caution, check_files
from tieline_server.workers.child import NotServing
from tieline_server.workers.fleet import Fleet, Settings, Shared
from tieline_server.workers.fork_server import ForkServer
from tieline_server.workers.ports import reserved
from tieline_server.workers.shared_counters import SharedCounters
from tieline_server.workers.worker_context import COUNTERS

STARTED: Final = "workers_started"
RESTARTING: Final = "workers_restarting"
RESTARTED: Final = "workers_restarted"
NOT_RESTARTED: Final = "workers_not_restarted"
DRAINING: Final = "workers_draining"
STOPPED: Final = "workers_stopped"

SEAL_KEY: Final = 32
"""Bytes."""

LONGEST_PATH: Final = 107 - len("/ffff.sock")
"""Bytes of a folder's path that leave room for a socket's name (unix(7))."""


async def supervise(
    load: Callable[[], Config],
    *,
    command: Sequence[str],
    announce: Callable[[str], None],
    log: FilteringBoundLogger,
) -> None:
    """Runs ``workers`` processes until SIGTERM or SIGINT, then drains them and returns.

    ``load`` reads the settings, once more at each SIGHUP. ``command`` starts a fork server; the
    number of a descriptor is added to it. ``announce`` gets one line of text for each address.
    Raises :class:`ConfigError` with a message of one line when it cannot start.
    """
    config = load()
    signals = Signals(asyncio.get_running_loop())
    check_files(config)
    with reserved(config.addresses) as addresses:
        # Ports and the number of workers stay as they were at the start.
        fixed = {**addresses, "workers": config.workers}
        async with _fleet(config, settings_of(config, fixed), command, log) as fleet:
            if not await _started(fleet, signals):
                return
            caution(config, log)
            for name, address in addresses.items():
                announce(f"{name} listening on {address}")
            log.info(STARTED, pid=os.getpid(), workers=config.workers)
            restarting = asyncio.create_task(
                _restart(fleet, signals, lambda: settings_of(load(), fixed), log)
            )
            await signals.end.wait()
            restarting.cancel()
            await asyncio.wait([restarting])
            log.info(DRAINING, seconds=config.drain_timeout)
            signals.insist = fleet.insist
            await fleet.end(config.drain_timeout)
    log.info(STOPPED)


class Signals:
    """SIGTERM and SIGINT: the first asks for an end, a further one insists. SIGHUP: restart."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.end = asyncio.Event()
        self.restart = asyncio.Event()
        self.insist: Callable[[], object] | None = None
        """Called when a signal to end comes after the first one."""
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._receive)
        loop.add_signal_handler(signal.SIGHUP, self.restart.set)

    def _receive(self) -> None:
        if self.end.is_set() and self.insist is not None:
            self.insist()
        self.end.set()


def settings_of(config: Config, fixed: Mapping[str, Any]) -> Settings:
    """Returns all settings for a worker, so that it reads no other source."""
    return {**config.model_dump(mode="json", exclude={"config"}), **fixed}


@contextmanager
def shared_folder() -> Iterator[Path]:
    """Makes a folder that only this user can open; it is removed at the end.

    Raises :class:`ConfigError`.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="tieline-"))
    except OSError as error:
        raise ConfigError(f"no folder for what workers share: {error.strerror}") from None
    try:
        if len(os.fsencode(folder)) > LONGEST_PATH:
            raise ConfigError(f"{folder} is too long for the path of a socket; set TMPDIR")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def _fleet(
    config: Config, settings: Settings, command: Sequence[str], log: FilteringBoundLogger
) -> AsyncIterator[Fleet]:
    """Makes a fleet, which is not started; closes it at the end."""
    rows = 4 * config.workers + 8
    with shared_folder() as folder:
        counters = SharedCounters.make(folder / COUNTERS, rows=rows)
        key = b64encode(os.urandom(SEAL_KEY)).decode()
        fleet = Fleet(
            lambda told, attend: ForkServer(command, told, attend=attend),
            settings,
            Shared(folder, counters, rows=rows, seal_key=key),
            slots=config.workers,
            log=log,
        )
        try:
            yield fleet
        finally:
            await fleet.close()
            counters.close()


async def _started(fleet: Fleet, signals: Signals) -> bool:
    """Starts all workers; False where a signal came first. Raises :class:`ConfigError`."""
    starting = asyncio.create_task(fleet.start())
    ending = asyncio.create_task(signals.end.wait())
    await asyncio.wait([starting, ending], return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
        return False
    try:
        await starting
    except NotServing as error:
        raise ConfigError(str(error)) from None
    return True


async def _restart(
    fleet: Fleet,
    signals: Signals,
    settings: Callable[[], Settings],
    log: FilteringBoundLogger,
) -> None:
    """Restarts the workers one by one, each time that it is asked for."""
    while True:
        await signals.restart.wait()
        signals.restart.clear()
        log.info(RESTARTING)
        try:
            await fleet.restart(settings())
        except (ConfigError, NotServing) as error:
            log.error(NOT_RESTARTED, reason=str(error))
        else:
            log.info(RESTARTED)
