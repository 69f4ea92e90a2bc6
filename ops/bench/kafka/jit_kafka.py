"""`weir bench jit --kafka`: measures the traffic through Kafka between distributed joins, with and without feedback.

This goes beyond the paper, whose operators share a memory. Here an intermediate result that no join demands costs its
bytes in a topic twice, written and read, and so do the feedback messages about it.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ops.bench.kafka.jit_kafka_runs import DistributedTask, Sent, expected_results, run_worker
from ops.bench.kafka.kafka_log import running_broker
from ops.bench.measuring.figures import Figure, over
from ops.bench.measuring.measure import Progress
from ops.bench.measuring.report import number
from ops.bench.measuring.suites import PaperBench, Suite
from schemas.errors import UsageError

ABOUT = "Just-in-time feedback between joins of their own tasks, across Kafka"

LOSS_AT_MOST = 1.03
"""Upper limit for sent or computed amounts with feedback, as a multiple of those without it."""

_CHAIN = {"A.k = B.k": 200, "B.y = C.y": 400, "A.x = D.x": 1_000}
_RATES = {"A": 400.0, "B": 400.0, "C": 100.0, "D": 2.0}
_LEFT_DEEP = "(((A B) C) D)"
_FEW = DistributedTask("left-deep, few demanded", "D has 8 of 1,000 values at a time", _LEFT_DEEP, _CHAIN, _RATES)
_FASTER = replace(
    _FEW.scaled(5.0),
    title="left-deep, few demanded, five times as fast",
    about="the first with five times the rates and values",
)

TASKS = (
    _FEW,
    _FASTER,
    DistributedTask(
        "bushy, few demanded",
        "C D has few results, with a few of 1,000 values",
        "((A B) (C D))",
        {"A.k = B.k": 200, "A.x = C.x": 1_000, "C.y = D.y": 50},
        _RATES,
    ),
    DistributedTask(
        "clique, left-deep, few demanded",
        "an equality between every two streams; each of C's tells (A B) something",
        _LEFT_DEEP,
        {"A.b = B.a": 200, "A.c = C.a": 20, "B.c = C.b": 20, "A.d = D.a": 20, "B.d = D.b": 20, "C.d = D.c": 5},
        _RATES,
    ),
    DistributedTask(
        "demand comes and goes",
        "D has a fifth of 200 values at a time, soon others",
        _LEFT_DEEP,
        {"A.k = B.k": 400, "B.y = C.y": 400, "A.x = D.x": 200},
        {**_RATES, "D": 25.0},
    ),
    DistributedTask(
        "values hardly ever twice",
        "of 20,000 values: each tuple of A is spoken of on its own",
        _LEFT_DEEP,
        {"A.k = B.k": 400, "B.y = C.y": 400, "A.x = D.x": 20_000},
        {**_RATES, "D": 100.0},
    ),
    DistributedTask(
        "all demanded",
        "every value is there: nothing to say",
        _LEFT_DEEP,
        {"A.k = B.k": 800, "B.y = C.y": 20, "A.x = D.x": 8},
        {"A": 200.0, "B": 200.0, "C": 25.0, "D": 10.0},
    ),
    DistributedTask(
        "few demanded, a history read at once",
        "the first, read faster than anything can be asked for",
        _LEFT_DEEP,
        _CHAIN,
        _RATES,
        together=True,
    ),
)


@dataclass(frozen=True, slots=True)
class JitKafkaSettings:
    """Sizes of `weir bench jit --kafka`.

    Attributes:
        bootstrap: a broker that runs already; None starts one.
        tasks: the workloads.
        seconds: event time, and with most workloads wall time, of each run; the first window is part of it. A worker
            deletes internal records after half a minute, and then they could not be counted.
        share: scales the rates and values, for tests.
        runs: of every workload, each with other data.
    """

    bootstrap: str | None = None
    tasks: tuple[DistributedTask, ...] = TASKS
    seconds: float = 12.0
    share: float = 1.0
    runs: int = 2
    seed: int = 1
    heap: str = "1g"


Runs = list[tuple[Sent, Sent]]
"""Costs without and with feedback, run by run."""

Found = list[tuple[DistributedTask, Runs]]

Of = Callable[[Sent], float]


def bench_jit_kafka(settings: JitKafkaSettings, progress: Progress, figure: int | None = None) -> Suite:
    """Measure all workloads.

    Raises:
        UsageError: the user asks for a figure of the paper.
        InvariantError: results differ from those of one engine without feedback.
    """
    if figure is not None:
        raise UsageError(f"figure {figure} is drawn without Kafka: give --figure or --kafka")
    suite = Suite(
        "jit-kafka",
        ABOUT,
        {
            "workload": "four streams, one partition each; one worker, --placement per-operator, three tasks, exactly "
            "once; tuples are written at their pace",
            "event time of a run": f"{settings.seconds:g} s",
            "runs, seed": f"{settings.runs}, {settings.seed}; each run has its own data, two fresh workers take turns",
            "results": "those of every worker are compared with those of one engine without feedback",
            "processor time, delays": "from the first full window on; the worker's; broker, producer and reader share "
            "the machine; a result waits for the next tuple of every stream, also of a sparse one",
        },
    )
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-") as name,
        running_broker(settings.bootstrap, settings.heap, Path(name) / "broker", progress) as (bootstrap, pid, about),
    ):
        suite.settings = {**suite.settings, "broker": about}
        log = None if pid is None else Path(name) / "broker" / "log"
        found: Found = []
        for task in settings.tasks:
            sized = task.scaled(settings.share)
            runs: Runs = []
            found.append((task, runs))
            for run in range(settings.runs):
                progress.say(f"{task.title}: run {run + 1} of {settings.runs}")
                batches = sized.batches(settings.seconds, settings.seed + run)
                expected = expected_results(sized, batches)
                sent = {
                    feedback: run_worker(sized, batches, expected, bootstrap, Path(name), log, feedback=feedback)
                    for feedback in ((False, True), (True, False))[run % 2]
                }
                runs.append((sent[False], sent[True]))
    suite.figures.append(overview(found))
    suite.figures += [details(task, runs, number_) for number_, (task, runs) in enumerate(found, start=1)]
    return suite


# --- Tables -------------------------------------------------------------------------------------------------------


def quantile(values: Sequence[float], share: float) -> float:
    """The value that a share of all values does not exceed; 0 for no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


MEASURES: dict[str, Of] = {
    "intermediate tuples": lambda sent: sent.tuples,
    "messages": lambda sent: sent.traffic.messages,
    "bytes": lambda sent: sent.traffic.bytes,
    "bytes on disk": lambda sent: sent.stored_bytes,
    "transactions": lambda sent: sent.commits,
    "CPU": lambda sent: sent.cpu_s,
    "delay p50": lambda sent: quantile(sent.ages_ms, 0.5),
    "delay p99": lambda sent: quantile(sent.ages_ms, 0.99),
}

DETAILS: dict[str, Of] = {
    "intermediate tuples written": MEASURES["intermediate tuples"],
    "messages in all": MEASURES["messages"],
    "blocks of tuples and watermarks": lambda sent: sent.traffic.blocks,
    "notices: answers to requests": lambda sent: sent.traffic.notices,
    "requests": lambda sent: sent.traffic.requests,
    "bytes in all": MEASURES["bytes"],
    "bytes of blocks": lambda sent: sent.traffic.block_bytes,
    "bytes of notices": lambda sent: sent.traffic.notice_bytes,
    "bytes of requests": lambda sent: sent.traffic.request_bytes,
    "bytes on the broker's disk": MEASURES["bytes on disk"],
    "transactions": MEASURES["transactions"],
    "CPU of the worker, s": MEASURES["CPU"],
    "tuples kept back at the end": lambda sent: sent.kept_back,
    "bytes of states at the end": lambda sent: sent.state_bytes,
    "delay of a result, p50, ms": MEASURES["delay p50"],
    "delay of a result, p99, ms": MEASURES["delay p99"],
    "results": lambda sent: sent.results,
}


def ratios(runs: Runs, of: Of) -> list[float]:
    """Costs without over costs with feedback, run by run; empty where there is nothing to compare."""
    off, on = [of(one) for one, _ in runs], [of(other) for _, other in runs]
    return over(off, on) if all(off) and all(on) else []


def overview(found: Found) -> Figure:
    """All workloads: which costs fall with feedback, and which rise."""
    figure = Figure(
        "jit-kafka",
        "Beyond the paper: through Kafka",
        "Without over with feedback: above 1 feedback saves, below 1 it costs. Messages and bytes are all between the "
        "joins: blocks, notices and requests.",
        table=[("without / with feedback", *MEASURES)],
    )
    for task, runs in found:
        cells = [ratios(runs, of) for of in MEASURES.values()]
        figure.table.append((task.title, *(f"{statistics.median(cell):.2f}x" if cell else "" for cell in cells)))
    for name, limit in {"bytes": LOSS_AT_MOST, "CPU": LOSS_AT_MOST, "messages": None, "delay p99": None}.items():
        shares = [[1 / ratio for ratio in ratios(runs, MEASURES[name])] for _, runs in found]
        if worst := max((share for share in shares if share), key=statistics.median, default=None):
            figure.claim(f"{name}: with / without feedback, worst workload", "", worst, "x", at_most=limit)
    return figure


def details(task: DistributedTask, runs: Runs, place: int) -> Figure:
    """One workload: the medians of its runs."""
    rates = ", ".join(f"{name} {rate:g}" for name, rate in task.rates.items())
    values = ", ".join(f"{equality} ({n:,} values)" for equality, n in task.equalities.items())
    late_ms = 1000 * max(sent.late_s for pair in runs for sent in pair)
    figure = Figure(
        f"jit-kafka-{place}",
        task.title[0].upper() + task.title[1:],
        f"{task.about[0].upper()}{task.about[1:]}. {values}; tuples per second: {rates}; windows of "
        f"{task.window_ms / 1000:g} s; plan {task.plan}. Tuples were written at most {late_ms:.0f} ms late.",
        table=[("", "without", "with", "without / with")],
    )
    for name, of in DETAILS.items():
        off, on = (statistics.median(of(pair[k]) for pair in runs) for k in (0, 1))
        ratio = ratios(runs, of)
        figure.table.append((name, number(off), number(on), f"{statistics.median(ratio):.2f}x" if ratio else ""))
    return figure


BENCH = PaperBench(
    quick=JitKafkaSettings(seconds=8.0, runs=1),
    default=JitKafkaSettings(),
    full=JitKafkaSettings(seconds=16.0, runs=3),
    draw=bench_jit_kafka,
)
