"""`weir broker`: the development broker from the command line."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from services.broker import broker as brokers

STOPPED = 3

app = typer.Typer(
    no_args_is_help=True,
    help="A single-node Apache Kafka on loopback, for development. It runs until `weir broker stop`.",
)

DataDir = Annotated[
    Path,
    typer.Option("--data", envvar="WEIR_BROKER_DATA", help="Folder of its data, process id and log."),
]
DEFAULT_DATA = Path(".weir/broker")


@app.command()
def start(
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, envvar="WEIR_BROKER_PORT", help="TCP port on loopback; 0 takes a free one."
        ),
    ] = brokers.DEFAULT_PORT,
    data: DataDir = DEFAULT_DATA,
    heap: Annotated[
        str,
        typer.Option(envvar="WEIR_BROKER_HEAP", help="Largest Java heap, such as 512m or 2g."),
    ] = brokers.DEFAULT_HEAP,
) -> None:
    """Start the broker, wait until it answers, and leave it running.

    The first start fetches Kafka's jars with Maven into the cache folder (WEIR_CACHE, default ~/.cache/weir).
    """
    with Console(stderr=True).status("looking for Java") as shown:
        broker = brokers.start(data, port, heap=heap, progress=shown.update)
    _show(broker, "running" if broker.fresh else "already running")


@app.command()
def stop(data: DataDir = DEFAULT_DATA) -> None:
    """Stop the broker; its data stays."""
    with Console(stderr=True).status("stopping the broker"):
        stopped = brokers.stop(data)
    typer.echo("stopped" if stopped else f"no broker is running in {data}")


@app.command()
def status(data: DataDir = DEFAULT_DATA) -> None:
    """Say whether the broker runs. Exit code 0: it runs; 3: it is stopped."""
    broker = brokers.status(data)
    if broker is None:
        typer.echo(f"stopped (data {data})")
        raise typer.Exit(STOPPED)
    _show(broker, "running" if brokers.answers(broker.bootstrap) else "running but not answering")


def _show(broker: brokers.Broker, state: str) -> None:
    where = f"process {broker.pid}, log {broker.log_file}"
    typer.echo(f"Kafka {broker.version} {state} at {broker.bootstrap} ({where})")
