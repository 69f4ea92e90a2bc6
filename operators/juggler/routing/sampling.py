"""Samples the tuples that arrive at a visit, to estimate what each order of predicate types would cost.

`operators.juggler.operator` calls `observe`. Each of the two exploitation structures reports which candidates it would
return for the sampled tuples. Every predicate type is then evaluated by itself on some of these candidates. What
several types leave together follows from the queries left after each of them, so the estimate respects their
correlation.

Samples are evenly spaced, not random, so the same input produces the same samples and the same order.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from operators.juggler.predicates.lists import JOIN, TYPES, WINDOW
from operators.juggler.predicates.order import StructureSample, VisitSample
from operators.juggler.routing.probe import Prober, thinned
from operators.juggler.routing.stages import Stages
from operators.juggler.routing.tuples_in_flight import JugglerCounters, TuplesInFlight
from operators.juggler.routing.visits import Visit
from operators.juggler.state.input_state import InputState
from operators.kernels.juggler import living
from schemas.columns import I64

SAMPLED_TUPLES = 64
SAMPLED_ENTRIES = 8_192
SAMPLED_PAIRS = 512


def observe(
    visit: Visit,
    in_flight: TuplesInFlight,
    input_state: InputState,
    prober: Prober,
    stages: Stages,
    counters: JugglerCounters,
    *,
    strict: bool,
) -> VisitSample:
    """Sample what the visit of some tuples in flight would do with either structure."""
    index = np.linspace(0, len(in_flight) - 1, min(SAMPLED_TUPLES, len(in_flight))).astype(np.int64)
    some = in_flight.take(index)
    found: dict[str, StructureSample] = {}
    evaluated: dict[str, list[tuple[int, float]]] = {kind: [] for kind in TYPES}
    unknown = 0.0
    for first in (JOIN, WINDOW):
        state = prober.keyed(visit, input_state, first)
        if state is not None:
            probe, rows = _joined(list(prober.pairs(visit, some, input_state, state, None, strict=strict)))
            pieces, looked, candidates = 0.0, float(len(probe)), float(len(probe))
            few = thinned(len(probe), SAMPLED_PAIRS)
            probe, rows = probe[few], rows[few]
        else:
            lookup = prober.lookup(visit, some, input_state, first, strict=strict)
            looked = float(lookup.entries())
            share, (probe, rows) = lookup.some(SAMPLED_ENTRIES, SAMPLED_PAIRS)
            pieces, candidates = float(len(lookup.pieces)), looked * share
        wanted, alive, cost, fresh = stages.sample_types(visit, some, probe, rows)
        unknown = max(unknown, fresh)
        n = len(probe)
        left = {"": (wanted + 0.5) / (n + 0.5)}
        for many in (1, 2, 3):
            for kinds in combinations(sorted(TYPES), many):
                both = np.bitwise_and.reduce([alive[kind] for kind in kinds])
                left["".join(kinds)] = (int(np.count_nonzero(living(both))) + 0.5) / (n + 0.5)
        found[first] = StructureSample(pieces / len(in_flight), looked / len(some), candidates / len(some), left)
        for kind in TYPES:
            evaluated[kind].append((wanted, cost[kind]))
    mean = {kind: sum(n * c for n, c in seen) / max(1, sum(n for n, _ in seen)) for kind, seen in evaluated.items()}
    return VisitSample(found, mean, unknown)


def _joined(pairs: list[tuple[I64, I64]]) -> tuple[I64, I64]:
    none = np.zeros(0, np.int64)
    return np.concatenate([none, *(p for p, _ in pairs)]), np.concatenate([none, *(r for _, r in pairs)])
