"""Group assignment by task: all partitions that one task reads go to one member, and stay there.

The worker's consumer uses `TaskAssignor`. Kafka's round-robin and range assignors do not suit joins: partition 3 of one
topic must go to the member that has partition 3 of the others or, if a query is not partitioned, all partitions to one
member. So tasks are assigned, each with all its partitions. They are spread evenly. Each member lists its current tasks
in its subscription's user data, and keeps as many of them as its share allows, so that its state stays where it is. The
rest go to the members with the fewest tasks, ties to the smallest member id, so every leader computes the same
assignment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from services.process.logs import get_log


def spread(tasks: Iterable[int], current: Mapping[str, Iterable[int]]) -> dict[str, list[int]]:
    """Assign each task to one member.

    Args:
        tasks: their numbers.
        current: the tasks that each member has now, by member id. If several members claim a task, the smallest id
            keeps it.

    Returns:
        the tasks of each member, ascending; counts differ by at most one.
    """
    members = sorted(current)
    unassigned = dict.fromkeys(sorted(tasks))
    low, extra = divmod(len(unassigned), len(members))
    assigned: dict[str, list[int]] = {member: [] for member in members}
    for share in (low, low + 1):
        # First every member keeps the lower share; then `extra` members may keep one more.
        for member in members:
            for number in sorted(current[member]):
                if number in unassigned and len(assigned[member]) < share and (share == low or extra > 0):
                    assigned[member].append(number)
                    del unassigned[number]
                    extra -= share > low
    for number in unassigned:
        smallest = min(members, key=lambda member: (len(assigned[member]), member))
        assigned[smallest].append(number)
    return {member: sorted(numbers) for member, numbers in assigned.items()}


class TaskAssignor(AbstractPartitionAssignor):
    """Assigns the partitions of tasks.

    Args:
        task_of: the task that reads a partition of a topic; None for a partition that no task reads.
        current: the tasks that this member runs now.
        layout: identifies the meaning of task numbers. Members with another layout than the group's leader get no
            tasks: theirs are different ones, and both kinds would write the same results.
    """

    name = "weir-tasks"
    version = 1

    def __init__(
        self, task_of: Callable[[str, int], int | None], current: Callable[[], Iterable[int]], layout: str = ""
    ) -> None:
        self._task_of = task_of
        self._current = current
        self._layout = layout
        self._log = get_log("assignor")

    def assign(  # type: ignore[override]
        self, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Assign all tasks; Kafka calls this on the group's leader only."""
        topics = sorted({topic for member in members.values() for topic in member.subscription})
        partitions = {topic: sorted(cluster.partitions_for_topic(topic) or ()) for topic in topics}
        task_of = {(topic, p): self._task_of(topic, p) for topic, numbers in partitions.items() for p in numbers}
        tasks = {number for number in task_of.values() if number is not None}
        claims = {name: _read(member.user_data) for name, member in members.items()}
        foreign = sorted(name for name, (_, layout) in claims.items() if layout != self._layout)
        if foreign:
            self._log.error(
                "members of the group run other tasks than this worker and get none; all workers of a group need the "
                "same query, placement, plan and split",
                members=", ".join(foreign),
            )
        current = {name: claimed for name, (claimed, _) in claims.items() if name not in foreign}
        nothing = {name: ConsumerProtocolMemberAssignment(self.version, [], b"") for name in foreign}
        return nothing | {
            name: ConsumerProtocolMemberAssignment(
                self.version,
                [(topic, [p for p in partitions[topic] if task_of[topic, p] in numbers]) for topic in topics],
                b"",
            )
            for name, numbers in spread(tasks, current).items()
        }

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:  # type: ignore[override]
        """What this member sends when it joins."""
        data = json.dumps({"v": 1, "sets": sorted(self._current()), "layout": self._layout}).encode()
        return ConsumerProtocolMemberMetadata(self.version, list(topics), data)

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:  # type: ignore[override]
        """Store nothing: `current` returns the tasks."""


def _read(user_data: bytes | None) -> tuple[list[int], str]:
    """The tasks that a member claims, and its layout. Unreadable data count as no tasks and the default layout; then
    the member may lose its current tasks, no more."""
    try:
        document = json.loads(user_data or b"{}")
        return [int(number) for number in document.get("sets", [])], str(document.get("layout", ""))
    except (ValueError, TypeError, AttributeError):
        return [], ""
