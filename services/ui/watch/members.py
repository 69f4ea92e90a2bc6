"""Follows the registered queries of a group: `GroupQueries`."""

from __future__ import annotations

from collections.abc import Mapping

from schemas.errors import UsageError, WeirError
from schemas.messages.control import ControlMessage
from schemas.query import Query
from services.files.query_files import pick_query
from services.kafka.log_consumer import LogBatch, LogFollower
from services.kafka.topics import REGISTRY
from services.process.security import KafkaClients
from services.registry.group_registry import groups_of
from services.registry.query_registry import fold

POLL_S = 0.5


class GroupQueries:
    """The queries of a group, as they come and go.

    Attributes:
        queries: by name, without those that this version cannot read. Replaced, never changed: any thread may read it.
    """

    def __init__(self, clients: KafkaClients, group: str) -> None:
        self.queries: Mapping[str, Query] = {}
        self._group = group
        self._known: dict[str, ControlMessage] = {}
        self._bound: dict[str, Query | None] = {}
        self._follower = LogFollower(clients, REGISTRY, "members", self._take, poll_s=POLL_S)

    def start(self) -> GroupQueries:
        """Start to follow."""
        self._follower.start()
        return self

    def close(self) -> None:
        """Stop following."""
        self._follower.close()

    def _take(self, batch: LogBatch) -> None:
        for record in batch.records:
            try:
                fold(self._known, record)
            except WeirError:
                continue  # damaged, or of a newer version
        if not batch.records:
            return
        entry = groups_of(self._known).get(self._group)
        found: dict[str, Query] = {}
        for name, message in {} if entry is None else entry.queries.items():
            if message.id not in self._bound:
                try:
                    self._bound[message.id] = pick_query(message.text, message.pick, f"query {name}")
                except UsageError:
                    self._bound[message.id] = None
            query = self._bound[message.id]
            if query is not None:
                found[name] = query
        self.queries = found
