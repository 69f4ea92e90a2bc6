"""A task's plan changes against its engine, the control log in memory: where a life begins, what it reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.engine import Engine
from operators.migration.strategies import STRATEGIES
from operators.plan import parse_plan
from schemas.columns import Batch, Column
from schemas.control import Answer, BarrierMessage, Cut, Done, Opened, Propose, Request, Started
from schemas.language import parse_program
from schemas.query import Type
from services.barrier import Barrier, View
from services.coordination import Coordination
from services.logs import get_log
from services.metrics import WorkerMetrics
from services.participant import GRACE_S, RESEND_S
from services.recovery import RecoveryPlan
from services.task_migrations import TaskMigrations
from tests.feeding import to_rows

QUERY = parse_program(
    """
    CREATE STREAM a (k BIGINT, at TIMESTAMP) WITH (topic = 'ta', timestamp = 'at');
    CREATE STREAM b (k BIGINT, at TIMESTAMP) WITH (topic = 'tb', timestamp = 'at');
    CREATE STREAM c (k BIGINT, at TIMESTAMP) WITH (topic = 'tc', timestamp = 'at');
    INSERT INTO 'out' SELECT A.at AS a, B.at AS b, C.at AS c
    FROM a A, b B, c C WINDOW RANGE 50 MILLISECONDS WHERE A.k = B.k AND B.k = C.k
    """
).queries[0]
OWN, OTHER, THIRD = "((A B) C)", "((B C) A)", "((A C) B)"


@dataclass
class Log:
    """A control log whose messages are read as soon as they are appended."""

    messages: list[BarrierMessage] = field(default_factory=list)

    @property
    def view(self) -> View:
        barrier = Barrier()
        for message in self.messages:
            barrier.apply(message)
        return barrier.view()

    def append(self, *messages: BarrierMessage) -> None:
        self.messages += messages

    def propose(self, id_: str, plan: str, **more: str) -> None:
        settings = {"strategy": "jisc", "fingerprint": "f", **more}
        self.append(Propose(id=id_, plan=plan, tasks=1, timeout_ms=1000, **settings))

    def decide(self, id_: str, plan: str, cut: int) -> None:
        """A change that was decided before the life in question."""
        self.append(Opened(task=0, life="former"))
        self.propose(id_, plan)
        self.append(Answer(id=id_, task=0, life="former", watermark=0, bound=0), Cut(id=id_, cut=cut))


class Life:
    """One life of the task; tuples with ts = 10, 20, ... of all streams."""

    def __init__(
        self, log: Log, *, version: int = 0, cut: int = 0, push: Callable[[Engine, int], None] | None = None
    ) -> None:
        """Args: `push` gives an engine what a recovery reads again, before it advances to `cut`."""
        self.log = log
        name = f"life-{len(log.messages)}"
        log.append(Opened(task=0, life=name))
        self.metrics = WorkerMetrics("out")
        self.migrations = TaskMigrations(
            query=QUERY,
            own=parse_plan(OWN, QUERY),
            task=0,
            tasks=1,
            life=name,
            fingerprint="f",
            recovery=RecoveryPlan("window", cut, 0, 1, version, {}, 0),
            control=log,
            view=log.view,
            log=get_log("test"),
            metrics=self.metrics.of("0"),
        )
        self.engine = Engine(QUERY, plan=self.migrations.plan)
        self.migrations.attach(self.engine)
        self.pushed = 0
        if cut:
            if push is None:
                self.push(cut)
            else:
                push(self.engine, cut)
            self.engine.advance(cut)

    def push(self, until: int) -> None:
        ts = np.arange(self.pushed + 10, until + 1, 10, dtype=np.int64)
        self.pushed = until
        for stream in "abc":
            columns = {"k": Column(Type.BIGINT, np.zeros(len(ts), np.int64)), "at": Column(Type.TIMESTAMP, ts)}
            self.engine.push(stream, 0, Batch(ts, columns))

    def epoch(self, until: int, now: float) -> int:
        """One epoch of the task; where it ended."""
        self.push(until)
        self.migrations.look(now, now)
        self.migrations.advanced(self.engine.advance(self.migrations.limit(until, now)), now)
        return self.engine.cut

    def said(self) -> list[Started | Done]:
        return [message for message in self.log.messages if isinstance(message, Started | Done)]


def test_a_change_from_proposal_to_done() -> None:
    log = Log()
    life = Life(log)
    for second in (1, 2, 3):
        assert life.epoch(100 * second, float(second)) == 100 * second
    log.propose("m", OTHER)
    # 100 ms a second lately: the bound lies half a second ahead.
    assert life.epoch(400, 3.1) == 350
    assert life.epoch(400, 3.4) == 350
    assert log.view.answers[0].bound == 350
    log.append(Cut(id="m", cut=370))
    assert life.migrations.version == 0
    assert life.epoch(400, 3.5) == 400
    assert life.migrations.version == 1
    assert str(life.engine.plan) == OTHER
    life.epoch(500, 3.6)
    life.epoch(510, 3.7)
    started, done = life.said()
    assert started == Started(
        id="m", task=0, version=1, began_at=370, exact=True, strategy="jisc", silence_s=pytest.approx(0.4)
    )
    assert isinstance(done, Done)
    assert (done.version, done.began_at, done.first_result_ts) == (1, 370, 370)
    assert done.longest_silence_s == pytest.approx(0.4)
    assert life.metrics.registry.get_sample_value("weir_plan_version", {"query": "out", "task": "0"}) == 1.0


def test_reports_are_sent_until_they_are_in_the_log() -> None:
    log = Log()
    log.decide("m", OTHER, 50)
    life = Life(log)
    life.epoch(100, 1.0)
    life.epoch(200, 1.2)
    assert [type(message) for message in life.said()] == [Started, Done]
    log.messages = [message for message in log.messages if not isinstance(message, Done)]  # it got lost
    life.epoch(310, 1.3)
    assert [type(message) for message in life.said()] == [Started]
    for now in (1.3 + RESEND_S, 1.4 + RESEND_S, 1.4 + 3 * RESEND_S):
        life.epoch(400, now)
        assert [type(message) for message in life.said()] == [Started, Done]


def test_a_life_begins_with_the_committed_version_and_takes_later_cuts_again() -> None:
    log = Log()
    log.decide("m", OTHER, 50)
    log.decide("n", THIRD, 150)
    life = Life(log, version=1, cut=100)
    assert str(life.engine.plan) == OTHER
    assert life.migrations.version == 1
    life.epoch(120, 1.0)
    assert life.migrations.version == 1
    # The migration of version 1 was not done when the former life ended; now it is.
    (restored,) = life.said()
    assert restored == Done(id="m", task=0, version=1, restored=True)
    life.epoch(200, 1.1)
    assert life.migrations.version == 2
    life.epoch(210, 1.2)
    assert [(m.id, m.exact) for m in life.said() if isinstance(m, Started)] == [("n", True)]


def test_a_cut_that_had_to_wait_is_taken_where_the_life_begins() -> None:
    """Version 2 had come to its cut but waited for version 1 to end when the former life died."""
    log = Log()
    log.decide("m", OTHER, 50)
    log.decide("n", THIRD, 90)
    life = Life(log, version=1, cut=100)
    life.epoch(200, 1.0)
    life.epoch(210, 1.1)
    assert life.migrations.version == 2
    started = [m for m in life.said() if isinstance(m, Started)]
    assert [(m.id, m.began_at, m.exact) for m in started] == [("n", 100, False)]


def test_a_control_topic_that_was_deleted() -> None:
    """The committed version is unknown: the task begins with its own plan, and changes plans again from there."""
    log = Log()
    life = Life(log, version=3, cut=100)
    assert str(life.engine.plan) == OWN
    assert life.migrations.version == 0
    log.propose("m", OTHER)
    life.epoch(110, 1.0)
    log.append(Cut(id="m", cut=log.view.least_cut))
    life.epoch(200, 1.1)
    assert life.migrations.version == 1


@pytest.mark.parametrize(
    ("plan", "more", "said"),
    [
        ("((A B) D)", {}, "unknown alias 'D'"),
        (OTHER, {"strategy": "quickly"}, "unknown migration strategy"),
        (OTHER, {"fingerprint": "g"}, "another query"),
        (OTHER, {"prefer": "luck"}, "cannot prefer 'luck'"),
    ],
)
def test_what_a_task_refuses(plan: str, more: dict[str, str], said: str) -> None:
    log = Log()
    life = Life(log)
    log.propose("m", plan, **more)
    assert life.epoch(100, 1.0) == 100  # nothing promised
    (answer,) = log.view.refusals
    assert said in answer.error


def test_a_promise_ends_by_the_tasks_own_word() -> None:
    log = Log()
    life = Life(log)
    life.epoch(100, 1.0)
    log.propose("m", OTHER)
    assert life.epoch(200, 2.0) == 100
    assert life.epoch(200, 2.0 + GRACE_S + 1.0) == 100  # says so
    assert life.epoch(200, 2.1 + GRACE_S + 1.0) == 200
    assert log.view.withdrawn["m"].by == "task 0"


# --- Whatever happens, the results of the query ------------------------------------------------------

END = 600
STRATEGY_NAMES = sorted(STRATEGIES)


def rows(begin: int, until: int) -> Batch:
    """Tuples with begin <= ts < until, all streams alike: three keys, a tuple every 4 ms."""
    ts = np.arange(-(-begin // 4) * 4, until, 4, dtype=np.int64)
    return Batch(ts, {"k": Column(Type.BIGINT, ts // 4 % 3), "at": Column(Type.TIMESTAMP, ts)})


def fill(engine: Engine, begin: int, until: int) -> None:
    for stream in "abc":
        engine.push(stream, 0, rows(begin, until))


STEPS = st.one_of(
    st.tuples(st.just("epoch"), st.integers(1, 60), st.booleans()),
    st.tuples(st.just("epoch"), st.integers(1, 60), st.booleans()),
    st.tuples(st.just("ask"), st.sampled_from([OWN, OTHER, THIRD]), st.sampled_from(STRATEGY_NAMES)),
    st.tuples(st.just("die"), st.just(0), st.just(False)),
)


@settings(deadline=None)
@given(st.lists(STEPS, max_size=30))
def test_results_do_not_depend_on_plan_changes_and_deaths(steps: list[tuple[str, Any, Any]]) -> None:
    """Epochs that commit or not, plan changes at any moment, deaths: each result once, in order."""
    log, coordination = Log(), Coordination(1, lambda request: "")
    out: list[dict[str, Any]] = []
    pending: list[dict[str, Any]] = []
    committed = (0, 0)
    now, asked, fed = 0.0, 0, 0
    life = Life(log)

    def epoch(until: int, commit: bool) -> None:
        nonlocal fed, committed, now
        now += 0.1
        fill(life.engine, fed, until)
        fed = max(fed, until)
        life.migrations.look(now, now)
        results = life.engine.advance(life.migrations.limit(fed, now))
        life.migrations.advanced(results, now)
        log.append(*coordination.decide(log.view, now))
        pending.extend(to_rows(results))
        if commit:
            committed = life.engine.cut, life.migrations.version
            out.extend(pending)
            pending.clear()

    for what, one, other in steps:
        if what == "epoch":
            epoch(min(fed + one, END), other)
        elif what == "ask":
            asked += 1
            log.append(Request(id=f"{asked}", plan=one, strategy=other, fingerprint="f", asked_ms=0))
        else:
            pending.clear()
            cut, version = committed
            life = Life(log, version=version, cut=cut, push=lambda engine, cut: fill(engine, max(0, cut - 200), cut))
            fed = cut
    while log.view.waiting or log.view.open or life.migrations.version < len(log.view.changes) or fed < END:
        epoch(fed + 60, True)
        assert fed < 100 * END, "the migrations do not end"
    epoch(fed, True)
    reference = Engine(QUERY)
    fill(reference, 0, fed)
    assert out == to_rows(reference.advance(life.engine.cut))
    assert len(log.view.changes) == asked
