"""Every strategy against runs without one and against the oracle: random queries, plans, cuts and overlaps."""

from __future__ import annotations

from contextlib import nullcontext
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.engine.engine import Engine
from operators.migration.jisc import completion
from operators.migration.jisc.completion import MIN_KEYS_FOR_REST
from operators.migration.strategies import STRATEGIES
from operators.plan.plan import Plan
from operators.state.checkpoint import blocks_by_time
from schemas.query import Compare, Expr, Output, Query, Source, Stream, Window
from tests import oracle
from tests.cases import ALIASES, FIELDS, Case, cases, column, plan, with_tables
from tests.feeding import canonical, engine_of, feed, to_batch, to_rows
from tests.operators.engine.test_engine_properties import cramped, run
from tests.operators.migrating import Changes, changes_of
from tests.profiles import PROPERTY

EXECUTOR = st.sampled_from(["xjoin", "xjoin", "stairs", "mjoin", "eddy"])
"""Those with intermediate states have the most to lose."""


def migrated(case: Case, changes: Changes, executor: str = "xjoin") -> list[dict[str, object]]:
    """The results of a case whose plan is changed."""
    task = engine_of(case, executor)
    for cut, to, strategy in changes:
        task.migrate(to, strategy, cut)
    return feed(task, case.rows, case.push_sizes, case.epoch_ms)


@PROPERTY
@given(cases(most_aliases=5), st.sampled_from(sorted(STRATEGIES)), EXECUTOR, st.booleans(), st.data())
def test_one_migration_changes_nothing(
    case: Case, strategy: str, executor: str, tiny: bool, data: st.DataObject
) -> None:
    changes = data.draw(changes_of(case, [strategy], 1))
    with cramped() if tiny else nullcontext():
        got = migrated(case, changes, executor)
    assert got == run(case)
    assert canonical(got) == canonical(oracle.results(case.query, case.given))


@PROPERTY
@given(cases(most_aliases=5), EXECUTOR, st.data())
def test_overlapping_migrations_change_nothing(case: Case, executor: str, data: st.DataObject) -> None:
    changes = data.draw(changes_of(case, sorted(STRATEGIES), 4))
    assert migrated(case, changes, executor) == run(case)


FEWER = settings(PROPERTY, max_examples=max(15, PROPERTY.max_examples * 3 // 10))
"""For each of the strategies."""

STREAMS = tuple(Stream(f"S{a}", FIELDS, f"S{a}", timestamp="ts") for a in ALIASES)


@st.composite
def dense_cases(draw: st.DrawFn) -> Case:
    """Many results across every cut: few key values, long windows, joins by one shared key, by a chain of keys, by
    keys over several streams at once, by inequalities of whole numbers or doubles, and by ranges."""
    aliases = ALIASES[: draw(st.sampled_from([3, 4, 4, 5]))]
    kinds = [Window("RANGE", 25), Window("RANGE", 25), Window("RANGE", 45), Window("ROWS", 9), Window("UNBOUNDED")]
    sources = tuple(Source(a, s, draw(st.sampled_from(kinds))) for a, s in zip(aliases, STREAMS, strict=False))
    sources = draw(with_tables(sources))
    shape = draw(st.sampled_from(["shared", "chain", "clique", "theta", "range"]))
    order = st.sampled_from(["<", "<=", ">", ">="])
    number = draw(st.sampled_from(["k", "d"]))
    predicates: list[Expr] = []
    for i, right in enumerate(aliases[1:], 1):
        match shape:
            case "shared":
                predicates.append(Compare("=", column(aliases[0], "k"), column(right, "k")))
            case "chain":
                predicates.append(Compare("=", column(aliases[i - 1], "v"), column(right, "k")))
            case "clique":
                names = ["k", "v"]
                predicates += [
                    Compare("=", column(left, names[j % 2]), column(right, names[i % 2]))
                    for j, left in enumerate(aliases[:i])
                    if j >= i - 2
                ]
            case "range":
                left = aliases[0] if draw(st.booleans()) else aliases[i - 1]
                for op in ("<=", ">=") if draw(st.booleans()) else (draw(order), draw(order)):
                    predicates.append(Compare(op, column(left, number), column(right, number)))  # type: ignore[arg-type]
            case _:
                op = draw(order) if i % 2 else "="
                predicates.append(Compare(op, column(aliases[i - 1], "v"), column(right, "k")))  # type: ignore[arg-type]
    outputs = tuple(Output(f"{a}.n", column(a, "v")) for a in aliases) + tuple(
        Output(f"{a}.ts", column(a, "ts")) for a in aliases
    )
    rng = Random(draw(st.integers(0, 10**6)))
    most = {"shared": 6, "chain": 6, "clique": 4, "theta": 9, "range": 12}[shape]
    rows: dict[str, list[list[dict[str, Any]]]] = {}
    tables: dict[str, list[dict[str, Any]]] = {}
    for source in sources:
        times = sorted(rng.randrange(100) for _ in range(most if source.is_static else 24))
        found = [
            {
                "ts": ts,
                "k": rng.randrange(most),
                "v": rng.randrange(most),
                "d": rng.randrange(most) / 4,
                "s": "",
                "b": None,
            }
            for ts in times
        ]
        if source.is_static:
            tables[source.stream.name] = found
        else:
            rows[source.stream.name] = [found]
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    query = Query("q", None, sources, tuple(predicates), outputs)
    return Case(query, rows, draw(plan(aliases)), sizes, draw(st.sampled_from([1, 7])), tables)


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@FEWER
@given(dense_cases(), EXECUTOR, st.booleans(), st.data())
def test_a_migration_among_many_results_changes_nothing(
    strategy: str, case: Case, executor: str, tiny: bool, data: st.DataObject
) -> None:
    changes = [(data.draw(st.integers(30, 60)), to, by) for _, to, by in data.draw(changes_of(case, [strategy], 1))]
    with cramped() if tiny else nullcontext():
        got = migrated(case, changes, executor)
    assert got == run(case)


@PROPERTY
@given(
    dense_cases(),
    st.sampled_from(["xjoin", "stairs"]),
    st.booleans(),
    st.sampled_from([1, 2, MIN_KEYS_FOR_REST]),
    st.data(),
)
def test_overlapping_lazy_migrations_change_nothing(
    case: Case, executor: str, tiny: bool, rest: int, data: st.DataObject
) -> None:
    """JISC 4.5: states stay incomplete through further transitions; or less so, when a few keys bring the rest."""
    drawn = data.draw(changes_of(case, ["jisc"], 4))
    changes = [(data.draw(st.integers(30, 45)), to, by) for _, to, by in drawn]
    with cramped() if tiny else nullcontext(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(completion, "MIN_KEYS_FOR_REST", rest)
        got = migrated(case, changes, executor)
    assert got == run(case)


@PROPERTY
@given(dense_cases(), EXECUTOR, st.integers(25, 75), st.data())
def test_a_task_that_dies_in_a_migration_goes_on(case: Case, executor: str, dies: int, data: st.DataObject) -> None:
    """Reborn from a checkpoint with the plan of that moment, it has every state whole; what had not begun is asked
    for again."""
    drawn = data.draw(changes_of(case, sorted(STRATEGIES), 2))
    changes = sorted([(data.draw(st.integers(30, 60)), to, by) for _, to, by in drawn], key=lambda change: change[0])

    def begun(tree: Plan, asked: Changes) -> Engine:
        task = engine_of(case, executor, plan=tree)
        for cut, to, by in asked:
            task.migrate(to, by, cut)
        return task

    streams = {stream.name: stream for stream in case.query.streams()}
    life = begun(case.plan, changes)
    for name, parts in case.rows.items():
        life.push(name, 0, to_batch(streams[name], [row for row in parts[0] if row["ts"] < dies]))
    got = to_rows(life.advance(dies))
    checkpoint = life.checkpoint()
    waiting = [
        (max(c, dies), to, by) for (c, to, by), r in zip(changes, life.migrations, strict=True) if r.began_at is None
    ]
    born = begun(life.plan, waiting)
    born.restore(checkpoint.cut, blocks_by_time(checkpoint.blocks))
    for name, parts in case.rows.items():
        born.push(name, 0, to_batch(streams[name], [row for row in parts[0] if row["ts"] >= dies]))
        born.close(name, 0)
    assert got + to_rows(born.advance()) == run(case)
