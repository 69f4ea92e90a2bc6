"""The engine against the oracle, over random queries, plans, data, disorder, partitions and epochs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators import engine, state, store
from operators.engine import Engine
from tests import oracle
from tests.cases import Case, cases, plan
from tests.feeding import canonical, feed, partitions_of
from tests.operators.profiles import PROPERTY


def run(case: Case) -> list[dict[str, object]]:
    """The engine's results for a case."""
    task = Engine(case.query, plan=case.plan, partitions=partitions_of(case.rows))
    return feed(task, case.rows, case.push_sizes, case.epoch_ms)


@contextmanager
def cramped() -> Iterator[None]:
    """Rings that start tiny, slices and candidate room of a few tuples: every growth path runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "FIRST_CAPACITY", 2)
        patch.setattr(state, "CANDIDATES_AT_ONCE", 3)
        patch.setattr(store, "FIRST_CAPACITY", 2)
        patch.setattr(engine, "SLICE_TUPLES", 5)
        patch.setattr(engine, "SLICE_LEAST_TUPLES", 2)
        patch.setattr(engine, "SAMPLES_PER_SLICE", 2)
        yield


@PROPERTY
@given(cases(most_rows=25))
def test_growth_and_slicing_change_nothing(case: Case) -> None:
    """The same with every ring, slice and output forced to grow, wrap and resume all the time."""
    with cramped():
        got = run(case)
    assert canonical(got) == canonical(oracle.results(case.query, case.rows))
    assert got == run(case), "not even the order may change"


@PROPERTY
@given(cases(most_aliases=5), st.data())
def test_every_plan_gives_the_same_sequence(case: Case, data: st.DataObject) -> None:
    """Results come in one order, ties included, whatever the plan."""
    other = data.draw(plan(tuple(s.alias for s in case.query.sources)))
    assert run(case) == run(replace(case, plan=other))


@PROPERTY
@given(cases())
def test_any_plan_epoch_and_disorder_give_the_oracles_results(case: Case) -> None:
    """The multiset of results is the oracle's, in timestamp order, each once."""
    got = run(case)
    assert canonical(got) == canonical(oracle.results(case.query, case.rows))
    times = [row["_ts"] for row in got]
    assert times == sorted(times)  # type: ignore[type-var]
