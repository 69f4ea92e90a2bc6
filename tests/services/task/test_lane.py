"""Where a task's input is read again after a restart."""

from __future__ import annotations

import numpy as np
import pytest

from operators.engine.engine import Engine
from operators.plan.plan import parse_plan
from operators.spill.spilling import MemoryBudget
from schemas.columns import Batch, Column
from schemas.language.program import parse_program
from schemas.messages.commits import UNSEEN, StreamPoint
from schemas.query import Type
from services.recovery.starting_point import LaneStart
from services.task.lane import InputLane
from tests.operators.spill.memory_blocks import MemoryBlocks

QUERY = """
CREATE STREAM a (k BIGINT, at TIMESTAMP) WITH (topic = 'ta', timestamp = 'at');
CREATE STREAM b (k BIGINT, at TIMESTAMP) WITH (topic = 'tb', timestamp = 'at');
SELECT A.k AS k FROM a A [RANGE 100 MILLISECONDS], b B [RANGE 100 MILLISECONDS] WHERE A.k = B.k
"""


def rows(times: range) -> Batch:
    """Tuples at some times, all with different keys."""
    return Batch(np.array(times, np.int64), {"k": Column.from_values(list(times), Type.BIGINT)})


@pytest.mark.parametrize("kept_ms", [100, 400])
def test_what_pending_results_need_is_read_again(kept_ms: int) -> None:
    """A and B are spilled again and again. At 1,050 their windows reach back to 950, but pending results need what was
    alive when it was spilled.
    """
    (query,) = parse_program(QUERY).queries
    budget = MemoryBudget(2_000, "local-output", groups=2)
    engine = Engine(query, plan=parse_plan("(A B)", query), budget=budget, blocks=MemoryBlocks())
    (stream,) = (stream for stream in query.streams() if stream.name == "a")
    start = (StreamPoint(0, UNSEEN),)
    lane = InputLane((stream.topic, 0), query, LaneStart(0, 0, start, start), 0, kept={"a": kept_ms})
    for begin in range(0, 1_050, 10):
        for name in ("a", "b"):
            engine.push(name, 0, rows(range(begin, begin + 10)))
        engine.advance(begin + 10)
    assert engine.cut == 1_050
    pending_from = engine.horizon("a")
    assert pending_from < 950
    assert lane.horizons(engine) == [min(pending_from, 1_050 - kept_ms)]
