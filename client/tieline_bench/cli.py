"""``tieline bench``: the entry point by which the client's command finds the benchmarks."""

from typing import Annotated

import typer

from tieline_bench import command
from tieline_client.cli import interruptible

app = typer.Typer(name="bench", help="Measure what the service costs.", no_args_is_help=True)

Quick = Annotated[bool, typer.Option("--quick", help="The only size so far: under three minutes.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]


def _run(name: str, *, as_json: bool) -> int:
    interruptible()
    return command.run(name, as_json=as_json)


@app.callback()
def group() -> None:
    """Measure what the service costs."""


@app.command()
def limits(quick: Quick = True, as_json: AsJson = False) -> int:
    """The product beside bare servers of the same stacks. Exit status 1: a bar is not met."""
    return _run("limits", as_json=as_json)


@app.command()
def warm(quick: Quick = True, as_json: AsJson = False) -> int:
    """Turns that the embedded engine's KV cache knows. Exit status 1: a bar is not met."""
    return _run("warm", as_json=as_json)


@app.command()
def upstream(quick: Quick = True, as_json: AsJson = False) -> int:
    """What a long history costs before an upstream. Exit status 1: a bar is not met."""
    return _run("upstream", as_json=as_json)


@app.command()
def peer(quick: Quick = True, as_json: AsJson = False) -> int:
    """The product beside agentic-api, which it installs. Exit status 1: a bar is not met."""
    return _run("peer", as_json=as_json)
