"""Productivity of partition groups whose results other tasks make: as one task with all joins would count it."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from operators.engine.engine import Engine
from operators.plan.plan import parse_plan
from operators.spill.productivity import Counts
from operators.spill.spilling import MemoryBudget
from schemas.query import Query
from tests import oracle
from tests.chains import Chain, merged
from tests.feeding import canonical, feed, partitions_of
from tests.operators.spill.memory_blocks import MemoryBlocks
from tests.operators.tiny import query

GROUPS = 8
NEVER_FULL = MemoryBudget(1 << 30, "global-output", GROUPS)
CHAIN = query(
    "SELECT A.v AS a, D.v AS d FROM a A [UNBOUNDED], b B [UNBOUNDED], c C [UNBOUNDED], d D [UNBOUNDED] "
    "WHERE A.k = B.k AND B.v = C.k AND C.v = D.k"
)
PLANS = ("(((A B) C) D)", "((A B) (C D))", "(A (B (C D)))")


def rows(bound: Query, seed: int, partitions: int) -> dict[str, Any]:
    """Few rows, so that every result is traced."""
    rng = Random(seed)
    return {
        stream.name: [
            [
                {"k": rng.randrange(11), "v": rng.randrange(11), "d": None, "s": None, "f": None, "ts": 10 * at + p}
                for at in range(12)
            ]
            for p in range(partitions)
        ]
        for stream in bound.streams()
    }


def of_one_task(bound: Query, plan: str, data: dict[str, Any]) -> tuple[Counts, Counts]:
    """(joins, groups) results of the query, and of each join, by group."""
    engine = Engine(
        bound, plan=parse_plan(plan, bound), partitions=partitions_of(data), budget=NEVER_FULL, blocks=MemoryBlocks()
    )
    feed(engine, data, [1], 1_000)
    assert engine._spills is not None
    assert engine._spills.active is not None
    counts = engine._spills.active._productivity
    return counts.output, counts.local


@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("plan", PLANS)
def test_tasks_learn_what_comes_of_their_groups(plan: str, split: int) -> None:
    data = rows(CHAIN, split, 2)
    output, local = of_one_task(CHAIN, plan, data)
    chain = Chain(CHAIN, parse_plan(plan, CHAIN), data, split, budget=NEVER_FULL)
    chain.finish()
    assert canonical(merged(chain.results())) == canonical(oracle.results(CHAIN, data))
    assert output.sum() > 30
    joins = [operator for operator in reversed(chain.operators) if operator.traced]
    for number, operator in enumerate(joins):
        found = [task.productivity for task in chain.tasks if task.operator is operator and task.productivity]
        assert len(found) == split
        assert sum(own.output for own in found)[0] == pytest.approx(output[number])
        assert sum(own.local for own in found)[0] == pytest.approx(local[number])
        inter = sum(float(own.inter.sum()) for own in found)
        assert (inter > 0) == (operator is not joins[-1])


def test_a_group_that_is_spilled_counts_anew() -> None:
    chain = Chain(CHAIN, parse_plan(PLANS[0], CHAIN), rows(CHAIN, 1, 1), 2, budget=NEVER_FULL)
    chain.finish()
    own = next(task.productivity for task in chain.tasks if task.operator.name == "(A B)" and task.productivity)
    before = own.output.copy()
    group = int(np.flatnonzero(before[0])[0])
    own.spilled(np.array([0]), np.array([group]), 0.5)
    assert own.output[0, group] == 0.0
    assert own.output.sum() < before.sum()
