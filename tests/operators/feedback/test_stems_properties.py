"""Feedback in M-Joins and eddies changes no result: against the oracle and runs without it, with migrations too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.feedback import blacklist, bloom, stem_guard, stems
from operators.feedback import guard_payoff as trials
from tests import oracle
from tests.cases import Case, cases
from tests.feeding import canonical
from tests.operators.engine.test_engine_properties import cramped, run
from tests.operators.feedback.test_feedback_properties import fed, sparse
from tests.operators.migration.test_migration_properties import changes_of, dense_cases
from tests.operators.profiles import PROPERTY

EXECUTOR = st.sampled_from(["mjoin", "eddy"])
STAKE = st.sampled_from([1e18, 1e18, 0.0])
"""Guards that watch for ever, and such that rest again as soon as they have lost anything."""


@contextmanager
def watchful(stake: float = 1e18, *, hasty: bool = False) -> Iterator[None]:
    """Every guard gets a trial after every slice, and watches. In haste everything is small besides: rings grow all
    the time, filters say "perhaps" often and are made anew, SteMs are compacted for a single tuple."""
    with pytest.MonkeyPatch.context() as patch, cramped() if hasty else nullcontext():
        patch.setattr(trials, "BOOKED_TUPLES", 1)
        patch.setattr(trials, "PURSE", 1e30)
        patch.setattr(trials, "MARGIN", -1e30)
        patch.setattr(trials, "STAKE", stake)
        patch.setattr(trials, "PARTNERED_AT_MOST", 1.0)
        patch.setattr(trials, "KEPT", -1e30)
        if hasty:
            patch.setattr(blacklist, "FIRST_CAPACITY", 1)
            patch.setattr(bloom, "LEAST_EXPECTED", 1)
            patch.setattr(stem_guard, "LEAST_HANDLED", 1)
            patch.setattr(stem_guard, "RENEWED_AFTER", 1)
            patch.setattr(stems, "SWEPT_SHARE", 0.0)
        yield


@PROPERTY
@given(cases(most_aliases=5), EXECUTOR, st.booleans(), st.booleans(), STAKE)
def test_feedback_changes_nothing(case: Case, executor: str, hasty: bool, hashed: bool, stake: float) -> None:
    """Any predicates, windows, values and epochs."""
    with watchful(stake, hasty=hasty):
        got, _ = fed(case, executor=executor, hashed=hashed)
    assert got == run(case)
    assert canonical(got) == canonical(oracle.results(case.query, case.given))


@PROPERTY
@given(st.one_of(sparse(), dense_cases()), EXECUTOR, st.booleans(), st.booleans(), STAKE)
def test_where_few_tuples_have_partners(
    case: Case, executor: str, hasty: bool, hashed: bool, stake: float
) -> None:
    """Streams that begin late and end early, keys that come and go."""
    with watchful(stake, hasty=hasty):
        got, _ = fed(case, executor=executor, hashed=hashed)
    assert got == run(case)
    assert canonical(got) == canonical(oracle.results(case.query, case.given))


@PROPERTY
@given(sparse(), EXECUTOR, st.booleans(), STAKE, st.data())
def test_with_migrations(case: Case, executor: str, hasty: bool, stake: float, data: st.DataObject) -> None:
    """Everything is let in before the probe orders change, and kept back anew afterwards."""
    changes = data.draw(changes_of(case, ["moving-state"], 3))
    with watchful(stake, hasty=hasty):
        got, _ = fed(case, changes, executor)
    assert got == run(case)
