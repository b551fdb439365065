"""What a database says was generated, and what its ledger says was used."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.support import server_process


class Row(Struct, frozen=True):
    """A row of the ledger."""

    outcome: str
    output_tokens: int
    stored: bool
    input_tokens: int


class Books(Struct, frozen=True):
    """Everything in a database whose server has ended."""

    rows: dict[str, Row]
    """Response id -> its row."""
    responses: dict[str, dict[str, Any]]
    """Response id -> the stored response."""


def read(database: Path) -> Books:
    """Both tables. That the ledger has a response twice cannot be overlooked: it is an error."""
    with closing(sqlite3.connect(database)) as opened:
        booked = opened.execute(
            "SELECT response_id, outcome, output_tokens, stored, input_tokens FROM ledger"
        ).fetchall()
        stored = opened.execute("SELECT id, body FROM responses").fetchall()
    rows = {row[0]: Row(row[1], row[2], bool(row[3]), row[4]) for row in booked}
    assert len(rows) == len(booked)
    return Books(rows, {row[0]: json.loads(row[1]) for row in stored})


def summed(database: Path) -> dict[str, int]:
    """What ``tieline-server usage`` adds up: responses and tokens."""
    asked = ("--store", f"sqlite:///{database}", "--by", "model", "--format", "json")
    done = server_process.run("usage", *asked)
    assert done.returncode == 0, done.stderr
    (sums,) = json.loads(done.stdout)["data"]
    return {name: value for name, value in sums.items() if isinstance(value, int)}


def tokens(response: dict[str, Any], count: Callable[[str], int]) -> int:
    """How many tokens are in a response's output: what the scripted engine made of it.

    Each call has one for its start. Where a response was cut in the middle of a call, the call
    is not in its output.
    """
    total = 0
    for item in response["output"]:
        if item["type"] == "function_call":
            total += 1 + count(item["arguments"])
        else:
            total += sum(count(part["text"]) for part in item["content"])
    return total
