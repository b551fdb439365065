"""Brings a database's schema up to date, inside the caller's transaction."""

import logging
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from tieline_server.config import ConfigError

logger: Final = logging.getLogger("tieline.database")

VERSION_TABLE: Final = "schema_version"


def scripts() -> Config:
    """Alembic's configuration: its scripts are in this package."""
    config = Config()
    config.set_main_option("script_location", "tieline_server.database:migrations")
    config.set_main_option("path_separator", "os")
    return config


def migrate(connection: Connection, *, to: str = "head") -> None:
    """Brings the schema to revision ``to``; raises :class:`ConfigError` for one that is newer."""
    config = scripts()
    folder = ScriptDirectory.from_config(config)
    known = {script.revision for script in folder.walk_revisions()}
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    current = context.get_current_revision()
    if current is not None and current not in known:
        raise ConfigError(
            f"the database has schema {current}, which a newer version of Tieline has made; "
            f"this one knows up to {folder.get_current_head()}"
        )
    target = folder.get_current_head() if to == "head" else to
    if current != target:
        logger.info("database.migrated", extra={"before": current, "after": target})
        config.attributes["connection"] = connection
        command.upgrade(config, to)
