"""Counters of spilling and cleanup, over all plans of a task. `operators.spill.plan_spilling` owns them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SpillCounters:
    """Totals so far.

    Attributes:
        spills: decisions to spill; each chooses groups down to the low-water mark.
        cleanups: partition groups that were cleaned up.
        cleanup_results: results of the query, not of joins below its root.
        cleanup_s, longest_spill_s, longest_cleanup_s: seconds.
    """

    spills: int = 0
    spilled_groups: int = 0
    spilled_tuples: int = 0
    cleanups: int = 0
    cleanup_results: int = 0
    cleanup_s: float = 0.0
    longest_spill_s: float = 0.0
    longest_cleanup_s: float = 0.0
