"""Which plan of a placed query is in force, and how the next one takes over.

Every plan is a *version*: version 0 is the workers' own, version v what change v of the control log says
(`services.barrier`). Each has its own tasks, internal topics and consumer group, `<group>.v<v>` from version 1 on, so
that nothing of one is ever taken for the other's. A change of plans with cut T goes like this:

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
come to its cut. A worker that starts or comes back at any time finds the same answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from confluent_kafka import Consumer, KafkaException, TopicPartition

from operators.placed.decompose import check_placeable, decompose
from operators.plan import Plan, parse_plan
from schemas.commits import decode_commit
from schemas.errors import BrokerError, StateError, UsageError
from schemas.query import Query
from services.barrier import View
from services.placed import PlacedLayout
from services.producer import ATTEMPT_S, TRANSIENT
from services.recovery import Committed
from services.rights import reason
from services.security import KafkaClients
from services.settings import WorkerSettings
from services.topics import ControlTopics, Lane

TIMEOUT_S = 60.0
"""Kafka says nothing of offsets that an open transaction may still change. Where a worker has died that is until its
tasks have been taken over: a session timeout and a rebalance or two."""

POLL_S = 0.05

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
        return bool(self.commits(version, _lanes(self.layout(version, view))))

    def over(self, version: int, view: View) -> bool:
        """True when all tasks of a version have come to the cut where the next one begins."""
        if version >= len(view.changes):
            return False
        cut, lanes = view.changes[version].cut, _lanes(self.layout(version, view))
        found = self.commits(version, lanes)
        return len(found) == len(lanes) and all(commit.message.cut >= cut for commit in found.values())

    def commits(self, version: int, lanes: Iterable[Lane]) -> dict[Lane, Committed]:
        """What a version's group has committed of the given partitions.

        Raises:
            BrokerError: Kafka does not say.
        """
        return read_commits(self._settings.clients, self.group(version), lanes)


def _lanes(layout: PlacedLayout) -> list[Lane]:
    return [lane for task in range(layout.tasks) for lane in layout.lanes(task)]


def read_commits(clients: KafkaClients, group: str, lanes: Iterable[Lane]) -> dict[Lane, Committed]:
    """A group's committed offsets and messages; partitions without are absent.

    Raises:
        BrokerError: Kafka does not say.
        StateError: somebody else commits in this group.
    """
    consumer = Consumer(
        clients.librdkafka(group__id=group, enable__auto__commit=False, isolation__level="read_committed", log_level=0)
    )
    asked = [TopicPartition(topic, number) for topic, number in lanes]
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while True:
            try:
                found = consumer.committed(asked, ATTEMPT_S)
                break
            except KafkaException as error:
                # The call may know only that its time is over; why, an event says.
                event = consumer.poll(0)
                cause = error.args[0] if event is None or event.error() is None else event.error()
                if cause.code() not in TRANSIENT or time.monotonic() > deadline:
                    why = reason(cause, f"READ on group {group!r}")
                    raise BrokerError(f"committed offsets of group {group!r} cannot be read: {why}") from None
                time.sleep(POLL_S)
    finally:
        consumer.close()
    out: dict[Lane, Committed] = {}
    for tp in found:
        if tp.error is not None:
            why = reason(tp.error, f"READ on topic {tp.topic!r}")
            raise BrokerError(f"committed offset of {tp.topic}[{tp.partition}]: {why}")
        if tp.offset >= 0:
            try:
                message = decode_commit(tp.metadata, f"{tp.topic}[{tp.partition}]")
            except StateError as error:
                raise StateError(f"group {group!r}: {error}") from None
            out[(tp.topic, tp.partition)] = Committed(tp.offset, message)
    return out
