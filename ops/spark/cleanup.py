"""Pays a debt with Spark: partition groups are merged by executors, each in one task, level by level.

    blocks of the debt -> Parquet in the share, a row per block             `parts`
    joins of equal height over the sources -> what they owe joins above     `level-0`, `level-1`, ...
    the root's level -> results -> the destination, a group at a time

A folder of the share counts when it was written to its end; a payment that is begun again takes those that do as they
are, so what a driver that died has finished is not done again. Tasks that fail are repeated by Spark, and only what a
finished one has written is seen. What a group of the root owes is the same however often it is found, and destinations
take a group once.

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

from operators.spill.cleanup.offline import Payer
from operators.spill.spilled_part import Reader
from ops.spark.cleanup_task import LATE_PART, ORDER, ROW, Paying, Row
from ops.spark.session import is_local, spark_errors, spark_session, work_folder
from ops.spark.share import Share
from schemas.codecs.blocks import decode_block
from schemas.columns import Batch
from services.spill.backlog import OpenDebt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE_BLOCKS = 256
GROUP_BLOCKS = 32
"""Blocks of up to 256 KiB per Parquet file and per row group."""

TASKS_PER_CORE = 4
TASK_TUPLES = 10_000
"""Into so many tasks a level is split, if there are so many tuples in parts for each: the last ones may be small."""

TASK_FAILURES = 4
"""How often a task may fail before its job does; Spark's own choice of 4 does not hold for `local` masters."""

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
"""Told what is done just now, in a few words."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where a debt is paid.

    Attributes:
        share: folder or URI that the driver and all executors see; None for one below the debt's folder.
        settings: of Spark, beside Weir's own; dots written as `__`.
    """

    master: str
    share: str | None = None
    settings: dict[str, str] = field(default_factory=dict)


def results_of_debt(
    debt: OpenDebt, cluster: Cluster, say: Say, paying: type[Paying] = Paying
) -> Iterator[tuple[int, Iterator[Batch]]]:
    """Find all that is owed: of each group of the root, ascending, its results; each to be read before the next.

    The share is emptied by `forget`, once the debt is settled.

    Args:
        paying: what executors do.

    Raises:
        UsageError: pyspark or Java is not installed, or the share cannot be used.
        StateError: a block is damaged, a file system is full, or Spark fails.
    """
    share = _share(debt, cluster)
    owed = debt.manifest.debt
    payer = Payer(debt.query, owed)
    with _work_folder(debt, cluster) as work:
        say("exporting parts")
        _export(debt, share)
        with (
            spark_session(_retrying(cluster.master), work, **cluster.settings) as session,
            spark_errors("the cleanup"),
        ):
            _adapt(session)
            cores = session.sparkContext.defaultParallelism
            tasks = max(1, min(TASKS_PER_CORE * cores, owed.tuples() // TASK_TUPLES))
            levels = sorted(set(payer.heights))
            body = msgspec.json.encode(msgspec.structs.replace(owed, owed=()))
            task = paying(debt.query, body)
            for number, height in enumerate(levels):
                joins = [j for j, own in enumerate(payer.heights) if own == height]
                say(f"joining level {number + 1} of {len(levels)} with Spark")
                _level(session, share, number, joins, tasks, task)
            say("delivering")
            yield from _results(session, share, len(levels), payer.joins)


def forget(debt: OpenDebt, cluster: Cluster) -> None:
    """Empty the share.

    Raises:
        StateError: it cannot be.
    """
    _share(debt, cluster).forget("")
    if cluster.share is None:
        Share(str(debt.folder / "share")).forget("")


def _share(debt: OpenDebt, cluster: Cluster) -> Share:
    folder, question, options = (cluster.share or str(debt.folder / "share")).partition("?")
    return Share(f"{folder.rstrip('/')}/{debt.manifest.id}{question}{options}")


def _work_folder(debt: OpenDebt, cluster: Cluster) -> Any:
    """Where Spark keeps its log; of a cluster, in a folder that all see."""
    if is_local(cluster.master):
        return work_folder(cluster.master, None)
    shared = cluster.share if cluster.share is not None and "://" not in cluster.share else debt.folder / "share"
    return work_folder(cluster.master, Path(shared))


def _retrying(master: str) -> str:
    """The master, one of this machine such that tasks are repeated."""
    if not is_local(master) or "," in master:
        return master
    cores = master.partition("[")[2].rstrip("]") or "1"
    return f"local[{cores},{TASK_FAILURES}]"


def _adapt(session: SparkSession) -> None:
    """Rows are blocks: few make a batch."""
    session.conf.set("spark.sql.parquet.columnarReaderBatchSize", "16")


# --- Parts ---------------------------------------------------------------------------------------------


def _export(debt: OpenDebt, share: Share) -> None:
    """Put all parts into the share, each block seen to be whole."""
    if share.whole(PARTS):
        return
    share.begin(PARTS)
    waiting: list[Row] = []
    files = 0
    for row in rows_of(debt):
        waiting.append(row)
        if len(waiting) == FILE_BLOCKS:
            share.write(PARTS, files, _table(waiting), GROUP_BLOCKS)
            waiting, files = [], files + 1
    share.write(PARTS, files, _table(waiting), GROUP_BLOCKS)
    share.done(PARTS)


def rows_of(debt: OpenDebt) -> Iterator[Row]:
    """All parts, a row per block (`ops.spark.cleanup_task.ROW`).

    Raises:
        StateError: a block is missing or damaged.
    """
    reader = Reader(debt.blocks)
    for owed in debt.manifest.debt.owed:
        for number, part in enumerate(owed.parts):
            for side, pieces in enumerate((part.left, part.right)):
                for piece in pieces:
                    raw = reader.own_block(piece.piece())
                    # What came late while the query ran is a part of its own, and stays one.
                    at = LATE_PART if part.late else number
                    yield owed.join, owed.group, at, side, piece.key, part.since, part.late, piece.rows, piece.last, raw


def _table(rows: list[Row]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(_SCHEMA)
    arrays = [pa.array(values, own.type) for values, own in zip(columns, _SCHEMA, strict=True)]
    return pa.table(arrays, schema=_SCHEMA)


# --- Levels --------------------------------------------------------------------------------------------


def _level(session: SparkSession, share: Share, number: int, joins: list[int], tasks: int, paying: Paying) -> None:
    """Pay the groups of joins of one height."""
    if share.whole(f"level-{number}"):
        return
    wanted = ", ".join(map(str, joins))
    rows = _read(session, share, number).where(f"join_no IN ({wanted})")
    ordered = rows.repartition(tasks, "join_no", "group_no").sortWithinPartitions(*ORDER)
    with warnings.catch_warnings():
        # Of pandas' version, which nothing here uses.
        warnings.simplefilter("ignore", FutureWarning)
        found = session.createDataFrame(ordered.rdd.mapPartitions(paying), ROW)
    writer = found.write.mode("overwrite").option("compression", "uncompressed")
    writer.option("parquet.block.size", str(32 << 20)).parquet(share.uri(f"level-{number}"))


def _read(session: SparkSession, share: Share, levels: int) -> DataFrame:
    """The parts, and what the first levels have found."""
    names = [PARTS, *(f"level-{number}" for number in range(levels))]
    return session.read.schema(ROW).parquet(*(share.uri(name) for name in names))


def _results(session: SparkSession, share: Share, levels: int, joins: int) -> Iterator[tuple[int, Iterator[Batch]]]:
    found = _read(session, share, levels).where(f"join_no = {joins}").orderBy("group_no", "key")
    rows = found.select("group_no", "key", "block").toLocalIterator()
    for group, own in groupby(rows, lambda row: int(row["group_no"])):
        yield group, (decode_block(bytes(row["block"]), row["key"]).batch for row in own)
