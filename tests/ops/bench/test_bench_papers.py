"""`weir bench jisc|hybmig` at tiny sizes: every figure is drawn, and counters have the shapes of the papers."""

from __future__ import annotations

import statistics
from importlib import import_module
from pathlib import Path

import pytest

from ops.bench.measuring.figures import Figure, Panel, Series
from ops.bench.measuring.measure import Progress
from ops.bench.measuring.suites import Suite
from ops.bench.papers.hybmig.figures import ENOUGH, HybMigSettings, bench_hybmig
from ops.bench.papers.hybmig.runs import STRATEGIES, Clique, run
from ops.bench.papers.hybmig.simulated_clock import SimulatedClock
from ops.bench.papers.jisc.figures import FULL, JiscSettings, bench_jisc
from ops.bench.papers.jisc.runs import Feed, Star
from schemas.errors import UsageError
from services.commands.bench import JIT_ON_KAFKA, figures_of
from tests.papers import drawn, medians


@pytest.mark.parametrize("module", [*map(figures_of, ("jisc", "hybmig", "jit", "juggler", "spill")), JIT_ON_KAFKA])
def test_commands_find_their_figures(module: str) -> None:
    """`weir bench jit --kafka` named a module that had moved."""
    assert callable(import_module(module).BENCH.run)


TINY = JiscSettings(
    joins=(3, 8),
    window=64,
    chain=4,
    step_tuples=200,
    hash_windows=(32, 64),
    loop_windows=(32,),
    share=0.005,
    millions=2,
    every=(1,),
    runs=1,
)

TINY_HYBMIG = HybMigSettings(
    minutes=0.4,
    windows=(0.4,),
    rates=(1.0,),
    streams=(4, 5),
    clock_minutes=0.4,
    clock_rates=(1.0,),
    runs=1,
)


def test_a_window_of_the_workload_has_every_key_once() -> None:
    star = Star(3, 16)
    keys = star.keys(40, seed=2)
    for start in (0, 7, 24):
        for stream in keys[:, start : start + 16]:
            assert sorted(stream.tolist()) == list(range(16))
    feed = Feed(star, keys)
    feed.rows(0, 40)
    # The first window's tuples find only what has arrived of the others; from then on each makes one result.
    assert feed.results == 4 * 40 - 3 * 16


@pytest.mark.parametrize("theta", [False, True])
def test_best_and_worst_case_leave_one_and_no_state_complete(theta: bool) -> None:
    star = Star(5, 32, theta)
    incomplete = {}
    for name, target in (("best", star.best()), ("worst", star.worst())):
        feed = Feed(star, star.keys(80, seed=1))
        feed.migrate(target, "jisc", 40)
        feed.rows(0, 40)
        operators = feed.engine.statistics().operators
        incomplete[name] = sum(not complete for operator in operators for complete in operator.complete)
        feed.rows(40, 80)
        assert feed.results == 6 * 80 - 5 * 32
    assert incomplete == {"best": 1, "worst": 4}


def test_jisc_draws_every_figure(tmp_path: Path) -> None:
    with Progress() as progress:
        suite = bench_jisc(TINY, progress)
    text = drawn(suite, tmp_path)
    assert [figure.name for figure in suite.figures] == [f"jisc-{n:02d}" for n in range(7, 13)]
    for heading in ("commit:", "9.8x at 100 joins", "JISC Fig. 12", "Moving State"):
        assert heading in text
    # Comparisons per tuple: one plan does less than two, and a complete state costs less than one to be completed.
    for figure in suite.figures[:2]:
        assert medians(figure, 2, "JISC")[-1] < medians(figure, 2, "Parallel Track")[-1]
    best, worst = (statistics.mean(medians(figure, 2, "JISC")) for figure in suite.figures[:2])
    assert best < worst


def test_jisc_draws_one_figure(tmp_path: Path) -> None:
    with Progress() as progress:
        suite = bench_jisc(TINY, progress, 8)
        with pytest.raises(UsageError, match="7 to 12"):
            bench_jisc(TINY, progress, 13)
    assert "worst case" in drawn(suite, tmp_path)
    assert [figure.name for figure in suite.figures] == ["jisc-08"]


def test_full_has_the_papers_sizes() -> None:
    assert FULL.joins == tuple(range(10, 101, 10))
    assert (FULL.window, FULL.chain, FULL.step_tuples) == (10_000, 20, 1_000_000)
    assert max(FULL.hash_windows) == max(FULL.loop_windows) == 100_000
    assert (FULL.share, FULL.every) == (1.0, tuple(range(1, 11)))


def test_a_table_shows_some_points_and_says_where_shapes_differ() -> None:
    many = Series.of("ours", {float(x): [x, x + 1.0] for x in range(100)})
    figure = Figure("f-1", "Fig. 1", "Counted.", [Panel("a", "x", "y", (many,), rows=10)], differs="Steeper.")
    figure.claim("twice as fast", "2x", [1.0, 3.0], "x", at_least=2.5)
    suite = Suite("f", "a paper", {"seed": 1}, [figure], machine={})
    text = suite.to_markdown()
    assert text.count("\n| ") == 2 + 2 + 1 + 10
    assert "| twice as fast | 2x | 2 x | 1 - 3 | MISSED |" in text
    assert "**Differs.** Steeper." in text
    assert figure.claims[0].met is False


def test_a_simulated_clock_is_busy_for_what_is_done() -> None:
    clock = SimulatedClock(100.0)
    clock.wait_until(0.5)
    assert clock.spare(1.0) == 50
    clock.work(160)
    assert clock.now == pytest.approx(2.1)
    assert clock.spare(2.0) == 0
    assert {second: round(done, 6) for second, done in clock.spent.items()} == {0: 50.0, 1: 100.0, 2: 10.0}
    clock.wait_until(1.0)
    assert clock.now == pytest.approx(2.1)


@pytest.mark.parametrize("shared", [True, False])
def test_every_strategy_gives_the_same_results(shared: bool) -> None:
    clique = Clique(0.4, 2.0, 5, shared)
    for target in (clique.right_deep(), clique.bushy(), clique.sharing()):
        counts = {name: run(clique, target, name, capacity=ENOUGH).results for name in STRATEGIES}
        assert len(set(counts.values())) == 1, counts
        assert not shared or min(counts.values()) > 100


@pytest.mark.parametrize("shared", [True, False])
def test_the_clique_has_the_papers_selectivities(shared: bool) -> None:
    clique = Clique(3.0, 10.0, 4, shared)
    batches = clique.batches(180, seed=3)
    begin = int((batches["A"].ts < clique.cut_ms).sum())
    before, after = slice(0, begin), slice(begin + 1, None)

    def selectivity(one: str, other: str, part: slice) -> float:
        column = "k" if shared else f"{one}{other}".lower()
        left, right = (batches[name].columns[column].values[part] for name in (one, other))
        return float((left[:, None] == right[None, :]).mean())

    assert selectivity("A", "B", before) == pytest.approx(0.0025, rel=0.4)
    assert selectivity("B", "C", before) == pytest.approx(0.05, rel=0.15)
    assert selectivity("A", "B", after) == pytest.approx(0.05, rel=0.15)
    assert selectivity("C", "D", after) == pytest.approx(0.0025, rel=0.4)


def test_counters_have_the_shapes_of_the_paper() -> None:
    """Fig. 15, 16, 20, 21: HybMig does less than Parallel Track and keeps its pace."""
    clique = Clique(1.0, 1.0, 6, shared=True)
    traces = {name: run(clique, clique.right_deep(), name, capacity=ENOUGH) for name in STRATEGIES}
    w = clique.minutes * 60
    assert traces["HybMig"].comparisons < traces["PT"].comparisons
    assert traces["HybMig"].peak_tuples < traces["PT"].peak_tuples
    assert traces["MS"].compared[0] > 5 * traces["HybMig"].compared[0]
    assert traces["PT"].longest_delay_s > 5.0  # held back
    assert traces["HybMig"].longest_delay_s < 1.0
    for name in ("PT", "HybMig", "GPT"):
        assert w <= traces[name].finished_s <= w + 1.0
    for name in ("MS", "HybMig+BSC", "GMS", "GHM"):
        assert traces[name].finished_s < 1.0, name  # there is enough spare time
    assert traces["JISC"].finished_s <= w + 1.0

    share = {
        name: run(clique, clique.sharing(), name, capacity=ENOUGH).comparisons
        for name in ("HybMig", "HybMig without sharing")
    }
    assert 1.2 * share["HybMig"] < share["HybMig without sharing"] < 3 * share["HybMig"]


def test_a_saturated_processor_is_silent_while_states_are_moved() -> None:
    """Fig. 15: Moving State is silent, and catches up later; HybMig answers at once."""
    clique = Clique(0.7, 1.0, 5, shared=True)
    target = clique.right_deep()
    whole = run(clique, target, "MS", capacity=ENOUGH)
    capacity = whole.comparisons / (0.7 * 60)
    moved, hybrid = (run(clique, target, name, capacity=capacity) for name in ("MS", "HybMig"))
    assert moved.results == hybrid.results == whole.results
    assert moved.silent_s > hybrid.silent_s + 3.0
    assert moved.finished_s < moved.caught_up_s


def test_hybmig_draws_every_figure(tmp_path: Path) -> None:
    with Progress() as progress:
        suite = bench_hybmig(TINY_HYBMIG, progress)
        with pytest.raises(UsageError, match="15 to 22"):
            bench_hybmig(TINY_HYBMIG, progress, 7)
    text = drawn(suite, tmp_path)
    assert [figure.name for figure in suite.figures] == [f"hybmig-{n}" for n in (*range(15, 23), "strategies")]
    assert [line[0] for line in suite.figures[-1].table[1:]] == [
        "jisc",
        "hybmig-bsc",
        "hybmig",
        "moving-state",
        "parallel-track",
        "gms",
        "gpt",
        "ghm",
    ]
    for heading in ("simulated clock", "HybMig without sharing", "GHM", "PT bushy"):
        assert heading in text
