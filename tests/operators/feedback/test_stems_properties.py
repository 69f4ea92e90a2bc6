"""Feedback in M-Joins and eddies changes no result: against the oracle and runs without it, with migrations too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.feedback import blacklist, bloom, stems
from tests import oracle
from tests.cases import Case, cases
from tests.feeding import canonical
from tests.operators.feedback.test_feedback_properties import fed, sparse
from tests.operators.profiles import PROPERTY
from tests.operators.test_engine_properties import cramped, run
from tests.operators.test_migration_properties import changes_of, dense_cases

EXECUTOR = st.sampled_from(["mjoin", "eddy"])


@contextmanager
def hasty() -> Iterator[None]:
    """Everything small: filters that say "perhaps" often and are made anew all the time, rings that grow."""
    with pytest.MonkeyPatch.context() as patch, cramped():
        patch.setattr(blacklist, "FIRST_CAPACITY", 1)
        patch.setattr(bloom, "LEAST_EXPECTED", 1)
        patch.setattr(stems, "LEAST_HANDLED", 1)
        patch.setattr(stems, "RENEWED_AFTER", 1)
        yield


@PROPERTY
@given(cases(most_aliases=5), EXECUTOR, st.booleans(), st.booleans())
def test_feedback_changes_nothing(case: Case, executor: str, tiny: bool, hashed: bool) -> None:
    """Any predicates, windows, values and epochs."""
    with hasty() if tiny else nullcontext():
        got, _ = fed(case, executor=executor, hashed=hashed)
    assert got == run(case)
    assert canonical(got) == canonical(oracle.results(case.query, case.rows))


@PROPERTY
@given(st.one_of(sparse(), dense_cases()), EXECUTOR, st.booleans(), st.booleans())
def test_where_few_tuples_have_partners(case: Case, executor: str, tiny: bool, hashed: bool) -> None:
    """Streams that begin late and end early, keys that come and go."""
    with hasty() if tiny else nullcontext():
        got, _ = fed(case, executor=executor, hashed=hashed)
    assert got == run(case)
    assert canonical(got) == canonical(oracle.results(case.query, case.rows))


@PROPERTY
@given(sparse(), EXECUTOR, st.booleans(), st.data())
def test_with_migrations(case: Case, executor: str, tiny: bool, data: st.DataObject) -> None:
    """Everything is let in before the probe orders change, and kept back anew afterwards."""
    changes = data.draw(changes_of(case, ["moving-state"], 3))
    with hasty() if tiny else nullcontext():
        got, _ = fed(case, changes, executor)
    assert got == run(case)
