"""The engine against the oracle, over random queries, plans, data, disorder, partitions and epochs."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from operators.engine import Engine
from tests import oracle
from tests.cases import Case, cases
from tests.feeding import canonical, feed, partitions_of

PROPERTY = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


def run(case: Case) -> list[dict[str, object]]:
    """The engine's results for a case."""
    engine = Engine(case.query, plan=case.plan, partitions=partitions_of(case.rows))
    return feed(engine, case.rows, case.push_sizes, case.epoch_ms)


@PROPERTY
@given(cases())
def test_any_plan_epoch_and_disorder_give_the_oracles_results(case: Case) -> None:
    """The multiset of results is the oracle's, in timestamp order, each once."""
    got = run(case)
    assert canonical(got) == canonical(oracle.results(case.query, case.rows))
    times = [row["_ts"] for row in got]
    assert times == sorted(times)  # type: ignore[type-var]
