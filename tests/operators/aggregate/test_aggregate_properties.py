"""Sliding aggregates against their definition: the same emissions in the same order, whatever runs below.

The oracle computes each group anew at each multiple, with fractions. Here also: plans, executors, epochs,
migrations, and tasks that die and are rebuilt at any point.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.aggregate import groups
from operators.aggregate import lifetimes as lives
from operators.engine.executors import EXECUTORS
from operators.migration.strategies import STRATEGIES
from tests import oracle
from tests.cases import Case, aggregated, cases, plan
from tests.operators.deaths import from_a_snapshot, from_the_log
from tests.operators.engine.test_engine_properties import cramped, run
from tests.operators.migration.test_migration_properties import EXECUTOR, FEWER, changes_of, dense_cases, migrated
from tests.profiles import PROPERTY


def exactly(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Rows in their order; values keep their type, and their sign where they are zero."""
    return [tuple((name, type(value).__name__, repr(value)) for name, value in row.items()) for row in rows]


def expected(case: Case) -> list[tuple[Any, ...]]:
    return exactly(oracle.results(case.query, case.given))


@contextmanager
def tiny() -> Iterator[None]:
    """Everything that grows starts with next to nothing, and strings are swept out as soon as they can be."""
    with cramped(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "FIRST_CAPACITY", 1)
        patch.setattr(groups, "SWEEP_FROM", 0)
        patch.setattr(lives, "FIRST_CAPACITY", 1)
        yield


@PROPERTY
@given(aggregated(cases(most_rows=20)), st.sampled_from(sorted(EXECUTORS)), st.booleans())
def test_emissions_follow_the_definition(case: Case, executor: str, small: bool) -> None:
    with tiny() if small else nullcontext():
        got = run(case, executor)
    assert exactly(got) == expected(case)


@FEWER
@given(aggregated(dense_cases()), st.booleans())
def test_over_many_results(case: Case, small: bool) -> None:
    with tiny() if small else nullcontext():
        got = run(case)
    assert exactly(got) == expected(case)


@PROPERTY
@given(aggregated(cases()), st.data())
def test_neither_plan_nor_epoch_matters(case: Case, data: st.DataObject) -> None:
    other = data.draw(plan(tuple(source.alias for source in case.query.sources)))
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    epoch = data.draw(st.sampled_from([1, 7, 30, 1000]))
    assert run(case) == run(replace(case, plan=other, push_sizes=sizes, epoch_ms=epoch))


@PROPERTY
@given(aggregated(dense_cases()), st.sampled_from(sorted(STRATEGIES)), EXECUTOR, st.data())
def test_migrations_go_on_beneath(case: Case, strategy: str, executor: str, data: st.DataObject) -> None:
    changes = [(data.draw(st.integers(30, 60)), to, by) for _, to, by in data.draw(changes_of(case, [strategy], 1))]
    assert migrated(case, changes, executor) == run(case)


TURNS = st.lists(st.integers(1, 5), min_size=1, max_size=6)


@PROPERTY
@given(aggregated(cases()), TURNS)
def test_rebuilt_from_the_log(case: Case, turns: list[int]) -> None:
    """A new machine reads again only from `horizon` on and continues with the emissions that would have followed."""
    assert exactly(from_the_log(case, turns, case)) == expected(case)


@PROPERTY
@given(aggregated(cases()), TURNS, st.integers(0, 4), st.booleans())
def test_rebuilt_from_a_snapshot(case: Case, turns: list[int], snapshots: int, small: bool) -> None:
    """A snapshot only keeps the blocks needed according to `live_from`."""
    with tiny() if small else nullcontext():
        got = from_a_snapshot(case, turns, snapshots, case)
    assert exactly(got) == expected(case)
