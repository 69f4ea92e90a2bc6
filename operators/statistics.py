"""What an engine knows about itself, as frozen values: for `--stats`, metrics and every decision."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OperatorStatistics:
    """One join: `name` is its sub-plan, counters since the start, sizes now."""

    name: str
    kind: str
    input_tuples: int
    comparisons: int
    candidates: int
    results: int
    state_tuples: tuple[int, int]
    state_bytes: tuple[int, int]
    complete: tuple[bool, bool]


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """A whole query: counters since the start, sizes now and at their peak (after each slice of an epoch).

    `state_tuples` counts entries of join states; `state_bytes` adds the source stores.
    """

    input_tuples: int
    results: int
    late: int
    comparisons: int
    intermediate_results: int
    state_tuples: int
    state_bytes: int
    peak_state_tuples: int
    peak_state_bytes: int
    pending_tuples: int
    operators: tuple[OperatorStatistics, ...]
