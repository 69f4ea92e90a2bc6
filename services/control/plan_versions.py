"""Decides which plan of a distributed query is in force, and how the next plan takes over. Workers use `PlanVersions`.

Every plan is a *version*: version 0 is the workers' own plan, version v is that of change v in the control log
(`services.control.barrier`). Each version has its own tasks, internal topics and consumer group, `<group>.v<v>` from
version 1 on, so that data of two versions is never mixed up. A change of plans with cut T takes three steps:

1. Every task of the old version processes everything before T, sends its output on, commits, and stops for good. Its
   last commit records how far it came in each partition that it reads. The barrier ensures that no task has passed T.
2. When the commits of all old tasks have reached T, the workers leave the old version's group and join the new one's.
3. The new tasks read the sources from where the query's windows at T begin, with the clocks and refusals of that time,
   and so rebuild their states. Of their results only those with ts >= T are delivered.

Results are exactly those of the old plan before T, and of the new plan from T on: a result with ts >= T consists of
tuples that are alive at T or arrive later, and all of these are read again. The old version's last result is committed
before the new version's first, so results also stay in order. This is the paper's moving state strategy (HybMig 2.2),
with the log as the state that is moved: no results are produced while the states are rebuilt.

**Prepared changes.** With `hybmig-bsc` and `jisc` the next version's tasks run before there is a cut, beside the old
ones: as soon as the plan is proposed, they read the windows as of the old tasks' last commits and follow them
(`services.control.predecessor`). The old tasks answer the proposal only when the new ones have caught up
(`Predecessor.ready`). So when the old version is over, the new one has its group, its topics and its states. This is
the paper's background state computation (HybMig 3.4). With `jisc` the next version's joins make none of the results
before T until they are demanded (`operators.distributed.feedback.on_demand`). A proposal may be withdrawn, and its
tasks and topics are then of no use, so the group of a prepared version is named after the request, too.

Kafka alone determines the version in force: it is the newest version whose results have been committed, or whose
predecessor has reached its cut. A worker that starts or restarts at any time finds the same answer. If Kafka has not
completed some commits, the worker may find the answer of a moment before; then the tasks of the older version find that
they have ended.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from operators.distributed.decompose import decompose, without_joins_of_tables
from operators.distributed.task_budget import traces_results
from operators.plan.plan import Plan, parse_plan
from schemas import refusals
from schemas.errors import BrokerError, UsageError
from schemas.query import Query
from services.control.barrier import View
from services.kafka.topics import ControlTopics, Lane
from services.placement.distributed import DistributedLayout
from services.process.settings import WorkerSettings
from services.recovery.committed_offsets import POLL_S, TIMEOUT_S, CommitReader, read_commits
from services.recovery.starting_point import Committed

ON_DEMAND = "jisc"
"""The strategy by which results from before the cut are made on demand."""

PREPARED = frozenset({"hybmig-bsc", ON_DEMAND})
"""The strategies by which the next version's tasks run before there is a cut. They decide how a version's group is
named."""


@dataclass(frozen=True, slots=True)
class PlanVersion:
    """A version of the plan, decided or proposed.

    Attributes:
        number: 0 for the workers' own plan.
        group: its consumer group.
        id: of the request for it; empty for version 0.
        prepared: whether its tasks run before there is a cut.
        cut: event time at which it begins; 0 for version 0, None while it is only proposed.
        on_demand: whether its joins make results from before the cut on demand.
    """

    number: int
    group: str
    plan: Plan
    id: str = ""
    prepared: bool = False
    cut: int | None = 0
    on_demand: bool = False


class PlanVersions:
    """The plan versions of one distributed query.

    Args:
        own: the plan of version 0.
        counts: partitions of the source topics.
    """

    def __init__(self, query: Query, own: Plan, settings: WorkerSettings, counts: Mapping[str, int]) -> None:
        self._query = query
        self._own = without_joins_of_tables(query, own)
        self._settings = settings
        self._counts = dict(counts)

    def version(self, number: int, view: View) -> PlanVersion:
        """A decided version."""
        if number == 0:
            return PlanVersion(0, self._settings.group, self._own)
        change = view.changes[number - 1]
        return self._version(number, change.id, change.plan, change.strategy, change.cut)

    def proposed(self, view: View) -> PlanVersion | None:
        """The version that is proposed and has to be prepared; None if there is none, or the query cannot run it."""
        proposal = view.open
        if proposal is None or proposal.strategy not in PREPARED:
            return None
        try:
            if self.objection(parse_plan(proposal.plan, self._query), proposal.strategy):
                return None  # the tasks refuse the proposal
            return self._version(len(view.changes) + 1, proposal.id, proposal.plan, proposal.strategy, None)
        except UsageError:
            return None

    def _version(self, number: int, id_: str, plan: str, strategy: str, cut: int | None) -> PlanVersion:
        prepared = strategy in PREPARED
        group = f"{self._settings.group}.v{number}" + (f".{id_}" if prepared else "")
        parsed = without_joins_of_tables(self._query, parse_plan(plan, self._query))
        # State on disk could not be searched for what is demanded, and without transactions an answer could come twice.
        on_demand = strategy == ON_DEMAND and self._settings.budget is None and self._settings.transactional
        return PlanVersion(number, group, parsed, id_, prepared, cut, on_demand)

    def layout(self, version: PlanVersion) -> DistributedLayout:
        """The tasks of a version."""
        prefix = ControlTopics.of(version.group).control.removesuffix("control")
        split = self._settings.operator_partitions
        operators = decompose(
            self._query,
            version.plan,
            self._counts,
            split,
            prefix,
            feedback=self._settings.jit,
            lineage=traces_results(version.plan, self._settings.budget, feedback=self._settings.jit),
            on_demand=version.on_demand,
        )
        return DistributedLayout(operators, self._counts)

    def topics(self, version: PlanVersion) -> list[str]:
        """The topics that a version alone uses; they may be deleted when nothing of it runs any more."""
        own = ControlTopics.of(version.group)
        return [*self.layout(version).internal, own.feedback, own.spills, own.repeats, own.transactions]

    def objection(self, plan: Plan, strategy: str) -> str:
        """Why the query cannot change to this plan by this strategy; empty when it can."""
        if why := refusals.objection(self._query, refusals.PER_OPERATOR, refusals.migration(strategy)):
            return why
        if strategy in PREPARED and self._settings.has_idle_timeout(self._query):
            return (
                f"{strategy} is not for streams with an idle timeout: beside the plan in force, the next one "
                "could find other tuples late; use moving-state"
            )
        try:
            decompose(self._query, plan, self._counts, self._settings.operator_partitions)
        except UsageError as error:
            return str(error)
        return ""

    # --- What has been committed --------------------------------------------------------------------

    def current(self, view: View) -> int:
        """The version in force.

        Raises:
            BrokerError: Kafka does not answer.
        """
        for number in range(len(view.changes), 0, -1):
            if self.begun(number, view) or self.over(number - 1, view):
                return number
        return 0

    def begun(self, number: int, view: View) -> bool:
        """True when a task that writes results has committed something beyond the version's cut."""
        version = self.version(number, view)
        layout, cut = self.layout(version), version.cut or 0
        lanes = [lane for task in range(layout.sinks) for lane in layout.lanes(task)]
        return any(found.message.cut > cut for found in self.commits(version, lanes).values())

    def over(self, number: int, view: View) -> bool:
        """True when all tasks of the version have reached the cut where the next version begins."""
        return number < len(view.changes) and self._last_commits(number, view) is not None

    def handed_over(self, number: int, view: View) -> dict[Lane, Committed]:
        """The last commits of a version that is over, by each partition, source or internal, that its tasks read.

        While a broker restarts it may for a moment report older commits, or none; then this asks again.

        Raises:
            BrokerError: Kafka does not answer, or no longer has the commits.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            found = self._last_commits(number, view)
            if found is not None:
                return found
            if time.monotonic() > deadline:
                group = self.version(number, view).group
                raise BrokerError(
                    f"group {group!r} has not committed the cut of plan change {number + 1}, where the "
                    "next plan took over: its offsets have expired, or somebody has deleted or set them"
                )
            time.sleep(POLL_S)

    def _last_commits(self, number: int, view: View) -> dict[Lane, Committed] | None:
        """The last commits of a version; None unless all of its tasks have reached their cut."""
        version = self.version(number, view)
        cut, lanes = view.changes[number].cut, all_lanes(self.layout(version))
        found = self.commits(version, lanes)
        over = len(found) == len(lanes) and all(commit.message.cut >= cut for commit in found.values())
        return found if over else None

    def commits(
        self, version: PlanVersion, lanes: Iterable[Lane], reader: CommitReader | None = None
    ) -> dict[Lane, Committed]:
        """What the tasks of a version have committed of some partitions.

        Args:
            reader: asks Kafka; a new one by default.
        """
        if reader is not None:
            return reader.read(version.group, lanes)
        return read_commits(self._settings.clients, version.group, lanes)

    def reader(self) -> CommitReader:
        """For a caller that asks for commits again and again."""
        return CommitReader(self._settings.clients)


def all_lanes(layout: DistributedLayout) -> list[Lane]:
    """The partitions that the tasks of a version read."""
    return [lane for task in range(layout.tasks) for lane in layout.lanes(task)]
