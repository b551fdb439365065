"""What a driver's error means, and that none of its text comes along."""

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from tieline_server.storage.sql.errors import (
    Away,
    Busy,
    Conflict,
    Damaged,
    DatabaseError,
    Full,
    translate,
    translated,
)


def sqlite_error(statement: str, *before: str) -> sqlite3.Error:
    connection = sqlite3.connect(":memory:")
    try:
        for each in before:
            connection.execute(each)
        connection.execute(statement)
    except sqlite3.Error as error:
        return error
    finally:
        connection.close()
    raise AssertionError("it worked")


class ServerError(Exception):
    """As asyncpg raises them."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__("Key (id)=(secret) already exists")
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [
        ("08006", Away),
        ("57P01", Away),
        ("57P03", Away),
        ("28P01", Away),
        ("3D000", Away),
        ("53300", Away),
        ("25006", Away),
        ("53100", Full),
        ("55P03", Busy),
        ("23505", Conflict),
        ("40P01", Conflict),
        ("XX001", Damaged),
        ("42601", DatabaseError),
    ],
)
def test_a_state_of_postgresql_says_what_helps(sqlstate: str, kind: type[DatabaseError]) -> None:
    found = translate(OperationalError("INSERT", None, ServerError(sqlstate)))
    assert type(found) is kind
    assert str(found) == f"ServerError {sqlstate}"


def test_codes_of_sqlite_say_what_helps(tmp_path: Path) -> None:
    table = "CREATE TABLE t (x PRIMARY KEY)"
    row = "INSERT INTO t VALUES ('secret')"
    assert type(translate(sqlite_error(row, table, row))) is Conflict
    filled = (table, "PRAGMA max_page_count = 3")
    big = "INSERT INTO t VALUES (zeroblob(100000))"
    assert type(translate(sqlite_error(big, *filled))) is Full
    nowhere = f"ATTACH '{tmp_path}/none/x.db' AS x"
    assert type(translate(sqlite_error(nowhere))) is Away
    assert type(translate(sqlite_error("no such statement"))) is DatabaseError


def test_a_connection_that_broke_is_away_whatever_it_said() -> None:
    lost = OperationalError("SELECT", None, ServerError("42601"), connection_invalidated=True)
    assert type(translate(lost)) is Away
    assert type(translate(ConnectionResetError("by peer"))) is Away
    assert type(translate(TimeoutError())) is Away


def test_an_error_of_ours_stays_what_it_is() -> None:
    ours = Full("SQLITE_FULL")
    assert translate(ours) is ours


def test_what_is_let_out_hides_the_drivers_text() -> None:
    with pytest.raises(Conflict) as caught, translated():
        raise OperationalError("INSERT", {"raw": "secret"}, ServerError("23505"))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert "secret" not in str(caught.value)


def test_a_bug_is_not_called_an_error_of_the_database() -> None:
    with pytest.raises(KeyError), translated():
        raise KeyError("bug")
