"""What feedback between the operators of an executor is, and which executors have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from operators.data.statistics import EdgeStatistics
from operators.data.tuples import Tuples
from operators.feedback.stems import StemFeedback
from operators.feedback.tree import TreeFeedback
from operators.feedback.watch import BLOOM
from operators.join.eddy import Eddy
from operators.join.executor import Executor
from operators.join.mjoin import MJoin
from operators.join.tree import XJoinTree
from schemas.errors import UsageError
from schemas.query import Query


class Feedback(Protocol):
    """Runs an executor with feedback: the same results with less in between."""

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Tuples:
        """Run one slice; see `Executor.process`."""
        ...

    def settle(self, now: int) -> None:
        """Let everything through that is kept back, so that the executor can go on without feedback, or migrate.

        Args:
            now: what expired before it is dead; everything with a smaller ts has been processed.
        """
        ...

    def kept_back(self) -> int:
        """Source tuples kept back now."""
        ...

    def size_bytes(self) -> int:
        """Bytes of all that feedback keeps."""
        ...

    def edges(self) -> tuple[EdgeStatistics, ...]:
        """What it has done, per consumer."""
        ...


def feedback_of(
    executor: Executor, now: int, detector: str = BLOOM, clock: Callable[[], float] = lambda: 0.0
) -> Feedback | None:
    """Feedback between an executor's operators from here on; None where there is nothing to say.

    Args:
        executor: not migrating.
        now: everything with a smaller ts has been processed.
        detector: of trees joined by nested loops, one of `operators.feedback.watch.DETECTORS`.
        clock: seconds, for what detecting takes.
    """
    if isinstance(executor, XJoinTree) and len(executor.joins) > 1:
        return TreeFeedback(executor, now, detector, clock)
    if isinstance(executor, MJoin | Eddy) and len(executor.plan.aliases) > 2:
        return StemFeedback(executor, clock)
    return None


def check_feedback(query: Query) -> None:
    """Say before anything runs whether there can be feedback.

    Raises:
        UsageError: the query is a set difference.
    """
    if query.subtracted:
        raise UsageError("feedback is between joins, and EXCEPT subtracts: leave --jit away, or give off")
