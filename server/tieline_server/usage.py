"""The command ``tieline-server usage``: sums of the ledger, for a person or a program.

It reads the ledger of the settings' store beside a server that runs, or without one.
"""

import argparse
import asyncio
import csv
import io
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, get_args

import msgspec
from msgspec import structs

from tieline.errors import TielineError
from tieline_server.config import DAY, Config, ConfigError, flag
from tieline_server.config.toml_tables import Price, store_kind
from tieline_server.storage import open_ledger, questions
from tieline_server.storage.base import By, Question, Sum
from tieline_server.storage.questions import FORMS, QuestionError

SETTINGS: Final[Mapping[str, str]] = {"config": "FILE", "store": "NAME"}
"""The settings that have a flag here, too -> what stands for the value in the help."""

UNUSED: Final[Mapping[str, Any]] = {
    "grpc": "127.0.0.1:0",
    "http": "off",
    "tls_cert": None,
    "tls_key": None,
    "tls_client_ca": None,
    "script": None,
    "model": None,
}
"""Settings that must fit a server's other flags, which reading a ledger does not need."""

EPILOG: Final = f"WHEN is {FORMS}; without an offset it is UTC. A response counts when it ended."

COUNTS: Final = structs.fields(Sum)[1:]
"""The members of a sum that are added up."""


COST: Final = "cost"
"""The column of what was spent, there where a model has a price."""


class UsageError(TielineError):
    """The question or its answer cannot be had; the message is one line."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--since", metavar="WHEN", help="First moment that counts. [the first]")
    parser.add_argument("--until", metavar="WHEN", help="First moment that counts no more. [none]")
    parser.add_argument(
        "--by", choices=get_args(By), default="day", help="What is summed: one line each. [day]"
    )
    parser.add_argument(
        "--format", choices=tuple(FORMATS), default="table", help="How it is written. [table]"
    )
    for name, metavar in SETTINGS.items():
        text = (Config.model_fields[name].description or "").replace("%", "%%")
        parser.add_argument(flag(name), metavar=metavar, default=argparse.SUPPRESS, help=text)


def report(options: Mapping[str, Any]) -> str:
    """What the command prints; raises :class:`TielineError`."""
    try:
        asked = questions.question(
            by=options["by"],
            owner=None,
            since=options["since"],
            until=options["until"],
            now=time.time(),
        )
    except QuestionError as error:
        raise UsageError(f"argument --{error.param}: {error}") from None
    flags = {name: options[name] for name in SETTINGS if name in options}
    config = Config.load({**flags, **UNUSED})
    if not store_kind(config.store).shared:
        raise ConfigError(
            f"the ledger of --store {config.store} lives in the running server: "
            "ask it by GET /v1/usage"
        )
    sums, costs = asyncio.run(_ask(config, asked))
    return FORMATS[options["format"]](sums, asked.by, costs)


Costs = Sequence[float] | None
"""What each sum cost; None where no model has a price."""


async def _ask(config: Config, asked: Question) -> tuple[Sequence[Sum], Costs]:
    prices = {name: table.price for name, table in config.models.items() if table.price}
    async with AsyncExitStack() as stack:
        ledger = await open_ledger(config, stack)
        sums = await ledger.usage(asked)
        if not prices:
            return sums, None
        if asked.by == "model":
            return sums, [cost_of([each], prices) for each in sums]
        by_model = [await ledger.usage(within(asked, each.group)) for each in sums]
        return sums, [cost_of(models, prices) for models in by_model]


def within(asked: Question, group: str) -> Question:
    """The same question about one key or day alone, by model."""
    if asked.by == "key":
        return structs.replace(asked, by="model", owner=group)
    begin = questions.moment(group, now=0.0)
    since = begin if asked.since is None else max(begin, asked.since)
    end = begin + DAY
    until = end if asked.until is None else min(end, asked.until)
    return structs.replace(asked, by="model", since=since, until=until)


def cost_of(models: Sequence[Sum], prices: Mapping[str, Price]) -> float:
    """What the tokens of these models cost; those without a price cost nothing."""
    costs = [
        prices[each.group].of(
            input_tokens=each.input_tokens,
            cached_tokens=each.cached_tokens,
            output_tokens=each.output_tokens,
        )
        for each in models
        if each.group in prices
    ]
    return round(sum(costs), 6)


def as_table(sums: Sequence[Sum], by: By, costs: Costs = None) -> str:
    """Aligned columns with a last line that adds them up; a group without a name is ``-``."""
    total = [sum(getattr(each, column.name) for each in sums) for column in COUNTS]
    head = (by, *(column.name.removesuffix("_tokens") for column in COUNTS))
    rows = [head, *_rows(sums), ("total", *map(str, total))]
    if costs is not None:
        added = (COST, *(f"{cost:.4f}" for cost in costs), f"{sum(costs):.4f}")
        rows = [(*row, cost) for row, cost in zip(rows, added, strict=True)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join(_line(row, widths) for row in rows)


def as_csv(sums: Sequence[Sum], by: By, costs: Costs = None) -> str:
    """A line of names, then one for each sum."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    rows = [(by, *(column.name for column in COUNTS)), *map(structs.astuple, sums)]
    if costs is not None:
        rows = [(*row, cost) for row, cost in zip(rows, (COST, *costs), strict=True)]
    writer.writerows(rows)
    return text.getvalue()


def as_json(sums: Sequence[Sum], by: By, costs: Costs = None) -> str:
    """What ``GET /v1/usage`` answers, with what it cost where that is known."""
    data = [structs.asdict(each) for each in sums]
    if costs is not None:
        data = [{**each, COST: cost} for each, cost in zip(data, costs, strict=True)]
    return msgspec.json.encode({"object": "list", "data": data}).decode() + "\n"


FORMATS: Final[Mapping[str, Callable[[Sequence[Sum], By, Costs], str]]] = {
    "table": as_table,
    "csv": as_csv,
    "json": as_json,
}


def _rows(sums: Sequence[Sum]) -> list[tuple[str, ...]]:
    cells = ([str(cell) for cell in structs.astuple(each)] for each in sums)
    return [(group or "-", *counts) for group, *counts in cells]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    group, *counts = row
    first, *others = widths
    return "  ".join((group.ljust(first), *map(str.rjust, counts, others))) + "\n"
