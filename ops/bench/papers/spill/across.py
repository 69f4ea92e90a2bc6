"""State spill across workers: the joins of the paper's workload in tasks of their own, each worker with a budget.

The three joins of the paper are in three workers, as in its experiments (6.1); Join1, which is two binary joins here,
is in one. All run in this process, one after the other, so that results and spills depend on the choices alone. What
travels between them is encoded and decoded as it is on Kafka, and counted.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from operators.data.positions import positions
from operators.data.watermark import NEVER
from operators.distributed.decompose import decompose
from operators.distributed.edge_reader import EdgeReader
from operators.distributed.edge_writer import EdgeWriter, ResultOrder
from operators.distributed.lineage import TaskProductivity
from operators.distributed.operator import DistributedOperator
from operators.engine.engine import Engine
from operators.engine.intake import ReplayPoint
from operators.spill.spilling import MemoryBudget
from operators.spill.strategies import DEFAULT_STRATEGY, STRATEGIES
from operators.spill.worker_memory import WorkerMemory
from operators.state.sources import Sources
from ops.bench.measuring.figures import Figure, Panel, Points, curves
from ops.bench.measuring.measure import Progress
from ops.bench.measuring.report import number
from ops.bench.papers.spill.runs import ALL_IN_MEMORY, INTERARRIVAL_MS, Trace, Workload, result_digest, run, spill_of
from ops.bench.papers.spill.traces import SpillSettings, Traces, memory_figure, panels, ratios, same
from schemas.columns import Batch
from schemas.errors import InvariantError
from schemas.messages.control import encode_control
from services.spill.block_store import SpillStore

WORKERS = 3

ONE_TASK = "one task, global-output-penalty"


@dataclass(frozen=True, slots=True)
class AcrossTrace:
    """One run.

    Attributes:
        trace: as of one task; `seconds` are those of all workers together.
        message_bytes: of what tasks told each other about the productivity of groups.
        block_bytes: of the results that travelled between joins.
        worker_bytes: what each worker's joins use, after every step; empty for a run in one task.
    """

    trace: Trace
    message_bytes: int = 0
    block_bytes: int = 0
    worker_bytes: Sequence[Sequence[int]] = ()


AcrossTraces = dict[str, list[AcrossTrace]]
"""The runs of each strategy."""


class _Task:
    """One join."""

    def __init__(self, operator: DistributedOperator, budget: MemoryBudget, folder: Path, stack: ExitStack) -> None:
        blocks = SpillStore(folder)
        stack.callback(blocks.close)
        self.operator = operator
        self.productivity: TaskProductivity | None = None
        self.engine = Engine(
            operator.query,
            plan=operator.plan,
            kept=[column for traced in operator.traced for column in traced.columns],
            budget=budget,
            blocks=blocks,
            productivity=self._make,
            clock=time.perf_counter,
        )
        stack.callback(self.engine.leave_budget)
        self.readers = {
            given.edge.topic: EdgeReader(given, [ReplayPoint(0, NEVER)])
            for given in operator.streams
            if given.edge is not None
        }
        for reader in self.readers.values():
            reader.restore_clocks(self.engine)
        self.writer = EdgeWriter(operator.outputs[0], 0) if operator.outputs else None
        self.order = ResultOrder(operator)
        self.offsets = dict.fromkeys(self.readers, 0)

    def _make(self, sources: Sources, groups: int) -> TaskProductivity:
        self.productivity = TaskProductivity(sources, self.operator, 0, groups)
        return self.productivity

    def push(self, name: str, batch: Batch, first: int) -> None:
        """Take tuples of a source, if the join reads it directly."""
        for given in self.operator.streams:
            if given.edge is None and given.stream.name == name:
                numbers = positions(0, batch.ts * 0 + range(first, first + len(batch)))
                self.engine.push(name, 0, Batch(batch.ts, {**batch.columns, given.position: numbers}))

    def receive(self, topic: str, raw: bytes) -> None:
        """Take a block of another join's results."""
        reader, offset = self.readers[topic], self.offsets[topic]
        reader.take(self.engine, reader.decode(raw, topic), offset)
        self.offsets[topic] = offset + 1


class _Workers:
    """The joins, the lowest first, and what travels between them."""

    def __init__(self, workload: Workload, budget: MemoryBudget, folder: Path, stack: ExitStack) -> None:
        query = workload.query()
        counts = {stream.topic: 1 for stream in query.streams()}
        operators = decompose(query, workload.plan(), counts, 1, "bench.", lineage=True)
        joins = [operator for operator in reversed(operators) if not operator.is_intake]
        share = budget.limit_bytes // WORKERS
        memories = [WorkerMemory(share) for _ in range(WORKERS)]
        # Join1 is two of the joins, in the first worker.
        self.worker_of = [max(0, number - (len(joins) - WORKERS)) for number in range(len(joins))]
        self.tasks = [
            _Task(operator, replace(budget, limit_bytes=share, shared=memories[worker]), folder / str(number), stack)
            for number, (operator, worker) in enumerate(zip(joins, self.worker_of, strict=True))
        ]
        self.message_bytes = self.block_bytes = 0

    def step(self, cut: int) -> list[Batch]:
        """Advance all joins; return the results of the query."""
        found: list[Batch] = []
        for task in self.tasks:
            results = task.engine.advance(cut)
            self._send(task, results, cut, late=False, found=found)
            self.send_late(task, cut, found)
        self._exchange()
        return found

    def send_late(self, task: _Task, cut: int, found: list[Batch]) -> None:
        """Pass on what cleanups have found."""
        for batch in task.engine.cleaned():
            self._send(task, batch, cut, late=True, found=found)

    def _send(self, task: _Task, results: Batch, cut: int, *, late: bool, found: list[Batch]) -> None:
        if task.writer is None:
            if len(results):
                found.append(task.order(results))
            return
        topic = task.writer.edge.topic
        above = next(other for other in self.tasks if topic in other.readers)
        for _, raw, _ in task.writer.blocks(results, cut, complete=task.engine.complete, late=late):
            self.block_bytes += len(raw)
            above.receive(topic, raw)

    def used_bytes(self) -> list[int]:
        """Return what the joins of each worker use."""
        used = [0] * WORKERS
        for worker, task in zip(self.worker_of, self.tasks, strict=True):
            used[worker] += spill_of(task.engine).used_bytes
        return used

    def clean(self, cut: int) -> list[Batch]:
        """Produce all pending results, from the sources up."""
        found: list[Batch] = []
        for task in self.tasks:
            task.engine.clean()
            self.send_late(task, cut, found)
        return found

    def _exchange(self) -> None:
        for sender, task in enumerate(self.tasks):
            if task.productivity is None:
                continue
            for update in task.productivity.exchange.updates("bench", sender, "one"):
                self.message_bytes += len(encode_control(update))
                for other in self.tasks:
                    if other.productivity is not None:
                        other.productivity.exchange.merge(update)


def run_across(workload: Workload, strategy: str, budget_bytes: int, *, seed: int, steps: int) -> AcrossTrace:
    """One run by a strategy, with a third of the budget in each worker."""
    batches = workload.batches(seed)
    budget = MemoryBudget(budget_bytes, strategy, groups=workload.partitions)
    minutes, results, used, seconds = [], [], [], []
    worker_bytes: list[list[int]] = [[] for _ in range(WORKERS)]
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder, ExitStack() as stack:
        workers = _Workers(workload, budget, Path(folder), stack)
        found, sum_, cut = 0, 0, 0
        for begin, end in workload.steps(steps):
            began = time.process_time()
            for name, batch in batches.items():
                for task in workers.tasks:
                    task.push(name, batch.slice(begin, end), begin)
            cut = end * INTERARRIVAL_MS
            out = workers.step(cut)
            seconds.append(time.process_time() - began)
            found += sum(map(len, out))
            sum_ += sum(map(result_digest, out))
            minutes.append(cut / 60_000)
            results.append(found)
            of_workers = workers.used_bytes()
            used.append(sum(of_workers))
            for samples, own in zip(worker_bytes, of_workers, strict=True):
                samples.append(own)
        began = time.process_time()
        cleaned = workers.clean(cut)
        cleanup_seconds = time.process_time() - began
        after = [spill_of(task.engine) for task in workers.tasks]
    if pending := sum(own.owed for own in after):
        raise InvariantError(f"{pending} pairs are still pending after the cleanup")
    trace = Trace(
        minutes=minutes,
        results=results,
        memory_bytes=used,
        input_tuples=sum(map(len, batches.values())),
        seconds=sum(seconds),
        spills=sum(own.spills for own in after),
        spilled_groups=sum(own.spilled_groups for own in after),
        spilled_tuples=sum(own.spilled_tuples for own in after),
        cleanup_results=sum(map(len, cleaned)),
        cleanup_seconds=cleanup_seconds,
        step_seconds=seconds,
        digest=(sum_ + sum(map(result_digest, cleaned))) % 2**64,
        budget_bytes=budget_bytes,
    )
    return AcrossTrace(trace, workers.message_bytes, workers.block_bytes, worker_bytes)


def runs_across(workload: Workload, settings: SpillSettings, progress: Progress, label: str) -> AcrossTraces:
    """Run every strategy with joins in three workers; the default one in one task, with all of the budget; and all in
    memory."""
    runs: AcrossTraces = {}
    for turn in range(settings.runs):
        seed = settings.seed + turn
        progress.say(f"{label}, {ALL_IN_MEMORY}: run {turn + 1} of {settings.runs}")
        whole = run(workload, ALL_IN_MEMORY, 0, seed=seed, steps=settings.steps)
        budget = round(max(whole.memory_bytes) * settings.share)
        alone = run(workload, DEFAULT_STRATEGY, budget, seed=seed, steps=settings.steps)
        runs.setdefault(ALL_IN_MEMORY, []).append(AcrossTrace(whole))
        runs.setdefault(ONE_TASK, []).append(AcrossTrace(alone))
        for strategy in STRATEGIES:
            progress.say(f"{label}, {strategy}: run {turn + 1} of {settings.runs}")
            found = run_across(workload, strategy, budget, seed=seed, steps=settings.steps)
            runs.setdefault(strategy, []).append(found)
    return runs


def throughput_across(number_: int, workload: Workload, runs: AcrossTraces, settings: SpillSettings) -> Figure:
    """Results over time, by each strategy in three workers, and in one task."""
    traces: Traces = {name: [one.trace for one in found] for name, found in runs.items()}
    figure = Figure(
        f"spill-across-{number_}",
        f"State spill Fig. {number_} with joins in {WORKERS} workers, join ratios {workload.name}",
        f"Results while the input runs, {workload.minutes:.0f} minutes of it. Each worker has a third of the budget, "
        f"which is {settings.share:.0%} of the memory that all states would take in one task.",
        panels(traces),
    )
    figure.table = [
        ("strategy", "results at run time", "of all", "spills", "messages, KiB", "between joins, MiB",
         "run, s", "to zero after the input, s"),
        *(_line(name, found) for name, found in runs.items()),
    ]  # fmt: skip
    for better in ("global-output", "global-output-penalty"):
        values = ratios(traces, better, "local-output", lambda trace: trace.results[-1])
        figure.claim(f"results at run time: {better} against local-output", "above", values, "x", at_least=1.0)
    values = ratios(traces, DEFAULT_STRATEGY, ONE_TASK, lambda trace: trace.results[-1])
    figure.claim("results at run time: three workers against one task", "", values, "x")
    same(figure, traces)
    return figure


def memory_across(number_: int, workload: Workload, runs: AcrossTraces, names: tuple[str, str]) -> Figure:
    """Memory over time in three workers, by two strategies: of all workers, and of each."""
    traces: Traces = {name: [one.trace for one in found] for name, found in runs.items()}
    figure = memory_figure(
        f"spill-across-{number_}",
        f"State spill Fig. {number_} with joins in {WORKERS} workers: memory use, {names[0]} and {names[1]}",
        f"Join ratios {workload.name}, the first run. Each worker has a third of the budget, "
        f"{traces[names[0]][0].budget_bytes / WORKERS / 2**20:.2f} MiB; the worker that exceeds its share spills.",
        traces,
        names,
    )
    for name in names:
        first = runs[name][0]
        points: Points = {
            f"worker {worker}": {
                minute: [used / 2**20] for minute, used in zip(first.trace.minutes, samples, strict=True)
            }
            for worker, samples in enumerate(first.worker_bytes, 1)
        }
        figure.panels.append(Panel(f"each worker, {name}", "minutes", "MiB", curves(points, tuple(points))))
    most = [
        max(samples) / (one.trace.budget_bytes / WORKERS)
        for name in names
        for one in runs[name]
        for samples in one.worker_bytes
    ]
    figure.claim(
        "a worker's memory at its most against its share, worst run", "at most all of it", [max(most)], "x", at_most=1.0
    )
    return figure


def _line(name: str, runs: Sequence[AcrossTrace]) -> tuple[str, ...]:
    """Medians of one strategy."""

    def median(value: Callable[[AcrossTrace], float]) -> str:
        return number(statistics.median(value(one) for one in runs))

    return (
        name,
        median(lambda one: one.trace.results[-1]),
        median(lambda one: 100.0 * one.trace.results[-1] / max(one.trace.results[-1] + one.trace.cleanup_results, 1))
        + "%",
        median(lambda one: one.trace.spills),
        median(lambda one: one.message_bytes / 1024),
        median(lambda one: one.block_bytes / 2**20),
        median(lambda one: one.trace.seconds),
        median(lambda one: one.trace.cleanup_seconds),
    )
