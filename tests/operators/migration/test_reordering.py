"""Changing the plan of executors without intermediate states: an order changes, nothing is moved (HybMig 2.3)."""

from __future__ import annotations

import pytest

from operators.engine.engine import Engine
from operators.join.eddy import Eddy
from operators.join.executor import Executor
from operators.join.mjoin import MJoin
from operators.join.tree import XJoinTree
from operators.migration.reordering import Reordering
from operators.plan.plan import parse_plan
from operators.state.side_state import SideState
from schemas.errors import UsageError
from schemas.query import Query
from tests.feeding import partitions_of, to_batch, to_rows
from tests.operators.inside import executor_as, executor_of
from tests.operators.tiny import inputs, query

STAR = query(
    "SELECT A.v, B.v, C.v FROM a A [RANGE 10 ms], b B [RANGE 10 ms], c C [RANGE 10 ms] WHERE A.k = B.k AND A.k = C.k"
)
MIXED = query(
    "SELECT A.v, B.v, C.v FROM a A [RANGE 10 ms], b B [RANGE 10 ms], c C [RANGE 10 ms] WHERE A.k = C.k AND B.v = C.v"
)


def started(given: Query, executor: str, tree: str) -> Engine:
    """An engine that has taken five tuples and processed those before 4."""
    rows = inputs(a="1 k=1 | 4 k=1", b="2 k=1 v=7", c="3 k=1 v=7 | 5 k=1 v=7")
    engine = Engine(given, plan=parse_plan(tree, given), partitions=partitions_of(rows), executor=executor)
    streams = {stream.name: stream for stream in given.streams()}
    for name, parts in rows.items():
        engine.push(name, 0, to_batch(streams[name], parts[0]))
        engine.close(name, 0)
    engine.advance(4)
    return engine


def held(executor: Executor) -> set[int]:
    """Its states."""
    assert isinstance(executor, MJoin | Eddy)
    return {id(state) for state in executor.states().values()}


@pytest.mark.parametrize("executor", ["mjoin", "eddy"])
@pytest.mark.parametrize("strategy", ["moving-state", "jisc", "hybmig", "hybmig-bsc"])
def test_no_state_is_moved(executor: str, strategy: str) -> None:
    """The states stay the same objects, nothing is compared, and it is over at the cut."""
    engine = started(STAR, executor, "((A B) C)")
    before, compared = held(executor_of(engine)), executor_of(engine).comparisons()
    engine.migrate(parse_plan("((C B) A)", STAR), strategy, 4)
    assert len(to_rows(engine.advance())) == 3
    (record,) = engine.migrations
    assert record.finished_at == 4
    assert record.counters.made_tuples == record.counters.comparisons == 0
    assert held(executor_of(engine)) == before
    assert str(engine.plan) == "((C B) A)"
    assert compared > 0


def test_the_probe_orders_follow_the_plan() -> None:
    """At ties of the expected candidates."""
    engine = started(STAR, "mjoin", "((A B) C)")
    assert executor_as(engine, MJoin).orders["A"] == ("B", "C")
    engine.migrate(parse_plan("((A C) B)", STAR), "moving-state", 4)
    engine.advance()
    assert executor_as(engine, MJoin).orders["A"] == ("C", "B")


def test_a_source_probed_under_another_key_is_indexed_anew() -> None:
    """An M-Join with one way to probe C becomes one with another: C's tuples are found all the same."""
    engine = started(MIXED, "mjoin", "((A B) C)")
    old = executor_as(engine, MJoin)
    rows = {signature: state for signature, state in old.states().items() if signature[0] == ("C",)}
    one, *others = rows
    for signature in others:
        del old._states[signature]
    new = Reordering(old, parse_plan("((C B) A)", MIXED), 4).current
    assert isinstance(new, MJoin)
    again: list[SideState] = [state for signature, state in new.states().items() if signature[0] == ("C",)]
    assert len(again) == len(rows) == 2
    assert {len(state) for state in again} == {1}
    assert rows[one] in again


def test_a_tree_is_more_than_an_order() -> None:
    """Its states would be lost."""
    engine = started(STAR, "xjoin", "((A B) C)")
    assert isinstance(executor_of(engine), XJoinTree)
    with pytest.raises(UsageError, match="not XJoinTree"):
        Reordering(executor_of(engine), parse_plan("((C B) A)", STAR), 4)
