"""Changes the order of subtraction while a set difference runs (JISC 4.7).

`operators.migration.strategies` calls it for queries with EXCEPT. Every operator of the old pipeline moves to its
position in the new one with its whole state. The new plan lacks only one thing: the decision of an operator about
tuples that another operator used to stop before they reached it. These are the intermediate sets that the old plan does
not have. If both plans have a set (the same streams subtracted, in any order), nothing is missing.

Moving State makes these decisions at the cut. JISC leaves open which operator stops such a tuple as long as the match
lasts that is known to keep it out of the answer. A matching tuple of a subtracted stream that arrives meanwhile need
not be applied to it: it is in its own operator's state, where it is found when the decision is made. (The paper's
tuples climb to the first complete state for the same reason.)

Generalized Moving State and Parallel Track treat pipelines as black boxes. Strategies that distinguish results by the
lineage of their components do not apply: a change of the answer has no lineage, since it may come from the absence of a
match.
"""

from __future__ import annotations

from collections.abc import Callable

from operators.difference.pipeline import DifferencePipeline
from operators.join.executor import Executor
from operators.join.tables import stored_tuples
from operators.migration.black_box import GeneralizedParallelTrack
from operators.migration.migration import Migration
from operators.plan.plan import Plan
from schemas.errors import InvariantError


class DifferenceReordering(Migration):
    """Moving State, or JISC if `lazy`. Either may start while another migration of its kind is unfinished."""

    def __init__(self, old: Executor, plan: Plan, cut: int, *, lazy: bool) -> None:
        if not isinstance(old, DifferencePipeline):
            raise InvariantError(f"a set difference is executed by {type(old).__name__}")
        self._new = old.reordered(plan, lazy=lazy)
        super().__init__(old, self._new, cut)
        self._note()

    @property
    def finished(self) -> bool:
        """True when the operator that stops it is known for every living tuple."""
        return self._new.completed.open == 0

    def purge(self, cut: int) -> None:
        """Purge, and count what has been completed."""
        super().purge(cut)
        self._note()

    def _note(self) -> None:
        completed = self._new.completed
        self.counters.comparisons = completed.comparisons
        self.counters.completed_keys = completed.keys

    def progress(self) -> tuple[int, int, str]:
        """The number of tuples decided, of those that were left open."""
        return self._new.completed.decided, self._new.completed.decided + self._new.completed.open, "tuples"


class MovingWholeDifference(Migration):
    """GMS: run the living tuples through a fresh pipeline, drop its output, and continue with it."""

    def __init__(self, old: Executor, new: Executor, cut: int) -> None:
        super().__init__(old, new, cut)
        before = new.comparisons()
        streams = [s.alias for s in self.sources.query.sources if not s.is_static]
        new.process({alias: stored_tuples(self.sources, alias) for alias in streams}, 0)
        self.counters.comparisons = new.comparisons() - before


class ParallelDifference(GeneralizedParallelTrack):
    """GPT: finished when the tuples that the new pipeline has not seen have been dead for an instant and their removal
    has been reported."""

    def expired(self, cut: int) -> bool:
        """Return True when no old tuple changes the answer at or after `cut`."""
        return super().expired(cut - 1)


STRATEGIES_OF_DIFFERENCE: dict[str, Callable[[Executor, Plan, int, Callable[[Plan], Executor]], Migration]] = {
    "moving-state": lambda old, plan, cut, make: DifferenceReordering(old, plan, cut, lazy=False),
    "jisc": lambda old, plan, cut, make: DifferenceReordering(old, plan, cut, lazy=True),
    "gms": lambda old, plan, cut, make: MovingWholeDifference(old, make(plan), cut),
    "gpt": lambda old, plan, cut, make: ParallelDifference(old, make(plan), cut),
}
"""How a set difference migrates; from the old executor, the new plan, the cut, and what makes executors."""
