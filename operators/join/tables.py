"""Reference tables in the engine: rows that are in every state before the first slice, and never leave.

Their ts is TABLE_TS, before every event time, and their life FOREVER from there. So what holds for streams holds for
them: a result's ts and expiry come from its streams' components, a table's rows are never the later of two tuples, no
purge reaches them, and what is joined of tables alone is made once, when an executor is loaded. They are in no
checkpoint: who has the file reads it again.

Migrations take them for both old and new: every executor of a new plan is loaded before it runs, so no state of tables
alone is ever missing.

Limits: a table is held in memory by every task, and its rows do not change while the task lives.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from operators.data.evaluate import holds
from operators.data.tuples import Tuples
from operators.join.executor import Executor
from operators.plan.predicates import selections
from operators.state.sources import Sources
from schemas.query import TABLE_TS

AnyExecutor = TypeVar("AnyExecutor", bound=Executor)


def loaded(executor: AnyExecutor) -> AnyExecutor:
    """A fresh executor with the rows of all tables in its states."""
    sources = executor.sources
    if sources.tables:
        rows = {alias: stored(sources, alias) for alias in executor.plan.aliases if alias in sources.tables}
        executor.process(rows, TABLE_TS)
    return executor


def stored(sources: Sources, alias: str) -> Tuples:
    """All stored tuples of an alias that pass its selections: of a stream also some that are dead."""
    store = sources.store(alias)
    rows = store.held_rows()
    if sources.shared(alias):
        for predicate in selections(sources.query, alias):
            rows = rows[holds(predicate, sources.resolver((alias,), rows[np.newaxis]), len(rows))]
    ts = np.asarray(store.gather("_ts", rows).values, np.int64)
    return Tuples((alias,), np.ascontiguousarray(rows[np.newaxis]), ts, sources.expiry(alias, rows, ts))
