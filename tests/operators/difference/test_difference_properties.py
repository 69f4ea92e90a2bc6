"""Set differences against the oracle: any plan, epochs, disorder, changes of plans, and deaths of the task."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.feedback import difference
from operators.migration.difference import STRATEGIES_OF_DIFFERENCE
from tests import oracle
from tests.cases import Case
from tests.feeding import engine_of, feed
from tests.operators.deaths import from_a_snapshot, from_the_log
from tests.operators.engine.test_engine_properties import cramped
from tests.operators.migrating import Changes, changes_of
from tests.profiles import PROPERTY
from tests.subtractions import busy_subtractions, orders, subtractions


def run(case: Case, changes: Changes | None = None, **more: Any) -> list[dict[str, Any]]:
    """The engine's changes for a case."""
    task = engine_of(case, **more)
    for cut, to, strategy in changes or []:
        task.migrate(to, strategy, cut)
    return feed(task, case.rows, case.push_sizes, case.epoch_ms)


@PROPERTY
@given(st.one_of(subtractions(), busy_subtractions()), st.booleans())
def test_any_plan_epoch_and_disorder_give_the_oracles_changes(case: Case, tiny: bool) -> None:
    """In the oracle's order, with rings that grow and wrap all the time too."""
    with cramped() if tiny else nullcontext():
        assert run(case) == oracle.results(case.query, case.given)


def aliases_of(case: Case) -> tuple[str, ...]:
    """The aliases of a case's query."""
    return tuple(source.alias for source in case.query.sources)


@pytest.mark.parametrize("strategy", sorted(STRATEGIES_OF_DIFFERENCE))
@PROPERTY
@given(st.one_of(busy_subtractions(), busy_subtractions(), subtractions()), st.booleans(), st.data())
def test_a_migration_changes_nothing(strategy: str, case: Case, tiny: bool, data: st.DataObject) -> None:
    changes = data.draw(changes_of(case, [strategy], 2, orders))
    with cramped() if tiny else nullcontext():
        assert run(case, changes) == oracle.results(case.query, case.given)


@PROPERTY
@given(busy_subtractions(), st.data())
def test_overlapping_migrations_change_nothing(case: Case, data: st.DataObject) -> None:
    changes = data.draw(changes_of(case, sorted(STRATEGIES_OF_DIFFERENCE), 5, orders))
    assert run(case, changes) == oracle.results(case.query, case.given)


TURNS = st.lists(st.integers(1, 8), min_size=1, max_size=8)


@PROPERTY
@given(st.one_of(subtractions(), busy_subtractions()), TURNS, st.integers(0, 6), st.data())
def test_restored_from_a_snapshot(case: Case, turns: list[int], snapshots: int, data: st.DataObject) -> None:
    """A task that crashes continues exactly, under any plan, from blocks as old as the last snapshot."""
    successor = replace(case, plan=data.draw(orders(aliases_of(case))))
    assert from_a_snapshot(case, turns, snapshots, successor) == oracle.results(case.query, case.given)


@PROPERTY
@given(st.one_of(subtractions(), busy_subtractions()), TURNS, st.data())
def test_rebuilt_from_the_log_alone(case: Case, turns: list[int], data: st.DataObject) -> None:
    """A new machine replays the tuples that windows still need, including those that have just died, and no others."""
    successor = replace(case, plan=data.draw(orders(aliases_of(case))))
    assert from_the_log(case, turns, successor) == oracle.results(case.query, case.given)


@PROPERTY
@given(st.one_of(subtractions(), busy_subtractions(), busy_subtractions()), st.integers(1, 2), st.data())
def test_feedback_changes_nothing(case: Case, most_changes: int, data: st.DataObject) -> None:
    """Tuples are suspended as soon as they can be, before and after changes of plans."""
    changes = data.draw(changes_of(case, sorted(STRATEGIES_OF_DIFFERENCE), most_changes, orders))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(difference, "SWEEP_SHARE", 0.0)
        assert run(case, changes, feedback=True) == oracle.results(case.query, case.given)
