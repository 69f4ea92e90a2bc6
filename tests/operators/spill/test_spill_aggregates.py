"""Within a memory budget aggregates emit what they emit without one, in the same order; some of it later."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.engine.engine import Engine
from operators.migration.strategies import STRATEGIES as MIGRATIONS
from operators.plan.plan import parse_plan
from operators.spill.spilling import MemoryBudget
from schemas.language.program import parse_program
from schemas.query import Window
from tests.cases import Case, aggregated, cases
from tests.feeding import engine_of, feed, to_batch, to_rows
from tests.operators.aggregate.test_aggregate_properties import exactly, expected
from tests.operators.migrating import changes_of
from tests.operators.migration.test_migration_properties import dense_cases
from tests.operators.spill.memory_blocks import MemoryBlocks
from tests.operators.spill.small_parts import small_parts
from tests.operators.spill.test_spill_properties import BUDGETS
from tests.profiles import PROPERTY


def ranged(case: Case) -> Case:
    """Windows that count tuples do not go with aggregates and a budget."""
    windows = [Window("UNBOUNDED") if s.window.kind == "ROWS" else s.window for s in case.query.sources]
    sources = tuple(replace(s, window=w) for s, w in zip(case.query.sources, windows, strict=True))
    return replace(case, query=replace(case.query, sources=sources))


AGGREGATED = st.one_of(aggregated(cases(most_rows=20)), aggregated(dense_cases())).map(ranged)
DUE = st.sampled_from([None, 0, 5, 40])


def emitted(case: Case, task: Engine) -> list[dict[str, object]]:
    """All emissions of a task in their order."""
    found = feed(task, case.rows, case.push_sizes, case.epoch_ms)
    task.clean()
    return found + [row for batch in task.cleaned() for row in to_rows(batch)]


@PROPERTY
@given(AGGREGATED, BUDGETS, DUE, st.booleans())
def test_emissions_are_those_without_a_budget(
    case: Case, budget: MemoryBudget, due_ms: int | None, small: bool
) -> None:
    with small_parts() if small else nullcontext():
        task = engine_of(case, budget=replace(budget, due_ms=due_ms), blocks=MemoryBlocks())
        found = emitted(case, task)
    assert exactly(found) == expected(case)


@PROPERTY
@given(AGGREGATED, BUDGETS, st.booleans(), st.data())
def test_plans_change_meanwhile(case: Case, budget: MemoryBudget, feedback: bool, data: st.DataObject) -> None:
    task = engine_of(case, budget=budget, blocks=MemoryBlocks(), feedback=feedback)
    for cut, to, strategy in data.draw(changes_of(case, sorted(MIGRATIONS), 3)):
        task.migrate(to, strategy, cut)
    assert exactly(emitted(case, task)) == expected(case)


QUERY = """
CREATE STREAM a (k BIGINT, at TIMESTAMP) WITH (topic = 'a', format = 'json', timestamp = 'at');
CREATE STREAM b (k BIGINT, at TIMESTAMP) WITH (topic = 'b', format = 'json', timestamp = 'at');
SELECT A.k, COUNT(*) AS n FROM a A [RANGE 400 MILLISECONDS], b B [RANGE 400 MILLISECONDS] WHERE A.k = B.k
GROUP BY A.k EMIT EVERY 10 MILLISECONDS
"""


@pytest.mark.deep
def test_emissions_wait_for_half_a_window() -> None:
    """A quarter until spilled state is due, a quarter for its cleanup."""
    (query,) = parse_program(QUERY).queries
    blocks = MemoryBlocks()
    budget = MemoryBudget(20_000, "local-output")
    task = Engine(query, plan=parse_plan("(A B)", query), budget=budget, blocks=blocks)
    waited = 0
    for begin in range(0, 4_000, 10):
        for stream in query.streams():
            rows = [{"k": at % 50, "at": at} for at in range(begin, begin + 10)]
            task.push(stream.name, 0, to_batch(stream, rows))
        found = task.advance()
        if len(found):
            waited = max(waited, task.cut - int(found.ts[0]))
    spilled = task.statistics().spill
    assert spilled is not None
    assert spilled.spills > 5
    assert waited > 20, "some emissions have waited"
    assert waited <= 200 + 20
