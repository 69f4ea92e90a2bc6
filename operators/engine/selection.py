"""Applies selections to source tuples and stores those that enter a plan. The engine has one `SourceSelection`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from operators.data.evaluate import batch_reader, holds
from operators.data.statistics import SourceStatistics
from operators.data.tuples import Tuples
from operators.plan.predicates import constants, selections
from operators.spill.plan_spilling import VOID
from operators.state.sources import Sources
from schemas.columns import Batch, Column, Mask
from schemas.errors import InvariantError
from schemas.query import ColumnRef, Query


class SourceSelection:
    """Selects and stores tuples of a query's streams, and counts them per alias.

    Attributes:
        aliases_of: the aliases of each stream and table, by its name.
    """

    def __init__(self, query: Query) -> None:
        self._query = query
        aliases = tuple(source.alias for source in query.sources)
        names = dict.fromkeys([*(s.name for s in query.joined_streams()), *(t.name for t in query.tables())])
        self.aliases_of = {n: tuple(src.alias for src in query.sources if src.stream.name == n) for n in names}
        self._selections = {alias: selections(query, alias) for alias in aliases}
        self._possible = all(holds(p, _no_column, 1)[0] for p in constants(query))
        self._seen = {alias: [0, 0] for alias in aliases}

    def enter(
        self, sources: Sources, stream: str, batch: Batch, horizons: Mapping[str, Column], *, restored: bool
    ) -> dict[str, Tuples]:
        """Store the tuples that some alias selects; all tuples where ROWS windows may count them.

        Args:
            horizons: horizon columns for ROWS windows, stored with the tuples.
            restored: the tuples come from stores; selections have been applied where the store is not shared.

        Returns:
            The new tuples of each alias.
        """
        aliases = self.aliases_of[stream]
        n = len(batch)
        shared = sources.shared(aliases[0])
        chosen: dict[str, Mask | None] = {}
        for alias in aliases:
            good: Mask | None = None if self._possible else np.zeros(n, np.bool_)
            if shared or not restored:
                for predicate in self._selections[alias]:
                    passed = holds(predicate, batch_reader(batch), n)
                    good = passed if good is None else good & passed
            if VOID in batch.columns:
                real = batch.columns[VOID].values == 0
                good = real if good is None else good & real
            chosen[alias] = None if good is None or good.all() else good
            self._seen[alias][0] += n
            self._seen[alias][1] += n if good is None else int(np.count_nonzero(good))
        store = sources.stores[stream]
        masks = [mask for mask in chosen.values() if mask is not None]
        if len(masks) == len(aliases) and not restored and not sources.rows_windows:
            wanted = np.logical_or.reduce(masks)
            batch = batch.take(wanted)
            chosen = {alias: None if mask is None else mask[wanted] for alias, mask in chosen.items()}
        rows = store.append(Batch(batch.ts, {**batch.columns, **horizons}) if horizons else batch)
        out: dict[str, Tuples] = {}
        for alias, mask in chosen.items():
            ids, ts = (rows, batch.ts) if mask is None else (rows[mask], batch.ts[mask])
            out[alias] = Tuples((alias,), ids[np.newaxis], ts, sources.expiry(alias, ids, ts))
        return out

    def counts(self) -> tuple[int, ...]:
        """Return how many tuples of each alias have passed its selections, in FROM order."""
        return tuple(selected for _, selected in self._seen.values())

    def statistics(self, sources: Sources, alias: str, cut: int, span_ms: int) -> SourceStatistics:
        """Return the statistics of an alias when everything before `cut` has been processed.

        Args:
            span_ms: the event time between the first and the last tuple processed.
        """
        seen, selected = self._seen[alias]
        living = sources.living(alias, cut)
        if sources.shared(alias):
            living = round(living * selected / max(seen, 1))
        # Once a window has been filled, its size shows the recent rate.
        life = sources.life[alias]
        per_second = living / life if 0 < life <= span_ms else selected / max(span_ms, 1)
        if alias in sources.tables:
            per_second = 0.0
        stream = self._query.source(alias).stream.name
        return SourceStatistics(alias, stream, seen, selected, living, per_second * 1000.0)


def _no_column(column: ColumnRef) -> Column:
    raise InvariantError(f"a constant predicate reads {column}")
