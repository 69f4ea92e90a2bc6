"""Results on their way out (Juggler 3.4.3): per query, in the order that the engine gives it alone.

What was found over the same inputs is put in order once, for all queries that read exactly those; a query gets its part
of it, by its bit. Only a query that names its inputs in another order has ties of its own to order.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from operators.juggler.flight import Flight
from operators.kernels.juggler import by_query
from operators.kernels.order import order_ties
from operators.sources import Sources, life_of
from operators.tuples import FOREVER, Tuples
from schemas.columns import I64
from schemas.groups import Member, QueryGroup


class Outputs:
    """The results of one slice."""

    def __init__(self, sources: Sources, group: QueryGroup, place: Mapping[str, int]) -> None:
        self._sources = sources
        self._group = group
        self._place = place
        self._found: dict[tuple[str, ...], list[Flight]] = {}
        self._finished: dict[tuple[str, ...], tuple[int, ...]] = {}

    def add(self, finished: tuple[int, ...], flight: Flight) -> None:
        """Take what satisfies those queries, which read just these inputs, whose bits it carries, and nobody else."""
        if len(flight):
            inputs = tuple(sorted(flight.inputs, key=self._place.__getitem__))
            self._found.setdefault(inputs, []).append(flight)
            self._finished[inputs] = tuple(sorted({*self._finished.get(inputs, ()), *finished}))

    def results(self) -> dict[str, Tuples]:
        """Per query, those without any too, over its inputs in FROM order, ascending by (ts, rows)."""
        found = {member.name: Tuples.empty(member.inputs) for member in self._group.members}
        for inputs, flights in self._found.items():
            rows = np.concatenate([f.rows[[f.inputs.index(name) for name in inputs]] for f in flights], axis=1)
            ts = np.concatenate([f.ts for f in flights])
            order = np.argsort(ts, kind="stable")
            rows, ts = np.take(rows, order, axis=1), ts[order]
            ties = order_ties(ts, rows)
            order, rows = order[ties], np.take(rows, ties, axis=1)
            queries = self._finished[inputs]
            alive = np.concatenate([f.alive for f in flights])[order]
            offsets, chosen = by_query(alive, np.array(queries, np.int64))
            expiries: dict[tuple[int, ...], I64] = {}
            for k, n in enumerate(queries):
                index = chosen[offsets[k] : offsets[k + 1]]
                if not len(index):
                    continue
                member = self._group.members[n]
                lives = tuple(_life(member, name) for name in inputs)
                if lives not in expiries:
                    expiries[lives] = self._expiry(inputs, rows, lives)
                own = np.empty((len(inputs), len(index)), np.int64)
                for place, name in enumerate(member.inputs):
                    own[place] = rows[inputs.index(name)][index]
                tuples = Tuples(member.inputs, own, ts[index], expiries[lives][index])
                if member.inputs != inputs:
                    tuples = tuples.take(order_ties(tuples.ts, tuples.rows))
                found[member.name] = tuples
        return found

    def _expiry(self, inputs: tuple[str, ...], rows: I64, lives: tuple[int, ...]) -> I64:
        """(n,) when results end, by these windows."""
        expiry = np.full(rows.shape[1], FOREVER)
        for k, (name, life) in enumerate(zip(inputs, lives, strict=True)):
            if life < FOREVER:
                times = np.asarray(self._sources.store(name).gather("_ts", rows[k]).values, np.int64)
                expiry = np.minimum(expiry, times + life)
        return expiry


def _life(member: Member, name: str) -> int:
    source = member.over_inputs.source(name)
    return FOREVER if source.is_table else life_of(source)
