"""The command ``tieline``. Exit status: 0 done, 1 a turn failed, 2 wrong usage, 130 interrupted.

Nothing is imported here, nor in the packages above, that takes time: an interrupt can come while
it does, and is to end the command without a word.
"""

import os
import sys

EXTRA = frozenset({"typer", "rich", "click"})
"""What the extra [cli] brings, and what these bring."""
USAGE = 2
INTERRUPTED = 130
"""What a shell reports for a process that SIGINT ended."""


def main() -> int:
    """Runs the command as the process that it is; returns its exit status.

    SIGINT ends the process at once, until :func:`interruptible`, and when the command is done.
    """
    try:
        _end_at_once()
        try:
            return _command()
        finally:
            _end_at_once()
    except KeyboardInterrupt:
        return INTERRUPTED


def _end_at_once() -> None:
    """What imports, and the end of the interpreter, are interrupted in may hide it or print it."""
    import signal

    # Where a shell has it ignored, it stays so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def interruptible() -> None:
    """From here on SIGINT is a KeyboardInterrupt: there is something to end in order."""
    import signal

    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: object) -> None:
    os._exit(INTERRUPTED)


def _command() -> int:
    # What gRPC's C library writes to stderr by itself would make several lines of one error.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from tieline_client.cli.app import run
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA:
            raise
        from tieline.errors import how_to_install

        print(f"tieline: {package} is not installed: {how_to_install('cli')}", file=sys.stderr)
        return USAGE
    return run()
