"""What docs/clients.md says of the transports is so, and its program runs."""

import re
import subprocess
import sys
from pathlib import Path

from tests.conformance.wire import OFFERS, WIRES
from tests.support.server_process import serving

PAGE = Path(__file__).parents[2] / "docs/clients.md"


def table() -> str:
    """The page's table."""
    rows = [("", *WIRES), *(["---"] * (1 + len(WIRES)),)]
    for name, why in OFFERS.items():
        rows.append((why, *("yes" if name in wire.offers else "-" for wire in WIRES.values())))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows).replace("|  |", "| |")


def test_sd_03_the_page_says_what_the_conformance_table_says() -> None:
    """SD-03: the capabilities are those that tests have found, not a promise."""
    page = PAGE.read_text()
    block = page.split("<!-- offers: begin", 1)[1].split("<!-- offers: end", 1)[0]

    assert block.partition("\n")[2] == table()


def test_the_program_of_the_page_holds_a_conversation_and_runs_an_agent() -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    with serving() as server:
        here = program.replace("127.0.0.1:50051", server.address)
        done = subprocess.run(
            [sys.executable, "-c", here], capture_output=True, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 3
