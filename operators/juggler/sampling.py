"""What a slice shows of the predicate types: each tried by itself on a few new tuples and on pairs drawn at random.

Drawn by a counter and a mixing function: the same input gives the same samples, and the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from operators.juggler.flight import Evaluator, Flight
from operators.juggler.held import Held
from operators.juggler.lists import JOIN, WINDOW, PredicateList, query_mask
from operators.juggler.order import Observed
from operators.juggler.probe import Prober
from operators.juggler.visits import Visit
from operators.kernels.hashing import mix_words
from operators.kernels.juggler import living
from operators.kernels.ring import ring_read
from operators.sources import Sources
from operators.tuples import FOREVER, Tuples
from schemas.columns import I64

SAMPLED = 64
"""New tuples of an input looked at per slice, and pairs per visit."""


def observe(
    sources: Sources,
    evaluator: Evaluator,
    prober: Prober,
    visits: Mapping[str, Visit],
    held: Mapping[str, Held],
    attributes: Mapping[str, Sequence[PredicateList]],
    epoch: Mapping[str, Tuples],
) -> Observed | None:
    """Shares and costs of the types in this slice; None where no new tuple could meet another."""
    singles: list[tuple[float, float, float]] = []
    pairs: list[tuple[float, ...]] = []
    for name, tuples in epoch.items():
        index = np.linspace(0, len(tuples) - 1, min(SAMPLED, len(tuples))).astype(np.int64)
        rows, ts = tuples.rows[:, index], tuples.ts[index]
        flight = _flight(evaluator, (name,), rows, ts, held[name].asking)
        left, cost = _tried(evaluator, flight, attributes[name])
        singles.append((float(len(tuples)), left, cost))
        for visit in visits[name].next:
            seen = _pairs(evaluator, prober, visit, held[visit.inputs[-1]], rows, ts)
            if seen is not None:
                pairs.append((float(len(tuples)), *seen))
    if not pairs:
        return None
    attribute, attribute_cost = _mean(singles)
    join, join_cost, join_found, window, window_cost, window_found, rows_met = _mean(pairs)
    return Observed(
        attribute, join, window, attribute_cost, join_cost, window_cost, join_found, window_found, rows_met
    )


def _mean(found: Sequence[tuple[float, ...]]) -> list[float]:
    """The means of all but the first, weighted by the first."""
    table = np.array(found)
    return [float(value) for value in np.average(table[:, 1:], axis=0, weights=table[:, 0])]


def _flight(evaluator: Evaluator, inputs: tuple[str, ...], rows: I64, ts: I64, mask: np.ndarray) -> Flight:
    n, words = len(ts), evaluator.predicate_words
    none = np.zeros((n, words), np.uint64)
    alive = np.tile(mask, (n, 1))
    return Flight(inputs, np.ascontiguousarray(rows), ts, alive, none, none.copy())


def _tried(evaluator: Evaluator, flight: Flight, lists: Sequence[PredicateList]) -> tuple[float, float]:
    """The share that a type leaves, at least half an observation, and its evaluations per tuple."""
    before = evaluator.counters.comparisons
    evaluator.evaluate(flight, lists)
    cost = (evaluator.counters.comparisons - before) / len(flight)
    left = np.count_nonzero(living(flight.alive)) / len(flight)
    return max(left, 0.5 / len(flight)), cost


def _pairs(
    evaluator: Evaluator, prober: Prober, visit: Visit, held: Held, rows: I64, ts: I64
) -> tuple[float, ...] | None:
    state = held.by_time
    times = ring_read(state.ts, state.lo, state.hi)
    begin = np.searchsorted(times, ts - held.life if held.life < FOREVER else np.full(len(ts), -FOREVER))
    count = np.searchsorted(times, ts, side="right") - begin
    some = np.flatnonzero(count)
    if not len(some):
        return None
    drawn = mix_words(np.arange(SAMPLED, dtype=np.uint64) + np.uint64(state.hi << 16))
    which = some[np.arange(SAMPLED) % len(some)]
    entries = state.lo + begin[which] + (drawn % count[which].astype(np.uint64)).astype(np.int64)
    found = state.rows[0][entries & (state.capacity - 1)]
    both = np.concatenate([rows[:, which], found[np.newaxis]])
    mask = query_mask(set(visit.queries), evaluator.words)
    join, join_cost = _tried(evaluator, _flight(evaluator, visit.inputs, both, ts[which], mask), visit.lists[JOIN])
    window, window_cost = _tried(
        evaluator, _flight(evaluator, visit.inputs, both, ts[which], mask), visit.lists[WINDOW]
    )
    join_found = join if visit.key or visit.index is not None else 1.0
    one = _flight(evaluator, visit.inputs[:1], rows[:, some], ts[some], mask)
    spans = prober.spans(visit, one, held, times)
    window_found = float(spans.sum()) / float(count[some].sum())
    return join, join_cost, join_found, window, window_cost, max(window_found, 1e-6), float(count.mean())
