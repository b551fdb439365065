"""Writes docs/state-machines.md from the tables of the core.

Run as ``python docs/state_machines.py``; ``--check`` fails when the page is not current.
"""

import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from tieline_server.core.tables import CONNECTIONS, LANES, TURNS

PAGE = Path(__file__).with_name("state-machines.md")

INTRO = """# State machines

Made from the tables in `server/tieline_server/core/tables.py` by `docs/state_machines.py`.
Each arrow names the input and the action; the inputs that a state ignores are left out.
"""

_CHARTS = (
    ("A turn: the life of one response", TURNS),
    ("A lane: a first-in first-out queue of turns", LANES),
    ("A connection", CONNECTIONS),
)

Table = Mapping[tuple[str, str], tuple[str, str]]


def chart(table: Table) -> str:
    """One table as a Mermaid state diagram."""
    arrows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (state, what), (action, following) in table.items():
        arrows[state, following].append(f"{what}: {action}")
    first = next(iter(table))[0]
    lines = [f"    [*] --> {first}"]
    lines += [
        f"    {state} --> {following}: {', '.join(labels)}"
        for (state, following), labels in arrows.items()
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def page() -> str:
    """The whole page."""
    charts = (f"## {title}\n\n{chart(table)}\n" for title, table in _CHARTS)  # type: ignore[arg-type]
    return "\n".join([INTRO, *charts])


def main() -> int:
    """Writes the page, or checks it with ``--check``."""
    if "--check" in sys.argv[1:]:
        current = PAGE.exists() and PAGE.read_text() == page()
        if not current:
            print("docs/state-machines.md is not current: run python docs/state_machines.py")
        return 0 if current else 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
