"""`weir bench juggler` at tiny sizes: every figure is drawn with its limits; counters have the right shapes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from operators.groups.sharing import APART
from operators.juggler.predicates.order import ADAPTIVE, ORDERS
from operators.juggler.routing.tuples_in_flight import ENCODINGS, PREDICATES, QUERIES
from ops.bench.measuring.measure import Progress
from ops.bench.papers.juggler.figures import BENCH, BINARY, MULTI, SAME, JugglerSettings, bench_juggler
from ops.bench.papers.juggler.runs import Size, run_group
from ops.bench.papers.juggler.workloads import OVERLAPS, STEP_MS, drifting, many, overlapping, reordering
from schemas.errors import UsageError
from tests.papers import drawn, medians

TINY = JugglerSettings(
    length=60, drift_length=240, many_length=80, steps=4, drift_steps=6, groups=(1, 10), apart_at_most=1, runs=1
)


def test_juggler_draws_every_figure(tmp_path: Path) -> None:
    """The figures show the thesis' numbers and the limits beside ours; results are those of every query alone."""
    with Progress() as progress:
        suite = bench_juggler(TINY, progress)
    text = drawn(suite, tmp_path)
    names = [figure.name for figure in suite.figures]
    beyond = ["juggler-drift", "juggler-queries", "juggler-demand"]
    assert names == [*(f"juggler-5-{n:02d}" for n in (4, 5, 6, 7, 10, 11, 12)), *beyond]
    claims = {claim.what: claim for figure in suite.figures for claim in figure.claims}
    assert claims[SAME].met
    assert all(claim.met for figure in suite.figures for claim in figure.claims if claim.what == SAME)
    for order in ORDERS:
        assert claims[f"time: {order} against adaptive"].limit is not None
    for phase in (1, 2, 3):
        assert claims[f"time in phase {phase}: adaptive against the best order"].limit is not None
    assert claims["most rooms watched: time with feedback against without"].limit is not None
    assert "1 queries: pace of one operator against apart" in claims
    assert "10 queries: pace of one operator against apart" not in claims
    for heading in ("Juggler Fig. 5.4", "Juggler Fig. 5.12", "processor time per query", "every order at least 1.3"):
        assert heading in text
    plans, orders, overlap = suite.figures[0], suite.figures[5], suite.figures[6]
    assert {series.name for series in plans.panels[0].series} == {*BINARY, *MULTI}
    assert {series.name for series in orders.panels[0].series} == {ADAPTIVE, *ORDERS}
    assert {series.name for series in overlap.panels[0].series} == {*ENCODINGS, APART}
    # All plans have the same results, and the thesis' encoding has more to compare than ours.
    outputs = [medians(plans, 0, name)[-1] for name in (*BINARY, *MULTI)]
    assert len(set(outputs)) == 1
    assert medians(overlap, 0, QUERIES)[-1] < medians(overlap, 0, PREDICATES)[-1]


def test_juggler_draws_one_figure(tmp_path: Path) -> None:
    """The thesis has no other figures."""
    with Progress() as progress:
        suite = bench_juggler(TINY, progress, 11)
        with pytest.raises(UsageError, match=r"5\.4 to 5\.7"):
            bench_juggler(TINY, progress, 8)
    assert [figure.name for figure in suite.figures] == ["juggler-5-11"]
    assert "adaptive and fixed orders, comparisons" in drawn(suite, tmp_path)


def test_hundred_queries_are_asked_ten_times_the_pace() -> None:
    """The limit holds at every size; full sizes are larger than those that take minutes."""
    for settings in (BENCH.quick, BENCH.default, BENCH.full):
        assert 100 in settings.groups
        assert settings.apart_at_most >= 100
        assert settings.drift_steps % 3 == 0
    assert BENCH.full.groups == BENCH.default.groups == (1, 10, 100, 1_000)
    assert BENCH.quick.drift_length < BENCH.default.drift_length < BENCH.full.drift_length


def test_in_each_phase_of_the_drift_another_order_is_the_best() -> None:
    """By comparisons, which depend on no machine: no fixed order comes near the adaptive one, or is best throughout."""
    size = Size(2_400, 12)
    counts = {}
    for how in (ADAPTIVE, *ORDERS):
        trace = run_group(drifting(), how, size, 1)
        counts[how] = np.diff([0, *(trace.comparisons[n] for n in (3, 7, 12))])
    totals = {how: int(found.sum()) for how, found in counts.items()}
    assert all(totals[order] > 1.3 * totals[ADAPTIVE] for order in ORDERS), totals
    best = [min(ORDERS, key=lambda order, phase=phase: counts[order][phase]) for phase in range(3)]  # type: ignore[misc]
    assert best[0][0] == "A"
    assert best[1].strip("A")[0] == "J"
    assert best[2].strip("A")[0] == "W"


def test_the_drifting_data_refuses_by_one_type_at_a_time() -> None:
    """Attributes refuse in the first phase alone, and T is seldom in the last."""
    length = 3_000
    batches = drifting().batches(length, 1)
    thirds = [length * n // 3 * STEP_MS for n in range(4)]
    shares = []
    for first, last in pairwise(thirds):
        inside = {name: (batch.ts >= first) & (batch.ts < last) for name, batch in batches.items()}
        wanted = {
            "B": np.asarray(batches["B"].columns["pressure"].values)[inside["B"]] < 90,
            "H": np.asarray(batches["H"].columns["beatrate"].values)[inside["H"]] > 115,
            "T": np.asarray(batches["T"].columns["fluct"].values)[inside["T"]] < 200,
        }
        shares.append([float(some.mean()) for some in wanted.values()])
        assert sum(map(len, wanted.values())) > 1_000
    assert max(shares[0]) < 0.2
    assert min(shares[1]) == min(shares[2]) == 1.0
    seldom = int((batches["T"].ts >= thirds[2]).sum())
    assert 0 < seldom < 0.1 * int((batches["T"].ts < thirds[1]).sum())


def test_groups_have_the_queries_and_columns_that_are_asked() -> None:
    """The thesis' groups have five queries; of wide ones the share that overlaps reads the common columns."""
    assert [len(overlapping(percent).queries()) for percent in OVERLAPS] == [5, 5, 5]
    assert len(reordering().queries()) == 1
    wide = many(40, 0.75, 1).sql()
    common = sum(wide.count(f"B.{name} ") for name in ("b0", "b1"))
    assert 0.6 < common / (3 * 40) < 0.9
