"""`weir audit`: compares the results that a query wrote with the exact answer.

The exact answer is from `ops.spark.answer`, which shares with the engine the language and the codecs, and no part of
the join. For a running query, the results before a consistent cut are compared (`ops.spark.topics`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ops.spark.answer import ENDLESS, History
from ops.spark.backfill import ResultRange, Say, Spark, check_beginning, quiet, session_of
from ops.spark.compare import FoundResults, Verdict, compare
from ops.spark.results import answer_of, result_stream
from ops.spark.session import check_installed, split_for, work_folder
from ops.spark.sources import RecordCounts, open_archives, stage_archives, stage_tables
from ops.spark.stage import Stage
from ops.spark.topics import (
    QueryProgress,
    committed_cut,
    ends_of,
    lanes_of,
    layout_of,
    read_idle_late,
    read_results,
    stage_topics,
)
from schemas.errors import StateError
from schemas.query import Query
from services.files.sources import SourceFile
from services.files.tables import Tables
from services.formats.decoders import Decoders
from services.process.security import KafkaClients


@dataclass(slots=True)
class Audit:
    """The outcome of an audit.

    Attributes:
        unreadable: records that are no results of the query: where, and why.
        topic: where the results were; None for a file.
        begin, end: results with begin <= ts < end were compared; `end` is None where all were.
    """

    verdict: Verdict
    intake: RecordCounts
    begin: int
    end: int | None
    topic: str | None = None
    unreadable: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return self.verdict.clean and not self.unreadable


def audit_files(
    query: Query,
    paths: Mapping[str, Sequence[str]],
    results: str,
    tables: Tables,
    span: ResultRange,
    spark: Spark,
    say: Say = quiet,
) -> Audit:
    """Compare a file of results with the answer over archives.

    Raises:
        WeirError: input or Spark fail; the message says which.
    """
    check_installed()
    files = open_archives(query, paths)
    written = SourceFile(result_stream(query), results)
    unreadable: list[str] = []
    with work_folder(spark.master, spark.folder) as folder:
        say("reading results")
        with FoundResults(folder / "found.parquet", query) as found:
            row = 0
            for block in written.blocks():
                decoded = block.decoded
                found.add(decoded.batch, 0, row + 1 + decoded.rows)
                row += decoded.records
                unreadable += [
                    f"{results}:{line}: {dead.reason}" for line, dead in zip(block.lines, decoded.dead, strict=True)
                ]
        with Stage(folder, query) as stage:
            say("reading archives")
            intake = stage_archives(stage, files, query)
            stage_tables(stage, tables, query)
        history = History(stage.paths(), begin=span.begin, end=ENDLESS if span.end is None else span.end)
        say(f"comparing {found.results:,} results with the answer of Spark")
        verdict = _compare(query, stage, history, found, spark, folder)
    return Audit(verdict, intake, span.begin, span.end, None, unreadable)


def audit_topics(
    query: Query,
    clients: KafkaClients,
    group: str,
    tables: Tables,
    decoders: Decoders,
    span: ResultRange,
    spark: Spark,
    say: Say = quiet,
) -> Audit:
    """Compare the output topic of a query with the answer over its input topics, as far as its tasks have come.

    Raises:
        WeirError: Kafka, the group's commits or Spark fail; the message says which.
    """
    check_installed()
    sink = query.sink or query.name
    layout = layout_of(clients, query)
    cut = committed_cut(clients, group, query, layout)
    _check_tables(tables, cut)
    lanes = [lane for task in range(layout.tasks) for lane in layout.lanes(task)]
    ranges = {lane: (begin, cut.offsets.get(lane, begin)) for lane, (begin, _) in ends_of(clients, lanes).items()}
    with work_folder(spark.master, spark.folder) as folder:
        with FoundResults(folder / "found.parquet", query) as found:
            say(f"reading results from {sink}")
            unreadable = read_results(clients, query, decoders, sink, found)
        if unreadable and not found.results and query.result_format.schema is not None:
            raise StateError(f"no result can be read, {unreadable[0]}; an audit needs `_ts` in the results' schema")
        with Stage(folder, query) as stage:
            say("reading the past of the input topics")
            intake = stage_topics(stage, clients, query, decoders, ranges, read_idle_late(clients, query))
            stage_tables(stage, tables, query)
        check_beginning(query, ranges, span, stage)
        ends, end = cut.ends, cut.end
        if ends is not None and (query.result_format.key or len(lanes_of(clients, sink)) < layout.tasks):
            # Several tasks write to one partition, or one to several: no result tells which task wrote it.
            end, ends = min(ends.values()), None
        if span.end is not None:
            end = min(end, span.end)
            ends = None if ends is None else {task: min(at, span.end) for task, at in ends.items()}
        history = History(stage.paths(), layout.copartitioned, span.begin, end, ends)
        say(f"comparing {found.results:,} results with the answer of Spark")
        verdict = _compare(query, stage, history, found, spark, folder)
    return Audit(verdict, intake, span.begin, end, sink, unreadable)


def _check_tables(tables: Tables, cut: QueryProgress) -> None:
    """Refuse tables whose contents differ from those that the query joined with.

    Raises:
        StateError: names the table.
    """
    for (name, content), was in zip(tables.contents.items(), cut.tables, strict=False):
        if content != was:
            raise StateError(
                f"table {name!r} is not what the query joined with at its last commit; "
                f"--table {name}=PATH gives another file"
            )


def _compare(query: Query, stage: Stage, history: History, found: FoundResults, spark: Spark, folder: Path) -> Verdict:
    with session_of(spark, folder) as session:
        split_for(session, stage.size_bytes() + found.path.stat().st_size)
        return compare(session, query, answer_of(session, query, history), found, history)
