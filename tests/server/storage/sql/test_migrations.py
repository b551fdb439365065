"""The schema: made once, brought up to date, refused when it is newer than the code."""

import asyncio
from collections.abc import Callable
from typing import Final

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from msgspec.structs import replace
from sqlalchemy import Connection, text

from tests.support.database import durable
from tests.support.store_contract import put, saved, texts
from tieline_server.config import ConfigError
from tieline_server.storage.sql import connect
from tieline_server.storage.sql import migrations as migrating
from tieline_server.storage.sql.schema import METADATA


def write(address: str, change: Callable[[Connection], object]) -> None:
    """Opens the database, changes it, closes it."""

    async def main() -> None:
        database = await connect(address)
        try:
            await database.write(change)
        finally:
            await database.close()

    asyncio.run(main())


def test_the_steps_lead_to_the_schema_that_the_code_uses(address: str) -> None:
    found: list[object] = []

    def compare(connection: Connection) -> None:
        options = {"version_table": migrating.VERSION_TABLE, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        found.extend(compare_metadata(context, METADATA))

    write(address, compare)
    assert found == []


def test_the_newest_step_is_the_one_that_the_code_names() -> None:
    assert ScriptDirectory.from_config(migrating.scripts()).get_heads() == [migrating.HEAD]


NEWER: Final = {
    "0001": ("ledger", "running", "events", "claims", "cancels", "processes"),
    "0002": ("running", "events", "claims", "cancels", "processes"),
}
"""Schema -> the tables that it does not have yet."""


@pytest.mark.parametrize("version", NEWER)
def test_an_older_schema_is_brought_up_to_date_with_all_that_is_in_it(
    address: str, version: str
) -> None:
    def older(connection: Connection) -> None:
        for table in NEWER[version]:
            connection.execute(text(f"DROP TABLE {table}"))
        connection.execute(text("ALTER TABLE responses DROP COLUMN terminal"))
        connection.execute(text(f"UPDATE schema_version SET version_num = '{version}'"))

    async def before() -> None:
        async with durable(address) as opened:
            await put(opened.store, saved("resp_1"))

    async def after() -> None:
        async with durable(address) as opened:
            found = await opened.store.get("ann", "resp_1")
            assert texts(found) == texts(saved("resp_1"))
            assert found is not None
            assert found.terminal is None
            await put(opened.store, replace(saved("resp_2"), terminal=3))
            again = await opened.store.get("ann", "resp_2")
            assert again is not None
            assert again.terminal == 3
            assert await opened.count("ledger") == (1 if "ledger" in NEWER[version] else 2)

    asyncio.run(before())
    write(address, older)
    asyncio.run(after())


def test_a_schema_that_a_newer_version_has_made_is_refused_and_left_alone(address: str) -> None:
    def newer(connection: Connection) -> None:
        connection.execute(text("UPDATE schema_version SET version_num = '9999'"))

    write(address, newer)
    for _ in range(2):
        with pytest.raises(ConfigError, match="schema 9999, which a newer version of Tieline"):
            asyncio.run(connect(address))


async def test_processes_that_start_together_make_one_schema(address: str) -> None:
    opened = await asyncio.gather(*(connect(address) for _ in range(4)))
    for database in opened:
        await database.close()


async def test_a_step_that_fails_leaves_the_schema_as_it_was(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(connection: Connection) -> None:
        migrating.migrate(connection)
        raise ConfigError("no")

    with monkeypatch.context() as patch:
        for module in ("sqlite", "postgresql"):
            patch.setattr(f"tieline_server.storage.sql.{module}.migrate", fail)
        with pytest.raises(ConfigError, match="no"):
            await connect(address)
    async with durable(address) as opened:
        assert await opened.count("nodes") == 0
