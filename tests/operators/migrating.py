"""An engine that changes plans: what tests of migrations start from, and the states that they look at."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from operators.engine.engine import Engine
from operators.join.tree import XJoinTree
from operators.migration.strategies import STRATEGIES
from operators.plan.plan import Plan, parse_plan
from operators.state.side_state import SideState
from schemas.query import Query
from tests import oracle
from tests.cases import Case, plan
from tests.feeding import Rows, canonical, partitions_of, to_batch, to_rows
from tests.operators.inside import executor_as
from tests.operators.tiny import inputs, query

Changes = list[tuple[int, Plan, str]]
"""Cut, plan and strategy of each."""

# Each stream has keys 1 and 2 once before 10, and again from 20 on.
OLD = {"a": "1 k=1 | 2 k=2", "b": "3 k=1 | 4 k=2", "c": "5 k=1 | 6 k=2", "d": "7 k=1 | 8 k=2"}
NEW = {"a": "20 k=1", "b": "21 k=2", "c": "22 k=1", "d": "23 k=2 | 24 k=1"}
BOTH = inputs(**{name: f"{OLD[name]} | {NEW[name]}" for name in OLD})
LEFT_DEEP, RIGHT_DEEP, BUSHY = "(((A B) C) D)", "(A (B (C D)))", "((A C) (B D))"


def joined(condition: str, *, aliases: str = "ABCD", window: str = "[RANGE 99 ms]") -> Query:
    """The times of what streams a, b, ... bring that meets a condition."""
    outputs = ", ".join(f"{name}.ts" for name in aliases)
    sources = ", ".join(f"{name.lower()} {name} {window}" for name in aliases)
    return query(f"SELECT {outputs} FROM {sources} WHERE {condition}", streams=aliases.lower())


def shared(window: str) -> Query:
    """Four streams by one key."""
    return joined("A.k = B.k AND A.k = C.k AND A.k = D.k", window=window)


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
    return executor_as(engine, XJoinTree)


def state(executor: object, aliases: str) -> SideState:
    """The state of a tree that covers these one-letter aliases."""
    assert isinstance(executor, XJoinTree)
    found = [s for _, join in executor.joins for s in join.states if set(s.aliases) == set(aliases)]
    assert len(found) == 1
    return found[0]


def changes_of(
    case: Case, names: list[str], most: int, plans: Callable[[tuple[str, ...]], st.SearchStrategy[Plan]] = plan
) -> st.SearchStrategy[Changes]:
    """Changes to any of `plans`, which are given the aliases, at timestamps of the case and around them."""
    times = [row["ts"] for parts in case.rows.values() for part in parts for row in part] or [0]
    endless = any(source.endless for source in case.query.sources)
    usable = [name for name in names if not (endless and STRATEGIES[name].outlasts)]
    if not usable:
        return st.just([])
    aliases = tuple(source.alias for source in case.query.sources)
    cut = st.builds(lambda ts, by: max(0, ts + by), st.sampled_from(times), st.integers(-1, 1))
    return st.lists(st.tuples(cut, plans(aliases), st.sampled_from(usable)), min_size=1, max_size=most)
