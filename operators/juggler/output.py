"""Results on their way out (Juggler 3.4.3): per query, in the order that the engine gives it alone."""

from __future__ import annotations

import numpy as np

from operators.juggler.flight import Flight
from operators.juggler.visits import Visit
from operators.kernels.juggler import by_query
from operators.kernels.order import order_ties
from operators.sources import Sources, life_of
from operators.tuples import FOREVER, Tuples
from schemas.columns import I64
from schemas.groups import QueryGroup


class Outputs:
    """The results of one slice."""

    def __init__(self, sources: Sources, group: QueryGroup) -> None:
        self._sources = sources
        self._group = group
        self._found: dict[int, tuple[Visit, list[Flight]]] = {}

    def add(self, visit: Visit, flight: Flight) -> None:
        """Take what satisfies those queries that a visit finishes whose bits it carries, and nobody else's."""
        if len(flight):
            self._found.setdefault(id(visit), (visit, []))[1].append(flight)

    def results(self) -> dict[str, Tuples]:
        """Per query, those without any too, over its inputs in FROM order, ascending by (ts, rows)."""
        members = self._group.members
        parts: dict[int, list[Tuples]] = {n: [] for n in range(len(members))}
        for visit, flights in self._found.values():
            rows = np.concatenate([f.rows for f in flights], axis=1)
            ts = np.concatenate([f.ts for f in flights])
            times = [self._sources.store(a).gather("_ts", rows[k]).values for k, a in enumerate(visit.inputs)]
            offsets, chosen = by_query(
                np.concatenate([f.alive for f in flights]), np.array(visit.finished, np.int64)
            )
            for k, n in enumerate(visit.finished):
                if offsets[k] < offsets[k + 1]:
                    parts[n].append(self._of(n, visit, rows, ts, times, chosen[offsets[k] : offsets[k + 1]]))
        return {
            member.name: _in_order(Tuples.concat(parts[n], member.inputs)) for n, member in enumerate(members)
        }

    def _of(self, query: int, visit: Visit, rows: I64, ts: I64, times: list[np.ndarray], index: I64) -> Tuples:
        """A query's results among what a visit has found; they expire by its own windows."""
        member = self._group.members[query]
        places = [visit.inputs.index(name) for name in member.inputs]
        own = np.empty((len(places), len(index)), np.int64)
        expiry = np.full(len(index), FOREVER)
        for k, (place, source) in enumerate(zip(places, member.over_inputs.sources, strict=True)):
            own[k] = rows[place][index]
            life = life_of(source)
            if life < FOREVER and not source.is_table:
                expiry = np.minimum(expiry, times[place][index] + life)
        return Tuples(member.inputs, own, ts[index], expiry)


def _in_order(found: Tuples) -> Tuples:
    if len(found) < 2:
        return found
    if (found.ts[1:] < found.ts[:-1]).any():
        found = found.take(np.argsort(found.ts, kind="stable"))
    return found.take(order_ties(found.ts, found.rows))
