"""A group's operator by definition: every combination of what has come. For tests of what is around it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from operators.data.evaluate import holds
from operators.data.statistics import EdgeStatistics
from operators.data.tuples import FOREVER, Tuples
from operators.state.sources import Sources, life_of
from schemas.columns import I64, Batch, Mask
from schemas.groups import Member, QueryGroup


class NestedLoops:
    """A `GroupExecutor` that keeps nothing but row ids; source tuples must not be purged under it."""

    def __init__(self, sources: Sources, group: QueryGroup) -> None:
        self._sources = sources
        self._group = group
        none = np.zeros(0, np.int64)
        self._rows: dict[str, I64] = dict.fromkeys((i.alias for i in group.inputs), none)
        self._ts: dict[str, I64] = dict(self._rows)
        self.purged_to = 0

    def wanted(self, batches: Mapping[str, Batch]) -> dict[str, Mask]:
        """All are."""
        return {}

    def process(self, epoch: Mapping[str, Tuples], now: int) -> dict[str, Tuples]:
        """All combinations with a new tuple."""
        old = {name: len(rows) for name, rows in self._rows.items()}
        for name, tuples in epoch.items():
            self._rows[name] = np.concatenate([self._rows[name], tuples.rows[0]])
            self._ts[name] = np.concatenate([self._ts[name], tuples.ts])
        return {member.name: self._results(member, old) for member in self._group.members}

    def _results(self, member: Member, old: Mapping[str, int]) -> Tuples:
        inputs = member.inputs
        index = np.indices([len(self._rows[name]) for name in inputs]).reshape(len(inputs), -1)
        if not index.shape[1]:
            return Tuples.empty(inputs)
        index = index[:, np.any([index[k] >= old[name] for k, name in enumerate(inputs)], axis=0)]
        stamps = np.stack([self._ts[name][index[k]] for k, name in enumerate(inputs)])
        lives = [life_of(source) for source in member.over_inputs.sources]
        ends = np.minimum(np.stack([s + life for s, life in zip(stamps, lives, strict=True)]), FOREVER)
        ts, expiry = stamps.max(axis=0), ends.min(axis=0)
        rows = np.stack([self._rows[name][index[k]] for k, name in enumerate(inputs)])
        good = ts <= expiry
        for k, source in enumerate(member.over_inputs.sources):
            if source.window.kind == "ROWS":
                good &= index[k] + source.window.size > self._newest(member, k, index)
        for k, name in enumerate(inputs):
            # What the stores have forgotten was dead to all that is to come.
            good &= rows[k] >= self._sources.store(name).lo
        rows, ts, expiry = rows[:, good], ts[good], expiry[good]
        for predicate in member.over_inputs.predicates:
            passed = holds(predicate, self._sources.resolver(inputs, rows), len(ts))
            rows, ts, expiry = rows[:, passed], ts[passed], expiry[passed]
        order = np.argsort(ts, kind="stable")
        return Tuples(inputs, np.ascontiguousarray(rows[:, order]), ts[order], expiry[order])

    def _newest(self, member: Member, k: int, index: I64) -> I64:
        """(n,) how many tuples of the k-th input's stream have come, less one, when combinations are complete."""
        order = [stream.name for stream in member.query.streams()]
        counted = member.over_inputs.sources[k]
        newest = index[k].copy()
        for m, other in enumerate(member.over_inputs.sources):
            if other.is_static:
                continue
            if other.stream.name == counted.stream.name:
                newest = np.maximum(newest, index[m])
                continue
            side = "right" if order.index(counted.stream.name) < order.index(other.stream.name) else "left"
            come = np.searchsorted(self._ts[counted.alias], self._ts[other.alias][index[m]], side)
            newest = np.maximum(newest, come - 1)
        return newest

    def purge(self, cut: int) -> None:
        """Nothing is dropped."""
        self.purged_to = cut

    def comparisons(self) -> int:
        """Not counted."""
        return 0

    def intermediate_results(self) -> int:
        """None are made."""
        return 0

    def state_tuples(self) -> int:
        """Row ids."""
        return sum(len(rows) for rows in self._rows.values())

    def feedback(self) -> tuple[EdgeStatistics, ...]:
        """None."""
        return ()

    def size_bytes(self) -> int:
        """Of row ids and times."""
        return 16 * self.state_tuples()
