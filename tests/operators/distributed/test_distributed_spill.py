"""Distributed joins within memory budgets, against the oracle: what a task spills is late for the tasks above."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from operators.spill.spilling import MemoryBudget
from operators.spill.strategies import STRATEGIES
from schemas.query import Window
from tests import oracle
from tests.cases import Case, aggregated
from tests.chains import Chain, merged
from tests.feeding import canonical, tables_of
from tests.operators.distributed.test_distributed import joins as joins_of_all_windows
from tests.profiles import PROPERTY


def joins() -> st.SearchStrategy[Case]:
    """Joins without ROWS windows."""
    return joins_of_all_windows().map(without_counts)


def without_counts(case: Case) -> Case:
    """The case with UNBOUNDED windows instead of ROWS windows."""
    endless = Window("UNBOUNDED")
    sources = (replace(s, window=endless if s.window.kind == "ROWS" else s.window) for s in case.query.sources)
    return replace(case, query=replace(case.query, sources=tuple(sources)))


def drive(chain: Chain, data: st.DataObject, *, deaths: bool = False) -> None:
    """Let tasks take turns, clean up and die at random, then finish."""
    for _ in range(data.draw(st.integers(0, 30))):
        task = data.draw(st.sampled_from(chain.tasks))
        what = data.draw(st.integers(0, 4))
        if deaths and what == 0:
            task.die()
        elif what == 1 and not task.operator.is_intake:
            task.engine.clean(data.draw(st.integers(1, 3)))
        else:
            chain.turn(task, data.draw(st.integers(1, 4)))
    chain.finish()


BUDGETS = st.builds(MemoryBudget, st.sampled_from([1, 2_000, 20_000]), st.sampled_from(sorted(STRATEGIES)), st.just(4))


@PROPERTY
@given(st.one_of(joins(), aggregated(joins())), st.integers(1, 2), BUDGETS, st.booleans(), st.data())
def test_each_result_comes_once(
    case: Case, split: int, budget: MemoryBudget, deaths: bool, data: st.DataObject
) -> None:
    """In time or late, also when tasks die; aggregates in time only. In the end nothing is pending."""
    chain = Chain(case.query, case.plan, case.rows, split, tables=tables_of(case), budget=budget)
    drive(chain, data, deaths=deaths)
    late = chain.late()
    assert canonical([*merged(chain.results()), *late]) == canonical(oracle.results(case.query, case.given))
    assert not (late and case.query.aggregation is not None)
    for part in chain.results():
        times = [row["_ts"] for row in part]
        assert times == sorted(times)
    for task in chain.tasks:
        spilled = task.engine.statistics().spill
        assert spilled is None or spilled.owed == 0
        assert task.engine.complete == task.engine.cut
