"""Measures the kinds of work of Juggler's visits: the costs of `operators.juggler.predicates.order`.

    python -m ops.bench.papers.juggler.costs

Every fixed order runs over data of several shapes, so that the kinds of work occur in different proportions. The costs
are those that explain the times best, by least squares of relative errors. A kind with cost 0 always occurs together
with another kind: the other's cost is the sum of both.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt

from operators.juggler.operator import Juggler
from operators.juggler.predicates.order import ORDERS, VisitWork
from operators.juggler.state.sources import GroupSources
from ops.bench.papers.juggler.runs import Size, run_with
from ops.bench.papers.juggler.workloads import Group, drifting, overlapping, reordering
from schemas.groups import QueryGroup

KINDS = tuple(field.name for field in fields(VisitWork))
ROUNDS = 3
SIZES = {"drifting": Size(2_000, 10), "reordering": Size(4_000, 10), "overlap 75 %": Size(4_000, 10)}


def observed(group: Group, order: str) -> tuple[list[int], float]:
    """The counts of each kind of work and of results, and the least nanoseconds of ROUNDS runs."""
    made: list[Juggler] = []

    def operator(sources: GroupSources, of: QueryGroup) -> Juggler:
        made.append(Juggler(sources, of, order))
        return made[-1]

    size = SIZES[group.name]
    run_with(group, operator, replace(size, length=size.length // 10), 1)
    traces = [run_with(group, operator, size, 1) for _ in range(ROUNDS)]
    work = made[-1].work()
    return [*(getattr(work, kind) for kind in KINDS), sum(traces[-1].results)], min(t.total_s for t in traces) * 1e9


def explained(counts: npt.NDArray[np.float64], ns: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Fit the cost per count; no cost is negative."""
    kept = list(range(counts.shape[1]))
    while True:
        found = np.linalg.lstsq(counts[:, kept] / ns[:, np.newaxis], np.ones(len(ns)), rcond=None)[0]
        if (found >= 0).all():
            break
        kept.pop(int(np.argmin(found * np.linalg.norm(counts[:, kept], axis=0))))
    costs = np.zeros(counts.shape[1])
    costs[kept] = found
    return costs


def main() -> None:
    """Print the costs."""
    phases = [replace(drifting(), phases=(phase,)) for phase in drifting().phases]
    seen = [observed(group, order) for group in (*phases, reordering(), overlapping(75)) for order in ORDERS]
    counts, ns = np.array([row for row, _ in seen], np.float64), np.array([took for _, took in seen])
    costs = explained(counts, ns)
    for kind, cost in zip((*KINDS, "results"), costs, strict=True):
        print(f"{kind:10} {cost:12,.1f} ns")
    error = np.abs(counts @ costs / ns - 1)
    print(f"explains times to {np.median(error):.0%}, at worst {error.max():.0%}")


if __name__ == "__main__":
    main()
