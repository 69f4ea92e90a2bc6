"""Reference tables in the engine: rows that are in every state before the first slice, and never leave.

`load_tables` puts them into a fresh executor. Their ts is TABLE_TS, before every event time, and from there their
lifetime is endless. So the rules for streams apply to them: a result's ts and expiry come from the components of its
streams, a table's row is never the later of two tuples, and no purge reaches it. Joins of tables alone are computed
once, when an executor is loaded. Tables are in no checkpoint: a restarted task reads the file again.

Migrations treat tables as both old and new: every executor of a new plan is loaded before it runs, so a state of tables
alone is never missing.

Limits: every task stores all tables in memory, and their rows do not change while the task runs.
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


def load_tables(executor: AnyExecutor) -> AnyExecutor:
    """Put the rows of all tables into the states of a fresh executor, and return it."""
    sources = executor.sources
    if sources.tables:
        rows = {alias: stored_tuples(sources, alias) for alias in executor.plan.aliases if alias in sources.tables}
        executor.process(rows, TABLE_TS)
    return executor


def stored_tuples(sources: Sources, alias: str) -> Tuples:
    """Return all stored tuples of an alias that pass its selections; for a stream some of them may be dead."""
    store = sources.store(alias)
    rows = store.stored_rows()
    if sources.shared(alias):
        for predicate in selections(sources.query, alias):
            rows = rows[holds(predicate, sources.resolver((alias,), rows[np.newaxis]), len(rows))]
    ts = np.asarray(store.gather("_ts", rows).values, np.int64)
    return Tuples((alias,), np.ascontiguousarray(rows[np.newaxis]), ts, sources.expiry(alias, rows, ts))
