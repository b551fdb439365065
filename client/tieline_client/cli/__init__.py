"""The command ``tieline``. Exit status: 0 done, 1 a turn failed, 2 wrong usage."""

import os
import sys
from typing import Final

EXTRA: Final = frozenset({"typer", "rich", "click"})
"""What the extra [cli] brings, and what these bring."""


def main() -> int:
    """Runs the command with the arguments of the process; returns its exit status."""
    # What gRPC's C library writes to stderr by itself would make several lines of one error.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from tieline_client.cli.app import run
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA:
            raise
        print(f"tieline: {package} is not installed: pip install 'tieline[cli]'", file=sys.stderr)
        return 2
    return run()
