"""``tieline bench``: see ``tieline_client.bench``."""

from typing import Annotated

import typer

from tieline_client.bench import command

app = typer.Typer(name="bench", help="Measure what the service costs.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Measure what the service costs."""


@app.command()
def limits(
    quick: Annotated[
        bool, typer.Option("--quick", help="The only size so far: under three minutes.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> int:
    """The product beside bare servers of the same stacks. Exit status 1: a bar is not met."""
    return command.limits(as_json=as_json)


@app.command()
def warm(
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> int:
    """Turns that the embedded engine's KV cache knows. Exit status 1: a bar is not met."""
    return command.warm(as_json=as_json)
