"""What Alembic runs around the steps; the connection comes from ``migrate``."""

from alembic import context

from tieline_server.storage.sql.migrations import VERSION_TABLE
from tieline_server.storage.sql.schema import METADATA


def run() -> None:
    """Runs the steps that Alembic has chosen, in the caller's transaction."""
    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=METADATA,
        version_table=VERSION_TABLE,
    )
    with context.begin_transaction():
        context.run_migrations()


# Alembic loads the file by its path and calls it that; imported by name it does nothing.
if __name__ == "env_py":
    run()
