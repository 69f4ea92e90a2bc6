"""The choice of a migration strategy: predictions against counters, limits and preferences, `auto` in the engine."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.data.statistics import EngineStatistics, SpillStatistics
from operators.engine.engine import Engine
from operators.migration.advise import PREFERENCE, Goal, advise, seconds
from operators.migration.cost import CostOfMigration
from operators.migration.strategies import STRATEGIES, check_strategy
from operators.plan.plan import Join, Leaf, Plan, left_deep, parse_plan
from schemas.columns import Batch
from schemas.errors import UsageError
from schemas.query import Query, aliases_of
from tests.cases import Case, cases
from tests.cases import plan as plan_of
from tests.feeding import engine_of, feed, to_rows
from tests.operators.tiny import numbers, query
from tests.profiles import PROPERTY

EPOCH_MS = 100


def connected(bound: Query, plan: Plan) -> bool:
    """No cross product in it."""
    if isinstance(plan, Leaf):
        return True
    left, right = set(plan.left.aliases), set(plan.right.aliases)
    spans = any(used <= left | right and used & left and used & right for used in map(aliases_of, bound.predicates))
    return spans and connected(bound, plan.left) and connected(bound, plan.right)


class Random4:
    """A random query over three or four streams, its data, and two plans without cross products."""

    def __init__(self, seed: int) -> None:
        rng = Random(seed)
        aliases = "ABCD"[: rng.choice([3, 4, 4])]
        self.shape = rng.choice(["chain", "chain", "star", "theta"])
        windows = [rng.choice([500, 1000, 2000]) for _ in aliases]
        if rng.random() < 0.7:
            windows = [windows[0]] * len(aliases)
        self.longest = max(windows)
        self.rates = [rng.choice([100, 200, 400]) if self.shape != "theta" else 150 for _ in aliases]
        living = np.mean([rate * window / 1000 for rate, window in zip(self.rates, windows, strict=True)])
        self.values = max(2, int(living / rng.choice([0.3, 1, 2])))
        where = []
        for i, right in enumerate(aliases[1:], 1):
            left = aliases[0 if self.shape == "star" else i - 1]
            if self.shape == "theta" and i == 2:
                where.append(f"{left}.v - {right}.k BETWEEN 0 AND 2")
            else:
                where.append(f"{left}.{'k' if self.shape == 'star' else 'v'} = {right}.k")
        sources = ", ".join(f"{a.lower()} {a} [RANGE {w} ms]" for a, w in zip(aliases, windows, strict=True))
        self.query = query(f"SELECT A.v FROM {sources} WHERE {' AND '.join(where)}")
        self.old = left_deep(list(aliases))
        order = list(aliases)

        def tree(some: list[str]) -> Plan:
            if len(some) == 1:
                return Leaf(some[0])
            cut = rng.randrange(1, len(some))
            return Join(tree(some[:cut]), tree(some[cut:]))

        self.new: Plan = self.old
        while self.new == self.old or not connected(self.query, self.new):
            rng.shuffle(order)
            self.new = tree(order)
        self._seed = seed

    def data(self, until: int) -> dict[str, Batch]:
        """Tuples of every stream, uniform in time and value."""
        rng = np.random.default_rng(self._seed)
        out = {}
        for stream, rate in zip(self.query.streams(), self.rates, strict=True):
            n = rate * until // 1000
            ts = np.sort(rng.integers(0, until, n)).astype(np.int64)
            out[stream.name] = numbers(ts, k=rng.integers(0, self.values, n), v=rng.integers(0, self.values, n))
        return out

    def run(self, strategy: str, executor: str = "xjoin") -> tuple[Engine, EngineStatistics, list[Batch]]:
        """Two windows with the old plan, a little more than one after the cut; statistics as of just before it."""
        cut, until = 2 * self.longest, 3 * self.longest + 2 * EPOCH_MS
        engine = Engine(self.query, plan=self.old, executor=executor)
        if strategy:
            engine.migrate(self.new, strategy, cut)
        data, at, out = self.data(until), dict.fromkeys("abcd", 0), []
        before = engine.statistics()
        for end in range(EPOCH_MS, until + 1, EPOCH_MS):
            if end == cut:
                before = engine.statistics(links=True)
            for name, batch in data.items():
                stop = int(np.searchsorted(batch.ts, end))
                if stop > at[name]:
                    engine.push(name, 0, batch.slice(at[name], stop))
                at[name] = stop
            out.append(engine.advance(end))
        return engine, before, out


def ranks(values: list[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Average ranks."""
    array = np.array(values)
    return np.array([(array < v).sum() + ((array == v).sum() - 1) / 2 for v in values], np.float64)


def test_predictions_rank_strategies_as_counters_do() -> None:
    """Over random queries, plans and data: Spearman's rank correlation, the regret of taking what is predicted to
    compare least, and sizes within a factor."""
    correlations, regrets, extra = [], [], []
    for seed in range(10):
        case = Random4(seed)
        predicted: list[float] = []
        measured: list[float] = []
        for name in sorted(STRATEGIES):
            engine, before, _ = case.run(name)
            (record,) = engine.migrations
            prediction = CostOfMigration(case.query, case.old, case.new, before, executor="xjoin").prediction(name)
            predicted.append(prediction.comparisons)
            measured.append(float(record.comparisons))
            extra.append((prediction.extra_tuples + 200) / (record.counters.peak_extra_tuples + 200))
        chosen = int(np.argmin(predicted))
        regrets.append((measured[chosen] + 500) / (min(measured) + 500))
        correlations.append(float(np.corrcoef(ranks(predicted), ranks(measured))[0, 1]))
    assert np.mean(correlations) > 0.85, correlations
    assert min(correlations) > 0.4, correlations
    assert max(regrets) < 3, regrets
    assert np.mean(regrets) < 1.5, regrets
    assert 0.5 < np.median(extra) < 2, extra
    assert max(extra) < 5, extra
    assert min(extra) > 0.2, extra


OLD, NEW = "(((A B) C) D)", "(A (B (C D)))"


def four(windows: str = "[RANGE 1000 ms]") -> Query:
    sources = ", ".join(f"{a.lower()} {a} {windows}" for a in "ABCD")
    return query(f"SELECT A.v FROM {sources} WHERE A.v = B.k AND B.v = C.k AND C.v = D.k")


def observed(bound: Query, n: int = 400, *, executor: str = "xjoin", values: int = 100) -> EngineStatistics:
    """Of an engine that has run for three seconds, with n tuples per second and stream."""
    rng = np.random.default_rng(1)
    engine = Engine(bound, plan=parse_plan(OLD, bound), executor=executor)
    for stream in bound.streams():
        ts = np.sort(rng.integers(0, 3000, 3 * n)).astype(np.int64)
        batch = numbers(ts, k=rng.integers(0, values, 3 * n), v=rng.integers(0, values, 3 * n))
        engine.push(stream.name, 0, batch)
    for end in range(100, 3001, 100):
        engine.advance(end)
    return engine.statistics(links=True)


def advice_for(bound: Query, statistics: EngineStatistics, **options: object):  # type: ignore[no-untyped-def]
    return advise(
        bound, parse_plan(OLD, bound), parse_plan(NEW, bound), [statistics], **({"executor": "xjoin"} | options)
    )


def test_what_stands_still_too_long_is_left_out() -> None:
    bound = four()
    statistics = replace(observed(bound), busy_s=1e-6)  # a usual slice is none of the silence here
    free = advice_for(bound, statistics)
    assert free.over == {}
    silence = {p.strategy: p.silence_s for p in free.predictions}
    limit = (silence["moving-state"] + silence["jisc"]) / 2
    assert silence["jisc"] < limit < silence["gms"]
    strict = advice_for(bound, statistics, goal=Goal(silence_s=limit))
    assert strict.strategy not in strict.over
    assert strict.over["moving-state"] == strict.over["gms"] == f"silence over {seconds(limit)}"


def test_what_holds_too_much_is_left_out() -> None:
    """Parallel Track holds the whole old plan once more."""
    bound = four()
    statistics = observed(bound, 4000, values=4000)
    found = advice_for(bound, statistics, goal=Goal(extra_share=0.2))
    assert "beside the new plan" in found.over["parallel-track"]
    assert found.predicted.beside_tuples < 10_000


def test_where_nothing_is_good_enough_the_nearest_is_taken() -> None:
    bound = four()
    found = advice_for(bound, observed(bound), goal=Goal(silence_s=0.0))
    assert found.strategy == advice_for(bound, observed(bound), goal=Goal(silence_s=1e-9)).strategy
    impossible = advice_for(bound, replace(observed(bound), busy_s=1e-9), goal=Goal(silence_s=1e-12))
    assert impossible.reason.startswith("none stays within")
    assert set(impossible.over) == set(STRATEGIES) - {impossible.strategy}


def test_what_was_spilled_is_rebuilt_at_the_cut_whatever_the_strategy() -> None:
    bound = four()
    statistics = replace(observed(bound), busy_s=1e-6)
    spill = SpillStatistics("local-output", 1 << 20)
    nothing = advice_for(bound, replace(statistics, spill=spill))
    assert nothing.over == {}
    assert nothing.predictions == advice_for(bound, statistics).predictions
    spilled = replace(statistics, spill=replace(spill, on_disk_tuples=2000))
    found = advice_for(bound, spilled)
    (only,) = found.predictions
    assert only.strategy == "moving-state"
    assert (only.duration_ms, only.comparisons) == (0, 0)
    assert only.work_s > next(p.work_s for p in nothing.predictions if p.strategy == "moving-state") + 0.002
    assert only.silence_s > only.work_s
    assert "read back" in found.reason
    plans = parse_plan(OLD, bound), parse_plan(NEW, bound)
    both = advise(bound, *plans, [statistics, spilled], executor="xjoin")
    assert len(both.predictions) == len(nothing.predictions), "the other task has a choice"
    assert {p.strategy: p.silence_s for p in both.predictions}["jisc"] >= only.silence_s


def test_preferences() -> None:
    """What is preferred is not clearly worse than with any other strategy that stays within the limits."""
    bound = four()
    statistics = observed(bound, 2000, values=500)
    least = {"work": lambda p: p.work_s, "silence": lambda p: p.silence_s, "memory": lambda p: p.beside_tuples}
    for prefer, key in least.items():
        found = advice_for(bound, statistics, goal=Goal(prefer=prefer))  # type: ignore[arg-type]
        best = min(key(p) for p in found.predictions if p.strategy not in found.over)
        assert key(found.predicted) <= max(best * 1.25, best + (1000 if prefer == "memory" else 0.002)), prefer


def test_all_that_can_is_considered_and_the_rest_refused_with_a_reason() -> None:
    endless = four("[UNBOUNDED]")
    found = advice_for(endless, observed(endless, 30))
    assert set(found.refused) == {name for name, strategy in STRATEGIES.items() if strategy.outlasts}
    assert {p.strategy for p in found.predictions} == set(STRATEGIES) - set(found.refused)
    assert "UNBOUNDED" in found.refused["hybmig"]
    assert f"not considered: {found.refused['hybmig']}" in found.lines()
    assert sorted(PREFERENCE) == sorted(STRATEGIES)


def test_where_no_states_are_kept_there_is_nothing_to_pay() -> None:
    bound = four()
    found = advice_for(bound, observed(bound, executor="mjoin"), executor="mjoin")
    assert found.strategy == "jisc"
    assert (found.predicted.comparisons, found.predicted.extra_tuples, found.predicted.duration_ms) == (0, 0, 0)


def test_a_migration_to_the_same_states_is_free() -> None:
    """Only the sides change: nothing is missing."""
    bound = four()
    same = parse_plan("(D (C (B A)))", bound)
    found = advise(bound, parse_plan(OLD, bound), same, [observed(bound)], executor="xjoin")
    assert found.predicted.comparisons == 0
    assert found.predicted.extra_tuples == 0


def test_a_busy_query_cannot_run_two_plans() -> None:
    """At nine tenths of a core two plans fall behind, second by second."""
    bound = four("[RANGE 60000 ms]")
    statistics = observed(bound, 100)
    idle = {p.strategy: p.silence_s for p in advice_for(bound, statistics).predictions}
    busy = {p.strategy: p.silence_s for p in advice_for(bound, statistics, load=0.9).predictions}
    assert busy["gpt"] > 1
    assert busy["gpt"] > 10 * idle["gpt"]
    assert busy["moving-state"] == idle["moving-state"]


def test_several_tasks_add_up_and_wait_for_the_slowest() -> None:
    bound = four()
    small, large = observed(bound, 100, values=50), observed(bound, 400, values=200)
    plans = parse_plan(OLD, bound), parse_plan(NEW, bound)
    alone = advise(bound, *plans, [large], executor="xjoin")
    both = advise(bound, *plans, [small, large], executor="xjoin")
    for one, two in zip(
        sorted(alone.predictions, key=lambda p: p.strategy),
        sorted(both.predictions, key=lambda p: p.strategy),
        strict=True,
    ):
        assert two.silence_s >= one.silence_s
        assert two.comparisons >= one.comparisons
    with pytest.raises(UsageError, match="no task has published statistics"):
        advise(bound, *plans, [], executor="xjoin")


def test_the_table_names_all_and_says_why() -> None:
    bound = four()
    statistics = observed(bound)
    found = advice_for(bound, statistics)
    lines = found.lines()
    assert [line.split()[0] for line in lines[1:-1]] == [p.strategy for p in found.predictions]
    assert lines[1].endswith("chosen")
    assert lines[-1] == f"{found.strategy}: {found.reason}"
    assert found.document()["predictions"][0]["strategy"] == found.strategy
    assert found == advice_for(bound, EngineStatistics.from_document(statistics.document()))


@pytest.mark.parametrize("executor", ["xjoin", "mjoin", "eddy", "stairs"])
def test_auto_changes_no_result(executor: str) -> None:
    case = Random4(3)
    _, _, plain = case.run("", executor)
    engine, _, found = case.run("auto", executor)
    (record,) = engine.migrations
    assert record.asked == "auto"
    assert record.strategy in STRATEGIES
    assert record.advice is not None
    assert record.advice.predicted.strategy == record.strategy
    assert record.finished_at is not None
    assert [to_rows(batch) for batch in found] == [to_rows(batch) for batch in plain]


def test_auto_overlaps_with_jisc_and_waits_for_others() -> None:
    """JISC may begin while JISC is completing; any other strategy ends first."""
    bound = four()
    plans = [parse_plan(text, bound) for text in (OLD, NEW, "((A B) (C D))")]
    rng = np.random.default_rng(1)
    ended = {}
    for first in ("jisc", "parallel-track"):
        engine = Engine(bound, plan=plans[0])
        engine.migrate(plans[1], first, 2000)
        engine.migrate(plans[2], "auto", 2050)
        for stream in bound.streams():
            ts = np.sort(rng.integers(0, 4000, 1600)).astype(np.int64)
            engine.push(stream.name, 0, numbers(ts, k=rng.integers(0, 300, 1600), v=rng.integers(0, 300, 1600)))
        for end in range(50, 4001, 50):
            engine.advance(end)
        one, two = engine.migrations
        ended[first] = (one, two)
    one, two = ended["jisc"]
    assert (two.strategy, two.began_at) == ("jisc", 2050)
    assert two.advice is not None
    assert "has not finished" in two.advice.reason
    one, two = ended["parallel-track"]
    assert two.asked == "auto"
    assert (one.finished_at, two.began_at) == (3000, 3000)


def test_auto_is_a_strategy_for_every_query() -> None:
    for bound in (four(), four("[UNBOUNDED]"), four("[ROWS 3]")):
        check_strategy("auto", "xjoin", bound)
    with pytest.raises(UsageError, match="there are auto, "):
        check_strategy("automatic", "xjoin", four())


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 s"),
        (2.5e-6, "2.5 us"),
        (0.0123, "12.3 ms"),
        (4, "4 s"),
        (99.96, "100 s"),
        (3600, "3600 s"),
    ],
)
def test_durations_are_short(value: float, shown: str) -> None:
    assert seconds(value) == shown


@settings(PROPERTY, max_examples=40)
@given(cases(most_aliases=4), st.data())
def test_auto_changes_nothing_whatever_the_query(case: Case, data: st.DataObject) -> None:
    """Empty windows, one source, cross products, ROWS and endless windows, predicates over three streams, overlaps."""
    aliases = tuple(source.alias for source in case.query.sources)
    times = [row["ts"] for parts in case.rows.values() for part in parts for row in part] or [0]

    def run(changes: list[tuple[int, Plan, str]]) -> tuple[list[dict[str, object]], Engine]:
        engine = engine_of(case)
        for cut, to, strategy in changes:
            engine.migrate(to, strategy, cut)
        return feed(engine, case.rows, case.push_sizes, case.epoch_ms), engine

    drawn = st.tuples(st.sampled_from(times), plan_of(aliases), st.sampled_from(["auto", "auto", "jisc"]))
    found, engine = run(data.draw(st.lists(drawn, min_size=1, max_size=3)))
    assert found == run([])[0]
    for record in engine.migrations:
        if record.advice is not None:
            for prediction in record.advice.predictions:
                figures = (prediction.silence_s, prediction.comparisons, prediction.extra_tuples, prediction.work_s)
                assert all(np.isfinite(value) and value >= 0 for value in figures), prediction
            assert record.advice.lines()
