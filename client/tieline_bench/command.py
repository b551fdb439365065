"""The benchmarks as commands: what is printed, and the exit status."""

import sys
from importlib import import_module
from typing import Final

from tieline.errors import how_to_install

EXTRA: Final = frozenset({"h2", "hpack", "hyperframe", "uvloop", "aiohttp"})
"""What the extra [bench] brings."""

BENCHMARKS: Final = {"limits": "Limits", "warm": "Warm", "upstream": "Upstream", "peer": "Peer"}
"""Benchmark, a module of this package -> its class."""

FIRST: Final = {"warm": ("warm_over_cold",)}
"""Benchmark -> the figures that stand in front in its JSON."""

FAILED: Final = 1
USAGE: Final = 2


def run(name: str, *, as_json: bool) -> int:
    """Runs a benchmark and prints its report.

    Returns 0 when every bar is met, 1 when one is not, 2 when nothing could be measured.
    """
    try:
        module = import_module(f"tieline_bench.{name}")
        from tieline_bench.clients import LoadError
        from tieline_bench.processes import StartError
        from tieline_bench.report import as_json as to_json
        from tieline_bench.report import as_text
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA:
            raise
        _note(f"{package} is not installed: {how_to_install('bench')}")
        return USAGE
    try:
        result = getattr(module, BENCHMARKS[name])(
            say=lambda what: _note(f"measuring {what}")
        ).run()
    except (StartError, LoadError) as error:
        _note(str(error))
        return USAGE
    print(to_json(result, *FIRST.get(name, ())) if as_json else as_text(result))
    return 0 if result.met else FAILED


def _note(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)
