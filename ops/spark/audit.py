"""`weir audit`: what a query wrote, held against the exact answer.

The exact answer comes from `ops.spark.answer`, which shares with the engine the language and the codecs, and nothing
that joins. Of a running query, results before a consistent cut are compared (`ops.spark.topics`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ops.spark.answer import ENDLESS, History
from ops.spark.backfill import Span, Spark, check_beginning, session_of
from ops.spark.compare import FoundResults, Verdict, compare
from ops.spark.results import answer_of, result_stream
from ops.spark.session import check_installed, split_for, work_folder
from ops.spark.sources import Intake, open_archives, stage_archives, stage_tables
from ops.spark.stage import Stage
from ops.spark.topics import committed_cut, ends_of, lanes_of, layout_of, read_idle, read_results, stage_topics
from schemas.query import Query
from services.files import SourceFile
from services.security import KafkaClients
from services.tables import Tables

SHOWN_UNREADABLE: Final = 5


@dataclass(slots=True)
class Audit:
    """What was found.

    Attributes:
        unreadable: records that are no results of the query: where, and why.
        begin, end: results with begin <= ts < end were compared; `end` is None where all were.
    """

    verdict: Verdict
    intake: Intake
    begin: int
    end: int | None
    unreadable: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Nothing is wrong."""
        return self.verdict.clean and not self.unreadable


def audit_files(
    query: Query,
    paths: Mapping[str, Sequence[str]],
    results: str,
    tables: Tables,
    span: Span,
    spark: Spark,
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
            intake = stage_archives(stage, files, query)
            stage_tables(stage, tables, query)
        history = History(stage.paths(), begin=span.begin, end=ENDLESS if span.end is None else span.end)
        verdict = _compare(query, stage, history, found, spark, folder)
    return Audit(verdict, intake, span.begin, span.end, unreadable)


def audit_topics(
    query: Query, clients: KafkaClients, group: str, tables: Tables, span: Span, spark: Spark
) -> Audit:
    """Compare the output topic of a query with the answer over its input topics, as far as its tasks have come.

    Raises:
        WeirError: Kafka, the group's commits or Spark fail; the message says which.
    """
    check_installed()
    sink = query.sink or query.name
    layout = layout_of(clients, query)
    cut = committed_cut(clients, group, query, layout)
    lanes = [lane for task in range(layout.tasks) for lane in layout.lanes(task)]
    ranges = {lane: (begin, cut.offsets.get(lane, begin)) for lane, (begin, _) in ends_of(clients, lanes).items()}
    with work_folder(spark.master, spark.folder) as folder:
        with FoundResults(folder / "found.parquet", query) as found:
            unreadable = read_results(clients, query, sink, found)
        with Stage(folder, query) as stage:
            intake = stage_topics(stage, clients, query, ranges, read_idle(clients, query))
            stage_tables(stage, tables, query)
        check_beginning(query, ranges, span, stage)
        ends, end = cut.ends, cut.end
        if ends is not None and len(lanes_of(clients, sink)) < layout.tasks:
            # Several tasks write to one partition: which result is whose is not known.
            ends, end = None, min(ends.values())
        if span.end is not None:
            end = min(end, span.end)
            ends = None if ends is None else {task: min(at, span.end) for task, at in ends.items()}
        history = History(stage.paths(), layout.copartitioned, span.begin, end, ends)
        verdict = _compare(query, stage, history, found, spark, folder)
    return Audit(verdict, intake, span.begin, end, unreadable)


def _compare(
    query: Query, stage: Stage, history: History, found: FoundResults, spark: Spark, folder: Path
) -> Verdict:
    with session_of(spark, folder) as session:
        split_for(session, stage.size_bytes() + found.path.stat().st_size)
        return compare(session, query, answer_of(session, query, history), found, history)

