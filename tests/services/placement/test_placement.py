"""Which tasks a query has, and what PARTITION BY must not separate."""

from __future__ import annotations

import pytest

from schemas.errors import QueryError, UsageError
from schemas.language.program import parse_program
from schemas.query import Query
from services.placement.tasks import lay_out

STREAMS = """
CREATE STREAM a (k BIGINT, x BIGINT, s STRING, d DOUBLE, at TIMESTAMP) WITH (topic = 'ta', timestamp = 'at');
CREATE STREAM b (k BIGINT, x BIGINT, s STRING, d DOUBLE, at TIMESTAMP) WITH (topic = 'tb', timestamp = 'at');
CREATE STREAM c (k BIGINT, x BIGINT, s STRING, d DOUBLE, at TIMESTAMP) WITH (topic = 'tc', timestamp = 'at');
"""


def query(rest: str) -> Query:
    """The query of a SELECT's FROM and what follows."""
    return parse_program(f"{STREAMS} INSERT INTO 'out' SELECT * FROM {rest}").queries[0]


THREE = "a A [RANGE 1 SECOND], b B [RANGE 1 SECOND], c C [RANGE 1 SECOND] "
EVEN = {"ta": 4, "tb": 4, "tc": 4}


def test_a_shared_key_alone_makes_no_tasks() -> None:
    """Equal counts and an equality do not tell that records are keyed by it."""
    layout = lay_out(query(THREE + "WHERE A.k = B.k AND B.k = C.k"), EVEN)
    assert layout.tasks == 1
    assert len(layout.lanes(0)) == 12


def test_partition_by_makes_a_task_per_partition() -> None:
    layout = lay_out(query(THREE + "WHERE A.k = B.k AND C.k = A.k PARTITION BY A.k, B.k, C.k"), EVEN)
    assert layout.tasks == 4
    assert layout.lanes(2) == (("ta", 2), ("tb", 2), ("tc", 2))


def test_equality_may_go_through_another_column() -> None:
    layout = lay_out(query(THREE + "WHERE A.k = B.x AND B.x = B.k AND B.x = C.k PARTITION BY A.k, B.k, C.k"), EVEN)
    assert layout.copartitioned


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        (THREE + "WHERE A.k = B.k AND B.x = C.k PARTITION BY A.k, B.k, C.k", r"no condition says A\.k = C\.k"),
        (THREE + "WHERE A.k <= B.k AND B.k = C.k PARTITION BY A.k, B.k, C.k", r"no condition says A\.k = B\.k"),
        (THREE + "WHERE A.k = B.k + 0 AND B.k = C.k PARTITION BY A.k, B.k, C.k", r"no condition says A\.k = B\.k"),
        (
            "a A [RANGE 1 SECOND], a B [RANGE 1 SECOND] WHERE A.k = B.x PARTITION BY A.k, B.x",
            "both come from topic 'ta', whose records have one key",
        ),
        (THREE + "WHERE A.k = B.d AND B.d = C.k PARTITION BY A.k, B.d, C.k", "must have one type, .*B.d DOUBLE"),
    ],
)
def test_what_would_lose_results_is_refused(rest: str, message: str) -> None:
    with pytest.raises(QueryError, match=message) as caught:
        lay_out(query(rest), EVEN)
    assert caught.value.line > 0
    assert "^" in str(caught.value)


def test_unequal_counts_are_refused() -> None:
    bound = query(THREE + "WHERE A.k = B.k AND B.k = C.k PARTITION BY A.k, B.k, C.k")
    with pytest.raises(UsageError, match="'ta' has 4, 'tb' has 3, 'tc' has 4"):
        lay_out(bound, {"ta": 4, "tb": 3, "tc": 4})
