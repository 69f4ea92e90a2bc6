"""What spilling has done so far, over all plans of a task."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SpillCounters:
    """What has been done so far; `cleanups` counts groups, `cleanup_results` those of the query."""

    spills: int = 0
    spilled_groups: int = 0
    spilled_tuples: int = 0
    cleanups: int = 0
    cleanup_results: int = 0
    cleanup_s: float = 0.0
    longest_spill_s: float = 0.0
    longest_cleanup_s: float = 0.0
