"""The engine of a query group: every query's results are those that it gives alone, and the oracle's."""

from __future__ import annotations

from contextlib import nullcontext

from hypothesis import given
from hypothesis import strategies as st

from operators.engine import Engine
from operators.executors import EXECUTORS
from operators.group_engine import GroupEngine
from operators.group_parts import APART, JUGGLER, group_engine
from operators.group_shared import SharedQueries
from schemas.groups import query_group, streams_of
from tests import oracle
from tests.feeding import canonical, feed, partitions_of
from tests.group_cases import GroupCase, feed_group, group_cases
from tests.operators.nested_loops import NestedLoops
from tests.operators.profiles import PROPERTY
from tests.operators.test_engine_properties import cramped


def shared(case: GroupCase) -> GroupEngine:
    """A group's engine with one part, whose operator is nested loops."""
    group = query_group(case.queries)
    part = SharedQueries(group, NestedLoops, name="loops", tables=case.batches())
    return GroupEngine(streams_of(case.queries), [part], partitions_of(case.rows))


def engine_of_all(case: GroupCase, executor: str | None) -> GroupEngine:
    """A group's engine by an executor's name."""
    return group_engine(case.queries, executor=executor, tables=case.batches(), partitions=partitions_of(case.rows))


def check(case: GroupCase, engine: GroupEngine) -> None:
    """Every query's results in the order of its own engine, and the oracle's."""
    got = feed_group(engine, case)
    for query in case.queries:
        rows, tables = case.rows_of(query), case.batches()
        alone = Engine(query, partitions=partitions_of(rows), tables=tables)
        assert got[query.name] == feed(alone, rows, case.push_sizes, case.epoch_ms)
        assert canonical(got[query.name]) == canonical(oracle.results(query, case.given(query)))
    statistics = engine.statistics()
    assert {q.name: q.results for q in statistics.queries} == {name: len(rows) for name, rows in got.items()}
    assert statistics.input_tuples == sum(len(part) for parts in case.rows.values() for part in parts)
    late = [oracle.late(query, case.rows_of(query)) for query in case.queries]
    assert statistics.late == sum(len(rows) for rows in {k: v for of in late for k, v in of.items()}.values())


@PROPERTY
@given(group_cases(shareable=False), st.sampled_from([None, APART, *sorted(EXECUTORS)]))
def test_queries_apart_over_one_intake_give_what_each_gives_alone(case: GroupCase, executor: str | None) -> None:
    engine = group_engine(case.queries, executor=executor, tables=case.batches(), partitions=partitions_of(case.rows))
    check(case, engine)


@PROPERTY
@given(group_cases(most_aliases=2, most_rows=6), st.booleans())
def test_queries_that_share_an_operator_give_what_each_gives_alone(case: GroupCase, tiny: bool) -> None:
    with cramped() if tiny else nullcontext():
        check(case, shared(case))


@PROPERTY
@given(group_cases(most_rows=14), st.booleans())
def test_juggler_gives_every_query_what_it_gives_alone(case: GroupCase, tiny: bool) -> None:
    with cramped() if tiny else nullcontext():
        check(case, engine_of_all(case, JUGGLER))
