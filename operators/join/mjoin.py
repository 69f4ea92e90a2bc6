"""The M-Join executor (Viglas 2003; HybMig 2.3): no intermediate state, and a probe order per source.

Every source has one state per key under which it is probed. A new tuple is inserted into its source's states. Then it
probes the states of the other sources in its source's probe order, as a chain of half joins; the output of the last is
the results. The component that is latest in the total order finds the result, so each is found exactly once.

It takes no memory beyond the source tuples, but computes again for every tuple the intermediate results that a tree
would have kept. It is faster than a tree where most intermediate results never meet a partner, and slower where they
meet many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from operators.data.statistics import OperatorStatistics
from operators.data.tuples import Tuples
from operators.join.binary_join import purge_state
from operators.join.executor import operator_statistics
from operators.plan.choose import CostModel, Statistics, declared_statistics
from operators.plan.plan import Plan
from operators.state.match import LEFT, RIGHT, Match, MatchCounters, Prepared, Signature
from operators.state.side_state import SideState
from operators.state.sources import Sources
from schemas.query import Query


def probe_orders(query: Query, plan: Plan, statistics: Statistics | None = None) -> dict[str, tuple[str, ...]]:
    """Choose for each source the order in which its tuples visit the others.

    The source that leaves the fewest candidates comes next (Viglas 2003); at ties the plan's leaf order decides.
    """
    model = CostModel(query, statistics or declared_statistics(query))
    alive = {alias: model.leaf(alias).alive for alias in plan.aliases}
    orders: dict[str, tuple[str, ...]] = {}
    for source in plan.aliases:
        order: list[str] = []
        done = {source}
        rest = [alias for alias in plan.aliases if alias != source]
        while rest:

            def candidates(alias: str, done: set[str] = done) -> tuple[bool, float]:
                shares = model.shares(alias, done)
                return not shares, alive[alias] * math.prod(shares)

            following = min(rest, key=candidates)
            order.append(following)
            done.add(following)
            rest.remove(following)
        orders[source] = tuple(order)
    return orders


@dataclass(frozen=True, slots=True)
class _Step:
    """One half join: tuples over `match.sides[LEFT]` probe the state of the single alias on the right.

    Attributes:
        strict: find only partners of smaller ts, not of equal ts.
    """

    match: Match
    state: SideState
    strict: bool


class MJoin:
    """Executes a query without intermediate states; an `Executor`.

    Args:
        statistics: by which probe orders are chosen; the declared ones when None.
        state_of: makes the initial state for a match and a side: empty, or taken over from the M-Join before.

    Attributes:
        sources: the stores that tuples' row ids refer to.
        plan: names the sources; their order decides between tuples of equal ts.
        orders: the probe order of each source.
        declared: the statistics by which the orders were chosen.
    """

    def __init__(
        self,
        sources: Sources,
        plan: Plan,
        statistics: Statistics | None = None,
        *,
        state_of: Callable[[Match, int], SideState] = Match.new_state,
    ) -> None:
        self.sources = sources
        self.plan = plan
        self.declared = statistics
        self.orders = probe_orders(sources.query, plan, statistics)
        self._states: dict[Signature, tuple[Match, SideState]] = {}
        position = {alias: n for n, alias in enumerate(plan.aliases)}
        self._steps: dict[str, list[_Step]] = {}
        for source, order in self.orders.items():
            covered: tuple[str, ...] = (source,)
            steps = self._steps[source] = []
            for alias in order:
                match = Match(sources, covered, (alias,), implied=True)
                signature = match.signature(RIGHT)
                if signature not in self._states:
                    self._states[signature] = match, state_of(match, RIGHT)
                _, state = self._states[signature]
                steps.append(_Step(match, state, strict=position[alias] > position[source]))
                covered = match.aliases

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Tuples:
        """Run one slice; see `Executor.process`."""
        for match, state in self._states.values():
            new = epoch.get(state.aliases[0])
            if new is not None and len(new):
                match.enter(state, match.prepare(RIGHT, new), now)
        out = Tuples.empty(self.plan.aliases)
        for source, tuples in epoch.items():
            for step in self._steps[source]:
                if len(tuples) == 0:
                    break
                probing: Prepared = step.match.prepare(LEFT, tuples)
                step.match.counters.input_tuples += len(probing)
                step.match.counters.left_tuples += len(probing)
                tuples = step.match.find(LEFT, probing, step.state, strict=step.strict)
            if len(tuples):
                out = Tuples.merge(out, tuples.reorder(self.plan.aliases))
        return out

    def stems(self) -> list[tuple[Match, int, SideState]]:
        """Return every state with a match that reads it and the state's side in that match."""
        return [(match, RIGHT, state) for match, state in self._states.values()]

    def counters(self) -> list[MatchCounters]:
        """Return the counters of every step of every source's probe order."""
        return [step.match.counters for steps in self._steps.values() for step in steps]

    def work_before(self, alias: str, other: str) -> tuple[int, int, int]:
        """Count the work that tuples of `alias` have caused so far before `other` was visited.

        Returns:
            How often they have probed on their own probe path, how many partners they have found on it, and how often
            tuples of other sources have found them.
        """
        probes = found = met = 0
        for source, steps in self._steps.items():
            for step in steps if source != other else ():
                (visited,) = step.match.sides[RIGHT]
                if source == alias:
                    probes += step.match.counters.input_tuples
                if visited == other:
                    break
                if source == alias:
                    found += step.match.counters.results
                elif visited == alias:
                    met += step.match.counters.results
        return probes, found, met

    def states(self) -> dict[Signature, SideState]:
        """Return the states by their content's signature."""
        return {signature: state for signature, (_, state) in self._states.items()}

    def purge(self, cut: int) -> None:
        """Drop the entries that no tuple with ts >= cut can meet."""
        for _, state in self._states.values():
            purge_state(self.sources, state, cut)

    def operators(self) -> tuple[OperatorStatistics, ...]:
        """Return statistics per step of each source's probe order. A state that steps share appears with each."""
        return tuple(
            operator_statistics(
                f"{' '.join(step.match.sides[LEFT])} -> {step.state.aliases[0]}",
                bool(step.match.condition.keys),
                step.match.counters,
                (_NOTHING, step.state),
            )
            for steps in self._steps.values()
            for step in steps
        )

    def comparisons(self) -> int:
        """Return the number of predicate evaluations so far."""
        return sum(step.match.counters.comparisons for steps in self._steps.values() for step in steps)

    def intermediate_results(self) -> int:
        """Return the number of results so far of all steps but each source's last."""
        return sum(step.match.counters.results for steps in self._steps.values() for step in steps[:-1])

    def state_tuples(self) -> int:
        """Return the number of tuples in all states."""
        return sum(len(state) for _, state in self._states.values())

    def size_bytes(self) -> int:
        """Return the bytes of all states."""
        return sum(state.size_bytes() for _, state in self._states.values())


_NOTHING = SideState((), 0, hashed=False)
"""Stands for the side of a half join that keeps no state."""
