"""Feedback in M-Joins and eddies changes no result: against the oracle and runs without it, with migrations too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.feedback import blacklist, bloom, stem_guard, stems
from operators.feedback.payoff import guard as payoff
from operators.feedback.payoff import tuple_cost
from tests import oracle
from tests.cases import Case, cases
from tests.feeding import canonical
from tests.operators.engine.test_engine_properties import cramped, run
from tests.operators.feedback.test_feedback_properties import fed, sparse
from tests.operators.migration.test_migration_properties import changes_of, dense_cases
from tests.profiles import PROPERTY, examples

EXECUTOR = st.sampled_from(["mjoin", "eddy"])
GUARD_BUDGET_TRIALS = st.sampled_from([1e18, 1e18, 0.0])
"""Guards that watch for ever, and such that rest again as soon as they have lost anything."""


@contextmanager
def watchful(budget: float = 1e18, *, hasty: bool = False) -> Iterator[None]:
    """Every guard gets a trial after every slice, and watches. In haste everything is small besides: rings grow all
    the time, filters say "perhaps" often and are made anew, SteMs are compacted for a single tuple."""
    with pytest.MonkeyPatch.context() as patch, cramped() if hasty else nullcontext():
        patch.setattr(payoff, "TUPLES_PER_UPDATE", 1)
        patch.setattr(payoff, "FIRST_TRIAL_BUDGET", 1e30)
        patch.setattr(payoff, "MARGIN", -1e30)
        patch.setattr(payoff, "GUARD_BUDGET_TRIALS", budget)
        patch.setattr(stems, "MAX_PARTNERED_SHARE", 1.0)
        patch.setattr(tuple_cost, "BLACKLIST_NS", -1e30)
        if hasty:
            patch.setattr(blacklist, "FIRST_CAPACITY", 1)
            patch.setattr(bloom, "MIN_EXPECTED", 1)
            patch.setattr(stem_guard, "MIN_HANDLED", 1)
            patch.setattr(stem_guard, "REBUILD_AFTER", 1)
            patch.setattr(stems, "COMPACT_SHARE", 0.0)
        yield


@PROPERTY
@given(cases(most_aliases=5), EXECUTOR, st.booleans(), st.booleans(), GUARD_BUDGET_TRIALS)
def test_feedback_changes_nothing(case: Case, executor: str, hasty: bool, hashed: bool, budget: float) -> None:
    """Any predicates, windows, values and epochs."""
    with watchful(budget, hasty=hasty):
        got, _ = fed(case, executor=executor, hashed=hashed)
    assert got == run(case)
    assert canonical(got) == canonical(oracle.results(case.query, case.given))


@examples(100, quick=12)
@given(st.one_of(sparse(), dense_cases()), EXECUTOR, st.booleans(), st.booleans(), GUARD_BUDGET_TRIALS)
def test_where_few_tuples_have_partners(
    case: Case, executor: str, hasty: bool, hashed: bool, budget: float
) -> None:
    """Streams that begin late and end early, keys that come and go."""
    with watchful(budget, hasty=hasty):
        got, _ = fed(case, executor=executor, hashed=hashed)
    assert got == run(case)
    assert canonical(got) == canonical(oracle.results(case.query, case.given))


@PROPERTY
@given(sparse(), EXECUTOR, st.booleans(), GUARD_BUDGET_TRIALS, st.data())
def test_with_migrations(case: Case, executor: str, hasty: bool, budget: float, data: st.DataObject) -> None:
    """Everything is let in before the probe orders change, and kept back anew afterwards."""
    changes = data.draw(changes_of(case, ["moving-state"], 3))
    with watchful(budget, hasty=hasty):
        got, _ = fed(case, changes, executor)
    assert got == run(case)
