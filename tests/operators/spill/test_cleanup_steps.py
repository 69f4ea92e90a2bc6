"""The size of a cleanup step: a number of tuples, or as many as it takes to end in time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from operators.data.watermark import NEVER
from operators.spill.cleanup import by_join, steps
from operators.spill.cleanup.by_join import PlanCleanup
from operators.spill.cleanup.steps import CleanupSteps
from operators.state.match import LEFT
from tests.operators.spill.loaded_plan import TUPLES, LoadedPlan

GROUPS = 100
WINDOW_MS = 4_000
CLEANUP_MS = 1_000
"""A quarter of the window: the time that a cleanup may take."""


class Counted(PlanCleanup):
    """Counts how often groups were merged together."""

    chunks = 0

    def _chunks(self, *given: Any) -> Iterator[tuple[list[int], int]]:
        for chunk in super()._chunks(*given):
            self.chunks += 1
            yield chunk


class EvictedJoin:
    """All groups of the lower join were evicted; records what each step cleans up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, least: int) -> None:
        monkeypatch.setattr(steps, "CLEAN_TUPLES", least)
        plan = LoadedPlan(GROUPS)
        plan.eviction.evict(0, range(GROUPS), TUPLES, 0)
        self.sizes = [plan.ledger.size((0, g)) for g in range(GROUPS)]
        parents = ((1, LEFT), None)
        self.plan_cleanup = Counted(
            plan.sources, plan.joins, parents, plan.ledger, plan.blocks, plan.writer, plan.counters, NEVER, None
        )
        self.cleaned_groups: list[list[int]] = []
        self.cleanup = CleanupSteps(
            self.plan_cleanup,
            plan.ledger,
            2,
            WINDOW_MS,
            lambda _, groups: self.cleaned_groups.append(list(groups.get(0, ()))),
        )
        self.cleanup.begin([set(range(GROUPS)), set()], TUPLES)

    def merged(self, step: int) -> int:
        """The number of tuples of a step."""
        return sum(self.sizes[g] for g in self.cleaned_groups[step])


def test_a_step_has_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """While there is time; the last group may exceed it. A step continues where the one before has stopped."""
    least = 150
    run = EvictedJoin(monkeypatch, least)
    steps_run = 0
    while run.cleanup:
        run.cleanup.step(TUPLES, 0)
        steps_run += 1
    cleaned = [run.merged(step) for step in range(steps_run)]
    assert max(cleaned) < least + max(run.sizes)
    assert min(cleaned[:-2]) >= least
    assert [g for groups in run.cleaned_groups for g in groups] == list(range(GROUPS))


def test_all_that_is_left_is_merged_in_large_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merging groups one by one takes ten times as long. A regression: only the first chunk was large."""
    run = EvictedJoin(monkeypatch, 1)
    monkeypatch.setattr(by_join, "MERGED_TUPLES", sum(run.sizes) // 4)
    run.cleanup.finish(TUPLES, 0)
    assert [g for groups in run.cleaned_groups for g in groups] == list(range(GROUPS))
    assert 4 <= run.plan_cleanup.chunks <= 8


def test_a_cleanup_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step takes its share of what is left, by the time that has passed; at most one group more."""
    run = EvictedJoin(monkeypatch, 1)
    done = 0
    for step, elapsed in enumerate((200, 400, 600, 800, CLEANUP_MS)):
        run.cleanup.step(TUPLES + elapsed, 0)
        done += run.merged(step)
        due = elapsed / CLEANUP_MS * sum(run.sizes)
        assert due - 1 <= done <= due + (step + 1) * max(run.sizes)
    assert done == sum(run.sizes)
