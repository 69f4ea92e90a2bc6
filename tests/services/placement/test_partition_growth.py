"""Partitions that are added while a worker runs. `tests/faults` tests what a whole worker does then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import cast

import pytest

from schemas.language.program import parse_program
from services.kafka.topics import TopicAdmin
from services.placement import partition_growth
from services.process.logs import get_log

QUERY = parse_program(
    """
    CREATE STREAM l (k BIGINT, at TIMESTAMP) WITH (topic = 'l', timestamp = 'at');
    CREATE STREAM r (k BIGINT, at TIMESTAMP) WITH (topic = 'r', timestamp = 'at');
    INSERT INTO 'out' SELECT A.k FROM l A [RANGE 1 SECOND], r B [RANGE 1 SECOND] WHERE A.k = B.k
    """
).queries[0]

ASSIGNMENTS = 1
"""How many assignments the group has made. None follows after the consumer has noticed the new partition."""


class StaleAtFirst:
    """Stands in for Kafka where the first broker that is asked does not know the new partition yet.

    A client asks any broker that it is connected to, so a real cluster gives the stale answer only now and then.
    """

    def __init__(self, *counts: int) -> None:
        self._counts = list(counts)

    def inputs(self, topics: Iterable[str], wait: bool | None = None) -> dict[str, int]:
        """The next count of topic `l`; the last one for ever."""
        return {"l": self._counts.pop(0) if len(self._counts) > 1 else self._counts[0], "r": 1}


def noticed(admin: StaleAtFirst, seconds: float) -> dict[str, int] | None:
    """The partition counts to restart the tasks with; None if the worker noticed nothing within `seconds`."""

    async def check() -> dict[str, int] | None:
        growth = partition_growth.PartitionGrowth(
            cast(TopicAdmin, admin), QUERY, {"l": 1, "r": 1}, distributed=False, log=get_log("test")
        )
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if (found := growth.check(ASSIGNMENTS)) is not None:
                return found
            await asyncio.sleep(0.01)
        return None

    return asyncio.run(check())


def test_partitions_are_counted_again_after_a_stale_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise no task reads the new partition, and results wait for it for ever. Found by torture (seed 111112)."""
    monkeypatch.setattr(partition_growth, "METADATA_MS", 200)
    assert noticed(StaleAtFirst(1, 1, 2), 10.0) == {"l": 2, "r": 1}


def test_a_lower_count_than_before_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_growth, "METADATA_MS", 50)
    assert noticed(StaleAtFirst(0), 0.5) is None
