"""What a benchmark says in the end: bars that are met or not, and the figures behind them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

SUSPECT_ABOVE: Final = 1.3
"""A bare server that costs more than so many times its known figure proves nothing."""


class Bar(Struct, frozen=True, kw_only=True):
    """One figure and what it may be at most; ``value`` is None where there is none to state."""

    name: str
    value: float | None
    target: float
    met: bool
    note: str = ""


class Bare(Struct, frozen=True, kw_only=True):
    """A bare server's cost beside what is known of its stack, both microseconds of CPU."""

    name: str
    us: float
    known_us: float

    @property
    def suspect(self) -> bool:
        """Whether this run's bare server is too dear to compare anything with."""
        return self.us > SUSPECT_ABOVE * self.known_us


class Report(Struct, frozen=True, kw_only=True):
    """A whole run."""

    bars: list[Bar]
    bare: list[Bare]
    figures: dict[str, Any]

    @property
    def met(self) -> bool:
        """Whether every bar is."""
        return all(bar.met for bar in self.bars)


def bar(name: str, value: float | None, target: float, *, note: str = "") -> Bar:
    """A bar that is met by a value of at most ``target``."""
    rounded = None if value is None else round(value, 3)
    return Bar(
        name=name,
        value=rounded,
        target=target,
        met=rounded is not None and rounded <= target,
        note=note,
    )


def report(bars: Sequence[Bar], bare: Sequence[Bare], figures: Mapping[str, Any]) -> Report:
    """A report; with a suspect bare server in it, no bar is met."""
    suspects = [each.name for each in bare if each.suspect]
    if suspects:
        note = f"bare suspect: {', '.join(suspects)}"
        bars = [msgspec.structs.replace(each, met=False, note=each.note or note) for each in bars]
    return Report(bars=list(bars), bare=list(bare), figures=dict(figures))


def as_json(result: Report, *first: str) -> str:
    """The report as one JSON object: figures named ``first``, ``bars``, ``bare``, ``figures``."""
    rows = [{**msgspec.to_builtins(each), "suspect": each.suspect} for each in result.bare]
    named = {name: result.figures[name] for name in first}
    whole = {**named, "bars": result.bars, "bare": rows, "figures": result.figures}
    return msgspec.json.format(msgspec.json.encode(whole)).decode()


def as_text(result: Report) -> str:
    """The report as tables for a terminal."""
    bars = [["bar", "value", "target", "met", ""]]
    for each in result.bars:
        value = "-" if each.value is None else f"{each.value:.2f}"
        met = "yes" if each.met else "NO"
        bars.append([each.name, value, f"<= {each.target:g}", met, each.note])
    bare = [["bare server", "µs", "known µs", ""]]
    for row in result.bare:
        suspect = "BARE SUSPECT" if row.suspect else ""
        bare.append([row.name, f"{row.us:.1f}", f"{row.known_us:.1f}", suspect])
    figures = [["figure", "value"], *([name, _text(v)] for name, v in result.figures.items())]
    return "\n\n".join(map(_table, (bars, bare, figures)))


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, list):
        return " ".join(map(_text, value))
    return str(value)


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; the first to the left, numbers as they come."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
             for row in rows]  # fmt: skip
    return "\n".join(line.rstrip() for line in lines)
