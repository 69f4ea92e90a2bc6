"""`weir bench jit` at tiny sizes: workloads are the paper's, figures are drawn, JIT makes less and finds everything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from operators.plan.plan import parse_plan
from ops.bench.measuring.measure import Progress
from ops.bench.papers.jit.figures import BUSHY, FULL, LEFT_DEEP, JitSettings, bench_jit
from ops.bench.papers.jit.runs import RARE, TABLE_II, Clique, Cost, check_equal, compare
from ops.bench.papers.jit.tasks import AllMatch
from schemas.columns import I64
from schemas.errors import InvariantError, UsageError
from tests.papers import drawn, medians

TINY = JitSettings(
    windows=0.5,
    points=2,
    scale=2.0,
    skews=(0.5,),
    drifts=(0.5,),
    skew_scale=1.0,
    slices=(4, 4),
    share=0.02,
    runs=1,
    repeats=1,
)


def values(clique: Clique, windows: float = 2.0, seed: int = 3) -> dict[str, I64]:
    """All values by source and column, as `A.ab`."""
    found = clique.batches(windows, seed)
    return {
        f"{n}.{c}": batch.columns[c].values.astype(np.int64) for n, batch in found.items() for c in clique.columns(n)
    }


@pytest.mark.parametrize(("shape", "streams"), TABLE_II)
def test_a_clique_has_a_column_per_pair_and_the_plan_of_table_ii(shape: str, streams: int) -> None:
    clique = Clique(shape, streams=streams)
    query = clique.query()
    assert len(query.predicates) == streams * (streams - 1) // 2
    assert [len(clique.columns(name)) for name in clique.names] == [streams - 1] * streams
    assert clique.plan(query) == parse_plan(TABLE_II[shape, streams], query)


def test_values_are_uniform_and_those_of_the_rare_stream_a_hundred_times_as_many() -> None:
    for clique, rare in ((LEFT_DEEP, "D"), (replace(LEFT_DEEP, streams=3), "C"), (BUSHY, "")):
        for name, drawn_values in values(replace(clique, rate=10.0)).items():
            most = clique.values * (RARE if name[0] == rare else 1)
            assert drawn_values.min() >= 1
            assert 0.95 * most < drawn_values.max() <= most
            assert drawn_values.mean() == pytest.approx(most / 2, rel=0.1)


def test_tuples_come_at_the_rate_and_a_scale_keeps_what_is_demanded() -> None:
    """A tuple of A fits a pair of C and D with a chance of (rate w)^2 / d_max^3."""
    for scale in (1.0, 8.0):
        clique = replace(BUSHY, scale=scale)
        batch = clique.batches(1.0, 1)["A"]
        assert len(batch) == 1200 * scale
        assert bool((np.diff(batch.ts) >= 0).all())
        most = max(found.max() for found in values(clique).values())
        assert (1200 * scale) ** 2 / most**3 == pytest.approx(1200**2 / 200**3, rel=0.05)


def test_skewed_values_follow_zipf() -> None:
    found = np.bincount(values(Clique(rate=20.0, streams=4, zipf=1.0))["A.ab"])
    assert found[1] / found[2] == pytest.approx(2.0, rel=0.1)
    assert found[1] / found[10] == pytest.approx(10.0, rel=0.2)


def test_drifting_values_match_in_some_phases() -> None:
    clique = Clique(streams=4, values=20, drift=0.5)
    found = clique.batches(8.0, 1)
    phase = clique.window_ms // 2
    matched = []
    for one, other in (("A", "B"), ("A", "C"), ("C", "D")):
        column = f"{one}{other}".lower()
        for begin in range(0, 8 * clique.window_ms, phase):
            left, right = (
                found[name].columns[column].values[(found[name].ts >= begin) & (found[name].ts < begin + phase)]
                for name in (one, other)
            )
            share = float((left[:, None] == right[None, :]).mean())
            assert share == pytest.approx(0.05, rel=0.2) or share == 0.0
            matched.append(share > 0.0)
    assert 0.25 < np.mean(matched) < 0.75


@pytest.mark.parametrize(("hashed", "scale"), [(False, 1.0), (True, 1.0), (True, 30.0)])
def test_jit_makes_less_and_finds_the_same(hashed: bool, scale: float) -> None:
    clique = replace(LEFT_DEEP, events=5, scale=scale)
    ref, jit = compare(clique, hashed=hashed, windows=1.0, seed=1, slices=30)
    assert ref.results == jit.results > 0
    assert ref.checksum == jit.checksum != 0
    assert jit.intermediate_results <= ref.intermediate_results
    assert jit.comparisons <= ref.comparisons
    if not hashed or scale > 1.0:
        assert jit.intermediate_results < 0.8 * ref.intermediate_results
        assert jit.peak_tuples < ref.peak_tuples
        assert jit.messages > 0 == ref.messages
    assert len(ref.seconds) == len(jit.seconds) == 6


def test_where_all_tuples_match_nothing_is_saved() -> None:
    ref, jit = compare(AllMatch(3, 200), hashed=True, windows=1.0, seed=1, slices=5, repeats=3)
    # The first window's tuples find only the other streams' tuples that have arrived.
    assert ref.results == jit.results == 2 * 4 * 200 - 3 * 200
    assert jit.intermediate_results == ref.intermediate_results > 0


def test_other_results_are_refused() -> None:
    for other in (Cost(results=2, checksum=7), Cost(results=3, checksum=8)):
        with pytest.raises(InvariantError, match=r"here: 3 results without feedback, and not the same \d with it"):
            check_equal(Cost(results=3, checksum=7), other, "here")


def test_jit_has_every_figure() -> None:
    with Progress() as progress:
        suite = bench_jit(TINY, progress)
    text = suite.to_markdown()
    assert [f.name for f in suite.figures] == [f"jit-{n}" for n in (*range(10, 18), "skew", "drift", "losses")]
    for heading in ("more than 10x", "up to 62%", "Zipf's exponent", "all tuples match, 8 joins"):
        assert heading in text
    for figure in suite.figures[:8]:
        pairs = zip(*(medians(figure, 1, name) for name in ("REF", "JIT")), strict=True)
        assert all(0 < jit <= 1.05 * ref for ref, jit in pairs)
    # Every clique is in its figure, and each figure's default is in the others too.
    labels = [line[0] for line in suite.figures[-1].table[1:]]
    assert len(labels) == len(set(labels)) == (9 + 9) + 2 + 2 + 4


def test_jit_draws_one_figure(tmp_path: Path) -> None:
    with Progress() as progress:
        suite = bench_jit(TINY, progress, 16)
        with pytest.raises(UsageError, match="10 to 17"):
            bench_jit(TINY, progress, 9)
    assert "left-deep" in drawn(suite, tmp_path)
    assert [figure.name for figure in suite.figures] == ["jit-16"]


def test_full_is_five_hours_with_all_values_of_table_iii() -> None:
    assert (FULL.windows, FULL.points, FULL.share) == (None, 5, 1.0)
    assert (BUSHY.minutes, BUSHY.rate, BUSHY.streams, BUSHY.values) == (20.0, 1.0, 6, 200)
    assert (LEFT_DEEP.minutes, LEFT_DEEP.rate, LEFT_DEEP.streams, LEFT_DEEP.values) == (10.0, 1.0, 4, 50)
