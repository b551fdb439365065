"""The pages that describe tables say what the tables say."""

import re
import subprocess
import sys
from pathlib import Path

from tieline.errors import ERRORS, Grpc

ROOT = Path(__file__).parents[2]


def test_the_error_table_of_the_page_is_the_table_of_the_code() -> None:
    page = (ROOT / "docs/protocol.md").read_text()
    block = page.split("<!-- errors: begin")[1].split("<!-- errors: end")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| `(\w+)` \| (\w+) \|$", block, re.MULTILINE)
    numbers = {name: value for name, value in vars(Grpc).items() if isinstance(value, int)}

    listed = {code: (int(status), kind, numbers[grpc]) for code, status, kind, grpc in rows}

    assert {code: (row.status, row.type, row.grpc) for code, row in ERRORS.items()} == listed


def test_the_state_diagrams_are_those_of_the_tables() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs/state_machines.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "")
