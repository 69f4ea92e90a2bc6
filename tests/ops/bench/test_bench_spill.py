"""`weir bench spill` at tiny sizes: its data has the declared ratios, and its figures have the paper's shapes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from operators.kernels.hashing import mix_words
from operators.kernels.partition import groups_of
from operators.spill.strategies import STRATEGIES
from ops.bench.measuring.figures import Figure
from ops.bench.measuring.measure import Progress, tells_memory
from ops.bench.measuring.suites import Suite
from ops.bench.papers.spill.across import WORKERS
from ops.bench.papers.spill.beyond import accounting, asked, growth, pauses, tenth
from ops.bench.papers.spill.figures import FULL, bench_spill, in_workers, memory, throughput
from ops.bench.papers.spill.rocksdb import CHUNK_ROWS, IN_ROCKSDB, run_in_rocksdb
from ops.bench.papers.spill.runs import ALL_IN_MEMORY, THIRDS, Workload, digest, run
from ops.bench.papers.spill.traces import (
    LONGEST_IN_MEMORY,
    SAME,
    SpillSettings,
    Traces,
    all_strategies,
    compare,
    longest_steps,
    percentiles,
    waits,
    within,
)
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
    """The ranks only, not the distances, which take more than a tiny run."""
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
    # A spill: memory falls by more than it ever does between two other steps.
    used = medians(figures[2], 0, "global-output-penalty")
    assert min(after / before for before, after in pairwise(used)) < 0.95
    for name in STRATEGIES:
        curve = medians(figures[0], 0, name)
        assert curve == sorted(curve)


def test_claims_name_the_strategy_with_wrong_results(traces: Traces) -> None:
    """A run that has lost a result, or has another in its place, counts as not equal."""
    figure = Figure("x", "x", "x")
    lost = replace(traces["local-output"][0], cleanup_results=0)
    other = replace(traces["bottom-up"][0], digest=1)
    right = 100.0 * (len(traces) - 2) / len(traces)
    for wrong, share in ((traces, 100.0), ({**traces, "local-output": [lost], "bottom-up": [other]}, right)):
        compare(figure, wrong)
        (claim,) = (claim for claim in figure.claims[-1:] if claim.what == SAME)
        assert claim.measured.median == pytest.approx(share)
        assert claim.met == (share == 100.0)


def test_a_budget_that_was_exceeded_is_reported(traces: Traces) -> None:
    (trace,) = traces["bottom-up"]
    assert trace.budget_bytes > 0 == traces[ALL_IN_MEMORY][0].budget_bytes
    over = replace(trace, memory_bytes=[*trace.memory_bytes, 2 * trace.budget_bytes])
    for figure, given, met in (
        (Figure("x", "x", "x"), traces, True),
        (Figure("x", "x", "x"), {**traces, "bottom-up": [over]}, False),
    ):
        within(figure, given)
        assert [claim.met for claim in figure.claims] == [met]


def test_pauses_are_those_of_the_steps_that_spill(traces: Traces) -> None:
    (trace,) = traces["global-output"]
    assert 0 < sum(trace.moved) < len(trace.moved) == TINY.steps
    spilling, others = (waits([trace], moved=moved) for moved in (True, False))
    assert len(spilling) == sum(trace.moved)
    assert sum(spilling) + sum(others) == pytest.approx(1e3 * sum(trace.waits))
    middle, _, longest = percentiles(spilling)
    assert min(spilling) <= middle <= longest == max(spilling)
    assert percentiles([]) == ()
    assert not any(traces[ALL_IN_MEMORY][0].moved)


def test_the_longest_step_of_all_runs_counts(traces: Traces) -> None:
    (trace,), (whole,) = traces["bottom-up"], traces[ALL_IN_MEMORY]
    slow = replace(trace, waits=[0.2 if moved else 0.3 for moved in trace.moved])
    quick = replace(trace, waits=[0.01 for _ in trace.moved])
    figure = Figure("x", "x", "x")
    longest_steps(figure, {ALL_IN_MEMORY: [whole], "bottom-up": [quick, slow], "local-output": [quick]})
    assert [(claim.measured.median, claim.met) for claim in figure.claims] == [
        (1e3 * max(whole.waits), None),
        (200.0, False),
        (10.0, True),
    ]


def test_a_digest_distinguishes_rows_but_not_their_order() -> None:
    rows = np.array([[1, 2, 3], [4, 5, 6]])
    assert digest(rows.T) == digest(rows[::-1].T)
    assert (
        len({digest(other.T) for other in (rows, rows[:1], rows + 1, rows[:, ::-1], np.repeat(rows, 2, axis=0))}) == 5
    )


@pytest.mark.parametrize("memory_bytes", [1, 1 << 22])
def test_all_in_rocksdb_gives_the_results_of_all_in_memory(memory_bytes: int) -> None:
    """With lists longer than a chunk, and with slices of few tuples and of many."""
    workload = Workload((1.0, 1.0, 4.0), tuple_range=100, tuples=200, partitions=16)
    counts = np.bincount(workload.column("D", 2, 1) - workload.values(2, 1)[0][0])
    assert counts.max() ** 2 > CHUNK_ROWS
    whole = run(workload, ALL_IN_MEMORY, 0, seed=1, steps=10)
    for steps in (7, 30):
        stored = run_in_rocksdb(workload, memory_bytes, seed=1, steps=steps)
        assert (stored.results[-1], stored.digest) == (whole.results[-1], whole.digest)
        assert len(stored.waits) == len(stored.step_seconds) == steps


def test_figures_beyond_the_paper_are_drawn(tmp_path: Path) -> None:
    least = replace(TINY, pace_range=300, growth_range=100, growth=(1, 3), wide_range=500, partitions=16, steps=20)
    with Progress() as progress:
        figures = [make(least, progress) for make in (tenth, growth, pauses)]
    figures.append(asked(figures))
    text = drawn(Suite("spill", "the paper", {}, figures), tmp_path)
    for figure in figures[:3]:
        for claim in figure.claims:
            if claim.what == SAME:
                assert claim.met, figure.name
    assert IN_ROCKSDB in text
    assert [s.x for s in figures[1].panels[0].series] == [(1.0, 3.0)] * 4
    assert {line[0] for line in figures[2].table[1:]} == {ALL_IN_MEMORY, *STRATEGIES}


def test_the_process_takes_what_the_account_says(tmp_path: Path) -> None:
    """Approximately: megabytes of imports and buffers weigh more in so small a run."""
    with Progress() as progress:
        figure = accounting(replace(TINY, wide_range=8_000, steps=10), progress)
    assert "account" in drawn(Suite("spill", "the paper", {}, [figure]), tmp_path)
    if tells_memory():
        process, account = (medians(figure, 0, name) for name in ("process", "account"))
        assert account == sorted(account)
        assert 0.5 < process[-1] / account[-1] < 2.0
        assert max(medians(figure, 1, "account")) < 0.3 * max(account)


def test_what_is_asked_says_where_it_is_missed() -> None:
    first, second = Figure("spill-16", "x", "x"), Figure("spill-zipf", "x", "x")
    first.claim("pace", "", [2.0], "x", at_least=1.5)
    second.claim("pace", "", [1.0], "x", at_least=1.5)
    second.claim("longest", "", [90.0], "ms", at_most=100.0)
    second.claim("spills", "13", [2.0])
    for figure, ms in ((first, 7.0), (second, 9.0)):
        figure.claim(LONGEST_IN_MEMORY, "to compare", [ms], "ms")
    assert asked([first, second]).table[1:] == [
        ("pace", "at least 1.5x", "16: 2x, zipf: 1x", "MISSED in zipf"),
        (LONGEST_IN_MEMORY, "to compare", "16: 7 ms, zipf: 9 ms", ""),
        ("longest", "at most 100 ms", "90 ms", "met"),
    ]
    assert [line[-1] for line in asked([second]).table[1:]] == ["MISSED", "met", ""]


def test_a_figure_is_chosen_by_its_number() -> None:
    with Progress() as progress:
        assert [f.name for f in bench_spill(replace(TINY, tuple_range=200), progress, 19).figures] == ["spill-19"]
        with pytest.raises(UsageError, match="no figure 15; there are 16 to 20"):
            bench_spill(TINY, progress, 15)


def test_full_has_the_papers_sizes() -> None:
    assert FULL.workload((3.0, 1.0, 1.0)).minutes == 50.0
    assert FULL.partitions == 300


def test_joins_in_workers_of_their_own() -> None:
    """The results are those of one task, and tasks tell each other what comes of their groups."""
    with Progress() as progress:
        figure, *of_memory = in_workers(16, WORKLOAD, TINY, progress)
    claims = {claim.what: claim for claim in figure.claims}
    assert claims[SAME].measured.median == 100.0
    lines = {line[0]: line for line in figure.table}
    assert lines.keys() >= {"one task, global-output-penalty", *STRATEGIES}
    messages, blocks = (float(lines["global-output"][column].replace(",", "")) for column in (4, 5))
    assert 0 < messages / 1024 < blocks
    assert figure.name == "spill-across-16"
    assert [f.name for f in of_memory] == ["spill-across-17", "spill-across-18"]
    memory_of_workers_sums_to_that_of_all(of_memory[0])


def memory_of_workers_sums_to_that_of_all(figure: Figure) -> None:
    """Every worker takes part of the memory, and stays within its share."""
    names = [f"worker {number}" for number in range(1, WORKERS + 1)]
    for panel, strategy in enumerate(("global-output", "global-output-penalty"), 1):
        workers = np.array([medians(figure, panel, name) for name in names])
        assert (workers.max(axis=1) > 0).all()
        assert workers.sum(axis=0) == pytest.approx(np.array(medians(figure, 0, strategy)))
    assert figure.claims[-1].met, figure.claims[-1]
