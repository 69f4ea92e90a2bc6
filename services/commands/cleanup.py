"""`weir cleanup`: pays what a run with `--cleanup none` has left owed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schemas.errors import UsageError
from services.commands.history import progress
from services.commands.kafka_options import with_kafka
from services.process.security import KafkaClients
from services.registry.query_registry import find_query

if TYPE_CHECKING:
    from services.spill.backlog import OpenDebt
    from services.spill.destinations import Destination

Share = Annotated[
    str | None,
    typer.Option(
        envvar="WEIR_SHARE",
        metavar="FOLDER",
        help="With Spark: folder or URI, such as s3://bucket/folder, that the driver and all executors see. Default: "
        "below the debt's folder.",
    ),
]


@with_kafka
def cleanup(
    folder: Annotated[
        Path, typer.Argument(help="What `weir run --cleanup none --spill-dir DIR` has left.", metavar="DIR")
    ],
    spark: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_SPARK_MASTER",
            metavar="MASTER",
            help="Let Spark do it, such as local[*] or spark://host:7077; its executors need Weir. Default: this "
            "process.",
        ),
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="This process does it, whatever WEIR_SPARK_MASTER says.")
    ] = False,
    share: Share = None,
    out: Annotated[
        str,
        typer.Option(
            envvar="WEIR_OUT",
            metavar="PATH",
            help="File of results, JSON lines, which appears when it is whole; - is standard output.",
        ),
    ] = "-",
    topic: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_TOPIC",
            metavar="NAME",
            help="Topic of results in place of a file; each is there once however often the command is repeated.",
        ),
    ] = None,
    of: Annotated[
        Path | None,
        typer.Option(
            envvar="WEIR_QUERY_FILE",
            metavar="QUERY",
            help="Pay only if it is this query that owes: a file, or the name of a registered query. Default: any.",
        ),
    ] = None,
    *,
    clients: KafkaClients,
) -> None:
    """Find the results that a run owes for want of memory, and write them, each once.

    A command that was interrupted is repeated as it was, and goes on; one that was finished says so and does nothing.
    Exit codes: 0 all is paid; 2 the arguments are wrong; 1 anything else.
    """
    if local:
        spark = None
    if topic is not None and out != "-":
        raise UsageError(f"--out {out} and --topic {topic}: results go to one of them")
    if share is not None and spark is None:
        raise UsageError(f"--share {share} has no effect without --spark, such as --spark 'local[*]'")
    from services.spill.backlog import check_query, debt_in, open_debt

    manifest = debt_in(folder)
    if of is not None:
        check_query(manifest, find_query(of, None, clients))
    if manifest.results is not None:
        _say(f"the debt in {folder} is paid: {manifest.results:,} results, to {manifest.destination}; nothing to do")
        return
    if spark is not None:
        # Before the debt is opened: without Spark there is nothing to wait for.
        from ops.spark.session import check_installed

        check_installed()
    began = time.perf_counter()
    with open_debt(folder) as debt:
        name, destination = _destination(debt, out, topic, clients)
        try:
            with closing(destination), progress() as say:
                results = pay(debt, name, destination, spark, share, say)
        except BrokenPipeError:
            raise typer.Exit(1) from None
    _say(f"{results:,} results that were owed are in {name}, {time.perf_counter() - began:.1f} s")


def _destination(debt: OpenDebt, out: str, topic: str | None, clients: KafkaClients) -> tuple[str, Destination]:
    """Where results go, and what that is called in the debt's record.

    Raises:
        UsageError: a payment to another place has begun, or there cannot be such a file.
        BrokerError: Kafka does not answer.
    """
    from services.files.sinks import STDOUT
    from services.spill.backlog import begin, check_destination
    from services.spill.destinations import destination_of

    if topic is None:
        name = "standard output" if out == STDOUT else str(Path(out).absolute())
        check_destination(debt, name)
        return name, destination_of(out, debt.manifest.id, lambda: begin(debt, name))
    from ops.spark.delivery import TopicDestination
    from services.kafka.topics import TopicAdmin

    name = f"topic {topic} of cluster {TopicAdmin(clients).cluster_id()}"
    check_destination(debt, name)
    root = len(debt.query.sources) - 2
    return name, TopicDestination(
        clients, topic, debt.query.name, debt.manifest.id, root, lambda: begin(debt, name), say=_say
    )


def pay(
    debt: OpenDebt,
    name: str,
    destination: Destination,
    spark: str | None,
    share: str | None,
    say: Callable[[str], None],
) -> int:
    """Find what is owed, deliver it and settle the debt; how many results.

    Args:
        name: of the destination, for the debt's record.
        say: told what is done just now.

    Raises:
        WeirError: it cannot be paid now; the debt stays.
    """
    from services.spill.destinations import deliver

    if spark is None:
        from operators.spill.cleanup.offline import Payer, pay_all

        owed = debt.manifest.debt
        groups = pay_all(Payer(debt.query, owed), owed, debt.blocks, destination.paid())
        return deliver(debt, name, destination, groups)
    from ops.spark.cleanup import Cluster, forget, results_of_debt

    cluster = Cluster(spark, share)
    with closing(results_of_debt(debt, cluster, say)) as groups:
        results = deliver(debt, name, destination, groups)
    forget(debt, cluster)
    return results


def _say(text: str) -> None:
    print(f"weir: {text}", file=sys.stderr)
