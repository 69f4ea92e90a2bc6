"""A task's spilled state through deaths, without Kafka: the next incarnation has only what commits hold."""

from __future__ import annotations

import math
import random
import resource
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import orjson
import pytest

from operators.engine.engine import Engine
from operators.plan.plan import parse_plan
from operators.spill.spilling import MemoryBudget
from schemas.codecs.encode import encode_results
from schemas.codecs.results import ResultRecords
from schemas.columns import Batch
from schemas.errors import SpillError, StateError
from schemas.language.program import parse_program
from schemas.messages.spills import decode_events
from schemas.query import CLEANUP_PHASE, Query
from services.delivery.epoch_output import BlockRecord
from services.process.metrics import WorkerMetrics
from services.program.migrations import PlanChanges
from services.program.result_output import encode_pieces
from services.spill.spill_log import LogRecord, SpillLog
from services.task.spec import TaskEnd, TaskOutcome
from services.task.spill import MAX_REST_S, SpillStart, TaskSpill
from services.task.task import Task
from tests import oracle
from tests.feeding import to_batch
from tests.services import one_task
from tests.worker_harness import Row, canonical, in_time, unmarked

QUERY = """
CREATE STREAM a (k BIGINT, v BIGINT, at TIMESTAMP) WITH (topic = 'a', timestamp = 'at');
CREATE STREAM b (k BIGINT, v BIGINT, at TIMESTAMP) WITH (topic = 'b', timestamp = 'at');
CREATE STREAM c (k BIGINT, v BIGINT, at TIMESTAMP) WITH (topic = 'c', timestamp = 'at');
INSERT INTO 'out' SELECT A.v AS a, B.v AS b, C.v AS c FROM a A [RANGE 60 MILLISECONDS], b B [RANGE 40 MILLISECONDS],
c C [RANGE 80 MILLISECONDS] WHERE A.k = B.k AND B.k = C.k
"""
(JOINED,) = parse_program(QUERY).queries
(COUNTED,) = parse_program(QUERY.replace("[RANGE 40 MILLISECONDS]", "[ROWS 10]")).queries
PLANS = [parse_plan(text, JOINED) for text in ("((A B) C)", "((B C) A)", "((A C) B)")]
LANE = ("weir-out.spills", 0)
END = 1_000


class TaskHistory:
    """The incarnations of one task over a log of input, and what they have committed.

    Attributes:
        out: results.
    """

    def __init__(self, query: Query, rng: random.Random, folder: Path) -> None:
        self.query = query
        self.rows = {
            name: [{"k": rng.randrange(6), "v": 1000 * n + at, "at": at} for at in range(n, END, 4)]
            for n, name in enumerate("abc")
        }
        self.out: list[Row] = []
        self.hanging: list[SpillStart] = []
        self._rng = rng
        self._folder = folder
        self._records: list[BlockRecord] = []
        self._span = (0, 0)
        self._cut = 0
        self._committed: dict[str, int] = {}
        self._points: dict[str, tuple[int, int]] = {}
        self.begin(MemoryBudget(2_000, "bottom-up", groups=4))

    def begin(self, budget: MemoryBudget) -> None:
        """Start an incarnation at the last commit."""
        known: list[LogRecord] = []
        for record in self._records:
            number = int(record.key or b"")
            if self._span[0] <= number < self._span[1]:
                said = decode_events(record.value, budget.groups, "log")
                known.append(LogRecord(number, said.events, said.plan, offset=number))
        self.start = start = SpillStart(budget, self._folder, SpillLog(LANE, budget.groups, known, self._span[1]))
        assert start.blocks.keys() == [], "blocks of former incarnations are not used"
        own = self._rng.choice(PLANS)
        plan = start.plan(self.query)
        self.engine = Engine(self.query, plan=plan or own, budget=budget, blocks=start.blocks)
        self.spill = TaskSpill(
            start,
            self.engine,
            self._cut,
            lambda: encode_pieces("out", ResultRecords(), self.engine.cleaned(), CLEANUP_PHASE),
            lambda: str(self.engine.plan),
        )
        if plan not in (None, own):
            self.engine.migrate(own, "moving-state", self._cut)
        self._taken: dict[str, int] = {}
        for name in self.rows:
            offset, max_ts = self._points.get(name, (0, -1))
            if max_ts >= 0:
                self.engine.set_clock(name, 0, max_ts)
            self._push(name, offset, self._committed.get(name, 0))
        if self._cut:
            self.engine.advance(self._cut)
            assert self.engine.plan == own

    def _push(self, name: str, begin: int, end: int) -> None:
        stream = next(stream for stream in self.query.streams() if stream.name == name)
        if end > begin:
            batch = to_batch(stream, self.rows[name][begin:end])
            self.engine.push(name, 0, batch, np.arange(begin, end))
        self._taken[name] = end

    def _take(self, until: int) -> None:
        for name, rows in self.rows.items():
            end = self._taken[name]
            while end < len(rows) and rows[end]["at"] <= until:
                end += 1
            self._push(name, self._taken[name], end)

    def epoch(self, until: int, *, commit: bool) -> None:
        """Process the tuples before an event time, and commit, or die before the commit."""
        self._take(until)
        self._deliver(self.engine.advance(), commit=commit)

    def finish(self) -> None:
        """End the input, and clean up all pending results."""
        self._take(END)
        for name in self.rows:
            self.engine.close(name, 0)
        results = self.engine.advance()
        self.engine.clean()
        self._deliver(results, commit=True)

    def _deliver(self, results: Batch, *, commit: bool) -> None:
        self.spill.advanced()
        late, records = self.spill.commit()
        if not commit:
            return
        for piece in (encode_results(results), *(piece for _, piece in late)):
            self.out += [orjson.loads(line) for line in piece.data.splitlines()]
        self._records += records
        self._span, self._cut, self._committed = self.spill.span, self.engine.cut, dict(self._taken)
        for name in self.rows:
            point = self.engine.replay_point(name, 0, self.engine.horizon(name))
            self._points[name] = (point.offset, point.max_ts)

    def clean(self) -> None:
        """Clean up between epochs, as often as the task allows."""
        self.spill.clean_up_between_epochs(math.inf)

    def pending(self) -> int:
        """Pending pairs of tuples: those that have not been compared."""
        spill = self.engine.statistics().spill
        assert spill is not None
        return spill.owed

    def die(self) -> None:
        """Lose everything but commits, and blocks, which are of no use.

        The incarnation may hang instead, with its blocks open, and end after others have started.
        """
        if self._rng.random() < 0.5:
            self.hanging.append(self.start)
        else:
            self.start.blocks.close()
        while len(self.hanging) > 2:
            self.hanging.pop(0).close()

    def expected(self) -> Counter[str]:
        return canonical(oracle.results(self.query, self.rows))


@pytest.mark.parametrize(("seed", "query"), [(0, JOINED), (1, COUNTED)])
def test_commits_hold_all_that_a_successor_needs(seed: int, query: Query, tmp_path: Path) -> None:
    """Incarnations die after commits and before them, with or without cleanup in between."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    history = TaskHistory(query, rng, tmp_path / "spilled")
    until = 0
    while until < END:
        until += rng.randrange(5, 40)
        commit = rng.random() < 0.7
        history.epoch(until, commit=commit)
        if rng.random() < 0.3:
            history.clean()
        if not commit or rng.random() < 0.3:
            history.die()
            history.begin(MemoryBudget(2_000, "bottom-up", groups=4))
    history.finish()
    assert canonical(unmarked(history.out)) == history.expected()
    assert not all(map(in_time, history.out))
    times = [row["_ts"] for row in history.out if in_time(row)]
    assert times == sorted(times)
    assert history.spill.span[0] > 10, "events are forgotten"
    for start in (history.start, *history.hanging):
        assert start.blocks.path.exists()
        start.close()
        assert not start.blocks.path.exists()


def test_a_folder_that_cannot_be_used_leaves_nothing(tmp_path: Path) -> None:
    """The worker tries a full disk again and again, so failures must not pile up folders."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limit[1]))
    try:
        with pytest.raises(SpillError):
            SpillStart(MemoryBudget(2_000, "bottom-up"), tmp_path / "spilled", SpillLog(LANE, 4, [], 0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert not any((tmp_path / "spilled").iterdir())


def test_a_long_cleanup_step_does_not_delay_the_next(tmp_path: Path) -> None:
    """A step that took 20 s on a busy machine, or because kernels were compiled, used to delay the next for 100 s."""
    history = TaskHistory(JOINED, random.Random(3), tmp_path / "spilled")
    for until in range(40, END, 40):
        history.epoch(until, commit=True)
    began = time.monotonic()
    pending = [history.pending()]
    for now in (began - 20.0, began, began + MAX_REST_S + 60.0):
        history.spill.clean_up_between_epochs(now)
        pending.append(history.pending())
    assert pending[0] > pending[1], "a step"
    assert pending[1] == pending[2], "a rest"
    assert pending[2] > pending[3], "and the next step"
    history.spill.close()


def test_a_quiet_task_cleans_up_everything(tmp_path: Path) -> None:
    """It does so however long each step takes, even if the watermark stands; then it checks only from time to time.

    A task without input used to clean up in a fifth of its time, with rests of up to 5 s: 33 s for a few seconds' work.
    """
    history = TaskHistory(JOINED, random.Random(3), tmp_path / "spilled")
    for until in range(40, END, 40):
        history.epoch(until, commit=True)
    assert history.pending() > 0
    began = time.monotonic()
    bites = 0
    while history.spill.run_cleanup_step(began - 20.0):
        bites += 1
        assert history.spill.advanced(), "each step is committed"
        history.spill.commit()
    assert bites > 1
    assert history.pending() == 0
    assert not history.spill.run_cleanup_step(time.monotonic()), "no results were pending a moment ago"
    history.spill.close()


def test_what_the_last_cleanup_has_produced_is_committed(tmp_path: Path) -> None:
    """A plan may end right after a cleanup step, without an epoch in between."""
    budget = MemoryBudget(2_000, "bottom-up", groups=4)
    start = SpillStart(budget, tmp_path, SpillLog(LANE, budget.groups, [], 0))
    engine = Engine(JOINED, plan=PLANS[0], budget=budget, blocks=start.blocks)
    late = [("out", encode_results(engine.advance(0)))]
    spill = TaskSpill(start, engine, 0, lambda: [late.pop()] if late else [], lambda: str(engine.plan))
    found, _ = spill.commit()
    assert len(found) == 1
    assert spill.commit() == ([], [])
    spill.close()


class Failing(PlanChanges):
    """Raises an error in the task's thread."""

    def __init__(self, error: StateError) -> None:
        self._error = error

    def look(self, committed: float, now: float) -> None:
        """Raise it."""
        raise self._error


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (SpillError("spilled block 0/1/0 is damaged"), TaskEnd.SPILL_FAILED),
        (StateError("record weir-out.1.a[0]@7 is no block of intermediate results"), TaskEnd.FAILED),
    ],
)
def test_only_spilled_state_that_fails_is_tried_again(error: StateError, end: TaskEnd, tmp_path: Path) -> None:
    """With a memory budget, another program's record in an internal topic counted as a broken disk: the task began
    again for ever, and the worker's log advised to look after the disk."""
    budget = MemoryBudget(2_000, "bottom-up", groups=4)
    start = SpillStart(budget, tmp_path, SpillLog(LANE, budget.groups, [], 0))
    partitions = {name: [partition] for name, partition in one_task.LANES}
    engine = Engine(one_task.QUERY, partitions=partitions, budget=budget, blocks=start.blocks, clock=time.monotonic)
    outcomes: list[TaskOutcome] = []
    with ThreadPoolExecutor(1) as executor:
        kafka = one_task.Kafka()
        context = one_task.make_context(kafka, executor, WorkerMetrics("out"), Failing(error), engine)
        context.spill = TaskSpill(start, engine, 0, list)
        task = Task(context, threading.Event(), lambda: None, lambda _, outcome: outcomes.append(outcome))
        task.start()
        assert task.join(60)
    assert outcomes == [TaskOutcome(end, error)]
    assert not start.blocks.path.exists()
