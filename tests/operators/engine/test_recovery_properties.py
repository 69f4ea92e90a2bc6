"""A task that crashes at any point and is rebuilt, from a snapshot or from the log, continues exactly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests import oracle
from tests.cases import Case, cases
from tests.feeding import canonical
from tests.operators.deaths import from_a_snapshot, from_the_log
from tests.profiles import PROPERTY

TURNS = st.lists(st.integers(1, 5), min_size=1, max_size=6)


@PROPERTY
@given(cases(), TURNS, st.integers(0, 4))
def test_restored_from_a_snapshot(case: Case, turns: list[int], snapshots: int) -> None:
    got = from_a_snapshot(case, turns, snapshots, case)
    assert canonical(got) == canonical(oracle.results(case.query, case.given))


@PROPERTY
@given(cases(), TURNS)
def test_rebuilt_from_the_log_alone(case: Case, turns: list[int]) -> None:
    """A new machine replays `longest window` of input and nothing before it."""
    assert canonical(from_the_log(case, turns, case)) == canonical(oracle.results(case.query, case.given))
