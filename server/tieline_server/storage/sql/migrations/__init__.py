"""Brings a database's schema up to date, inside the caller's transaction."""

import logging
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, inspect, text

from tieline_server.config import ConfigError

if TYPE_CHECKING:
    from alembic.config import Config

logger: Final = logging.getLogger("tieline.database")

VERSION_TABLE: Final = "schema_version"

HEAD: Final = "0003"
"""The newest step: a database that has it starts without waiting for Alembic's import."""


def migrate(connection: Connection) -> None:
    """Brings the schema to the newest step; raises :class:`ConfigError` for one beyond it."""
    current = revision(connection)
    if current == HEAD:
        return
    from alembic import command
    from alembic.script import ScriptDirectory

    config = scripts()
    known = {each.revision for each in ScriptDirectory.from_config(config).walk_revisions()}
    if current is not None and current not in known:
        raise ConfigError(
            f"the database has schema {current}, which a newer version of Tieline has made; "
            f"this one knows up to {HEAD}"
        )
    logger.info("database.migrated", extra={"before": current, "after": HEAD})
    config.attributes["connection"] = connection
    command.upgrade(config, HEAD)


def revision(connection: Connection) -> str | None:
    """The step that the database has; None for an empty one."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return None if found is None else str(found)


def scripts() -> "Config":
    """Alembic's configuration: its scripts are in this package."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "tieline_server.storage.sql:migrations")
    config.set_main_option("path_separator", "os")
    return config
