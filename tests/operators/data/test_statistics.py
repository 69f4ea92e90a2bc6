"""Statistics: counts per side, sizes, completeness, selectivities, and counters that never fall across migrations."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import orjson
import pytest

from operators.data.statistics import EdgeStatistics, EngineStatistics, merged_edges
from operators.engine.engine import Engine
from operators.migration.strategies import STRATEGIES
from operators.plan.plan import parse_plan
from schemas.errors import DataError
from tests.feeding import to_batch
from tests.operators.tiny import inputs, query, run

FOUR = query(
    "SELECT A.k FROM a A [RANGE 40 ms], b B [RANGE 40 ms], c C [RANGE 40 ms], d D [RANGE 40 ms] "
    "WHERE A.k = B.k AND B.v = C.v AND C.k = D.k AND A.v > 0"
)


def row(ts: int) -> dict[str, Any]:
    """A row with one of eleven keys; fewer keys would make millions of results."""
    return {"ts": ts, "k": ts * ts % 11, "v": ts * 7 % 9, "d": 0.0, "s": "", "f": None}


def fed(engine: Engine, begin: int, end: int) -> None:
    """Feed one tuple per stream and millisecond."""
    for stream in engine.query.streams():
        engine.push(stream.name, 0, to_batch(stream, [row(ts) for ts in range(begin, end)]))
    engine.advance(end)


def share_of(streams: int, holds: Callable[..., bool]) -> float:
    """The share that a condition keeps of the combinations of tuples that live at 100, one per stream."""
    living = [row(ts) for ts in range(60, 100)]
    found = [holds(*rows) for rows in product(living, repeat=streams)]
    return sum(found) / len(found)


def test_inputs_and_sizes_per_side() -> None:
    """One tuple of a, four of b: two match. A's tuple is expired when the last of b arrives."""
    given = inputs(a="5 k=1", b="1 k=2 | 2 k=1 | 3 k=1 | 30 k=9")
    _, engine = run(query("SELECT A.k FROM a A [RANGE 10 ms], b B [RANGE 20 ms] WHERE A.k = B.k"), given)
    (join,) = engine.statistics().operators
    assert join.inputs == (1, 4)
    assert join.aliases == (("A",), ("B",))
    assert (join.candidates, join.results) == (2, 2)
    assert engine.statistics().plan == "(A B)"
    assert engine.statistics().span_ms == 29


def test_sources_count_selected_and_living_tuples() -> None:
    engine = Engine(FOUR, plan=parse_plan("(((A B) C) D)", FOUR))
    fed(engine, 0, 100)
    a, b, _, _ = engine.statistics().sources
    assert (a.alias, a.stream, a.input_tuples, a.selected_tuples) == ("A", "a", 100, 88)
    assert b.selected_tuples == 100
    assert 39 <= b.living_tuples <= 41
    assert b.per_second == pytest.approx(1000, rel=0.05)
    assert a.per_second == pytest.approx(888, rel=0.05)


def test_links_are_measured_on_living_tuples() -> None:
    engine = Engine(FOUR, plan=parse_plan("(((A B) C) D)", FOUR))
    fed(engine, 0, 100)
    assert engine.statistics().links == ()
    shares = {link.aliases: link.share for link in engine.statistics(links=True).links}
    assert set(shares) == {("A", "B"), ("B", "C"), ("C", "D")}
    same = share_of(2, lambda b, c: b["v"] == c["v"])
    assert shares["B", "C"] == pytest.approx(same, rel=0.1)
    assert shares["C", "D"] == pytest.approx(share_of(2, lambda c, d: c["k"] == d["k"]), rel=0.1)


def test_links_by_inequalities_and_over_three_streams() -> None:
    """An inequality is measured on drawn pairs; an inequality beside a key on the pairs that the key leaves."""
    mixed = query(
        "SELECT A.k FROM a A [RANGE 40 ms], b B [RANGE 40 ms], c C [RANGE 40 ms] "
        "WHERE A.k = B.k AND A.v < B.v AND B.v <= C.v AND A.k + B.k = C.k"
    )
    engine = Engine(mixed)
    fed(engine, 0, 100)
    links = {link.aliases: link for link in engine.statistics(links=True).links}
    assert links["A", "B"].key_share == pytest.approx(share_of(2, lambda a, b: a["k"] == b["k"]), rel=0.1)
    less = share_of(2, lambda a, b: a["k"] == b["k"] and a["v"] < b["v"])
    assert links["A", "B"].share == pytest.approx(less, rel=0.1)
    assert links["B", "C"].key_share == 1.0
    assert links["B", "C"].share == pytest.approx(share_of(2, lambda b, c: b["v"] <= c["v"]), rel=0.1)
    sums = share_of(3, lambda a, b, c: a["k"] + b["k"] == c["k"])
    assert links["A", "B", "C"].share == pytest.approx(sums, rel=0.2)


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_counters_never_fall_across_a_migration(strategy: str) -> None:
    """Regression: the old plan's counts were lost when a migration began or ended."""
    engine = Engine(FOUR, plan=parse_plan("(((A B) C) D)", FOUR))
    engine.migrate(parse_plan("(A (B (C D)))", FOUR), strategy, 50)
    last = engine.statistics()
    for begin in range(0, 120, 5):
        fed(engine, begin, begin + 5)
        now = engine.statistics()
        assert now.comparisons >= last.comparisons
        assert now.intermediate_results >= last.intermediate_results
        last = now
    (migration,) = last.migrations
    assert (migration.strategy, migration.began_at) == (strategy, 50)
    assert migration.finished_at is not None
    assert 50 <= migration.finished_at <= 95
    assert migration.comparisons > 0
    assert migration.extra_tuples == 0


def test_a_migration_shows_its_progress() -> None:
    engine = Engine(FOUR, plan=parse_plan("(((A B) C) D)", FOUR))
    engine.migrate(parse_plan("(A (B (C D)))", FOUR), "parallel-track", 50)
    fed(engine, 0, 50)
    fed(engine, 50, 60)
    statistics = engine.statistics()
    (migration,) = statistics.migrations
    assert (migration.done, migration.total, migration.unit) == (10, 40, "ms")
    assert {operator.track for operator in statistics.operators} == {"old", "new"}
    assert {(operator.track, operator.complete) for operator in statistics.operators} == {
        ("old", (True, True)),
        ("new", (False, False)),
    }
    fed(engine, 60, 100)
    assert {operator.track for operator in engine.statistics().operators} == {""}


def test_hybmig_lacks_the_states_that_the_old_plan_compensates_for() -> None:
    """The states of A, B, C and D are shared; those of C D and B C D are still incomplete."""
    engine = Engine(FOUR, plan=parse_plan("(((A B) C) D)", FOUR))
    engine.migrate(parse_plan("(A (B (C D)))", FOUR), "hybmig", 50)
    fed(engine, 0, 50)
    complete = {o.name: o.complete for o in engine.statistics().operators if o.track == "new"}
    assert complete == {"(C D)": (True, True), "(B (C D))": (True, False), "(A (B (C D)))": (True, False)}
    fed(engine, 50, 100)
    assert all(o.complete == (True, True) for o in engine.statistics().operators)


def test_an_incomplete_state_counts_its_keys() -> None:
    engine = Engine(FOUR, plan=parse_plan("(((A B) C) D)", FOUR))
    engine.migrate(parse_plan("(((A C) B) D)", FOUR), "jisc", 50)
    fed(engine, 0, 50)
    incomplete = [operator for operator in engine.statistics().operators if not all(operator.complete)]
    assert incomplete
    fed(engine, 50, 51)
    for operator in engine.statistics().operators:
        for side in (0, 1):
            assert operator.completed_keys[side] <= operator.total_keys[side]


def test_statistics_pass_through_json() -> None:
    engine = Engine(FOUR, plan=parse_plan("(((A B) C) D)", FOUR))
    engine.migrate(parse_plan("(A (B (C D)))", FOUR), "hybmig", 50)
    fed(engine, 0, 60)
    statistics = engine.statistics(links=True)
    document = orjson.loads(orjson.dumps(statistics.document()))
    assert EngineStatistics.from_document(document | {"of a later version": 1}) == statistics
    del document["results"]
    with pytest.raises(DataError, match="results"):
        EngineStatistics.from_document(document)


def test_edges_of_former_plans_are_counted_together() -> None:
    """Counts and times are added up; `watching` and `kept_back` come from the plan that runs."""
    left = EdgeStatistics("(A B)", "A", True, suspend=2, kept_back=5, checked=3, detecting_s=0.5)
    gone = EdgeStatistics("(C D)", "C", True, resume=1, kept_back=1)
    now = EdgeStatistics("(A B)", "A", True, suspend=1, kept_back=7, detecting_s=0.25)
    found = {edge.consumer: edge for edge in merged_edges((left, gone), (now,))}
    assert found["(A B)"] == EdgeStatistics("(A B)", "A", True, suspend=3, kept_back=7, checked=3, detecting_s=0.75)
    assert found["(C D)"] == EdgeStatistics("(C D)", "C", False, resume=1)
    assert merged_edges((left,), ()) == merged_edges(merged_edges((left,), ()), ())
