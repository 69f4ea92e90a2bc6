"""`weir bench spill` at tiny sizes: its data has the ratios that it promises, and figures the shapes of the paper."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from operators.kernels.hashing import mix_words
from operators.kernels.partition import groups_of
from operators.spill.strategies import STRATEGIES
from ops.bench.figures import Suite
from ops.bench.measure import Progress
from ops.bench.paper_spill import FULL, SpillSettings, Traces, all_strategies, bench_spill, memory, throughput
from ops.bench.paper_spill_runs import ALL_IN_MEMORY, THIRDS, Workload
from schemas.columns import I64
from schemas.errors import UsageError
from tests.papers import drawn, medians

TINY = SpillSettings(tuple_range=700, partitions=32, steps=30, runs=1)
WORKLOAD = TINY.workload((3.0, 1.0, 1.0))


def counted(workload: Workload, column: I64, join: int, begin: int, end: int) -> I64:
    """How often each value of a join appears in a part of a column."""
    values, _ = workload.values(join, 1)
    return np.bincount(column[begin:end] - values[0], minlength=len(values))


@pytest.mark.parametrize("ratios", [(3.0, 1.0, 1.0), (1.0, 3.0, 3.0), (3.0, 2.0, 3.0)])
def test_values_appear_as_often_as_their_partitions_ratio_says(ratios: tuple[float, float, float]) -> None:
    """Each value R times in every tuple range, once more or less where a range cuts an interval."""
    k = 3_000
    workload = Workload(ratios, tuple_range=k, tuples=3 * k)
    for stream, join in (("A", 0), ("C", 0), ("C", 1), ("D", 1), ("D", 2), ("E", 2)):
        _, per_range = workload.values(join, 1)
        column = workload.column(stream, join, 1)
        assert len(column) == 3 * k
        assert per_range.sum() == pytest.approx(k)
        assert per_range.mean() == pytest.approx(ratios[join], rel=0.01)
        for begin in (0, k, 2 * k):
            counts = counted(workload, column, join, begin, begin + k)
            assert np.abs(counts - per_range).max() < 2.5, stream
            assert counts.mean() == pytest.approx(ratios[join], rel=0.01)
        by_ratio = {round(r, 2): column for r in per_range}
        assert len(by_ratio) == len(THIRDS)
        assert max(per_range) / min(per_range) == pytest.approx(THIRDS[0] / THIRDS[2])


def test_values_of_one_partition_have_one_ratio_in_all_streams_of_a_join() -> None:
    workload = Workload((3.0, 1.0, 1.0), tuple_range=2_000, tuples=4_000, partitions=32)
    values, ratios = workload.values(0, 1)
    partitions = groups_of(mix_words(values.view(np.uint64)), 32)
    for partition in range(32):
        assert len(np.unique(ratios[partitions == partition])) == 1
    others, _ = workload.values(1, 1)
    assert set(values.tolist()).isdisjoint(others.tolist())


def test_partitions_exchange_their_ratios_from_phase_to_phase() -> None:
    k = 3_000
    workload = Workload((3.0, 1.0, 1.0), tuple_range=k, tuples=2 * k, phases=2)
    column = workload.column("A", 0, 1)
    for phase in (0, 1):
        _, ratios = workload.values(0, 1, phase)
        counts = counted(workload, column, 0, phase * k, (phase + 1) * k)
        assert np.abs(counts - ratios).max() < 2.5
    changed = workload.values(0, 1, 0)[1] != workload.values(0, 1, 1)[1]
    assert changed.mean() > 0.9


def test_zipf_has_the_same_average() -> None:
    workload = Workload((3.0, 1.0, 1.0), tuple_range=3_000, tuples=3_000, zipf=1.0)
    ratios = workload.partition_ratios(0, 1)
    assert ratios.mean() == pytest.approx(3.0)
    assert np.sort(ratios)[::-1][:4] == pytest.approx(ratios.max() / np.arange(1, 5))


def test_streams_and_seeds_differ_and_repeat() -> None:
    workload = Workload((3.0, 1.0, 1.0), tuple_range=1_000, tuples=1_000)
    first, again, other = (workload.batches(seed) for seed in (1, 1, 2))
    for name, batch in first.items():
        assert batch.ts.tolist() == again[name].ts.tolist() == other[name].ts.tolist()
        assert batch.columns["x"].values.tolist() == again[name].columns["x"].values.tolist()
        assert batch.columns["x"].values.tolist() != other[name].columns["x"].values.tolist()
    assert first["A"].columns["x"].values.tolist() != first["B"].columns["x"].values.tolist()
    assert len({int(batch.ts[0]) for batch in first.values()}) == 5


@pytest.fixture(scope="module")
def traces() -> Traces:
    """One run of every strategy, and all in memory."""
    with Progress() as progress:
        return all_strategies(WORKLOAD, TINY, progress, "tiny")


def test_every_strategy_delivers_the_same_results(traces: Traces) -> None:
    (whole,) = traces[ALL_IN_MEMORY]
    assert whole.spills == whole.cleanup_results == 0
    assert len(whole.minutes) == TINY.steps
    budget = TINY.share * max(whole.memory_bytes)
    for name in STRATEGIES:
        (trace,) = traces[name]
        assert trace.results[-1] + trace.cleanup_results == whole.results[-1], name
        assert trace.results[-1] < whole.results[-1]
        assert trace.spills > 0
        assert max(trace.memory_bytes) <= budget


def test_strategies_rank_as_in_the_paper(traces: Traces) -> None:
    """Not by how much, which takes more than a tiny run."""
    (bottom_up,), (whole_plan,), (penalty,) = (
        traces[name] for name in ("bottom-up", "global-output", "global-output-penalty")
    )
    assert bottom_up.results[-1] < min(whole_plan.results[-1], penalty.results[-1])
    assert bottom_up.spills <= penalty.spills < whole_plan.spills


def test_figures_are_drawn(traces: Traces, tmp_path: Path) -> None:
    figures = [throughput(16, WORKLOAD, traces, TINY), *memory(WORKLOAD, traces)]
    text = drawn(Suite("spill", "the paper", {}, figures), tmp_path)
    assert [figure.name for figure in figures] == ["spill-16", "spill-17", "spill-18"]
    for heading in ("State spill Fig. 18", "global-output-penalty", "fewest (7 against 10)", "results of cleanup"):
        assert heading in text
    # A spill: memory falls, more than it ever does between two steps otherwise.
    used = medians(figures[2], 0, "global-output-penalty")
    assert min(after / before for before, after in pairwise(used)) < 0.95
    for name in STRATEGIES:
        curve = medians(figures[0], 0, name)
        assert curve == sorted(curve)


def test_a_figure_is_chosen_by_its_number() -> None:
    with Progress() as progress:
        assert [f.name for f in bench_spill(replace(TINY, tuple_range=200), progress, 19).figures] == ["spill-19"]
        with pytest.raises(UsageError, match="no figure 15; there are 16 to 20"):
            bench_spill(TINY, progress, 15)


def test_full_has_the_papers_sizes() -> None:
    assert FULL.workload((3.0, 1.0, 1.0)).minutes == 50.0
    assert FULL.partitions == 300
