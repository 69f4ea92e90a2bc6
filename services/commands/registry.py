"""`weir registry`: a schema registry for development, from the command line."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from services.broker import registry as registries

STOPPED = 3

app = typer.Typer(
    no_args_is_help=True,
    help="An Apicurio Registry on loopback, for development. It runs until `weir registry stop`.",
)

DataDir = Annotated[
    Path,
    typer.Option("--data", envvar="WEIR_REGISTRY_DATA", help="Folder of its schemas, process id and log."),
]
DEFAULT_DATA = Path(".weir/registry")


@app.command()
def start(
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, envvar="WEIR_REGISTRY_PORT", help="TCP port on loopback; 0 takes a free one."),
    ] = registries.DEFAULT_PORT,
    data: DataDir = DEFAULT_DATA,
) -> None:
    """Start the registry, wait until it answers, and leave it running.

    The first start fetches Apicurio Registry with Maven into the cache folder (WEIR_CACHE, default ~/.cache/weir).
    """
    with Console(stderr=True).status("looking for Java") as shown:
        registry = registries.start(data, port, progress=shown.update)
    _show(registry, "running" if registry.fresh else "already running")


@app.command()
def stop(data: DataDir = DEFAULT_DATA) -> None:
    """Stop the registry; its schemas stay."""
    with Console(stderr=True).status("stopping the registry"):
        stopped = registries.stop(data)
    typer.echo("stopped" if stopped else f"no registry is running in {data}")


@app.command()
def status(data: DataDir = DEFAULT_DATA) -> None:
    """Say whether the registry runs. Exit code 0: it runs; 3: it is stopped."""
    registry = registries.status(data)
    if registry is None:
        typer.echo(f"stopped (data {data})")
        raise typer.Exit(STOPPED)
    _show(registry, "running" if registries.answers(registry.url) else "running but not answering")


def _show(registry: registries.Registry, state: str) -> None:
    where = f"process {registry.pid}, log {registry.log_file}"
    typer.echo(f"Apicurio Registry {registry.version} {state} at {registry.url} ({where})")
