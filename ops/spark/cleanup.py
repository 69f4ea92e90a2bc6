"""Cleans up a backlog with Spark: executors merge partition groups, each in one task, level by level.

    blocks of the backlog -> Parquet in the share, a row per block          `parts`
    joins of equal height over the sources -> their input for joins above   `level-0`, `level-1`, ...
    the root's level -> results -> the destination, a group at a time

A folder of the share is valid once it was written to its end. A cleanup that restarts uses the valid folders as they
are, so it does not repeat what a driver finished before it died. Spark repeats tasks that fail, and only the output of
a finished task is seen. A group of the root has the same pending results however often they are computed, and
destinations take a group once.

The executors' Python needs Weir and its dependencies.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from operators.spill.cleanup.offline import OfflineCleanup
from operators.spill.spilled_part import PieceReader
from ops.spark.cleanup_task import LATE_PART, ORDER, ROW, CleanupTask, Row
from ops.spark.session import is_local, spark_errors, spark_session, work_folder
from ops.spark.share import Share
from schemas.codecs.blocks import decode_block
from schemas.columns import Batch
from services.spill.backlog import OpenBacklog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE_BLOCKS = 256
GROUP_BLOCKS = 32
"""Blocks of up to 256 KiB per Parquet file and per row group."""

TASKS_PER_CORE = 4
TASK_TUPLES = 10_000
"""A level is split into TASKS_PER_CORE tasks per core, or fewer where a task would get less than TASK_TUPLES tuples of
parts. The last tasks may be small."""

TASK_FAILURES = 4
"""How often a task may fail before its job does; Spark's own default of 4 does not apply to `local` masters."""

PARTS = "parts"

_SCHEMA = pa.schema(
    [
        *((name, pa.int32()) for name in ("join_no", "group_no", "part_no", "side")),
        ("key", pa.string()),
        ("since", pa.int64()),
        ("late", pa.bool_()),
        ("rows", pa.int64()),
        ("last", pa.int64()),
        ("block", pa.binary()),
    ]
)

Say = Callable[[str], None]
"""Receives the current step of the work, in a few words."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The Spark cluster that cleans up a backlog.

    Attributes:
        share: folder or URI that the driver and all executors see; None for one below the backlog's folder.
        settings: of Spark, in addition to Weir's own; dots written as `__`.
    """

    master: str
    share: str | None = None
    settings: dict[str, str] = field(default_factory=dict)


def results_of_backlog(
    backlog: OpenBacklog, cluster: Cluster, say: Say, task_type: type[CleanupTask] = CleanupTask
) -> Iterator[tuple[int, Iterator[Batch]]]:
    """Produce all pending results: for each group of the root, ascending, its results; read each before the next.

    `forget` empties the share, once the cleanup is complete.

    Args:
        task_type: what executors run; tests replace it.

    Raises:
        UsageError: pyspark or Java is not installed, or the share cannot be used.
        StateError: a block is damaged, a file system is full, or Spark fails.
    """
    share = _share(backlog, cluster)
    contents = backlog.manifest.pending
    cleanup = OfflineCleanup(backlog.query, contents)
    with _work_folder(backlog, cluster) as work:
        say("exporting parts")
        _export(backlog, share)
        with (
            spark_session(_retrying(cluster.master), work, **cluster.settings) as session,
            spark_errors("the cleanup"),
        ):
            _adapt(session)
            cores = session.sparkContext.defaultParallelism
            tasks = max(1, min(TASKS_PER_CORE * cores, contents.tuples() // TASK_TUPLES))
            levels = sorted(set(cleanup.heights))
            body = msgspec.json.encode(msgspec.structs.replace(contents, groups=()))
            task = task_type(backlog.query, body)
            for number, height in enumerate(levels):
                joins = [j for j, own in enumerate(cleanup.heights) if own == height]
                say(f"joining level {number + 1} of {len(levels)} with Spark")
                _level(session, share, number, joins, tasks, task)
            say("delivering")
            yield from _results(session, share, len(levels), cleanup.joins)


def forget(backlog: OpenBacklog, cluster: Cluster) -> None:
    """Empty the share.

    Raises:
        StateError: it cannot be emptied.
    """
    _share(backlog, cluster).forget("")
    if cluster.share is None:
        Share(str(backlog.folder / "share")).forget("")


def _share(backlog: OpenBacklog, cluster: Cluster) -> Share:
    folder, question, options = (cluster.share or str(backlog.folder / "share")).partition("?")
    return Share(f"{folder.rstrip('/')}/{backlog.manifest.id}{question}{options}")


def _work_folder(backlog: OpenBacklog, cluster: Cluster) -> Any:
    """The folder for Spark's log; for a cluster, it lies in a folder that all machines see."""
    if is_local(cluster.master):
        return work_folder(cluster.master, None)
    shared = cluster.share if cluster.share is not None and "://" not in cluster.share else backlog.folder / "share"
    return work_folder(cluster.master, Path(shared))


def _retrying(master: str) -> str:
    """The master; a `local` one with the option that makes Spark repeat failed tasks."""
    if not is_local(master) or "," in master:
        return master
    cores = master.partition("[")[2].rstrip("]") or "1"
    return f"local[{cores},{TASK_FAILURES}]"


def _adapt(session: SparkSession) -> None:
    """Read few rows per batch, since each row is a block."""
    session.conf.set("spark.sql.parquet.columnarReaderBatchSize", "16")


# --- Parts ---------------------------------------------------------------------------------------------


def _export(backlog: OpenBacklog, share: Share) -> None:
    """Write all parts to the share, after checking that each block is whole."""
    if share.whole(PARTS):
        return
    share.begin(PARTS)
    waiting: list[Row] = []
    files = 0
    for row in rows_of(backlog):
        waiting.append(row)
        if len(waiting) == FILE_BLOCKS:
            share.write(PARTS, files, _table(waiting), GROUP_BLOCKS)
            waiting, files = [], files + 1
    share.write(PARTS, files, _table(waiting), GROUP_BLOCKS)
    share.done(PARTS)


def rows_of(backlog: OpenBacklog) -> Iterator[Row]:
    """All parts, a row per block (`ops.spark.cleanup_task.ROW`).

    Raises:
        StateError: a block is missing or damaged.
    """
    reader = PieceReader(backlog.blocks)
    for group in backlog.manifest.pending.groups:
        for number, part in enumerate(group.parts):
            for side, pieces in enumerate((part.left, part.right)):
                for piece in pieces:
                    raw = reader.own_block(piece.piece())
                    # Tuples that arrived late while the query ran are a part of their own, and stay one.
                    at = LATE_PART if part.late else number
                    whole = part.since, part.late, piece.rows, piece.last, raw
                    yield group.join, group.group, at, side, piece.key, *whole


def _table(rows: list[Row]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(_SCHEMA)
    arrays = [pa.array(values, own.type) for values, own in zip(columns, _SCHEMA, strict=True)]
    return pa.table(arrays, schema=_SCHEMA)


# --- Levels --------------------------------------------------------------------------------------------


def _level(session: SparkSession, share: Share, number: int, joins: list[int], tasks: int, task: CleanupTask) -> None:
    """Clean up the groups of joins of one height."""
    if share.whole(f"level-{number}"):
        return
    wanted = ", ".join(map(str, joins))
    rows = _read(session, share, number).where(f"join_no IN ({wanted})")
    ordered = rows.repartition(tasks, "join_no", "group_no").sortWithinPartitions(*ORDER)
    with warnings.catch_warnings():
        # The warning is about pandas' version, which nothing here uses.
        warnings.simplefilter("ignore", FutureWarning)
        found = session.createDataFrame(ordered.rdd.mapPartitions(task), ROW)
    writer = found.write.mode("overwrite").option("compression", "uncompressed")
    writer.option("parquet.block.size", str(32 << 20)).parquet(share.uri(f"level-{number}"))


def _read(session: SparkSession, share: Share, levels: int) -> DataFrame:
    """The parts, and the output of the first levels."""
    names = [PARTS, *(f"level-{number}" for number in range(levels))]
    return session.read.schema(ROW).parquet(*(share.uri(name) for name in names))


def _results(session: SparkSession, share: Share, levels: int, joins: int) -> Iterator[tuple[int, Iterator[Batch]]]:
    found = _read(session, share, levels).where(f"join_no = {joins}").orderBy("group_no", "key")
    rows = found.select("group_no", "key", "block").toLocalIterator()
    for group, own in groupby(rows, lambda row: int(row["group_no"])):
        yield group, (decode_block(bytes(row["block"]), row["key"]).batch for row in own)
