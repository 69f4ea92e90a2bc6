"""Results on their way out (Juggler 3.4.3): per query, in the order that the engine gives it alone.

What was found over the same inputs is put in order once, for all queries that read exactly those; a query gets its part
of it, by its bit. Only a query that names its inputs in another order has ties of its own to order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from operators.data.tuples import FOREVER, Tuples
from operators.juggler.routing.tuples_in_flight import Flight
from operators.kernels.juggler import by_query
from operators.kernels.order import order_ties
from operators.state.sources import Sources, life_of
from schemas.columns import I64
from schemas.groups import QueryGroup
from schemas.query import Source


@dataclass(frozen=True, slots=True)
class Route:
    """How a query's results are made of what was found over its inputs.

    Attributes:
        number, name: of the query; inputs: in its FROM order.
        places: of its inputs among those in the group's order; lives: of those, by the query's windows.
    """

    number: int
    name: str
    inputs: tuple[str, ...]
    places: tuple[int, ...]
    lives: tuple[int, ...]

    @property
    def in_order(self) -> bool:
        """Whether the query names its inputs in the group's order."""
        return self.places == tuple(range(len(self.places)))


Routes = Mapping[tuple[str, ...], Sequence[Route]]
"""By the inputs in the group's order."""


def routes(group: QueryGroup) -> Routes:
    """The ways of all queries' results."""
    order = [source.alias for source in group.inputs]
    found: dict[tuple[str, ...], list[Route]] = {}
    for number, member in enumerate(group.members):
        inputs = tuple(sorted(member.inputs, key=order.index))
        places = tuple(inputs.index(name) for name in member.inputs)
        lives = tuple(_life(member.over_inputs.source(name)) for name in inputs)
        found.setdefault(inputs, []).append(Route(number, member.name, member.inputs, places, lives))
    return found


def _life(source: Source) -> int:
    return FOREVER if source.is_table else life_of(source)


class Outputs:
    """The results of one slice."""

    def __init__(self, sources: Sources, ways: Routes) -> None:
        self._sources = sources
        self._ways = ways
        self._found: dict[frozenset[str], list[Flight]] = {}

    def add(self, flight: Flight) -> None:
        """Take what satisfies those queries over just its inputs whose bits it carries, and nobody else."""
        if len(flight):
            self._found.setdefault(frozenset(flight.inputs), []).append(flight)

    def results(self) -> dict[str, Tuples]:
        """Per query, those without any too, over its inputs in FROM order, ascending by (ts, rows)."""
        found: dict[str, Tuples] = {}
        for inputs, ways in self._ways.items():
            flights = self._found.get(frozenset(inputs))
            if flights is not None:
                found |= self._routed(inputs, ways, flights)
            for way in ways:
                if way.name not in found:
                    found[way.name] = Tuples.empty(way.inputs)
        return found

    def _routed(self, inputs: tuple[str, ...], ways: Sequence[Route], flights: Sequence[Flight]) -> dict[str, Tuples]:
        """What was found over the same inputs, for those queries that have results."""
        rows = np.concatenate([f.rows[[f.inputs.index(name) for name in inputs]] for f in flights], axis=1)
        ts = np.concatenate([f.ts for f in flights])
        order = np.argsort(ts, kind="stable")
        rows, ts = np.take(rows, order, axis=1), ts[order]
        ties = order_ties(ts, rows)
        order, rows = order[ties], np.take(rows, ties, axis=1)
        alive = np.concatenate([f.alive for f in flights])[order]
        offsets, chosen = by_query(alive, np.array([way.number for way in ways], np.int64))
        expiries: dict[tuple[int, ...], I64] = {}
        found: dict[str, Tuples] = {}
        for k, way in enumerate(ways):
            index = chosen[offsets[k] : offsets[k + 1]]
            if not len(index):
                continue
            if way.lives not in expiries:
                expiries[way.lives] = self._expiry(inputs, rows, way.lives)
            own = np.take(rows, index, axis=1)
            tuples = Tuples(way.inputs, own, ts[index], expiries[way.lives][index])
            if not way.in_order:
                tuples = Tuples(way.inputs, own[list(way.places)], tuples.ts, tuples.expiry)
                tuples = tuples.take(order_ties(tuples.ts, tuples.rows))
            found[way.name] = tuples
        return found

    def _expiry(self, inputs: tuple[str, ...], rows: I64, lives: tuple[int, ...]) -> I64:
        """(n,) when results end, by these windows."""
        expiry = np.full(rows.shape[1], FOREVER)
        for k, (name, life) in enumerate(zip(inputs, lives, strict=True)):
            if life < FOREVER:
                times = np.asarray(self._sources.store(name).gather("_ts", rows[k]).values, np.int64)
                expiry = np.minimum(expiry, times + life)
        return expiry
