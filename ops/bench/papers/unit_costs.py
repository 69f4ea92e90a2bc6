"""Measures the engine's elementary steps: the unit costs of `operators.migration.sizes`.

    python -m ops.bench.papers.unit_costs

Each is the best of ROUNDS: a cost model needs the cost of the step, without other load on the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from operators.data.tuples import Tuples
from operators.engine.engine import Engine
from operators.join.binary_join import BinaryJoin
from operators.migration.jisc.counting import KeyCount
from operators.migration.jisc.strategy import COUNTED_TUPLES
from operators.plan.plan import left_deep
from operators.state.match import LEFT, RIGHT
from operators.state.side_state import SideState
from operators.state.sources import Sources
from schemas.columns import I64, Batch, Column
from schemas.language.program import parse_program
from schemas.query import Query, Type

ROUNDS = 7
TUPLES = 60_000
SCANNED = 2_500
WINDOW_MS = 10_000_000


def query(predicate: str) -> Query:
    """Two streams joined by a predicate."""
    streams = "".join(f"CREATE STREAM {name} (k BIGINT, at TIMESTAMP) WITH (timestamp = 'at');\n" for name in "ab")
    window = f"[RANGE {WINDOW_MS} MILLISECONDS]"
    return parse_program(f"{streams} SELECT A.k FROM a A {window}, b B {window} WHERE {predicate}").queries[0]


def tuples(sources: Sources, alias: str, keys: I64, begin: int) -> Tuples:
    """Stored tuples of an alias, one per millisecond."""
    ts = np.arange(begin, begin + len(keys), dtype=np.int64)
    rows = sources.store(alias).append(Batch(ts, {"k": Column(Type.BIGINT, keys)}))
    return Tuples((alias,), rows[np.newaxis], ts, ts + WINDOW_MS)


def best(step: Callable[[], float]) -> float:
    """The smallest of ROUNDS measurements, after one that compiles and warms up."""
    step()
    return min(step() for _ in range(ROUNDS))


def joined(text: str, n: int, values: int) -> tuple[float, float, int, int]:
    """Seconds to enter n left and n later right tuples and to probe with each side; comparisons; results."""
    bound = query(text)
    rng = np.random.default_rng(1)
    sources = Sources(bound)
    join = BinaryJoin(sources, ("A",), ("B",))
    left = tuples(sources, "A", rng.integers(0, values, n), 0)
    right = tuples(sources, "B", rng.integers(0, values, n), n)
    began = time.perf_counter()
    for side, new in ((LEFT, left), (RIGHT, right)):
        join.match.enter(join.states[side], join.match.prepare(side, new), 0)
    entered = time.perf_counter()
    for side, new in ((LEFT, left), (RIGHT, right)):
        join.match.find(side, join.match.prepare(side, new), join.states[1 - side], strict=side == LEFT)
    done = time.perf_counter()
    return entered - began, done - entered, join.counters.comparisons, join.counters.results


def main() -> None:
    """Print the constants."""
    hashed, scanned = "A.k = B.k", "A.k < B.k"
    sparse, dense = 1 << 40, TUPLES // 40
    enter = best(lambda: joined(hashed, TUPLES, sparse)[0]) / (2 * TUPLES)
    probe = best(lambda: joined(hashed, TUPLES, sparse)[1]) / (2 * TUPLES)
    _, _, compared, made = joined(hashed, TUPLES, dense)
    make = (best(lambda: joined(hashed, TUPLES, dense)[1]) - 2 * TUPLES * probe) / made
    # Equal values everywhere would produce a result per pair; no value is smaller than itself.
    scan = best(lambda: joined(scanned, SCANNED, 1)[1]) / (SCANNED * SCANNED)
    keys = np.random.default_rng(1).integers(0, 1 << 62, TUPLES).astype(np.uint64)

    def count() -> float:
        ts = np.arange(TUPLES, dtype=np.int64)
        state = SideState(("A",), WINDOW_MS, hashed=True, exact_expiry=True)
        state.insert(Tuples(("A",), ts[np.newaxis], ts, ts + WINDOW_MS), keys)
        counted = KeyCount(state, TUPLES, lambda some: state.has(some, TUPLES), keys[:0])
        began = time.perf_counter()
        while counted.count(COUNTED_TUPLES):
            pass
        return time.perf_counter() - began

    def call() -> float:
        took, found, _, _ = joined(hashed, 1, 1)
        return took + found

    def small_slice() -> float:
        bound = query(hashed)
        engine = Engine(bound, plan=left_deep(["A", "B"]))
        batch = Batch(
            np.arange(1, dtype=np.int64),
            {"k": Column(Type.BIGINT, np.zeros(1, np.int64)), "at": Column(Type.TIMESTAMP, np.zeros(1, np.int64))},
        )
        for stream in bound.streams():
            engine.push(stream.name, 0, batch)
        began = time.perf_counter()
        engine.advance(1)
        return time.perf_counter() - began

    print(f"ENTER_S  {enter * 1e9:8.1f} ns per tuple entered into a hashed state")
    print(f"PROBE_S  {probe * 1e9:8.1f} ns per tuple that probes one")
    print(f"MAKE_S   {make * 1e9:8.1f} ns per result, {compared / made:.2f} comparisons each included")
    print(f"SCAN_S   {scan * 1e9:8.1f} ns per pair of a nested loop")
    print(f"COUNT_S  {best(count) / TUPLES * 1e9:8.1f} ns per key counted")
    print(f"CALL_S   {best(call) * 1e6:8.1f} us per join of next to nothing")
    print(f"SLICE_S  {best(small_slice) * 1e6:8.1f} us per slice of next to nothing")


if __name__ == "__main__":
    main()
