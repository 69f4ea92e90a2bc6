"""The `weir` command: one subcommand per module of `services.commands`."""

import sys

import typer

from schemas.errors import WeirError
from services.commands import (
    bench,
    broker,
    cleanup,
    coordinator,
    demo,
    explain,
    history,
    migrate,
    query,
    run,
    warmup,
    worker,
)
from services.process import kernel_cache

app = typer.Typer(
    name="weir",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Weir answers continuous multi-way window-join queries over Kafka topics and files, exactly: each "
        "result once, in event-time order. Start with `weir run --help` (files) or `make demo` (Kafka)."
    ),
)
app.command("run")(run.run)
app.command("explain")(explain.explain)
app.command("worker")(worker.worker)
app.command("coordinator")(coordinator.coordinator)
app.command("migrate")(migrate.migrate)
app.command("warmup")(warmup.warmup)
app.command("cleanup")(cleanup.cleanup)
app.command("backfill")(history.backfill)
app.command("audit")(history.audit)
app.add_typer(query.app, name="query")
app.add_typer(broker.app, name="broker")
app.add_typer(bench.app, name="bench")
app.add_typer(demo.app, name="demo")


def main() -> None:
    """Run the command line; a `WeirError` becomes its own exit code and one message on standard error."""
    kernel_cache.prepare()
    try:
        app()
    except WeirError as error:
        print(f"weir: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
