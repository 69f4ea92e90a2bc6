"""Serves the page of a run over files while it runs, for `weir run --ui`: `shown_run`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Protocol

from operators.autopilot.autopilot import Autopilot
from operators.engine.engine import Engine
from operators.groups.engine import GroupEngine
from operators.plan.choose import declared_statistics
from schemas.messages.control import Decision, GroupTaskStatistics, TaskHealth, TaskStatistics
from schemas.query import Query
from services.ui.documents.group_picture import group_picture
from services.ui.documents.picture import Document, NodeWords, picture
from services.ui.options import PageOptions
from services.ui.serve import page_of, serve_page
from services.ui.watch.live import LiveQuery, Snapshot

EVERY_S = 1.0


class Job(Protocol):
    """A run (`services.batch.file_run.FileRun`)."""

    @property
    def engine(self) -> Engine | GroupEngine | None:
        """None until it has begun to process."""
        ...


class RunReports:
    """Reports on a run as the tasks of a service report on themselves.

    Args:
        name: of the query or of the group.

    Attributes:
        live: takes the reports.
        address: of the page.
    """

    def __init__(self, name: str) -> None:
        self.live = LiveQuery(name)
        self.address = ""
        self._name = name
        self._job: Job | None = None
        self._state = "opening"
        self._began_s = time.monotonic()
        self._reported_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._live, name="run", daemon=True)

    def begin(self, job: Job) -> None:
        """Report on a run from now on."""
        self._job, self._state = job, "running"
        self._thread.start()

    def progress(self, done: int) -> None:
        """Report the figures if a second has passed; the run's thread calls this while it reads."""
        if time.monotonic() >= self._reported_s + EVERY_S:
            self._report()

    def finish(self) -> None:
        """Report the final figures."""
        self._state = "ended"
        self._report()

    def close(self) -> None:
        """Report no more."""
        self._ended.set()

    def _report(self) -> None:
        engine = None if self._job is None else self._job.engine
        if engine is None:
            return
        self._reported_s = now = time.monotonic()
        sent_ms, seconds = int(time.time() * 1000), now - self._began_s
        if isinstance(engine, Engine):
            document = engine.statistics().document()
            self.live.take(
                TaskStatistics(
                    query=self._name,
                    task=0,
                    tasks=1,
                    incarnation="run",
                    sent_ms=sent_ms,
                    seconds=seconds,
                    plan_version=0,
                    engine=document,
                )
            )
            self._report_decisions(getattr(self._job, "autopilot", None))
            return
        document = engine.statistics().document()
        self.live.take(
            GroupTaskStatistics(
                query=self._name, task=0, tasks=1, incarnation="run", sent_ms=sent_ms, seconds=seconds, engine=document
            )
        )

    def _report_decisions(self, autopilot: Autopilot | None) -> None:
        for number, one in {} if autopilot is None else autopilot.decisions.items():
            adaptation = one.document()
            self.live.take(Decision(query=self._name, number=number, adaptation=adaptation, account={}, first_plan=""))

    def _live(self) -> None:
        """Say every second that the run goes on, also while it computes for long; its figures come when it reads."""
        while not self._ended.wait(EVERY_S):
            status = {"task": 0, "state": self._state, "waits_for": "", "problem": ""}
            sent_ms = int(time.time() * 1000)
            self.live.take(TaskHealth(query=self._name, task=0, worker="weir run", sent_ms=sent_ms, status=status))


@contextmanager
def shown_run(queries: Sequence[Query], port: int) -> Iterator[RunReports]:
    """Serve the page of a run of one query, or of several, while the context lasts.

    Raises:
        WeirError: the port cannot be opened.
    """
    name = queries[0].name if len(queries) == 1 else "queries"
    reports = RunReports(name)
    page = page_of(reports.live, _drawn(queries, name), {}, {})
    with closing(reports), serve_page(page, PageOptions(port=port)) as server:
        reports.address = server.address
        yield reports


def _drawn(queries: Sequence[Query], name: str) -> Callable[[Snapshot], Document]:
    if len(queries) > 1:
        members = {query.name: query for query in queries}
        return lambda snapshot: group_picture(name, members, snapshot)
    expected = declared_statistics(queries[0])
    words = NodeWords(queries[0])
    return lambda snapshot: picture(queries[0], snapshot, expected, words)
