"""The interface of feedback between the operators of an executor, and the choice of its implementation.

The engine calls `feedback_of` and then runs the executor through the returned object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from operators.data.statistics import EdgeStatistics
from operators.data.tuples import Tuples
from operators.difference.pipeline import DifferencePipeline
from operators.feedback.difference import DifferenceFeedback
from operators.feedback.stems import StemFeedback
from operators.feedback.tree import TreeFeedback
from operators.feedback.watch import BLOOM
from operators.join.eddy import Eddy
from operators.join.executor import Executor
from operators.join.mjoin import MJoin
from operators.join.tree import XJoinTree


class Feedback(Protocol):
    """Runs an executor with feedback: the same results from fewer intermediate results."""

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Tuples:
        """Run one slice; see `Executor.process`."""
        ...

    def release_all(self, now: int) -> None:
        """Let all tuples enter that are kept back, so that the executor can continue without feedback or migrate.

        Args:
            now: Tuples that expired before it are dead. Every tuple with a smaller ts has been processed.
        """
        ...

    def kept_back(self) -> int:
        """The number of source tuples that are kept back now."""
        ...

    def size_bytes(self) -> int:
        """Bytes of all filters, buffers and blacklists."""
        ...

    def edges(self) -> tuple[EdgeStatistics, ...]:
        """The statistics of each edge between a consumer and its producer."""
        ...


def feedback_of(
    executor: Executor, now: int, detector: str = BLOOM, clock: Callable[[], float] = lambda: 0.0
) -> Feedback | None:
    """Return feedback between an executor's operators, from now on; None where no operator could use it.

    Args:
        executor: An executor that is not migrating.
        now: Every tuple with a smaller ts has been processed.
        detector: One of `operators.feedback.watch.DETECTORS`, for trees of nested-loop joins.
        clock: Returns seconds, to measure how long detection takes.
    """
    if isinstance(executor, XJoinTree) and len(executor.joins) > 1:
        return TreeFeedback(executor, now, detector, clock)
    if isinstance(executor, MJoin | Eddy) and len(executor.plan.aliases) > 2:
        return StemFeedback(executor, clock)
    if isinstance(executor, DifferencePipeline):
        return DifferenceFeedback(executor, clock)
    return None

