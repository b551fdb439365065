"""``python -m tieline_bench``: what ``make bench`` runs."""

import argparse
import sys

from tieline_bench.command import BENCHMARKS, run


def main() -> int:
    """Runs the benchmark that the arguments name; ``limits --quick`` without any."""
    parser = argparse.ArgumentParser(prog="tieline-bench", description=__doc__)
    parser.add_argument("name", nargs="?", default="limits", choices=list(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="the only size so far; the default")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    arguments = parser.parse_args()
    return run(arguments.name, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
