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

Kafka alone determines the version in force: it is the newest version that has committed something, or whose predecessor
has reached its cut. A worker that starts or restarts at any time finds the same answer. If Kafka has not completed some
commits, the worker may find the answer of a moment before; then the tasks of the older version find that they have
ended.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from operators.distributed.decompose import decompose, without_joins_of_tables
from operators.plan.plan import Plan, parse_plan
from schemas import refusals
from schemas.errors import BrokerError, UsageError
from schemas.query import Query
from services.control.barrier import View
from services.kafka.topics import ControlTopics, Lane
from services.placement.distributed import DistributedLayout
from services.process.settings import WorkerSettings
from services.recovery.committed_offsets import POLL_S, TIMEOUT_S, read_commits
from services.recovery.starting_point import Committed

STRATEGIES = ("moving-state", "auto")
"""The strategies of a distributed query; `auto` chooses moving-state, since there is no other."""


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

    def group(self, version: int) -> str:
        """The consumer group of a version."""
        return self._settings.group if version == 0 else f"{self._settings.group}.v{version}"

    def plan(self, version: int, view: View) -> Plan:
        """The plan of a version."""
        if version == 0:
            return self._own
        return without_joins_of_tables(self._query, parse_plan(view.changes[version - 1].plan, self._query))

    def layout(self, version: int, view: View) -> DistributedLayout:
        """The tasks of a version."""
        prefix = ControlTopics.of(self.group(version)).control.removesuffix("control")
        split = self._settings.operator_partitions
        operators = decompose(
            self._query, self.plan(version, view), self._counts, split, prefix, feedback=self._settings.jit
        )
        return DistributedLayout(operators, self._counts)

    def objection(self, plan: Plan, strategy: str) -> str:
        """Why the query cannot change to this plan by this strategy; empty when it can."""
        if why := refusals.objection(self._query, refusals.PER_OPERATOR, refusals.migration(strategy)):
            return why
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
        for version in range(len(view.changes), 0, -1):
            if self.begun(version, view) or self.over(version - 1, view):
                return version
        return 0

    def begun(self, version: int, view: View) -> bool:
        """True when a task of the version has committed something."""
        return bool(self._commits(version, _lanes(self.layout(version, view))))

    def over(self, version: int, view: View) -> bool:
        """True when all tasks of the version have reached the cut where the next version begins."""
        return version < len(view.changes) and self._last_commits(version, view) is not None

    def handed_over(self, version: int, view: View) -> dict[Lane, Committed]:
        """The last commits of a version that is over, by each partition, source or internal, that its tasks read.

        While a broker restarts it may for a moment report older commits, or none; then this asks again.

        Raises:
            BrokerError: Kafka does not answer, or no longer has the commits.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            found = self._last_commits(version, view)
            if found is not None:
                return found
            if time.monotonic() > deadline:
                raise BrokerError(
                    f"group {self.group(version)!r} has not committed the cut of plan change {version + 1}, where the "
                    "next plan took over: its offsets have expired, or somebody has deleted or set them"
                )
            time.sleep(POLL_S)

    def _last_commits(self, version: int, view: View) -> dict[Lane, Committed] | None:
        """The last commits of a version; None unless all of its tasks have reached their cut."""
        cut, lanes = view.changes[version].cut, _lanes(self.layout(version, view))
        found = self._commits(version, lanes)
        over = len(found) == len(lanes) and all(commit.message.cut >= cut for commit in found.values())
        return found if over else None

    def _commits(self, version: int, lanes: Iterable[Lane]) -> dict[Lane, Committed]:
        return read_commits(self._settings.clients, self.group(version), lanes)


def _lanes(layout: DistributedLayout) -> list[Lane]:
    return [lane for task in range(layout.tasks) for lane in layout.lanes(task)]
