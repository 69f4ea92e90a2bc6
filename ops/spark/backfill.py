"""`weir backfill`: answers a query over history, in batch.

    archives or topics -> decoded, late tuples left out (`ops.spark.stage`) -> Spark (`ops.spark.answer`,
    `difference`, `aggregates`) -> result lines as of `weir run`

From files the answer is that of `weir run`: the input has ended. From topics it is what a worker has written once it
has read the same records: only the results that the watermark has made final, since more records may arrive. An end
that the user requests (`--to`) is taken as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ops.spark.answer import ENDLESS, History
from ops.spark.expressions import register_functions
from ops.spark.results import answer_of, open_results, read_answer
from ops.spark.session import check_installed, spark_errors, spark_session, split_for, work_folder
from ops.spark.sources import RecordCounts, open_archives, stage_archives, stage_tables
from ops.spark.stage import Stage
from ops.spark.topics import IdleLateTuples, QueryProgress, ends_of, layout_of, stage_topics
from schemas.errors import StateError, UsageError
from schemas.query import Query
from schemas.timestamps import format_iso
from services.files.tables import Tables
from services.formats.decoders import Decoders
from services.kafka.topics import Lane
from services.placement.tasks import Layout
from services.process.security import KafkaClients

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class ResultRange:
    """A range of results: begin <= ts < end; `end` is None where the user requests none."""

    begin: int = 0
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Spark:
    """The Spark to run jobs on.

    Attributes:
        folder: the folder that driver and executors share; None for a temporary one.
    """

    master: str
    folder: Path | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


Say = Callable[[str], None]
"""Receives what a job is doing just now, in a few words."""


def quiet(text: str) -> None:
    """Ignore the text."""


@dataclass(slots=True)
class BackfillReport:
    """What a backfill did.

    Attributes:
        until: all results before that event time are there; None where the input has ended.
        notes: what an operator should know.
    """

    intake: RecordCounts
    results: int = 0
    until: int | None = None
    notes: list[str] = field(default_factory=list)


@contextmanager
def session_of(spark: Spark, folder: Path) -> Iterator[SparkSession]:
    """A session for answers.

    Raises:
        UsageError: pyspark or Java is not installed.
        StateError: Spark does not start, or a job fails.
    """
    with spark_session(spark.master, folder, **spark.settings) as session, spark_errors("the batch answer"):
        register_functions(session)
        yield session


def backfill_files(
    query: Query,
    paths: Mapping[str, Sequence[str]],
    tables: Tables,
    out: str,
    span: ResultRange,
    spark: Spark,
    say: Say = quiet,
) -> BackfillReport:
    """Answer over archives.

    Args:
        paths: by stream, the pieces of its archive.

    Raises:
        WeirError: input, output or Spark fail; the message says which.
    """
    check_installed()
    files = open_archives(query, paths)
    with work_folder(spark.master, spark.folder) as folder:
        with Stage(folder, query) as stage:
            say("reading archives")
            intake = stage_archives(stage, files, query)
            stage_tables(stage, tables, query)
        report = BackfillReport(intake, until=span.end)
        history = History(stage.paths(), begin=span.begin, end=ENDLESS if span.end is None else span.end)
        say(f"answering over {stage.tuples:,} tuples with Spark")
        _write(query, stage, history, out, spark, folder, report)
        return report


def backfill_topics(
    query: Query,
    clients: KafkaClients,
    tables: Tables,
    decoders: Decoders,
    out: str,
    span: ResultRange,
    spark: Spark,
    say: Say = quiet,
) -> BackfillReport:
    """Answer over what topics hold now.

    Raises:
        WeirError: input, output or Spark fail; the message says which.
    """
    check_installed()
    layout = layout_of(clients, query)
    lanes = [lane for task in range(layout.tasks) for lane in layout.lanes(task)]
    ranges = ends_of(clients, lanes)
    with work_folder(spark.master, spark.folder) as folder:
        with Stage(folder, query) as stage:
            say("reading the past of the input topics")
            intake = stage_topics(stage, clients, query, decoders, ranges, IdleLateTuples({}))
            stage_tables(stage, tables, query)
        check_beginning(query, ranges, span, stage)
        report = BackfillReport(intake)
        report.notes += gap_notes(stage)
        if span.end is not None:
            history = History(stage.paths(), layout.copartitioned, span.begin, span.end)
            report.until = span.end
        else:
            cut = watermark(query, layout, stage, ranges)
            history = History(stage.paths(), layout.copartitioned, span.begin, cut.end, cut.ends)
            report.until = cut.end
            report.notes += _waiting(query, layout, stage, ranges, cut)
        say(f"answering over {stage.tuples:,} tuples with Spark")
        _write(query, stage, history, out, spark, folder, report)
        return report


def watermark(query: Query, layout: Layout, stage: Stage, ranges: Mapping[Lane, tuple[int, int]]) -> QueryProgress:
    """The event times below which results are final once all staged input has been read: the least watermark, per
    task."""
    ends = {
        task: max(0, min(_lane_watermark(query, stage, lane) for lane in layout.lanes(task)))
        for task in range(layout.tasks)
    }
    offsets = {lane: end for lane, (_, end) in ranges.items()}
    return QueryProgress(offsets, max(ends.values()), ends if layout.copartitioned else None)


def _lane_watermark(query: Query, stage: Stage, lane: Lane) -> int:
    topic, number = lane
    return min(stage.watermark(stream, number) for stream in query.streams() if stream.topic == topic)


def _waiting(
    query: Query, layout: Layout, stage: Stage, ranges: Mapping[Lane, tuple[int, int]], cut: QueryProgress
) -> list[str]:
    """A note that names the partitions that keep back all results; none where there are no such partitions."""
    ends = cut.ends or {0: cut.end}
    silent = [
        f"{topic}[{number}]"
        for task, end in ends.items()
        if end == 0 and any(ranges[lane][1] > ranges[lane][0] for lane in layout.lanes(task))
        for topic, number in layout.lanes(task)
        if _lane_watermark(query, stage, (topic, number)) <= 0
    ]
    if not silent:
        return []
    return [f"{', '.join(silent[:5])} hold no tuple yet, so no result is final; --to TIME answers up to a time anyway"]


def gap_notes(stage: Stage) -> list[str]:
    """A note about each table of which versions may be gone."""
    return [
        f"table {name!r} lacks offsets: dead letters, ends of transactions, or versions that Kafka has "
        "compacted, which count as if they had never been"
        for name in sorted(stage.gaps)
    ]


def check_beginning(query: Query, ranges: Mapping[Lane, tuple[int, int]], span: ResultRange, stage: Stage) -> None:
    """Refuse topics whose beginning Kafka has deleted where that would change results.

    The deleted records were not more than the disorder ahead of the first record that is left, unless that record
    itself was late. From then on, one window length must pass until no window contains a deleted tuple, and another
    until nothing joins with tuples that were late.

    Raises:
        StateError: the results asked for may need records that are gone.
    """
    for (topic, number), (begin, end) in ranges.items():
        if begin == 0 or begin >= end:
            continue
        place = f"{topic}[{number}] begins at offset {begin}: Kafka's retention has deleted what was before"
        if any(stream.is_versioned and stream.topic == topic for stream in query.streams()):
            raise StateError(f"{place}, and a table's rows may be as old as that")
        windows = [source.window for source in query.sources if not source.is_static]
        if any(window.kind != "RANGE" for window in windows):
            raise StateError(f"{place}, and ROWS and UNBOUNDED windows need all of it")
        streams = [stream for stream in query.streams() if stream.topic == topic]
        if any(stream.deduplicate for stream in streams):
            raise StateError(f"{place}, and which tuples are repeats may depend on all of it")
        first = min(stage.first_ts(stream, number) for stream in streams)
        longest = max(window.size for window in windows)
        every = query.aggregation.every_ms if query.aggregation else 0
        least = first + longest + max(stream.disorder_ms for stream in streams) + every + 1
        if span.begin < least:
            raise StateError(
                f"{place}, which results before {format_iso(least)} may need; --from {format_iso(least)} leaves those "
                "out"
            )


def _write(
    query: Query, stage: Stage, history: History, out: str, spark: Spark, folder: Path, report: BackfillReport
) -> None:
    """Run the job, then write its results in order."""
    file = open_results(out, query)
    with session_of(spark, folder) as session:
        split_for(session, stage.size_bytes())
        write_parquet(answer_of(session, query, history), folder / "answer")
    for batch in read_answer(query, folder / "answer"):
        file.write(batch)
        report.results += len(batch)
    file.close()


def write_parquet(frame: DataFrame, folder: Path) -> None:
    """Write a frame's rows to a folder of Parquet files; the order of the file names is the order of the rows."""
    frame.write.parquet(folder.absolute().as_uri())


def span_of(begin: int | None, end: int | None) -> ResultRange:
    """A span from options.

    Raises:
        UsageError: it is empty.
    """
    if begin is not None and end is not None and begin >= end:
        raise UsageError(f"--from {format_iso(begin)} must be before --to {format_iso(end)}")
    return ResultRange(begin or 0, end)
