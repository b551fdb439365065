"""The benchmarks as commands: what is printed, and the exit status."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tieline_client.bench.report import Report

EXTRA: Final = frozenset({"h2", "hpack", "hyperframe", "uvloop", "aiohttp"})
"""What the extra [bench] brings."""

FAILED: Final = 1
USAGE: Final = 2


def limits(*, as_json: bool) -> int:
    """Runs ``limits`` and prints its report; returns what :func:`_print` does."""

    def run() -> "Report":
        from tieline_client.bench.limits import Limits

        return Limits(say=_say).run()

    return _print(run, as_json=as_json)


def warm(*, as_json: bool) -> int:
    """Runs ``warm`` and prints its report; returns what :func:`_print` does."""

    def run() -> "Report":
        from tieline_client.bench.warm import Warm

        return Warm(say=_say).run()

    return _print(run, "warm_over_cold", as_json=as_json)


def _print(run: Callable[[], "Report"], *first: str, as_json: bool) -> int:
    """Prints a report, as JSON with the figures named ``first`` in front.

    Returns 0 when every bar is met, 1 when one is not, 2 when nothing could be measured.
    """
    try:
        from tieline_client.bench.clients import LoadError
        from tieline_client.bench.processes import StartError
        from tieline_client.bench.report import as_json as to_json
        from tieline_client.bench.report import as_text

        try:
            result = run()
        except (StartError, LoadError) as error:
            _note(str(error))
            return USAGE
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA:
            raise
        _note(f"{package} is not installed: pip install 'tieline[bench]'")
        return USAGE
    print(to_json(result, *first) if as_json else as_text(result))
    return 0 if result.met else FAILED


def _say(what: str) -> None:
    _note(f"measuring {what}")


def _note(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)
