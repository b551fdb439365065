"""Checks of files before a server starts, and warnings of settings that may not be meant.

The latter is said in the log of each server once, when it has started.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from structlog.typing import FilteringBoundLogger

from tieline_server.config import Config, ConfigError, flag, unknown_variables
from tieline_server.config.toml_tables import is_loopback

UNKNOWN_VARIABLE: Final = "unknown_variable"
KEYS_UNENCRYPTED: Final = "keys_unencrypted"
READABLE_BY_OTHERS: Final = "readable_by_others"

SECRETS: Final = ("upstream_key_file", "api_keys", "seal_key", "tls_key")
"""Settings that name files which only the server's own user should read or write."""

OTHERS: Final = stat.S_IROTH | stat.S_IWOTH


def check_files(config: Config) -> None:
    """Raises :class:`ConfigError` that names the setting of a file which cannot be read."""
    for name in type(config).model_fields:
        path = getattr(config, name)
        if isinstance(path, Path):
            try:
                path.open("rb").close()
            except OSError as error:
                raise ConfigError(f"{flag(name)}: cannot read {path}: {error.strerror}") from None


def caution(config: Config, log: FilteringBoundLogger) -> None:
    """Says it."""
    for variable in unknown_variables():
        log.warning(UNKNOWN_VARIABLE, variable=variable)
    reachable = [each for each in config.addresses.values() if not is_loopback(each)]
    if config.api_keys is not None and config.tls_cert is None and reachable:
        log.warning(KEYS_UNENCRYPTED, addresses=", ".join(reachable))
    for name, path in _secrets(config):
        try:
            mode = stat.S_IMODE(os.stat(path).st_mode)
        except OSError:
            continue  # What needs the file says so.
        if mode & OTHERS:
            log.warning(READABLE_BY_OTHERS, setting=name, file=str(path), mode=f"{mode:04o}")


def _secrets(config: Config) -> Iterator[tuple[str, Path]]:
    for name in SECRETS:
        path: Path | None = getattr(config, name)
        if path is not None:
            yield name, path
    for name, table in config.guards.items():
        if table.key_file is not None:
            yield f"guards.{name}.key_file", table.key_file
