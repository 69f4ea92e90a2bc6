"""`GroupRun`: `weir run` of several queries over files, with one engine and a sink per query.

Each sink gets the same bytes as `services.batch.query_run` would write for that query alone: epochs end at the same
event times for all queries, and depend on the files alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from operators.groups.engine import GroupEngine
from operators.groups.sharing import group_engine
from schemas.columns import Batch
from schemas.query import CLEANUP_PHASE, Query
from services.batch.file_run import COALESCED_TUPLES, FileRun, Outputs
from services.files.sinks import ResultWriter
from services.files.sources import SourceFile
from services.files.tables import Tables
from services.spill.budget import SpillSetup


class GroupRun(FileRun[GroupEngine]):
    """One run of several queries over files; query number n writes to `Outputs.results[n]`."""

    def __init__(
        self,
        queries: Sequence[Query],
        sources: Mapping[str, SourceFile],
        outputs: Outputs,
        *,
        epoch_ms: int,
        executor: str | None = None,
        least_tuples: int = COALESCED_TUPLES,
        tables: Tables | None = None,
        spill: SpillSetup | None = None,
        keep_timeline: bool = False,
        feedback: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Args: those of `FileRun`, and
        executor: see `operators.groups.sharing`; None to choose one that suits the queries.
        feedback: see `operators.groups.sharing.group_engine`.
        """
        super().__init__(
            sources,
            outputs,
            queries,
            epoch_ms=epoch_ms,
            least_tuples=least_tuples,
            spill=spill,
            keep_timeline=keep_timeline,
            progress=progress,
        )
        self.queries = tuple(queries)
        self._executor = executor
        self._feedback = feedback
        self._tables = (tables or Tables()).batches

    def _engine(self, samples: Mapping[str, Batch]) -> GroupEngine:
        return group_engine(
            self.queries,
            executor=self._executor,
            samples=samples,
            tables=self._tables,
            clock=time.perf_counter,
            budget=None if self._spill is None else self._spill.budget,
            blocks=None if self._spill is None else self._spill.blocks,
            feedback=self._feedback,
        )

    def _write(self, engine: GroupEngine, writer: ResultWriter, cut: int) -> None:
        results = engine.advance(cut)
        for number, query in enumerate(self.queries):
            writer.write(results[query.name], sink=number)
        self._write_cleaned(engine, writer)

    def _clean(self, engine: GroupEngine, writer: ResultWriter) -> None:
        engine.clean()
        self._write_cleaned(engine, writer)

    def _write_cleaned(self, engine: GroupEngine, writer: ResultWriter) -> None:
        results = engine.cleaned()
        for number, query in enumerate(self.queries):
            for batch in results.get(query.name, ()):
                writer.write(batch, CLEANUP_PHASE, sink=number)
