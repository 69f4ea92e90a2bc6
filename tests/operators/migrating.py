"""An engine that changes plans: what tests of migrations start from, and the states that they look at."""

from __future__ import annotations

from operators.engine import Engine
from operators.plan import Plan, parse_plan
from operators.state import SideState
from operators.tree import XJoinTree
from schemas.query import Query
from tests import oracle
from tests.feeding import Rows, canonical, partitions_of, to_batch, to_rows
from tests.operators.tiny import inputs, query

# Each stream has keys 1 and 2 once before 10, and again from 20 on.
OLD = {"a": "1 k=1 | 2 k=2", "b": "3 k=1 | 4 k=2", "c": "5 k=1 | 6 k=2", "d": "7 k=1 | 8 k=2"}
NEW = {"a": "20 k=1", "b": "21 k=2", "c": "22 k=1", "d": "23 k=2 | 24 k=1"}
BOTH = inputs(**{name: f"{OLD[name]} | {NEW[name]}" for name in OLD})
LEFT_DEEP, RIGHT_DEEP, BUSHY = "(((A B) C) D)", "(A (B (C D)))", "((A C) (B D))"


def shared(window: str) -> Query:
    """Four streams by one key."""
    sources = ", ".join(f"{name.lower()} {name} {window}" for name in "ABCD")
    return query(f"SELECT A.ts, B.ts, C.ts, D.ts FROM {sources} WHERE A.k = B.k AND A.k = C.k AND A.k = D.k")


ABCD = shared("[RANGE 50 ms]")


def started(given: Query, rows: Rows, tree: str | Plan, *, executor: str = "xjoin") -> Engine:
    """An engine that has taken all rows and processed none."""
    plan = parse_plan(tree, given) if isinstance(tree, str) else tree
    engine = Engine(given, plan=plan, partitions=partitions_of(rows), executor=executor)
    streams = {stream.name: stream for stream in given.streams()}
    for name, parts in rows.items():
        for p, part in enumerate(parts):
            engine.push(name, p, to_batch(streams[name], part))
            engine.close(name, p)
    return engine


def migrated(engine: Engine, changes: list[tuple[int, str, str]], times: list[int]) -> list[dict[str, object]]:
    """All results, advancing to each of some times and then to the end; checked against the oracle by the caller."""
    for cut, tree, strategy in changes:
        engine.migrate(parse_plan(tree, engine.query), strategy, cut)
    out: list[dict[str, object]] = []
    for time in times:
        out += to_rows(engine.advance(time))
    return out + to_rows(engine.advance())


def exactly(given: Query, rows: Rows, got: list[dict[str, object]]) -> bool:
    """The oracle's results, in order."""
    times = [row["_ts"] for row in got]
    return times == sorted(times) and canonical(got) == canonical(oracle.results(given, rows))  # type: ignore[type-var]


def tree(engine: Engine) -> XJoinTree:
    """The executor of an engine that is not migrating."""
    assert isinstance(engine._executor, XJoinTree)
    return engine._executor


def state(executor: object, aliases: str) -> SideState:
    """The state of a tree that covers these one-letter aliases."""
    assert isinstance(executor, XJoinTree)
    found = [s for _, join in executor.joins for s in join.states if set(s.aliases) == set(aliases)]
    assert len(found) == 1
    return found[0]
