"""Sorts a slice's results by query (Juggler 3.4.3), each query's in the order that the engine gives it alone.

`operators.juggler.operator` fills one `SliceResults` per slice. Results over the same inputs are ordered once for all
queries that read exactly these inputs; each query takes the results that carry its bit. Only a query that names its
inputs in another order must order ties again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from operators.data.tuples import FOREVER, Tuples
from operators.juggler.routing.tuples_in_flight import TuplesInFlight
from operators.kernels.juggler import by_query
from operators.kernels.order import order_ties
from operators.state.sources import Sources, life_of
from schemas.columns import I64
from schemas.groups import QueryGroup
from schemas.query import Source


@dataclass(frozen=True, slots=True)
class QueryRoute:
    """How to build one query's results from the combinations over its inputs.

    Attributes:
        number: the query's number in the group, which is its bit.
        name: the query's name.
        inputs: the query's inputs in its FROM order.
        positions: the position of each of these inputs in the group's order.
        lifetimes: how long tuples of each input live by the query's windows, in the group's order.
    """

    number: int
    name: str
    inputs: tuple[str, ...]
    positions: tuple[int, ...]
    lifetimes: tuple[int, ...]

    @property
    def in_order(self) -> bool:
        """Whether the query names its inputs in the group's order."""
        return self.positions == tuple(range(len(self.positions)))


QueryRoutes = Mapping[tuple[str, ...], Sequence[QueryRoute]]
"""By the inputs in the group's order."""


def routes(group: QueryGroup) -> QueryRoutes:
    """The routes of all queries of a group."""
    order = [source.alias for source in group.inputs]
    found: dict[tuple[str, ...], list[QueryRoute]] = {}
    for number, member in enumerate(group.members):
        inputs = tuple(sorted(member.inputs, key=order.index))
        positions = tuple(inputs.index(name) for name in member.inputs)
        lifetimes = tuple(_lifetime(member.over_inputs.source(name)) for name in inputs)
        found.setdefault(inputs, []).append(QueryRoute(number, member.name, member.inputs, positions, lifetimes))
    return found


def _lifetime(source: Source) -> int:
    return FOREVER if source.is_static else life_of(source)


class SliceResults:
    """Collects the results of one slice."""

    def __init__(self, sources: Sources, routes: QueryRoutes) -> None:
        self._sources = sources
        self._routes = routes
        self._found: dict[frozenset[str], list[TuplesInFlight]] = {}

    def add(self, in_flight: TuplesInFlight) -> None:
        """Add tuples that satisfy exactly those queries over just their inputs whose bits they carry."""
        if len(in_flight):
            self._found.setdefault(frozenset(in_flight.inputs), []).append(in_flight)

    def results(self) -> dict[str, Tuples]:
        """Results per query, also of queries without any, over its inputs in FROM order, ascending by (ts, rows)."""
        found: dict[str, Tuples] = {}
        for inputs, routes in self._routes.items():
            batches = self._found.get(frozenset(inputs))
            if batches is not None:
                found |= self._routed(inputs, routes, batches)
            for route in routes:
                if route.name not in found:
                    found[route.name] = Tuples.empty(route.inputs)
        return found

    def _routed(
        self, inputs: tuple[str, ...], routes: Sequence[QueryRoute], batches: Sequence[TuplesInFlight]
    ) -> dict[str, Tuples]:
        """The results over the same inputs, by query; queries without results are absent."""
        rows = np.concatenate([f.rows[[f.inputs.index(name) for name in inputs]] for f in batches], axis=1)
        ts = np.concatenate([f.ts for f in batches])
        order = np.argsort(ts, kind="stable")
        rows, ts = np.take(rows, order, axis=1), ts[order]
        ties = order_ties(ts, rows)
        order, rows = order[ties], np.take(rows, ties, axis=1)
        alive = np.concatenate([f.alive for f in batches])[order]
        offsets, chosen = by_query(alive, np.array([route.number for route in routes], np.int64))
        expiries: dict[tuple[int, ...], I64] = {}
        found: dict[str, Tuples] = {}
        for k, route in enumerate(routes):
            index = chosen[offsets[k] : offsets[k + 1]]
            if not len(index):
                continue
            if route.lifetimes not in expiries:
                expiries[route.lifetimes] = self._expiry(inputs, rows, route.lifetimes)
            own = np.take(rows, index, axis=1)
            tuples = Tuples(route.inputs, own, ts[index], expiries[route.lifetimes][index])
            if not route.in_order:
                tuples = Tuples(route.inputs, own[list(route.positions)], tuples.ts, tuples.expiry)
                tuples = tuples.take(order_ties(tuples.ts, tuples.rows))
            found[route.name] = tuples
        return found

    def _expiry(self, inputs: tuple[str, ...], rows: I64, lifetimes: tuple[int, ...]) -> I64:
        """(n,) the expiry of results by these lifetimes."""
        expiry = np.full(rows.shape[1], FOREVER)
        for k, (name, lifetime) in enumerate(zip(inputs, lifetimes, strict=True)):
            if lifetime < FOREVER:
                times = np.asarray(self._sources.store(name).gather("_ts", rows[k]).values, np.int64)
                expiry = np.minimum(expiry, times + lifetime)
        return expiry
