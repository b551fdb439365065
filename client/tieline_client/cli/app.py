"""``tieline ask`` and ``tieline agent``."""

import asyncio
import os
import sys
from collections.abc import Coroutine
from enum import StrEnum
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tieline.errors import TielineError
from tieline_client.agent import Agent, Run, Tool, Turn
from tieline_client.aio import Connection, connect_session
from tieline_client.cli import INTERRUPTED, USAGE, interruptible
from tieline_client.cli.show import Printer, printable
from tieline_client.cli.workspace import Workspace, ask_on_terminal
from tieline_client.errors import UnsupportedUrl
from tieline_client.transports import Tls

FAILED: Final = 1

app = typer.Typer(
    name="tieline",
    help="Talk to a Tieline server.",
    epilog="Exit status: 0 done, 1 no answer, 2 wrong usage, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _group in entry_points(group="tieline.commands"):
    # A package of its own brings these, such as the benchmarks: the client knows none of them.
    app.add_typer(_group.load())


class Shape(StrEnum):
    """How an agent's turns go to the server."""

    CREATE = "create"
    APPEND = "append"


class TransportName(StrEnum):
    """What carries the connection."""

    GRPC = "grpc"
    WEBSOCKET = "websocket"
    HTTP = "http"


_SCHEMES: Final[dict[TransportName, tuple[str, dict[str, str]]]] = {
    TransportName.GRPC: ("grpc://127.0.0.1:50051", {"grpc": "grpc", "grpcs": "grpcs"}),
    TransportName.WEBSOCKET: (
        "ws://127.0.0.1:8080",
        {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"},
    ),
    TransportName.HTTP: (
        "http://127.0.0.1:8080",
        {"ws": "http", "wss": "https", "http": "http", "https": "https"},
    ),
}
"""Transport -> where it listens by default; scheme of a URL at that port -> its own scheme."""

_SECURE: Final = ("grpcs://", "wss://", "https://")

Url = Annotated[
    str | None,
    typer.Option(
        envvar="TIELINE_URL",
        help="grpc://, grpcs://, ws://, wss://, http:// or https://, then HOST:PORT.",
        show_default=_SCHEMES[TransportName.GRPC][0],
    ),
]
Over = Annotated[
    TransportName | None,
    typer.Option(
        "--transport", help="How to get there, where --url does not say.", show_default=False
    ),
]
Key = Annotated[
    str | None, typer.Option(envvar="TIELINE_API_KEY", help="API key.", show_default=False)
]
Model = Annotated[str | None, typer.Option(help="Model; the server's default if not given.")]
Instructions = Annotated[str | None, typer.Option(help="What the model is told beforehand.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Output tokens at most.")]
Ca = Annotated[Path | None, typer.Option(help="PEM of whom to trust, instead of the system's.")]
Cert = Annotated[Path | None, typer.Option(help="PEM of our own certificate.")]
KeyFile = Annotated[Path | None, typer.Option("--key", help="PEM of its key.")]


def run() -> int:
    """Runs the command; returns its exit status."""
    try:
        result = app(prog_name="tieline", standalone_mode=False)
    except typer.Abort:
        return INTERRUPTED
    except typer.Exit as done:
        return done.exit_code
    except Exception as error:
        # Typer's own click is public under no name, and older Typers use the real one.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        # Without arguments the help is shown, and there is no more to say.
        if message():
            Printer().error(message())
        return USAGE
    return result if isinstance(result, int) else 0


@app.callback(invoke_without_command=True)
def root(
    show_version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """Talk to a Tieline server."""
    if show_version:
        print(f"tieline {version('tieline')}")
        raise typer.Exit


@app.command()
def ask(
    prompt: Annotated[str, typer.Argument(help='The question; "-" reads it from stdin.')],
    url: Url = None,
    transport: Over = None,
    model: Model = None,
    instructions: Instructions = None,
    max_output_tokens: MaxTokens = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as JSON.")] = False,
    timing: Annotated[bool, typer.Option("--timing", help="Show where the time went.")] = False,
    api_key: Key = None,
    ca: Ca = None,
    cert: Cert = None,
    key: KeyFile = None,
) -> int:
    """Ask once, and see the answer as it is made."""
    printer = Printer(as_json=as_json)
    text = sys.stdin.read() if prompt == "-" else prompt

    async def work() -> None:
        at = _url(url, transport)
        tls = _tls(at, ca=ca, cert=cert, key=key)
        async with connect_session(at, api_key=api_key, tls=tls) as session:
            await session.ready()
            agent = Agent(
                session,
                model=model,
                instructions=instructions,
                max_output_tokens=max_output_tokens,
                on_event=printer.event,
            )
            _finish(printer, await agent.run(text), timing=timing)

    return _run(printer, work())


@app.command()
def agent(
    task: Annotated[str, typer.Argument(help="What to do.")],
    url: Url = None,
    transport: Over = None,
    model: Model = None,
    instructions: Instructions = None,
    max_output_tokens: MaxTokens = None,
    folder: Annotated[
        Path, typer.Option("--root", help="The folder that the tools work in.", file_okay=False)
    ] = Path(),
    yes: Annotated[
        bool, typer.Option("--yes", help="Read hidden files unasked. Commands are always asked.")
    ] = False,
    shape: Annotated[
        Shape | None,
        typer.Option(
            help="One response held open, or one a turn.", show_default="append; create over HTTP"
        ),
    ] = None,
    max_turns: Annotated[int, typer.Option(min=1, help="Turns at most.")] = 32,
    api_key: Key = None,
    ca: Ca = None,
    cert: Cert = None,
    key: KeyFile = None,
) -> int:
    """Have a task done with two tools: reading files below a folder, and a shell that asks."""
    printer = Printer()

    async def confirm(question: str) -> bool:
        return await ask_on_terminal(printable(question))

    async def work() -> None:
        workspace = Workspace(folder, ask=confirm, read_hidden=yes)
        turns: list[Turn] = []
        at = _url(url, transport)
        tls = _tls(at, ca=ca, cert=cert, key=key)
        async with connect_session(at, api_key=api_key, tls=tls) as session:
            best = _best_shape(await session.ready())
            runner = Agent(
                session,
                # A command runs once, even where the answer to it is lost on its way.
                tools=[workspace.read_file, Tool.of(workspace.run_command, side_effect=True)],
                # One after the other: two questions at once could not be told apart.
                concurrency=1,
                model=model,
                instructions=instructions,
                max_output_tokens=max_output_tokens,
                shape=(shape or best).value,
                max_turns=max_turns,
                on_event=printer.event,
                on_output=printer.output,
                on_turn=turns.append,
            )
            try:
                _finish(printer, await runner.run(task), timing=False)
            finally:
                if turns:
                    printer.timing(turns)

    return _run(printer, work())


def _best_shape(connection: Connection) -> Shape:
    # Over HTTP nothing can be held open.
    return Shape.CREATE if connection.transport == "sse" else Shape.APPEND


def _finish(printer: Printer, run: Run, *, timing: bool) -> None:
    response = run.response
    if response.status != "completed":
        details = response.incomplete_details
        reason = details.reason if details else None
        printer.note(f"the answer is {response.status}: {reason or 'no reason given'}")
    if timing:
        printer.timing(run.turns)


def _url(url: str | None, transport: TransportName | None) -> str:
    """Where to connect; raises :class:`UnsupportedUrl` when the two contradict each other."""
    if transport is None:
        return url or _SCHEMES[TransportName.GRPC][0]
    default, schemes = _SCHEMES[transport]
    if not url:
        return default
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    if scheme not in schemes:
        raise UnsupportedUrl(f"--transport {transport.value} does not go with {url!r}")
    return f"{schemes[scheme]}://{rest}"


def _tls(url: str, *, ca: Path | None, cert: Path | None, key: Path | None) -> Tls:
    """The files; raises :class:`UnsupportedUrl` where they would be of no use."""
    if (ca or cert or key) and not url.lower().startswith(_SECURE):
        raise UnsupportedUrl(f"--ca, --cert and --key go with {', '.join(_SECURE)} only")
    names = [None if path is None else str(path) for path in (ca, cert, key)]
    return Tls(ca=names[0], cert=names[1], key=names[2])


def _run(printer: Printer, work: Coroutine[Any, Any, None]) -> int:
    """Runs a command's work; an error is one line, never a traceback."""
    interruptible()
    try:
        asyncio.run(work)
    except UnsupportedUrl as error:
        printer.error(str(error))
        return USAGE
    except BrokenPipeError:
        # Who reads us has seen enough; the interpreter must not try to flush the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        named = f"cannot read {error.filename}: {error.strerror}"
        printer.error(named if error.filename else str(error))
        return FAILED
    except TielineError as error:
        printer.error(str(error))
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0
