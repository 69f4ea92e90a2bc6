"""A worker's Prometheus metrics. Labels: `query`, and `task` for metrics of a task.

`WorkerMetrics` declares them all; a task uses its `TaskMetrics`. Counters count since the worker started. The gauges of
a task disappear when the task ends, unless a task of the next plan version has taken its number.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from operators.data.statistics import MESSAGES, EdgeStatistics, SpillStatistics

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TASK = ("query", "task")


class WorkerMetrics:
    """The worker's registry and all its metrics; each attribute is described by the help text of its metric."""

    def __init__(self, query: str) -> None:
        self.query = query
        self.registry = CollectorRegistry()
        self._assigned: Counts[int] = Counts()

        def counter(name: str, text: str, labels: tuple[str, ...] = _TASK) -> Counter:
            return Counter(f"weir_{name}", text, labels, registry=self.registry)

        def gauge(name: str, text: str, labels: tuple[str, ...] = _TASK) -> Gauge:
            return Gauge(f"weir_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"weir_{name}", text, _TASK, buckets=_SECONDS, registry=self.registry)

        self.input_tuples = counter("input_tuples", "Tuples taken from the input topics.")
        self.results = counter("results", "Results delivered.")
        self.late = counter("late_tuples", "Tuples behind the watermark, sent to the late topic.")
        self.deduplicated = counter("deduplicated_tuples", "Tuples dropped as repeats of others.")
        self.dead = counter("dead_letters", "Records that cannot be decoded, sent to the dead-letter topic.")
        self.replayed = counter("replayed_tuples", "Tuples read again to rebuild state.")
        self.commits = counter("commits", "Transactions or offset commits completed.")
        self.internal_blocks = counter("internal_blocks", "Blocks written for other operators of the plan.")
        self.internal_bytes = counter("internal_bytes", "Bytes of these blocks, before compression.")
        self.internal_tuples = counter("internal_tuples", "Intermediate results in these blocks.")
        self.restarts = counter("task_restarts", "Times a task went back to its last commit.")
        self.repairs = counter("transaction_repairs", "Times that Kafka had ended a task's transactions only in part.")
        self.repaired = counter("repaired_records", "Records written again to complete such transactions.")
        self.fenced = counter("tasks_fenced", "Times a newer worker took a task over.")
        self.snapshot_failures = counter("snapshot_failures", "Snapshots that could not be written or read.")
        self.feedback_requests = counter("feedback_requests", "Messages sent to the feedback topic.")
        self.feedback_bytes = counter("feedback_request_bytes", "Bytes of the signatures in these messages.")
        self.watermark = gauge("watermark_milliseconds", "Event time up to which results are out.")
        self.watermark_lag = gauge("watermark_lag_seconds", "Wall clock minus watermark.")
        self.epoch = histogram("epoch_seconds", "Time to compute an epoch.")
        self.commit = histogram("commit_seconds", "Time to deliver and commit an epoch.")
        self.state_tuples = gauge("state_tuples", "Entries of all join states.")
        self.state_bytes = gauge("state_bytes", "Bytes of all join states and source stores.")
        self.pending = gauge("pending_tuples", "Tuples that wait for the watermark.")
        self.paused = gauge("paused_partitions", "Partitions not read now because they are ahead.")
        self.idle = gauge("idle_partitions", "Silent partitions that do not hold the watermark back.")
        self.snapshot_cut = gauge("snapshot_watermark_milliseconds", "Cut of the newest snapshot on disk.")
        self.migrations = counter(
            "migrations",
            "Plan changes by outcome: done; restored, where a restart cut it short; refused.",
            (*_TASK, "outcome"),
        )
        self.decisions = counter(
            "decisions",
            "Plan changes that were weighed, by outcome: made; kept, where none was made.",
            (*_TASK, "outcome"),
        )
        self.migrating = gauge("migrations_in_progress", "Plan changes that have begun and are not done.")
        self.plan_version = gauge("plan_version", "Version of the plan in force, 0 the worker's own.")
        self.migration_silence = gauge("migration_longest_silence_seconds", "Longest silence of the last plan change.")
        self.feedback = counter("feedback_messages", "Feedback messages between joins, by kind.", (*_TASK, "message"))
        self.detecting = counter(
            "feedback_detecting_seconds", "Time spent detecting what is not demanded, and what is demanded again."
        )
        self.suppressed = gauge("feedback_suppressed_results", "Intermediate results not produced, estimated.")
        self.kept_back = gauge("feedback_kept_back_tuples", "Tuples kept back until a join can use them.")
        self.memory_used = gauge("memory_used_bytes", "Bytes that count against the memory budget.")
        self.memory_fixed = gauge("memory_fixed_bytes", "Those of them that cannot be spilled.")
        self.memory_budget = gauge("memory_budget_bytes", "The memory budget.")
        self.memory_files = gauge("memory_file_bytes", "Bytes of state beyond the memory budget, kept in files.")
        self.spills = counter("spills", "Times that the memory budget was exceeded.")
        self.spilled_groups = counter("spilled_groups", "Partition groups that left memory.")
        self.spilled_bytes = counter("spilled_bytes", "Bytes written for them, compressed.")
        self.spilled_tuples = gauge("spilled_tuples", "Tuples that are on disk.")
        self.owed_pairs = gauge(
            "owed_pairs", "Upper bound of the pairs of tuples with pending results: none are pending when it is 0."
        )
        self.cleanups = counter("cleanups", "Partition groups cleaned up.")
        self.cleanup_results = counter("cleanup_results", "Late results that cleanup produced.")
        self.cleanup_seconds = counter("cleanup_seconds", "Time spent on cleanup.")
        self.longest_spill = gauge("longest_spill_seconds", "Longest time that spilling held a task up.")
        self.longest_cleanup = gauge("longest_cleanup_seconds", "Longest time that a cleanup held a task up.")
        self.spill_failures = counter("spill_failures", "Times that spilled state could not be written or read.")
        self.group_queries = gauge("group_queries", "Queries of a group that a task runs.")
        self.group_results = counter(
            "group_results", "Results delivered, by the query of the group.", (*_TASK, "member")
        )
        self.tasks = gauge("tasks", "Tasks that this worker runs.", ("query",))
        self.tasks.labels(query).set(0)

    def page(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def assigned(self, task: int) -> None:
        """A task has been assigned to the worker; of a plan that is prepared beside the one in force, too."""
        self._assigned[task] += 1
        self.tasks.labels(self.query).set(self._assigned.total())

    def revoked(self, task: int) -> None:
        """A task that was assigned is no longer the worker's."""
        self._assigned[task] -= 1
        self.tasks.labels(self.query).set(self._assigned.total())
        if self._assigned[task] <= 0:
            del self._assigned[task]
            self.of(str(task)).retire()

    def of(self, task: str) -> TaskMetrics:
        """The metrics of one task."""
        return TaskMetrics(self, task)


class TaskMetrics:
    """The metrics of one task, with its labels filled in."""

    def __init__(self, worker: WorkerMetrics, task: str) -> None:
        labels = (worker.query, task)
        self._worker = worker
        self._labels = labels
        self.input_tuples = worker.input_tuples.labels(*labels)
        self.results = worker.results.labels(*labels)
        self.late = worker.late.labels(*labels)
        self.deduplicated = worker.deduplicated.labels(*labels)
        self.dead = worker.dead.labels(*labels)
        self.replayed = worker.replayed.labels(*labels)
        self.commits = worker.commits.labels(*labels)
        self.internal_blocks = worker.internal_blocks.labels(*labels)
        self.internal_bytes = worker.internal_bytes.labels(*labels)
        self.internal_tuples = worker.internal_tuples.labels(*labels)
        self.feedback_requests = worker.feedback_requests.labels(*labels)
        self.feedback_bytes = worker.feedback_bytes.labels(*labels)
        self.restarts = worker.restarts.labels(*labels)
        self.repairs = worker.repairs.labels(*labels)
        self.repaired = worker.repaired.labels(*labels)
        self.fenced = worker.fenced.labels(*labels)
        self.snapshot_failures = worker.snapshot_failures.labels(*labels)
        self.spill_failures = worker.spill_failures.labels(*labels)
        self.epoch = worker.epoch.labels(*labels)
        self.commit = worker.commit.labels(*labels)
        self.state_tuples = worker.state_tuples.labels(*labels)
        self.state_bytes = worker.state_bytes.labels(*labels)
        self.pending = worker.pending.labels(*labels)
        self.paused = worker.paused.labels(*labels)
        self.idle = worker.idle.labels(*labels)
        self.migrating = worker.migrating.labels(*labels)
        self.plan_version = worker.plan_version.labels(*labels)
        self.migration_silence = worker.migration_silence.labels(*labels)
        self._detecting = worker.detecting.labels(*labels)
        self._suppressed = worker.suppressed.labels(*labels)
        self._kept_back = worker.kept_back.labels(*labels)
        self._spilled = SpillStatistics("", 0)
        self._sent = dict.fromkeys(MESSAGES, 0)
        self._detected_s = 0.0

    def reached(self, cut: int, now_ms: float) -> None:
        """Set the event time (ms) up to which results are delivered. Its gauges are absent until there is one."""
        if cut > 0:
            self._worker.watermark.labels(*self._labels).set(cut)
            self._worker.watermark_lag.labels(*self._labels).set((now_ms - cut) / 1000)

    def saved(self, cut: int) -> None:
        """Set the event time (ms) of the newest snapshot on disk."""
        if cut > 0:
            self._worker.snapshot_cut.labels(*self._labels).set(cut)

    def feedback(self, edges: Sequence[EdgeStatistics]) -> None:
        """Add what feedback has done; `edges` count since the task started."""
        for message in MESSAGES:
            sent = sum(getattr(edge, message) for edge in edges)
            self._worker.feedback.labels(*self._labels, message).inc(max(0, sent - self._sent[message]))
            self._sent[message] = sent
        detected_s = sum(edge.detecting_s for edge in edges)
        self._detecting.inc(max(0.0, detected_s - self._detected_s))
        self._detected_s = detected_s
        self._suppressed.set(sum(edge.suppressed for edge in edges))
        self._kept_back.set(sum(edge.kept_back for edge in edges))

    def spill(self, found: SpillStatistics) -> None:
        """Add spills and cleanups, and set the pending results; the statistics count since the task started."""
        worker, before = self._worker, self._spilled
        for gauge, value in (
            (worker.memory_used, found.used_bytes),
            (worker.memory_fixed, found.fixed_bytes),
            (worker.memory_budget, found.budget_bytes),
            (worker.memory_files, found.file_bytes),
            (worker.spilled_tuples, found.on_disk_tuples),
            (worker.owed_pairs, found.owed),
            (worker.longest_spill, found.longest_spill_s),
            (worker.longest_cleanup, found.longest_cleanup_s),
        ):
            gauge.labels(*self._labels).set(value)
        for counter, gained in (
            (worker.spills, found.spills - before.spills),
            (worker.spilled_groups, found.spilled_groups - before.spilled_groups),
            (worker.spilled_bytes, found.spilled_bytes - before.spilled_bytes),
            (worker.cleanups, found.cleanups - before.cleanups),
            (worker.cleanup_results, found.cleanup_results - before.cleanup_results),
            (worker.cleanup_seconds, found.cleanup_s - before.cleanup_s),
        ):
            counter.labels(*self._labels).inc(max(0, gained))
        self._spilled = found

    def members(self, queries: int) -> None:
        """Set how many queries of a group run."""
        self._worker.group_queries.labels(*self._labels).set(queries)

    def member(self, name: str) -> Counter:
        """The counter of delivered results of one query of the group."""
        return self._worker.group_results.labels(*self._labels, name)

    def migrations(self, outcome: str) -> Counter:
        """The counter of plan changes with this outcome."""
        return self._worker.migrations.labels(*self._labels, outcome)

    def decisions(self, outcome: str) -> Counter:
        """The counter of plan changes that were weighed with this outcome."""
        return self._worker.decisions.labels(*self._labels, outcome)

    def retire(self) -> None:
        """Remove the gauges of a task that has ended, which would otherwise keep their last values."""
        worker = self._worker
        for gauge in (
            worker.watermark,
            worker.watermark_lag,
            worker.state_tuples,
            worker.state_bytes,
            worker.pending,
            worker.paused,
            worker.idle,
            worker.snapshot_cut,
            worker.migrating,
            worker.plan_version,
            worker.migration_silence,
            worker.suppressed,
            worker.kept_back,
            worker.memory_used,
            worker.memory_fixed,
            worker.memory_budget,
            worker.memory_files,
            worker.spilled_tuples,
            worker.owed_pairs,
            worker.longest_spill,
            worker.longest_cleanup,
            worker.group_queries,
        ):
            gauge.remove(*self._labels)
