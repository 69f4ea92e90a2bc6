"""Rows that no state refers to may be released at any time: random queries, plans and migrations notice nothing."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from operators.engine.engine import Engine
from operators.join.tree import XJoinTree
from operators.migration.strategies import STRATEGIES
from schemas.columns import Batch
from tests import oracle
from tests.cases import Case, cases
from tests.feeding import canonical, engine_of, feed
from tests.operators.engine.test_engine_properties import cramped, run
from tests.operators.inside import executor_of, sources_of
from tests.operators.migrating import Changes, changes_of
from tests.profiles import PROPERTY


def sweep(engine: Engine) -> int:
    """Mark the rows that some entry of a state refers to and release the others; return how many were released."""
    executor = executor_of(engine)
    if not isinstance(executor, XJoinTree):
        return 0  # A migration runs and may refer to any row.
    sources = sources_of(engine)
    dead = {name: np.ones(store.hi - store.lo, np.bool_) for name, store in sources.stores.items()}
    for _, join in executor.joins:
        for state in join.states:
            tuples = state.tuples()
            for alias, rows in zip(tuples.aliases, tuples.rows, strict=True):
                stream = sources.query.source(alias).stream.name
                dead[stream][rows[rows >= sources.stores[stream].lo] - sources.stores[stream].lo] = False
    released = 0
    for name, store in sources.stores.items():
        before = len(store)
        store.release(dead[name])
        released += before - len(store)
    return released


def swept(case: Case, changes: Changes = ()) -> list[dict[str, object]]:
    """The results of a case, sweeping before every push."""
    engine = engine_of(case)
    for cut, to, strategy in changes:
        engine.migrate(to, strategy, cut)

    def on_push(stream: str, batch: Batch) -> None:
        sweep(engine)

    engine.on_push = on_push
    return feed(engine, case.rows, case.push_sizes, case.epoch_ms)


@PROPERTY
@given(cases(most_aliases=5), st.booleans())
def test_sweeping_changes_nothing(case: Case, tiny: bool) -> None:
    with cramped() if tiny else nullcontext():
        got = swept(case)
    assert got == run(case)
    assert canonical(got) == canonical(oracle.results(case.query, case.given))


@PROPERTY
@given(cases(most_aliases=4), st.data())
def test_migrations_after_sweeping(case: Case, data: st.DataObject) -> None:
    """No strategy reads a row that no state had."""
    assert swept(case, data.draw(changes_of(case, sorted(STRATEGIES), 2))) == run(case)
