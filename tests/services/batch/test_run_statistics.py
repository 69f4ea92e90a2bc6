"""The statistics file: all keys for every executor and strategy, also where migrations overlap."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest

from operators.data.statistics import MESSAGES
from operators.data.watermark import END
from operators.engine.engine import Engine
from operators.migration.strategies import STRATEGIES, check_strategy
from operators.plan.plan import parse_plan
from schemas.errors import UsageError
from schemas.query import Query
from services.batch.run_statistics import RunStatistics, outcome_lines, stats_json
from tests.operators.tiny import numbers, query

FOUR = query(
    "SELECT A.v FROM a A [RANGE 300 ms], b B [RANGE 300 ms], c C [RANGE 300 ms], d D [RANGE 300 ms] "
    "WHERE A.v = B.k AND B.v = C.k AND C.v = D.k"
)
MINUS = query(
    "SELECT A.k FROM a A [RANGE 300 ms] EXCEPT b B [RANGE 300 ms] ON A.k = B.k EXCEPT c C [RANGE 300 ms] ON A.v = C.v"
)
PLANS = ("(((A B) C) D)", "(A (B (C D)))", "((A B) (C D))", "(D (C (A B)))")
EXECUTORS = ("xjoin", "mjoin", "eddy", "stairs")

MIGRATION_KEYS = {
    "strategy",
    "from_plan",
    "to_plan",
    "cut",
    "finished_at",
    "longest_silence_s",
    "comparisons",
    "peak_extra_tuples",
    "completed_keys",
}
KEYS = {
    "input_tuples",
    "results",
    "late",
    "deduplicated",
    "dead_letters",
    "comparisons",
    "intermediate_results",
    "peak_state_tuples",
    "peak_state_bytes",
    "seconds",
    "plan",
    "migrations",
    "feedback",
    "spill",
    "timeline",
}


def statistics(
    bound: Query, changes: list[tuple[int, str, str]], executor: str, begin: str
) -> tuple[dict[str, Any], Engine]:
    """Of one second of input that was advanced over in steps, like a run does."""
    seconds = iter(range(10**9))
    engine = Engine(bound, plan=parse_plan(begin, bound), executor=executor, clock=lambda: next(seconds) / 1000)
    for cut, plan, strategy in changes:
        engine.migrate(parse_plan(plan, bound), strategy, cut)
    run = RunStatistics()
    rng = np.random.default_rng(1)
    for stream in bound.streams():
        ts = np.sort(rng.integers(0, 1000, 200)).astype(np.int64)
        engine.push(stream.name, 0, numbers(ts, k=rng.integers(0, 30, 200), v=rng.integers(0, 30, 200)))
    for end in (*range(50, 1001, 50), END):
        engine.advance(end)
        run.advanced(min(end, 1050), engine.statistics())
    return json.loads(stats_json(run, engine, engine.statistics())), engine


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_feedback_says_is_told(executor: str) -> None:
    seconds = itertools.count()
    plan = parse_plan(PLANS[0], FOUR)
    engine = Engine(FOUR, plan=plan, executor=executor, feedback=True, clock=lambda: next(seconds) / 1000)
    rng = np.random.default_rng(1)
    for stream in FOUR.streams():
        ts = np.sort(rng.integers(500 if stream is FOUR.streams()[-1] else 0, 1000, 200)).astype(np.int64)
        engine.push(stream.name, 0, numbers(ts, k=rng.integers(0, 30, 200), v=rng.integers(0, 30, 200)))
    for end in (*range(50, 1001, 50), END):
        engine.advance(end)
    found = json.loads(stats_json(RunStatistics(), engine, engine.statistics()))["feedback"]
    assert found.keys() == {*MESSAGES, "suppressed_results", "detecting_s", "edges"}
    assert found["edges"]
    if executor in ("xjoin", "stairs"):  # half joins begin by looking for long whether it pays
        assert found["suspend"] >= found["resume"] > 0
        assert found["detecting_s"] >= 0.001
    assert sum(edge["suspend"] for edge in found["edges"]) == found["suspend"]
    assert sum(edge["detecting_s"] for edge in found["edges"]) == pytest.approx(found["detecting_s"])
    assert all(edge["consumer"] and edge["producer"] for edge in found["edges"])


def checked(found: dict[str, Any]) -> None:
    """What holds of every statistics file."""
    assert found.keys() >= KEYS
    for migration in found["migrations"]:
        assert migration.keys() >= MIGRATION_KEYS
        assert migration["longest_silence_s"] > 0
        assert migration["comparisons"] >= 0
        assert migration["began_at"] >= migration["cut"]
    for name in ("results", "comparisons", "input_tuples"):
        assert sum(step[name] for step in found["timeline"]) == found[name], name
        assert all(step[name] >= 0 for step in found["timeline"]), name


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("strategy", sorted({*STRATEGIES, "auto"}))
def test_every_key_for_every_executor_and_strategy(executor: str, strategy: str) -> None:
    found, engine = statistics(FOUR, [(400, PLANS[1], strategy)], executor, PLANS[0])
    checked(found)
    (migration,) = found["migrations"]
    assert migration["asked"] == strategy
    assert migration["strategy"] in STRATEGIES
    assert (migration["from_plan"], migration["to_plan"], migration["cut"]) == (*PLANS[:2], 400)
    assert 400 <= migration["finished_at"] <= 750
    assert found["plan"] == PLANS[1]
    keeps = executor in ("xjoin", "stairs")
    assert (migration["completed_keys"] > 0) == (keeps and migration["strategy"] == "jisc")
    # Where no intermediate states are kept, changing the order is all there is to do.
    if keeps or strategy in ("parallel-track", "gms", "gpt", "ghm"):
        assert migration["comparisons"] > 0
    chosen = strategy == "auto"
    assert (migration["predicted"] is not None) == chosen
    assert (migration["reason"] is not None) == chosen
    assert len(migration["considered"]) == chosen * len(STRATEGIES)
    if chosen:
        assert migration["predicted"].keys() >= {"silence_s", "comparisons", "extra_tuples", "duration_ms"}
    said = outcome_lines(engine)
    assert said[0] == f"{PLANS[0]} -> {PLANS[1]} at 400 by {migration['strategy']}"
    assert said[-1].startswith("  measured  ")
    assert any(line.startswith("  predicted ") for line in said) == chosen


@pytest.mark.parametrize("executor", EXECUTORS)
def test_overlapping_migrations_have_a_record_each(executor: str) -> None:
    """JISC begins while JISC completes; Parallel Track waits for it; the last one is asked for too late."""
    changes = [
        (400, PLANS[1], "jisc"),
        (450, PLANS[2], "jisc"),
        (500, PLANS[3], "parallel-track"),
        (2000, PLANS[0], "jisc"),
    ]
    found, engine = statistics(FOUR, changes, executor, PLANS[0])
    one, two, three, four = found["migrations"]
    checked(found | {"migrations": [one, two, three]})
    assert [m["from_plan"] for m in (one, two, three)] == list(PLANS[:3])
    assert (one["began_at"], two["began_at"]) == (400, 450)
    assert one["finished_at"] <= two["began_at"] <= two["finished_at"] <= three["began_at"] < three["finished_at"]
    assert four.keys() >= MIGRATION_KEYS
    assert found["plan"] in (PLANS[3], PLANS[0])
    assert len(outcome_lines(engine)) >= 6


def test_a_migration_that_the_end_of_the_input_cuts_short() -> None:
    """Its end has no event time."""
    endless = query("SELECT A.v FROM a A [ROWS 500], b B [ROWS 500], c C [ROWS 500] WHERE A.v = B.k AND B.v = C.k")
    found, engine = statistics(endless, [(900, "(A (B C))", "parallel-track")], "xjoin", "((A B) C)")
    checked(found)
    assert found["migrations"][0]["finished_at"] is None
    assert outcome_lines(engine)[-1].endswith("not over")


def test_set_differences_have_the_same_keys() -> None:
    able = []
    for name in sorted({*STRATEGIES, "auto"}):
        try:
            check_strategy(name, "xjoin", MINUS)
        except UsageError:
            continue
        able.append(name)
        found, _ = statistics(MINUS, [(400, "((A C) B)", name)], "xjoin", "((A B) C)")
        checked(found)
        (migration,) = found["migrations"]
        assert migration["asked"] == name
        assert migration["finished_at"] <= 750
        assert found["plan"] == "((A C) B)"
    assert {"auto", "jisc"} <= set(able)
