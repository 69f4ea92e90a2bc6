"""What a worker counts of feedback, as Prometheus reads it."""

from __future__ import annotations

import re
from dataclasses import replace

from operators.data.statistics import EdgeStatistics, SpillStatistics
from services.process.metrics import WorkerMetrics


def value(metrics: WorkerMetrics, name: str, **labels: str) -> float:
    """A metric of the only task, by its name without `weir_`."""
    for line in metrics.page().decode().splitlines():
        found = re.fullmatch(rf"weir_{name}{{(.*)}} (.*)", line)
        if found and all(f'{label}="{text}"' in found[1] for label, text in labels.items()):
            return float(found[2])
    raise AssertionError(f"no weir_{name} {labels}")


def test_feedback_is_counted_by_how_it_grows() -> None:
    """Engines tell sums since they began, and begin anew with a task; counters never fall."""
    metrics = WorkerMetrics("q")
    task = metrics.of("0")
    edge = EdgeStatistics("((A B) C)", "(A B)", True, suspend=3, suppressed=9, kept_back=2, detecting_s=0.5)
    task.feedback([edge, edge])
    task.feedback([EdgeStatistics("((A B) C)", "(A B)", True, suspend=7, suppressed=20, kept_back=1, detecting_s=1.75)])
    assert value(metrics, "feedback_messages_total", message="suspend") == 7
    assert value(metrics, "feedback_detecting_seconds_total") == 1.75
    assert value(metrics, "feedback_suppressed_results") == 20
    assert value(metrics, "feedback_kept_back_tuples") == 1
    task.feedback([EdgeStatistics("((A B) C)", "(A B)", True, suspend=1, detecting_s=0.25)])
    assert value(metrics, "feedback_detecting_seconds_total") == 1.75
    task.feedback([EdgeStatistics("((A B) C)", "(A B)", True, suspend=2, detecting_s=0.5)])
    assert value(metrics, "feedback_messages_total", message="suspend") == 8
    assert value(metrics, "feedback_detecting_seconds_total") == 2.0


def test_spills_are_counted_by_how_they_grow() -> None:
    """Sizes are those of now; a task that begins anew tells sums from its own beginning; its sizes go with it."""
    metrics = WorkerMetrics("q")
    task = metrics.of("0")
    task.spill(SpillStatistics("bottom-up", 100, used_bytes=90, spills=2, spilled_groups=5, owed=7, cleanup_s=0.5))
    found = SpillStatistics("bottom-up", 100, used_bytes=40, spills=3, spilled_groups=9, owed=0, cleanup_s=2.0)
    task.spill(replace(found, fixed_bytes=30))
    assert value(metrics, "memory_used_bytes") == 40
    assert value(metrics, "memory_fixed_bytes") == 30
    assert value(metrics, "memory_budget_bytes") == 100
    assert value(metrics, "owed_pairs") == 0
    assert value(metrics, "spilled_groups_total") == 9
    assert value(metrics, "cleanup_seconds_total") == 2.0
    again = metrics.of("0")
    again.spill(SpillStatistics("bottom-up", 100, spills=1, on_disk_tuples=3, longest_spill_s=0.25))
    assert value(metrics, "spills_total") == 4
    assert value(metrics, "spilled_tuples") == 3
    assert value(metrics, "longest_spill_seconds") == 0.25
    again.retire()
    assert "weir_owed_pairs{" not in metrics.page().decode()
    assert "weir_longest_cleanup_seconds{" not in metrics.page().decode()
    assert "weir_memory_fixed_bytes{" not in metrics.page().decode()
    metrics.of("1").retire()


def test_gauges_of_a_number_stay_while_a_task_of_either_plan_has_it() -> None:
    metrics = WorkerMetrics("q")
    metrics.assigned(0)
    metrics.of("0").pending.set(3)
    metrics.assigned(0)  # of the plan that is prepared
    assert 'weir_tasks{query="q"} 2.0' in metrics.page().decode()
    metrics.revoked(0)
    assert value(metrics, "pending_tuples") == 3
    metrics.revoked(0)
    assert "weir_pending_tuples{" not in metrics.page().decode()
    assert 'weir_tasks{query="q"} 0.0' in metrics.page().decode()
