"""Which plan of a placed query is in force, and how the next one takes over.

Every plan is a *version*: version 0 is the workers' own, version v what change v of the control log says
(`services.control.barrier`). Each has its own tasks, internal topics and consumer group, `<group>.v<v>` from version 1
on, so that nothing of one is ever taken for the other's. A change of plans with cut T goes like this:

1. Every task of the old version processes everything before T, sends on and commits that, and stops for good; its last
   commit says of every partition that it reads how far it came. The barrier sees to it that nobody has passed T.
2. When the commits of all old tasks say T, the workers leave the old version's group and join the new one's.
3. The new tasks read the sources from where the query's windows at T begin, with the clocks and refusals of then, and
   so rebuild their states; of the results the sink gets those with ts >= T.

Results are exactly those of the old plan before T, and of the new one from T on: a result with ts >= T is made of
tuples that live at T or come later, and all of these are read again. The old version's last result is committed
before the new one's first, so they also come in order. It is the paper's moving state strategy (HybMig 2.2), with
the log as the state that is moved: nothing comes out while the states are rebuilt.

What is in force is read off Kafka alone: the newest version that has committed something, or whose predecessor has
come to its cut. A worker that starts or comes back at any time finds the same answer, or, from commits that Kafka has
not completed, that of a moment before: then it finds the older version's tasks at their end.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from operators.distributed.decompose import check_placeable, decompose
from operators.plan.plan import Plan, parse_plan
from schemas.errors import BrokerError, UsageError
from schemas.query import Query
from services.control.barrier import View
from services.kafka.topics import ControlTopics, Lane
from services.placement.distributed import PlacedLayout
from services.process.settings import WorkerSettings
from services.recovery.committed_offsets import POLL_S, TIMEOUT_S, read_commits
from services.recovery.starting_point import Committed

STRATEGIES = ("moving-state", "auto")
"""What a change of plans may be asked for by; `auto` has no other to choose."""


class Versions:
    """The versions of one placed query.

    Args:
        own: the plan of version 0.
        counts: partitions of the source topics.
    """

    def __init__(self, query: Query, own: Plan, settings: WorkerSettings, counts: Mapping[str, int]) -> None:
        self._query = query
        self._own = own
        self._settings = settings
        self._counts = dict(counts)

    def group(self, version: int) -> str:
        """The consumer group of a version."""
        return self._settings.group if version == 0 else f"{self._settings.group}.v{version}"

    def plan(self, version: int, view: View) -> Plan:
        """The plan of a version."""
        return self._own if version == 0 else parse_plan(view.changes[version - 1].plan, self._query)

    def layout(self, version: int, view: View) -> PlacedLayout:
        """The tasks of a version."""
        prefix = ControlTopics.of(self.group(version)).control.removesuffix("control")
        split = self._settings.operator_partitions
        operators = decompose(
            self._query, self.plan(version, view), self._counts, split, prefix, feedback=self._settings.jit
        )
        return PlacedLayout(operators, self._counts)

    def objection(self, plan: Plan, strategy: str) -> str:
        """Why plans cannot be changed so; empty when they can."""
        if strategy not in STRATEGIES:
            return (
                f"placed operators change plans by moving-state only, not by {strategy}: another strategy works on "
                "states of both plans in one place"
            )
        try:
            check_placeable(self._query, plan)
            decompose(self._query, plan, self._counts, self._settings.operator_partitions)
        except UsageError as error:
            return str(error)
        return ""

    # --- What has been committed --------------------------------------------------------------------

    def current(self, view: View) -> int:
        """The version in force.

        Raises:
            BrokerError: Kafka does not say.
        """
        for version in range(len(view.changes), 0, -1):
            if self.begun(version, view) or self.over(version - 1, view):
                return version
        return 0

    def begun(self, version: int, view: View) -> bool:
        """True when some task of a version has committed something."""
        return bool(self._commits(version, _lanes(self.layout(version, view))))

    def over(self, version: int, view: View) -> bool:
        """True when all tasks of a version have come to the cut where the next one begins."""
        return version < len(view.changes) and self._last_commits(version, view) is not None

    def handed_over(self, version: int, view: View) -> dict[Lane, Committed]:
        """What the tasks of a version that is over have committed last; of partitions, sources or not, that they read.

        A broker that restarts may say for a moment that they have committed less, or nothing.

        Raises:
            BrokerError: Kafka does not say, or no longer has it.
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
        """What a version has committed when all of its tasks have come to their cut."""
        cut, lanes = view.changes[version].cut, _lanes(self.layout(version, view))
        found = self._commits(version, lanes)
        over = len(found) == len(lanes) and all(commit.message.cut >= cut for commit in found.values())
        return found if over else None

    def _commits(self, version: int, lanes: Iterable[Lane]) -> dict[Lane, Committed]:
        return read_commits(self._settings.clients, self.group(version), lanes)


def _lanes(layout: PlacedLayout) -> list[Lane]:
    return [lane for task in range(layout.tasks) for lane in layout.lanes(task)]
