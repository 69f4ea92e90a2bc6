"""Feedback changes no result: against the oracle and against runs without, over random queries, plans, data, cuts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.data.statistics import EdgeStatistics
from operators.feedback import bloom, tree, tree_guard, watch
from operators.feedback.payoff import guard as payoff
from operators.feedback.payoff import tree_controller
from operators.feedback.payoff.guard import Balance
from operators.migration.strategies import STRATEGIES
from schemas.query import Compare, Expr, Output, Query, Source, Stream, Window
from tests import oracle
from tests.cases import ALIASES, FIELDS, Case, cases, column, plan
from tests.feeding import canonical, engine_of, feed
from tests.operators.engine.test_engine_properties import cramped, run
from tests.operators.migration.test_migration_properties import Changes, changes_of, dense_cases, migrated
from tests.profiles import PROPERTY

TREES = st.sampled_from(["xjoin", "xjoin", "stairs"])


def fed(
    case: Case, changes: Changes = (), executor: str = "xjoin", *, hashed: bool = True, detector: str = "bloom"
) -> tuple[list[dict[str, Any]], tuple[EdgeStatistics, ...]]:
    """The results of a case with feedback, and what was said."""
    task = engine_of(case, executor, feedback=True, hashed=hashed, detector=detector)
    for cut, to, strategy in changes:
        task.migrate(to, strategy, cut)
    return feed(task, case.rows, case.push_sizes, case.epoch_ms), task.statistics().feedback


@PROPERTY
@given(cases(most_aliases=5), TREES, st.booleans(), st.booleans())
def test_feedback_changes_nothing(case: Case, executor: str, tiny: bool, hashed: bool) -> None:
    with cramped() if tiny else nullcontext():
        got, _ = fed(case, executor=executor, hashed=hashed)
    assert got == run(case)
    assert canonical(got) == canonical(oracle.results(case.query, case.given))


STREAMS = tuple(Stream(f"S{alias}", FIELDS, f"S{alias}", timestamp="ts") for alias in ALIASES)


@st.composite
def sparse(draw: st.DrawFn) -> Case:
    """Joins that few tuples have partners in: each pair of sources, or some of them, by columns of two that a stream
    has, so that signatures are shared and sub-tuples differ; streams that begin late or end early."""
    aliases = ALIASES[: draw(st.sampled_from([3, 4, 4, 5]))]
    values = draw(st.sampled_from([2, 4, 8]))
    window = draw(
        st.sampled_from([Window("RANGE", 15), Window("RANGE", 40), Window("ROWS", 6), Window("UNBOUNDED")])
    )
    random = Random(draw(st.integers(0, 2**32)))
    pairs = [(n, m) for m in range(len(aliases)) for n in range(m)]
    if draw(st.booleans()):
        pairs = [(n, m) for n, m in pairs if m - n == 1 or random.random() < 0.4]
    predicates: list[Expr] = [
        Compare("=", column(aliases[n], random.choice("kv")), column(aliases[m], random.choice("kv"))) for n, m in pairs
    ]
    sources = tuple(Source(alias, stream, window) for alias, stream in zip(aliases, STREAMS, strict=False))
    outputs = tuple(Output(f"{a}.{name}", column(a, name)) for a in aliases for name in ("ts", "k", "v"))
    rows: dict[str, list[list[dict[str, Any]]]] = {}
    for source in sources:
        begin, end = random.choice([(0, 100), (0, 100), (50, 100), (0, 40)])
        rows[source.stream.name] = [
            [
                {"ts": ts, "k": random.randrange(values), "v": random.randrange(values), "d": 0.0, "s": "", "b": None}
                for ts in sorted(random.randrange(begin, end) for _ in range(24))
            ]
        ]
    query = Query("q", None, sources, tuple(predicates), outputs)
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    return Case(query, rows, draw(plan(aliases)), sizes, draw(st.sampled_from([1, 7, 25])))


@contextmanager
def watching(share: float, most: int, budget: float) -> Iterator[None]:
    """Sweeps seldom or always, kinds of few or many sources, guards that come and go, or never rest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "SWEEP_SHARE", share)
        patch.setattr(watch, "MAX_SOURCES", most)
        patch.setattr(watch, "MIN_FILTER_ENTRIES", 1)
        patch.setattr(watch, "MIN_TAKEOVER_NS", 0.0)
        patch.setattr(watch, "MIN_TAKEOVER_SHARE", -1.0)
        patch.setattr(bloom, "MIN_EXPECTED", 4)  # filters fill up
        patch.setattr(tree_controller, "WORK_PER_UPDATE", 1.0)  # after every slice
        patch.setattr(payoff, "FIRST_TRIAL_BUDGET", 1e15)
        patch.setattr(tree, "CHECK_EVERY_SLICES", 1)
        patch.setattr(payoff, "MARGIN", -1e9)
        patch.setattr(payoff, "GUARD_BUDGET_TRIALS", budget)
        if budget > 1:
            patch.setattr(payoff, "Balance", lambda: Balance(True, budget, budget))
        patch.setattr(tree_guard.TreeGuard, "may_pay", lambda *_: True)
        yield


HOW = st.sampled_from([(True, "bloom"), (False, "bloom"), (False, "lattice")])
SHARE = st.sampled_from([0.0, 0.05, 1e9])
SOURCES = st.sampled_from([1, 2, 5])
GUARD_BUDGET_TRIALS = st.sampled_from([0.0, 1.0, 1e15])


@PROPERTY
@given(st.one_of(sparse(), dense_cases()), TREES, st.booleans(), HOW, SHARE, SOURCES, GUARD_BUDGET_TRIALS)
def test_sparse_joins(
    case: Case, executor: str, tiny: bool, how: tuple[bool, str], share: float, most: int, budget: float
) -> None:
    hashed, detector = how
    with watching(share, most, budget), cramped() if tiny else nullcontext():
        got, _ = fed(case, executor=executor, hashed=hashed, detector=detector)
    assert got == run(case)
    assert canonical(got) == canonical(oracle.results(case.query, case.given))


@PROPERTY
@given(st.one_of(sparse(), dense_cases()), TREES, SHARE, SOURCES, GUARD_BUDGET_TRIALS, st.data())
def test_with_migrations(
    case: Case, executor: str, share: float, most: int, budget: float, data: st.DataObject
) -> None:
    names = data.draw(st.sampled_from([[name] for name in STRATEGIES] + [list(STRATEGIES)]))
    changes = data.draw(changes_of(case, names, 3))
    with watching(share, most, budget):
        got, _ = fed(case, changes, executor)
    assert got == migrated(case, changes)
    assert got == run(case)
