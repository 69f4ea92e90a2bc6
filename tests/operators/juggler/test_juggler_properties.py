"""Random groups: what each query gives in the group is what the oracle says of it alone, whatever the order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from operators.juggler.operator import ORDERS
from schemas.groups import QueryGroup
from tests.feeding import canonical
from tests.operators.juggler.groups import Rows, Runner, expected, groups, inputs
from tests.operators.profiles import PROPERTY


@PROPERTY
@given(groups(), inputs(), st.sampled_from(["adaptive", *ORDERS]), st.sampled_from([1, 7, 50]))
def test_each_query_alone(group: QueryGroup, rows: Rows, order: str, step: int) -> None:
    """In any order of the predicate types, in slices of any length."""
    found = Runner(group, rows, order).all(step)
    for member in group.members:
        got = found.get(member.name, [])
        assert canonical(got) == canonical(expected(member.query, rows)), member.name
        assert [row["_ts"] for row in got] == sorted(row["_ts"] for row in got)
