"""Changing the order of subtraction while a set difference runs (JISC 4.7).

Every operator of the old pipeline is moved to its place in the new one with all that it knows. What the new plan
lacks is what an operator would say of tuples that another one used to stop before they came to it: the
intermediate sets that the old plan does not have. Where both plans have a set (its streams subtracted, in any
order) nothing is missing.

Moving State asks at the cut. JISC leaves open which operator stops such a tuple while the match lasts that is
known to keep it out of the answer. A tuple of a subtracted stream that comes meanwhile and matches it need not
be told: it is in its own operator's state, where it is found when the question is asked. (The paper's tuples
climb to the first complete state for the same reason.)

Generalized Moving State and Parallel Track take pipelines as black boxes. Strategies that tell results by
the lineage of their components do not apply: a change of the answer has none, since it may come from the absence
of a match.
"""

from __future__ import annotations

from collections.abc import Callable

from operators.difference.pipeline import DifferencePipeline
from operators.join.executor import Executor
from operators.join.tables import stored
from operators.migration.black_box import GeneralizedParallelTrack
from operators.migration.migration import Migration
from operators.plan.plan import Plan
from schemas.errors import InvariantError


class DifferenceReordering(Migration):
    """Moving State, or JISC where `lazy`; either may begin while another one of its kind is not over."""

    def __init__(self, old: Executor, plan: Plan, cut: int, *, lazy: bool) -> None:
        if not isinstance(old, DifferencePipeline):
            raise InvariantError(f"a set difference is executed by {type(old).__name__}")
        self._new = old.reordered(plan, lazy=lazy)
        super().__init__(old, self._new, cut)
        self._note()

    @property
    def finished(self) -> bool:
        """True when it is known of every living tuple which operator stops it."""
        return self._new.completed.open == 0

    def purge(self, cut: int) -> None:
        """Purge, and note what has been completed."""
        super().purge(cut)
        self._note()

    def _note(self) -> None:
        completed = self._new.completed
        self.counters.comparisons = completed.comparisons
        self.counters.completed_keys = completed.keys

    def progress(self) -> tuple[int, int, str]:
        """How many tuples are settled of those that were left open."""
        return self._new.completed.settled, self._new.completed.settled + self._new.completed.open, "tuples"


class MovingWholeDifference(Migration):
    """GMS: run what is alive through a fresh pipeline, drop what comes out, go on with it."""

    def __init__(self, old: Executor, new: Executor, cut: int) -> None:
        super().__init__(old, new, cut)
        before = new.comparisons()
        streams = [s.alias for s in self.sources.query.sources if not s.is_table]
        new.process({alias: stored(self.sources, alias) for alias in streams}, 0)
        self.counters.comparisons = new.comparisons() - before


class ParallelDifference(GeneralizedParallelTrack):
    """GPT: over when what the new pipeline has not seen has been dead for an instant, and its leaving is told."""

    def expired(self, cut: int) -> bool:
        """True when no old tuple changes the answer at or after `cut`."""
        return super().expired(cut - 1)


STRATEGIES_OF_DIFFERENCE: dict[str, Callable[[Executor, Plan, int, Callable[[Plan], Executor]], Migration]] = {
    "moving-state": lambda old, plan, cut, make: DifferenceReordering(old, plan, cut, lazy=False),
    "jisc": lambda old, plan, cut, make: DifferenceReordering(old, plan, cut, lazy=True),
    "gms": lambda old, plan, cut, make: MovingWholeDifference(old, make(plan), cut),
    "gpt": lambda old, plan, cut, make: ParallelDifference(old, make(plan), cut),
}
"""How a set difference migrates; from the old executor, the new plan, the cut, and what makes executors."""

_BY_LINEAGE = "tells results by the lineage of their components, and a change of a set difference has none"
_LAGGING = "lets the new plan lag behind the streams' stores, which by then have forgotten what has ended"


def objection_to_difference(name: str) -> str:
    """Why a strategy of joins cannot migrate a set difference; empty when it can."""
    if name in STRATEGIES_OF_DIFFERENCE:
        return ""
    return _LAGGING if name == "ghm" else _BY_LINEAGE
