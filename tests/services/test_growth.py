"""Partitions that are added while a worker runs. What a whole worker does then: `tests/faults/test_fault_topics.py`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import cast

import pytest

from schemas.language import parse_program
from services import growth
from services.logs import get_log
from services.topics import TopicAdmin

QUERY = parse_program(
    """
    CREATE STREAM l (k BIGINT, at TIMESTAMP) WITH (topic = 'l', timestamp = 'at');
    CREATE STREAM r (k BIGINT, at TIMESTAMP) WITH (topic = 'r', timestamp = 'at');
    INSERT INTO 'out' SELECT A.k FROM l A [RANGE 1 SECOND], r B [RANGE 1 SECOND] WHERE A.k = B.k
    """
).queries[0]

ASSIGNMENTS = 1
"""How often the group has assigned something: no more after the consumer has noticed the new partition."""


class StaleAtFirst:
    """What Kafka answers where the broker that is asked first does not know yet what was added.

    A client asks any broker that it is connected to, so a real one is stale in one trial of three only.
    """

    def __init__(self, *counts: int) -> None:
        self._counts = list(counts)

    def inputs(self, topics: Iterable[str], wait: bool | None = None) -> dict[str, int]:
        """The next count of topic `l`; the last one for ever."""
        return {"l": self._counts.pop(0) if len(self._counts) > 1 else self._counts[0], "r": 1}


def noticed(admin: StaleAtFirst, seconds: float) -> dict[str, int] | None:
    """What a worker notices within that time."""

    async def look() -> dict[str, int] | None:
        growing = growth.Growth(
            cast(TopicAdmin, admin), QUERY, {"l": 1, "r": 1}, apart=False, log=get_log("test")
        )
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if (found := growing.look(ASSIGNMENTS)) is not None:
                return found
            await asyncio.sleep(0.01)
        return None

    return asyncio.run(look())


def test_a_stale_answer_is_not_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise nobody reads the new partition, and results wait for it for ever. Found by torture (111112)."""
    monkeypatch.setattr(growth, "METADATA_MS", 200)
    assert noticed(StaleAtFirst(1, 1, 2), 10.0) == {"l": 2, "r": 1}


def test_a_lower_count_than_before_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "METADATA_MS", 50)
    assert noticed(StaleAtFirst(0), 0.5) is None
