"""The table of what each transport offers is the one that the conformance cases run by."""

from pathlib import Path

from tests.conformance.wire import OFFERS, WIRES

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
