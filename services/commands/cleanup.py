"""`weir cleanup`: produces the pending results that a run with `--cleanup none` has left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schemas.errors import UsageError
from services.commands.history import progress
from services.commands.options.kafka import with_kafka
from services.commands.options.registry import with_registry
from services.formats.registry_access import RegistryAccess
from services.process.security import KafkaClients
from services.registry.query_registry import find_query

if TYPE_CHECKING:
    from services.spill.backlog import OpenBacklog
    from services.spill.destinations import Destination

Share = Annotated[
    str | None,
    typer.Option(
        envvar="WEIR_SHARE",
        metavar="FOLDER",
        help="With Spark: folder or URI, such as s3://bucket/folder, that the driver and all executors see. Default: "
        "below DIR.",
    ),
]


@with_kafka
@with_registry
def cleanup(
    folder: Annotated[
        Path, typer.Argument(help="Folder that `weir run --cleanup none --spill-dir DIR` has left.", metavar="DIR")
    ],
    spark: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_SPARK_MASTER",
            metavar="MASTER",
            help="Clean up with this Spark, such as local[*] or spark://host:7077; its executors need Weir. Default: "
            "clean up in this process.",
        ),
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="Clean up in this process, whatever WEIR_SPARK_MASTER says.")
    ] = False,
    share: Share = None,
    out: Annotated[
        str,
        typer.Option(
            envvar="WEIR_OUT",
            metavar="PATH",
            help="File of results, JSON lines, which appears when it is complete; - is standard output.",
        ),
    ] = "-",
    topic: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_TOPIC",
            metavar="NAME",
            help="Topic of results in place of a file. Each result is written once, however often the command is "
            "repeated.",
        ),
    ] = None,
    of: Annotated[
        Path | None,
        typer.Option(
            envvar="WEIR_QUERY_FILE",
            metavar="QUERY",
            help="Go on only if the pending results are of this query: a file, or the name of a registered query. "
            "With --topic, schema files that the query names are beside this file. Default: any query, and the working "
            "directory.",
        ),
    ] = None,
    *,
    clients: KafkaClients,
    access: RegistryAccess,
) -> None:
    """Produce the results that a run has left pending for lack of memory, and write each once.

    To continue an interrupted cleanup, repeat the command. After a finished cleanup, the command reports that and does
    nothing. Exit codes: 0 no results are pending; 2 the arguments are wrong; 1 anything else.
    """
    if local:
        spark = None
    if topic is not None and out != "-":
        raise UsageError(f"--out {out} and --topic {topic}: results go to one of them")
    if share is not None and spark is None:
        raise UsageError(f"--share {share} has no effect without --spark, such as --spark 'local[*]'")
    from services.spill.backlog import check_query, manifest_in, open_backlog

    manifest = manifest_in(folder)
    if of is not None:
        check_query(manifest, find_query(of, None, clients, access))
    if manifest.results is not None:
        _say(f"{folder} was cleaned up before: {manifest.results:,} results, to {manifest.destination}; nothing to do")
        return
    if spark is not None:
        # Checked before the backlog is opened: without Spark this cannot succeed.
        from ops.spark.session import check_installed

        check_installed()
    began = time.perf_counter()
    with open_backlog(folder) as backlog:
        name, destination = _destination(backlog, out, topic, of, clients, access)
        try:
            with closing(destination), progress() as say:
                results = clean_up_backlog(backlog, name, destination, spark, share, say)
        except BrokenPipeError:
            raise typer.Exit(1) from None
    _say(f"wrote {results:,} pending results to {name} in {time.perf_counter() - began:.1f} s")


def _destination(
    backlog: OpenBacklog,
    out: str,
    topic: str | None,
    of: Path | None,
    clients: KafkaClients,
    access: RegistryAccess,
) -> tuple[str, Destination]:
    """The destination of the results, and its name for the record in the backlog.

    Args:
        of: the query's file, beside which the files of schemas are; None for the working directory.

    Raises:
        UsageError: a cleanup to another destination has begun, the file cannot be created, or the schema of results
            cannot be read or does not fit.
        BrokerError: Kafka or the schema registry does not answer.
    """
    from services.files.sinks import STDOUT
    from services.spill.backlog import check_destination, note_destination
    from services.spill.destinations import destination_of

    if topic is None:
        name = "standard output" if out == STDOUT else str(Path(out).absolute())
        check_destination(backlog, name)
        return name, destination_of(out, backlog, lambda: note_destination(backlog, name))
    from ops.spark.delivery import TopicDestination
    from services.formats.encoders import Encoders
    from services.kafka.topics import TopicAdmin

    name = f"topic {topic} of cluster {TopicAdmin(clients).cluster_id()}"
    check_destination(backlog, name)
    folder = of.parent if of is not None and of.exists() else Path()
    query, encoders = replace(backlog.query, sink=topic), Encoders(access, folder)
    encoders.prepare(query)
    return name, TopicDestination(
        clients,
        topic,
        query.name,
        backlog.manifest.id,
        len(query.sources) - 2,
        lambda: note_destination(backlog, name),
        records=encoders.of(query),
        say=_say,
    )


def clean_up_backlog(
    backlog: OpenBacklog,
    name: str,
    destination: Destination,
    spark: str | None,
    share: str | None,
    say: Callable[[str], None],
) -> int:
    """Produce and deliver the pending results, and remove the backlog; returns how many results there were.

    Args:
        name: of the destination, for the record in the backlog.
        say: called with a text about the current step.

    Raises:
        WeirError: the cleanup cannot finish now; the backlog stays.
    """
    from services.spill.destinations import deliver

    if spark is None:
        from operators.spill.cleanup.offline import OfflineCleanup, clean_up_all

        pending, delivered = backlog.manifest.pending, destination.delivered_groups()
        groups = clean_up_all(OfflineCleanup(backlog.query, pending), pending, backlog.blocks, delivered)
        return deliver(backlog, name, destination, groups)
    from ops.spark.cleanup import Cluster, forget, results_of_backlog

    cluster = Cluster(spark, share)
    with closing(results_of_backlog(backlog, cluster, say)) as groups:
        results = deliver(backlog, name, destination, groups)
    forget(backlog, cluster)
    return results


def _say(text: str) -> None:
    print(f"weir: {text}", file=sys.stderr)
