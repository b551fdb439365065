"""What the commands print: text as it streams, one line an error, tables of time."""

import sys
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from tieline.codecs import json
from tieline.events import (
    Event,
    OutputTextDelta,
    OutputTextDone,
    RefusalDelta,
    RefusalDone,
)
from tieline_client.agent import Turn
from tieline_client.aio import Call

_CONTROLS: Final = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}
_SHOWN: Final = 200
"""Characters of a tool's output that are shown."""


def printable(text: str) -> str:
    """The text with control characters made visible: a model must not drive the terminal.

    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return text.translate(_CONTROLS)


class Printer:
    """Prints a turn as it comes: answers to stdout, everything about them to stderr."""

    def __init__(self, *, as_json: bool = False) -> None:
        self._json = as_json
        self._raw = not sys.stdout.isatty()
        self._notes = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)

    def event(self, event: Event) -> None:
        """Shows an event: its JSON on a line, or what it adds to the text."""
        if self._json:
            self._write(json.encode(event).decode() + "\n")
        elif isinstance(event, OutputTextDelta | RefusalDelta):
            self._write(event.delta if self._raw else printable(event.delta))
        elif isinstance(event, OutputTextDone | RefusalDone):
            self._write("\n")

    def output(self, call: Call, output: str) -> None:
        """Shows what a tool answered."""
        shown = output if len(output) <= _SHOWN else output[:_SHOWN] + "…"
        self.note(f"{call.name}({call.arguments}) -> {shown}", style="cyan")

    def note(self, text: str, *, style: str = "dim") -> None:
        """A line about what happens."""
        self._notes.print(printable(text), style=style)

    def error(self, text: str) -> None:
        """Why the command failed, in one line."""
        self._notes.print(f"tieline: {printable(' '.join(text.split()))}")

    def timing(self, turns: Sequence[Turn]) -> None:
        """Where each turn's time went."""
        table = Table("turn", "service", "engine", "client", "wall", title="time, ms")
        for column in table.columns:
            column.justify = "right"
        for turn in turns:
            timing = turn.timing
            cells = (timing.service, timing.engine, timing.client, timing.wall)
            table.add_row(str(turn.number), *(_milliseconds(cell) for cell in cells))
        self._notes.print(table)

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f}"
