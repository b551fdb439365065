"""``python -m tieline_client.bench``: what ``make bench`` runs."""

import argparse
import sys

from tieline_client.bench.command import limits, warm


def main() -> int:
    """Runs the benchmark that the arguments name; ``limits --quick`` without any."""
    parser = argparse.ArgumentParser(prog="tieline-bench", description=__doc__)
    parser.add_argument("name", nargs="?", default="limits", choices=["limits", "warm"])
    parser.add_argument("--quick", action="store_true", help="the only size so far; the default")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    asked = parser.parse_args()
    return warm(as_json=asked.json) if asked.name == "warm" else limits(as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())
