"""Group assignment by task: all partitions that one task reads go to one member, and stay there.

Kafka's round-robin and range assignors know nothing of joins: partition 3 of one topic must come to the
member that has partition 3 of the others, or, where a query is not partitioned, everything to one member.
Here a *set* of partitions is assigned whole. Sets are spread evenly; each member tells in its
subscription's user data which sets it has, and keeps as many of them as its share allows, so that its state
stays where it is. The rest go to members with the fewest, ties to the smallest member id: every leader
computes the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from services.process.logs import get_log


def spread(sets: Iterable[int], held: Mapping[str, Iterable[int]]) -> dict[str, list[int]]:
    """Give each set to one member.

    Args:
        sets: the set numbers.
        held: what each member has now, by member id; claims of several members to one set are settled
            for the smallest id.

    Returns:
        the sets of each member, ascending; counts differ by at most one.
    """
    members = sorted(held)
    todo = dict.fromkeys(sorted(sets))
    low, extra = divmod(len(todo), len(members))
    given: dict[str, list[int]] = {member: [] for member in members}
    for share in (low, low + 1):
        # First everyone keeps the lower share; then `extra` members may keep one more.
        for member in members:
            for number in sorted(held[member]):
                if number in todo and len(given[member]) < share and (share == low or extra > 0):
                    given[member].append(number)
                    del todo[number]
                    extra -= share > low
    for number in todo:
        poorest = min(members, key=lambda member: (len(given[member]), member))
        given[poorest].append(number)
    return {member: sorted(numbers) for member, numbers in given.items()}


class TaskAssignor(AbstractPartitionAssignor):
    """Assigns partition sets.

    Args:
        set_of: the set that a partition of a topic belongs to; None for one that nobody reads.
        held: the sets that this member runs now.
        layout: names what the sets are. Members that name another layout than the group's leader get none: their sets
            are others', and both would write the same results.
    """

    name = "weir-tasks"
    version = 1

    def __init__(
        self, set_of: Callable[[str, int], int | None], held: Callable[[], Iterable[int]], layout: str = ""
    ) -> None:
        self._set_of = set_of
        self._held = held
        self._layout = layout
        self._log = get_log("assignor")

    def assign(  # type: ignore[override]
        self, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Called on the group's leader."""
        topics = sorted({topic for member in members.values() for topic in member.subscription})
        partitions = {topic: sorted(cluster.partitions_for_topic(topic) or ()) for topic in topics}
        set_of = {(topic, p): self._set_of(topic, p) for topic, numbers in partitions.items() for p in numbers}
        sets = {number for number in set_of.values() if number is not None}
        said = {name: _read(member.user_data) for name, member in members.items()}
        odd = sorted(name for name, (_, layout) in said.items() if layout != self._layout)
        if odd:
            self._log.error(
                "members of the group run other tasks than this worker and get none; all workers of a group need the "
                "same query, placement, plan and split",
                members=", ".join(odd),
            )
        held = {name: sets for name, (sets, _) in said.items() if name not in odd}
        nothing = {name: ConsumerProtocolMemberAssignment(self.version, [], b"") for name in odd}
        return nothing | {
            name: ConsumerProtocolMemberAssignment(
                self.version,
                [(topic, [p for p in partitions[topic] if set_of[topic, p] in numbers]) for topic in topics],
                b"",
            )
            for name, numbers in spread(sets, held).items()
        }

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:  # type: ignore[override]
        """What this member sends when it joins."""
        data = json.dumps({"v": 1, "sets": sorted(self._held()), "layout": self._layout}).encode()
        return ConsumerProtocolMemberMetadata(self.version, list(topics), data)

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:  # type: ignore[override]
        """Nothing to remember: `held` knows."""


def _read(user_data: bytes | None) -> tuple[list[int], str]:
    """The sets a member claims, and its layout; none and the plain one when it says nothing readable, which costs only
    stickiness."""
    try:
        said = json.loads(user_data or b"{}")
        return [int(number) for number in said.get("sets", [])], str(said.get("layout", ""))
    except (ValueError, TypeError, AttributeError):
        return [], ""
