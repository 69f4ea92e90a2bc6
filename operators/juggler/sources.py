"""The stores of a group's streams: every declared column, so that a query may come later that reads another one.

What is known of a stream's past does not depend on when rows were purged: exactly the rows that its windows have held
without a gap, `known_from`.
"""

from __future__ import annotations

import numpy as np

from operators.sources import Sources, life_of
from operators.tuples import FOREVER, Tuples
from schemas.groups import QueryGroup
from schemas.query import Column


class GroupSources(Sources):
    """The stores behind a group's inputs."""

    def __init__(self, group: QueryGroup) -> None:
        self._known: dict[str, int] = {}
        self._begin(group)

    def _begin(self, group: QueryGroup) -> None:
        kept = [Column(source.alias, f.name, f.type) for source in group.inputs for f in source.stream.fields]
        super().__init__(group.query, kept=kept)

    def change(self, group: QueryGroup, cut: int) -> None:
        """Hold the inputs of another group from `cut` on; streams that both read keep their rows, others have none."""
        stores, scratch, before = self.stores, self.scratch, self.cut
        known = {name: self.known_from(name, cut) for name in stores}
        self._begin(group)
        self.scratch, self.cut = scratch, before
        self._known = {name: known.get(name, cut) for name in self.stores}
        for name in self.stores:
            self.stores[name] = stores.get(name, self.stores[name])
        self._store_of = {source.alias: self.stores[source.stream.name] for source in group.inputs}

    def known_from(self, stream: str, cut: int) -> int:
        """Every tuple of the stream with at least this ts is stored, once everything before `cut` was processed."""
        if stream not in self.stores:
            return cut
        life, _ = self._needs[stream]
        return max(self._known.get(stream, -FOREVER), cut - life if life < FOREVER else -FOREVER)

    def life_in(self, group: QueryGroup, name: str) -> int:
        """The longest life of an input's tuples."""
        return life_of(group.query.source(name))

    def stored_since(self, name: str, ts: int) -> Tuples:
        """All stored tuples of an input with at least this ts."""
        store = self.store(name)
        rows = store.held_rows()
        times = np.asarray(store.gather("_ts", rows).values, np.int64)
        kept = times >= ts
        rows, times = rows[kept], times[kept]
        return Tuples((name,), np.ascontiguousarray(rows[np.newaxis]), times, self.expiry(name, rows, times))
