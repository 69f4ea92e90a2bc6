"""A task of a distributed plan answers a proposal when the next version can take over, and keeps its promise."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from operators.data.watermark import END
from operators.plan.plan import Leaf, Plan, parse_plan
from schemas.errors import BrokerError
from schemas.messages.commits import Commit
from schemas.messages.control import Answer, Cut, Opened, Propose
from services.control.barrier import View
from services.control.plan_versions import PlanVersion, PlanVersions
from services.kafka.topics import Lane
from services.process.logs import get_log
from services.process.metrics import WorkerMetrics
from services.process.security import KafkaClients
from services.process.settings import Placement, WorkerSettings
from services.program.distributed_migrations import DistributedMigrations
from services.recovery.starting_point import Committed
from services.worker.operator_tasks import OperatorTasks
from tests.services.program.test_task_migrations import OTHER, OWN, QUERY, Log


@dataclass
class Prepared:
    """How far the next version is, as a test says."""

    ready: bool = False
    failed: str = ""

    def is_prepared(self, id_: str) -> bool:
        return self.ready

    def failure(self, id_: str) -> str:
        return self.failed


def accepted(plan: Plan, strategy: str) -> str:
    return ""


class Task:
    """One task that has processed its input up to event time 100."""

    def __init__(
        self,
        former: Any = None,
        *,
        writes_results: bool = False,
        on_demand: bool = False,
        strategy: str = "hybmig-bsc",
    ) -> None:
        self.log, self.prepared = Log(), Prepared()
        self.log.append(Opened(task=0, incarnation="own", tasks=1))
        self.engine: Any = SimpleNamespace(cut=100, watermark=lambda: self.watermark)
        self.watermark = 100
        self.migrations = DistributedMigrations(
            self.engine,
            query=QUERY,
            version=0,
            task=0,
            tasks=1,
            incarnation="own",
            fingerprint="f",
            objection=accepted,
            preparation=self.prepared,
            predecessor=former,
            writes_results=writes_results,
            on_demand=on_demand,
            control=self.log,
            log=get_log("test"),
            metrics=WorkerMetrics("q").of("0"),
        )
        self.log.propose("a", OTHER, strategy=strategy)

    def answers(self) -> list[Answer]:
        self.migrations.look(0.0, 0.0)
        return [message for message in self.log.messages if isinstance(message, Answer)]


def test_a_proposal_is_answered_when_the_next_version_has_caught_up() -> None:
    task = Task()
    assert task.answers() == []
    task.prepared.ready = True
    (answer,) = task.answers()
    assert (answer.bound, answer.error) == (100, "")


def test_a_promise_is_kept_when_the_next_version_falls_behind() -> None:
    """Other tasks may still answer, and the cut may be the promised bound."""
    task = Task()
    task.prepared.ready = True
    task.answers()
    for failed in ("", "no topics"):
        task.prepared.ready, task.prepared.failed = False, failed
        assert len(task.answers()) == 1
        assert task.migrations.limit(500, 0.0) == 100


@pytest.mark.parametrize(("strategy", "bound"), [("jisc", 3_000), ("hybmig-bsc", 3_000), ("moving-state", 2_500)])
def test_a_promise_is_ahead_of_a_task_that_proceeds(strategy: str, bound: int) -> None:
    """So it need not halt until the cut is decided, unless the change halts it for longer anyway."""
    task = Task(strategy=strategy)
    for now, cut in ((5.0, 1_000), (6.5, 2_500)):
        task.engine.cut = cut
        task.migrations._speedometer.speed(cut, now)
    task.prepared.ready = True
    task.migrations.look(0.0, 6.6)
    (answer,) = (message for message in task.log.messages if isinstance(message, Answer))
    assert (answer.watermark, answer.bound) == (2_500, bound)


def test_the_promise_of_a_task_that_stands_still_is_where_it_stands() -> None:
    """Its input may have ended: a cut ahead of it would never be reached."""
    task = Task()
    for now, cut in ((5.0, 1_000), (6.5, 2_500), (6.8, 2_500)):
        task.engine.cut = cut
        task.migrations.look(0.0, now)
    task.prepared.ready = True
    task.migrations.look(0.0, 6.9)
    (answer,) = (message for message in task.log.messages if isinstance(message, Answer))
    assert answer.bound == 2_500


@pytest.mark.parametrize(
    ("writes_results", "on_demand", "undecided", "decided"),
    [(True, True, 70, 90), (True, False, 70, 90), (False, True, 70, 500), (False, False, 500, 500)],
)
def test_how_far_a_prepared_task_may_advance(
    writes_results: bool, on_demand: bool, undecided: int, decided: int
) -> None:
    """Results must not come before the former version's; what is made on demand is known when the cut is."""
    former = SimpleNamespace(cut=None, over=False, limit=70)
    task = Task(former, writes_results=writes_results, on_demand=on_demand)
    assert task.migrations.limit(500, 0.0) == undecided
    former.cut = 90
    assert task.migrations.limit(500, 0.0) == decided
    former.limit = END  # it is over
    assert task.migrations.limit(500, 0.0) == 500


def test_a_prepared_task_hurries_when_the_cut_is_known_and_has_come() -> None:
    former = SimpleNamespace(cut=None, over=False, limit=70)
    task = Task(former)
    assert (task.migrations.prepares, task.migrations.hurries) == (True, False)
    former.cut = 150
    assert (task.migrations.prepares, task.migrations.hurries) == (True, False)
    task.watermark = 160
    assert (task.migrations.prepares, task.migrations.hurries) == (True, True)
    task.engine.cut = 160
    assert (task.migrations.prepares, task.migrations.hurries) == (False, True)
    former.over = True
    task.migrations.look(0.0, 0.0)
    assert (task.migrations.prepares, task.migrations.hurries) == (False, False)


@pytest.mark.parametrize(("writes_results", "awaited"), [(True, [False, True, True]), (False, [False, False, True])])
def test_the_epoch_that_comes_to_the_cut_is_awaited(writes_results: bool, awaited: list[bool]) -> None:
    """A task that writes results is held at the cut; any other goes beyond it, so that it has something to send."""
    former = SimpleNamespace(cut=None, over=False, limit=70)
    task = Task(former, writes_results=writes_results)
    assert not task.migrations.is_awaited(500)
    former.cut = 150
    assert [task.migrations.is_awaited(watermark) for watermark in (149, 150, 151)] == awaited
    task.engine.cut = 150 if writes_results else 151
    assert not task.migrations.is_awaited(500), "it has come there, and an epoch that is held would end where it began"


def test_the_first_results_of_a_plan_are_awaited() -> None:
    """The task was held at the cut until the former version was over, and may have taken over since."""
    former = SimpleNamespace(cut=150, over=False, limit=150)
    task = Task(former, writes_results=True)
    task.engine.cut = task.watermark = 150
    assert (task.migrations.is_awaited(160), task.migrations.prepares) == (False, False)
    former.over, former.limit = True, END
    for _ in range(2):
        assert [task.migrations.is_awaited(watermark) for watermark in (150, 151)] == [False, True]
        assert not task.migrations.prepares, "epochs are no longer far apart"
        task.watermark = 160
        assert task.migrations.hurries
        task.migrations.look(0.0, 0.0)
    task.engine.cut = 140
    assert [task.migrations.is_awaited(watermark) for watermark in (149, 150)] == [False, True]
    task.engine.cut = 160
    task.migrations.look(0.0, 0.0)
    assert (task.migrations.is_awaited(170), task.migrations.hurries) == (False, False)


def test_a_task_hurries_to_the_end_of_its_plan() -> None:
    task = Task()
    task.prepared.ready = True
    assert not task.migrations.hurries
    task.answers()
    task.log.append(Cut(id="a", cut=100))
    task.migrations.look(0.0, 0.0)
    assert task.migrations.hurries
    assert [task.migrations.is_awaited(watermark) for watermark in (99, 100)] == [False, True]


def test_a_proposal_that_cannot_be_prepared_is_refused() -> None:
    task = Task()
    task.prepared.failed = "no topics"
    (answer,) = task.answers()
    assert "cannot prepare the plan: no topics" in answer.error
    assert task.migrations.limit(500, 0.0) == 500


def test_a_prepared_task_starts_when_the_former_one_has_committed() -> None:
    """Without its commits, nothing says where in the sources it began to read."""
    source, other, inner = ("a", 0), ("b", 0), ("g.1.A", 0)
    layout: Any = SimpleNamespace(lanes=lambda n: [source, other, inner], internal_lanes=lambda n: [inner])
    predecessor: Any = SimpleNamespace(over=False, commits={})
    version = PlanVersion(1, "g.v1.a", Leaf("A"), "a", True, None)
    nothing: Any = None
    tasks = OperatorTasks(nothing, layout, version, nothing, nothing, nothing, None, Prepared(), predecessor)
    found: dict[Lane, Committed] = {source: Committed(5, Commit("f", 1, 10, 0, 1, ()))}
    for commits in ({}, found):
        predecessor.commits = commits
        with pytest.raises(BrokerError, match="has not committed"):
            tasks.former_commits(0)
    predecessor.over = True
    assert tasks.former_commits(0) == found
    predecessor.over, predecessor.commits = False, found | {other: found[source], ("c", 0): found[source]}
    assert tasks.former_commits(0) == predecessor.commits


@pytest.mark.parametrize("strategy", ["hybmig-bsc", "jisc", "moving-state"])
def test_a_change_is_not_prepared_where_streams_may_idle(strategy: str) -> None:
    """Two plans side by side may then find different tuples late."""
    counts, plan = {"ta": 1, "tb": 1, "tc": 1}, parse_plan(OTHER, QUERY)
    for idle_timeout_ms, refused in ((None, False), (500, strategy != "moving-state")):
        settings = WorkerSettings(
            KafkaClients("127.0.0.1:1"), "g", placement=Placement.PER_OPERATOR, idle_timeout_ms=idle_timeout_ms
        )
        versions = PlanVersions(QUERY, parse_plan(OWN, QUERY), settings, counts)
        assert ("idle timeout" in versions.objection(plan, strategy)) == refused
        proposal = Propose(id="a", plan=OTHER, strategy=strategy, fingerprint="f", tasks=1)
        assert (versions.proposed(View(open=proposal)) is None) == (refused or strategy == "moving-state")
