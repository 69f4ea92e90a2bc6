"""With any memory budget, strategy and plan, the results while running and of cleanups are the oracle's, each once."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.autopilot.autopilot import Autopilot, why_not
from operators.engine.engine import Engine
from operators.migration.advise import PREFERENCES
from operators.migration.strategies import STRATEGIES as MIGRATIONS
from operators.plan.plan import parse_plan
from operators.spill.spilling import MemoryBudget
from operators.spill.strategies import STRATEGIES
from schemas.language.program import parse_program
from schemas.query import Window
from tests import oracle
from tests.cases import Case, cases, plan
from tests.feeding import canonical, engine_of, feed, to_rows
from tests.hasty import always_another, hasty, observed
from tests.operators.migrating import changes_of
from tests.operators.migration.test_migration_properties import dense_cases
from tests.operators.spill.memory_blocks import MemoryBlocks
from tests.operators.spill.small_parts import small_parts
from tests.profiles import PROPERTY


@st.composite
def counting(draw: st.DrawFn, of: st.SearchStrategy[Case]) -> Case:
    """A case with more and longer ROWS windows than most."""
    case = draw(of)
    windows = st.one_of(st.none(), st.builds(Window, st.just("ROWS"), st.sampled_from([1, 2, 5, 9, 20])))
    sources = tuple(
        source if source.is_static or (window := draw(windows)) is None else replace(source, window=window)
        for source in case.query.sources
    )
    return replace(case, query=replace(case.query, sources=sources))


SPILLABLE = st.one_of(cases(most_aliases=5), dense_cases(), dense_cases(), counting(dense_cases()))

BUDGETS = st.builds(
    MemoryBudget,
    st.sampled_from([0, 2_000, 4_000, 8_000]),
    st.sampled_from(sorted(STRATEGIES)),
    st.sampled_from([1, 2, 7, 64]),
    st.sampled_from([0, 4, 1000]),
)


def spilled(
    case: Case, budget: MemoryBudget, **options: Any
) -> tuple[Engine, list[dict[str, Any]], list[dict[str, Any]]]:
    """The engine at its end, the results of the run and those of cleanups."""
    blocks = MemoryBlocks()
    task = engine_of(case, budget=budget, blocks=blocks, **options)
    while_running = feed(task, case.rows, case.push_sizes, case.epoch_ms)
    task.clean()
    later = [row for batch in task.cleaned() for row in to_rows(batch)]
    assert blocks.keys("") == []
    statistics = task.statistics().spill
    assert statistics is not None
    assert (statistics.owed, statistics.on_disk_tuples) == (0, 0)
    return task, while_running, later


@PROPERTY
@given(SPILLABLE, BUDGETS)
def test_nothing_is_lost_or_doubled(case: Case, budget: MemoryBudget) -> None:
    _, while_running, later = spilled(case, budget)
    assert canonical(while_running + later) == canonical(oracle.results(case.query, case.given))
    assert [row["_ts"] for row in while_running] == sorted(row["_ts"] for row in while_running)


@PROPERTY
@given(SPILLABLE, BUDGETS)
def test_nothing_is_lost_or_doubled_when_all_of_it_is_interrupted(case: Case, budget: MemoryBudget) -> None:
    with small_parts():
        _, while_running, later = spilled(case, budget)
    assert canonical(while_running + later) == canonical(oracle.results(case.query, case.given))


@PROPERTY
@given(SPILLABLE, BUDGETS, st.booleans(), st.data())
def test_nothing_is_lost_or_doubled_when_plans_change(
    case: Case, budget: MemoryBudget, feedback: bool, data: st.DataObject
) -> None:
    changes = data.draw(changes_of(case, sorted(MIGRATIONS), 3))
    task = engine_of(case, budget=budget, blocks=MemoryBlocks(), feedback=feedback)
    for cut, to, strategy in changes:
        task.migrate(to, strategy, cut)
    found = feed(task, case.rows, case.push_sizes, case.epoch_ms)
    task.clean()
    found += [row for batch in task.cleaned() for row in to_rows(batch)]
    assert canonical(found) == canonical(oracle.results(case.query, case.given))


@PROPERTY
@given(SPILLABLE, BUDGETS, st.booleans(), st.data())
def test_nothing_is_lost_or_doubled_when_weir_changes_plans(
    case: Case, budget: MemoryBudget, feedback: bool, data: st.DataObject
) -> None:
    task = engine_of(case, budget=budget, blocks=MemoryBlocks(), feedback=feedback)
    if why_not(task):
        return
    observed(task, Autopilot(task, hasty(data.draw(st.sampled_from(PREFERENCES))), look_always=True))
    aliases = tuple(source.alias for source in case.query.sources)
    plans = data.draw(st.lists(plan(aliases), min_size=1, max_size=5))
    turn = iter(range(1_000_000))
    with always_another(lambda running: plans[next(turn) % len(plans)]):
        found = feed(task, case.rows, case.push_sizes, case.epoch_ms)
    task.clean()
    found += [row for batch in task.cleaned() for row in to_rows(batch)]
    assert canonical(found) == canonical(oracle.results(case.query, case.given))


ROWS_KEPT_BACK = """
CREATE STREAM sa (ts TIMESTAMP, k BIGINT) WITH (topic = 'a', format = 'json', timestamp = 'ts');
CREATE STREAM sb (ts TIMESTAMP, k BIGINT) WITH (topic = 'b', format = 'json', timestamp = 'ts');
CREATE STREAM sc (ts TIMESTAMP, k BIGINT) WITH (topic = 'c', format = 'json', timestamp = 'ts');
CREATE STREAM sd (ts TIMESTAMP, k BIGINT) WITH (topic = 'd', format = 'json', timestamp = 'ts');
CREATE STREAM se (ts TIMESTAMP, k BIGINT) WITH (topic = 'e', format = 'json', timestamp = 'ts');
SELECT A.k, E.ts AS at
FROM sa A [RANGE 25 MILLISECONDS], sb B [RANGE 25 MILLISECONDS], sc C [RANGE 25 MILLISECONDS],
     sd D [RANGE 25 MILLISECONDS], se E [ROWS 9]
WHERE B.k >= C.k AND A.k < D.k + 1 AND A.k > D.k AND D.k < E.k
"""
"""The join of A and D finds nothing, so tuples of B and E are suppressed: feedback reports that no consumer needs
them."""


@pytest.mark.parametrize("budget", [5_000, 6_000, 7_000, 8_000])
def test_tuples_kept_back_may_have_left_their_rows_window(budget: int) -> None:
    """Feedback ends when memory is short for the first time. The tuples that it had suppressed entered the states
    behind the purge, among them tuples of a ROWS window whose rows the stores no longer had, and the engine ended with
    an IndexError."""
    (query,) = parse_program(ROWS_KEPT_BACK).queries
    rng = random.Random(2)
    rows = {
        f"s{name}": [[{"ts": ts, "k": rng.randrange(12)} for ts in sorted(rng.sample(range(100), 24))]]
        for name in "abcde"
    }
    task = Engine(
        query,
        plan=parse_plan("((B E) (C (D A)))", query),
        partitions={stream: [0] for stream in rows},
        feedback=True,
        budget=MemoryBudget(budget, "global-output", 1, 0),
        blocks=MemoryBlocks(),
    )
    found = feed(task, rows, [1], 1)
    task.clean()
    found += [row for batch in task.cleaned() for row in to_rows(batch)]
    assert canonical(found) == canonical(oracle.results(query, rows))
