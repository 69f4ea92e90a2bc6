"""A task's plan changes with an engine and a control log in memory: where incarnations start, what they report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.engine.engine import Engine
from operators.migration.strategies import STRATEGIES
from operators.plan.plan import parse_plan
from schemas.columns import Batch, Column
from schemas.language.program import parse_program
from schemas.messages.control import Answer, BarrierMessage, Cut, Done, Opened, Propose, Request, Started
from schemas.query import Type
from services.control.barrier import Barrier, View
from services.control.coordination import Coordination
from services.control.participant import GRACE_S, RESEND_S
from services.process.logs import get_log
from services.process.metrics import WorkerMetrics
from services.program.migrations import TaskMigrations, starting_plan
from services.recovery.starting_point import RecoveryPlan
from tests.feeding import to_rows
from tests.profiles import examples

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
        """A change that was decided before the incarnation in question."""
        self.append(Opened(task=0, incarnation="former"))
        self.propose(id_, plan)
        self.append(Answer(id=id_, task=0, incarnation="former", watermark=0, bound=0), Cut(id=id_, cut=cut))


class Incarnation:
    """One incarnation of the task; tuples with ts = 10, 20, ... of all streams."""

    def __init__(
        self, log: Log, *, version: int = 0, cut: int = 0, push: Callable[[Engine, int], None] | None = None
    ) -> None:
        """Args: `push` feeds an engine what a recovery reads again, before it advances to `cut`."""
        self.log = log
        name = f"incarnation-{len(log.messages)}"
        log.append(Opened(task=0, incarnation=name))
        self.metrics = WorkerMetrics("out")
        logger, recovery = get_log("test"), RecoveryPlan("window", cut, 0, 1, version, {}, 0)
        start = starting_plan(QUERY, parse_plan(OWN, QUERY), recovery, log.view, logger)
        self.engine = Engine(QUERY, plan=start.plan)
        self.migrations = TaskMigrations(
            self.engine,
            start,
            task=0,
            tasks=1,
            incarnation=name,
            fingerprint="f",
            committed_cut=cut,
            control=log,
            view=log.view,
            log=logger,
            metrics=self.metrics.of("0"),
        )
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
        """Run one epoch of the task; returns its cut."""
        self.push(until)
        self.migrations.look(now, now)
        self.migrations.advanced(self.engine.advance(self.migrations.limit(until, now)), now)
        return self.engine.cut

    def with_log(self) -> list[Started | Done]:
        return [message for message in self.log.messages if isinstance(message, Started | Done)]


def test_a_change_from_proposal_to_done() -> None:
    log = Log()
    incarnation = Incarnation(log)
    for second in (1, 2, 3):
        assert incarnation.epoch(100 * second, float(second)) == 100 * second
    log.propose("m", OTHER)
    # The recent speed is 100 ms a second: the bound lies half a second ahead.
    assert incarnation.epoch(400, 3.1) == 350
    assert incarnation.epoch(400, 3.4) == 350
    assert log.view.answers[0].bound == 350
    log.append(Cut(id="m", cut=370))
    assert incarnation.migrations.version == 0
    assert incarnation.epoch(400, 3.5) == 400
    assert incarnation.migrations.version == 1
    assert str(incarnation.engine.plan) == OTHER
    incarnation.epoch(500, 3.6)
    incarnation.epoch(510, 3.7)
    started, done = incarnation.with_log()
    assert started == Started(
        id="m", task=0, version=1, began_at=370, exact=True, strategy="jisc", silence_s=pytest.approx(0.4)
    )
    assert isinstance(done, Done)
    assert (done.version, done.began_at, done.first_result_ts) == (1, 370, 370)
    assert done.longest_silence_s == pytest.approx(0.4)
    assert incarnation.metrics.registry.get_sample_value("weir_plan_version", {"query": "out", "task": "0"}) == 1.0


def test_reports_are_sent_until_they_are_in_the_log() -> None:
    log = Log()
    log.decide("m", OTHER, 50)
    incarnation = Incarnation(log)
    incarnation.epoch(100, 1.0)
    incarnation.epoch(200, 1.2)
    assert [type(message) for message in incarnation.with_log()] == [Started, Done]
    log.messages = [message for message in log.messages if not isinstance(message, Done)]  # it got lost
    incarnation.epoch(310, 1.3)
    assert [type(message) for message in incarnation.with_log()] == [Started]
    for now in (1.3 + RESEND_S, 1.4 + RESEND_S, 1.4 + 3 * RESEND_S):
        incarnation.epoch(400, now)
        assert [type(message) for message in incarnation.with_log()] == [Started, Done]


def test_a_life_begins_with_the_committed_version_and_takes_later_cuts_again() -> None:
    log = Log()
    log.decide("m", OTHER, 50)
    log.decide("n", THIRD, 150)
    incarnation = Incarnation(log, version=1, cut=100)
    assert str(incarnation.engine.plan) == OTHER
    assert incarnation.migrations.version == 1
    incarnation.epoch(120, 1.0)
    assert incarnation.migrations.version == 1
    # The migration of version 1 was not done when the former incarnation ended; now it is.
    (restored,) = incarnation.with_log()
    assert restored == Done(id="m", task=0, version=1, restored=True)
    incarnation.epoch(200, 1.1)
    assert incarnation.migrations.version == 2
    incarnation.epoch(210, 1.2)
    assert [(m.id, m.exact) for m in incarnation.with_log() if isinstance(m, Started)] == [("n", True)]


def test_a_cut_that_had_to_wait_is_taken_where_the_life_begins() -> None:
    """When the former incarnation died, version 2 had reached its cut but waited for version 1 to end."""
    log = Log()
    log.decide("m", OTHER, 50)
    log.decide("n", THIRD, 90)
    incarnation = Incarnation(log, version=1, cut=100)
    incarnation.epoch(200, 1.0)
    incarnation.epoch(210, 1.1)
    assert incarnation.migrations.version == 2
    started = [m for m in incarnation.with_log() if isinstance(m, Started)]
    assert [(m.id, m.began_at, m.exact) for m in started] == [("n", 100, False)]


def test_a_control_topic_that_was_deleted() -> None:
    """The committed version is unknown: the task starts with its own plan, and changes plans again from there."""
    log = Log()
    incarnation = Incarnation(log, version=3, cut=100)
    assert str(incarnation.engine.plan) == OWN
    assert incarnation.migrations.version == 0
    log.propose("m", OTHER)
    incarnation.epoch(110, 1.0)
    log.append(Cut(id="m", cut=log.view.least_cut))
    incarnation.epoch(200, 1.1)
    assert incarnation.migrations.version == 1


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
    incarnation = Incarnation(log)
    log.propose("m", plan, **more)
    assert incarnation.epoch(100, 1.0) == 100  # nothing promised
    (answer,) = log.view.refusals
    assert said in answer.error


def test_a_promise_ends_by_the_tasks_own_word() -> None:
    log = Log()
    incarnation = Incarnation(log)
    incarnation.epoch(100, 1.0)
    log.propose("m", OTHER)
    assert incarnation.epoch(200, 2.0) == 100
    assert incarnation.epoch(200, 2.0 + GRACE_S + 1.0) == 100  # the task withdraws its promise in the log
    assert incarnation.epoch(200, 2.1 + GRACE_S + 1.0) == 200
    assert log.view.withdrawn["m"].by == "task 0"


# --- Results under plan changes and deaths -----------------------------------------------------------

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


class TaskHistory:
    """The incarnations of a task over the same input, and the results that each has made visible."""

    def __init__(self, exactly_once: bool) -> None:
        self.log = Log()
        self.out: list[list[dict[str, Any]]] = [[]]
        self.incarnation = Incarnation(self.log)
        self.fed = 0
        self._exactly_once = exactly_once
        self._coordination = Coordination(1, lambda request: "")
        self._pending: list[dict[str, Any]] = []
        self._committed = (0, 0)
        self._now = 0.0

    def epoch(self, until: int, commit: bool) -> None:
        """Exactly once, results are visible when their epoch is committed; at least once, as soon as they are there."""
        self._now += 0.1
        incarnation = self.incarnation
        fill(incarnation.engine, self.fed, until)
        self.fed = max(self.fed, until)
        incarnation.migrations.look(self._now, self._now)
        results = incarnation.engine.advance(incarnation.migrations.limit(self.fed, self._now))
        incarnation.migrations.advanced(results, self._now)
        self.log.append(*self._coordination.decide(self.log.view, self._now))
        self._pending += to_rows(results)
        if commit:
            self._committed = incarnation.engine.cut, incarnation.migrations.version
        if commit or not self._exactly_once:
            self.out[-1] += self._pending
            self._pending.clear()

    def ask(self, id_: str, plan: str, strategy: str) -> None:
        self.log.append(Request(id=id_, plan=plan, strategy=strategy, fingerprint="f", asked_ms=0))

    def die(self) -> None:
        """Start the next incarnation at the last commit."""
        self._pending.clear()
        self.fed, version = self._committed
        self.out.append([])

        def push(engine: Engine, cut: int) -> None:
            fill(engine, max(0, cut - 200), cut)

        self.incarnation = Incarnation(self.log, version=version, cut=self.fed, push=push)

    def finish(self) -> list[dict[str, Any]]:
        """End all migrations and the input; returns the results of an engine without plan changes."""
        view = self.log.view
        while view.waiting or view.open or self.incarnation.migrations.version < len(view.changes) or self.fed < END:
            self.epoch(self.fed + 60, True)
            assert self.fed < 100 * END, "the migrations do not end"
            view = self.log.view
        self.epoch(self.fed, True)
        reference = Engine(QUERY)
        fill(reference, 0, self.fed)
        return to_rows(reference.advance(self.incarnation.engine.cut))


@pytest.mark.parametrize(
    "exactly_once",
    [pytest.param(True, id="exactly-once"), pytest.param(False, id="at-least-once", marks=pytest.mark.deep)],
)
@examples(100, quick=25)
@given(st.lists(STEPS, max_size=30))
def test_results_do_not_depend_on_plan_changes_and_deaths(
    exactly_once: bool, steps: list[tuple[str, Any, Any]]
) -> None:
    """With failing commits, plan changes at any moment, and deaths, each result is delivered once, in order.

    At least once, the results after an incarnation's last commit come again from its successor, whether or not the plan
    changed among them.
    """
    history, asked = TaskHistory(exactly_once), 0
    for what, one, other in steps:
        if what == "epoch":
            history.epoch(min(history.fed + one, END), other)
        elif what == "ask":
            asked += 1
            history.ask(f"{asked}", one, other)
        else:
            history.die()
    expected = history.finish()
    changes = history.log.view.changes
    assert len(changes) == asked
    assert str(history.incarnation.engine.plan) == (changes[-1].plan if changes else OWN)
    out = [row for results in history.out for row in results]
    if exactly_once:
        assert out == expected
        return
    at = {str(row): number for number, row in enumerate(expected)}
    reached = 0
    for results in history.out:
        places = [at[str(row)] for row in results]
        assert places == list(range(places[0], places[0] + len(places)) if places else [])
        assert not places or places[0] <= reached, "a stretch is missing"
        reached = max([reached, *(place + 1 for place in places)])
    assert reached == len(expected)


def test_a_cut_that_was_taken_and_not_committed_is_taken_again() -> None:
    """At least once: when the incarnation dies, results beyond the cut are out. The new plan delivers them again."""
    history = TaskHistory(exactly_once=False)
    for until in (100, 200, 300):
        history.epoch(until, True)
    history.ask("m", OTHER, "moving-state")
    while not (history.log.view.started and history.incarnation.engine.cut >= history.log.view.changes[0].cut + 100):
        history.epoch(history.fed + 20, False)
        assert history.fed < 10_000
    (change,) = history.log.view.changes
    history.die()
    assert (str(history.incarnation.engine.plan), history.incarnation.migrations.version) == (OWN, 0)
    while history.incarnation.migrations.version == 0:
        assert str(history.incarnation.engine.plan) == OWN
        assert history.incarnation.engine.cut < change.cut
        history.epoch(history.fed + 20, False)
    assert str(history.incarnation.engine.plan) == OTHER
    expected = history.finish()
    first, again = history.out
    assert first == expected[: len(first)]
    assert again == expected[-len(again) :]
    assert again[0]["_ts"] == 300
    twice = [row for row in first if row in again]
    assert min(row["_ts"] for row in twice) < change.cut <= max(row["_ts"] for row in twice)
    (done,) = history.log.view.done.values()
    assert not done.restored
    assert [(s.began_at, s.exact) for s in history.log.view.started.values()] == [(change.cut, True)]
