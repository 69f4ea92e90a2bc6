"""What a few of the tuples that come to a visit show of the predicate types.

Both structures are asked what they would give those tuples, and every type is tried by itself on some of that: what
types leave together follows from the queries left after each, as correlated as they are.

Evenly spaced, not at random: the same input gives the same samples, and the same order.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from operators.juggler.predicates.lists import JOIN, TYPES, WINDOW
from operators.juggler.predicates.order import Found, Observed
from operators.juggler.routing.probe import Prober, thinned
from operators.juggler.routing.stages import Stages
from operators.juggler.routing.tuples_in_flight import Counters, Flight
from operators.juggler.routing.visits import Visit
from operators.juggler.state.input_state import Held
from operators.kernels.juggler import living
from schemas.columns import I64

SAMPLED_TUPLES = 64
SAMPLED_ENTRIES = 8_192
SAMPLED_PAIRS = 512


def observe(
    visit: Visit,
    flight: Flight,
    held: Held,
    prober: Prober,
    stages: Stages,
    counters: Counters,
    *,
    strict: bool,
) -> Observed:
    """What a flight's visit would take by either structure."""
    index = np.linspace(0, len(flight) - 1, min(SAMPLED_TUPLES, len(flight))).astype(np.int64)
    some = flight.take(index)
    found: dict[str, Found] = {}
    evaluated: dict[str, list[tuple[int, float]]] = {kind: [] for kind in TYPES}
    unknown = 0.0
    for first in (JOIN, WINDOW):
        state = prober.keyed(visit, held, first)
        if state is not None:
            probe, rows = _joined(list(prober.pairs(visit, some, held, state, None, strict=strict)))
            pieces, looked, candidates = 0.0, float(len(probe)), float(len(probe))
            few = thinned(len(probe), SAMPLED_PAIRS)
            probe, rows = probe[few], rows[few]
        else:
            look = prober.look(visit, some, held, first, strict=strict)
            looked = float(look.entries())
            share, (probe, rows) = look.some(SAMPLED_ENTRIES, SAMPLED_PAIRS)
            pieces, candidates = float(len(look.pieces)), looked * share
        wanted, alive, cost, fresh = stages.tried(visit, some, probe, rows)
        unknown = max(unknown, fresh)
        n = len(probe)
        left = {"": (wanted + 0.5) / (n + 0.5)}
        for many in (1, 2, 3):
            for kinds in combinations(sorted(TYPES), many):
                both = np.bitwise_and.reduce([alive[kind] for kind in kinds])
                left["".join(kinds)] = (int(np.count_nonzero(living(both))) + 0.5) / (n + 0.5)
        found[first] = Found(pieces / len(flight), looked / len(some), candidates / len(some), left)
        for kind in TYPES:
            evaluated[kind].append((wanted, cost[kind]))
    mean = {kind: sum(n * c for n, c in seen) / max(1, sum(n for n, _ in seen)) for kind, seen in evaluated.items()}
    return Observed(found, mean, unknown)


def _joined(pairs: list[tuple[I64, I64]]) -> tuple[I64, I64]:
    none = np.zeros(0, np.int64)
    return np.concatenate([none, *(p for p, _ in pairs)]), np.concatenate([none, *(r for _, r in pairs)])
