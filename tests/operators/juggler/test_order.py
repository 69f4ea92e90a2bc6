"""The order of predicate types: what is expected of each, when it is looked at again, and when it changes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from operators.data.tuples import Tuples
from operators.juggler.operator import Juggler
from operators.juggler.predicates import adaptive
from operators.juggler.predicates.adaptive import (
    CONFIRMING_WORK,
    FIRST_WORK,
    MOST_PATIENCE,
    RECHECK_TUPLES,
    SAMPLE_NS,
    WORK_BETWEEN,
    AdaptiveEntry,
    AdaptiveOrder,
)
from operators.juggler.predicates.order import (
    LOOKED_NS,
    ORDERS,
    PAIRED_NS,
    PIECE_NS,
    StructureSample,
    VisitSample,
    VisitWork,
    best_order,
    expected_costs,
    smoothed,
)
from operators.juggler.state.sources import GroupSources
from schemas.columns import Batch, Column
from schemas.groups import query_group
from schemas.language.program import parse_program
from schemas.query import Type


def left(attribute: float, join: float, window: float) -> dict[str, float]:
    """Shares after independent types."""
    a, j, w = attribute, join, window
    return {"": 1.0, "A": a, "J": j, "W": w, "AJ": a * j, "AW": a * w, "JW": j * w, "AJW": a * j * w}


def seen(
    attribute: float = 0.9, join: float = 0.9, window: float = 0.9, cost: float = 1.0, unknown: float = 1.0
) -> VisitSample:
    """1,000 rows, of which the structures return those that their type passes."""
    found = {
        "J": StructureSample(0.01, 1000 * join, 1000 * join, left(attribute, 1.0, window)),
        "W": StructureSample(0.01, 1000 * window, 1000 * window, left(attribute, join, 1.0)),
    }
    return VisitSample(found, {"A": cost, "J": 1.0, "W": 1.0}, unknown)


@pytest.mark.parametrize(
    ("sample", "order"),
    [
        (seen(join=0.001), "J"),
        (seen(window=0.001), "W"),
        (seen(attribute=0.001), "A"),
        (seen(attribute=1.0, cost=10_000.0, join=0.001), "J"),
    ],
)
def test_the_most_selective_comes_first(sample: VisitSample, order: str) -> None:
    """Or the first after the attributes, where those cost next to nothing."""
    costs = expected_costs(sample)
    best = min(ORDERS, key=costs.__getitem__)
    assert best[0] == order or (best[0] == "A" and best[1] == order)


def test_a_structure_that_looks_at_much_is_not_chosen_for_giving_little() -> None:
    """A range of a sorted run has few candidates if most rows in it are dead; each row was examined."""
    few = left(1.0, 1.0, 1.0)
    found = {"J": StructureSample(0.01, 5000.0, 90.0, few), "W": StructureSample(0.01, 100.0, 100.0, few)}
    costs = expected_costs(VisitSample(found, {"A": 0.0, "J": 1.0, "W": 1.0}))
    assert min(costs["AWJ"], costs["WJA"]) < min(costs[order] for order in ("AJW", "JAW", "JWA"))


def test_attributes_that_are_not_known_cost_no_more_than_once_per_row() -> None:
    """However many candidates there are."""
    dear, known = expected_costs(seen(cost=100.0)), expected_costs(seen(cost=100.0, unknown=0.0))
    for order in ORDERS:
        assert known[order] < dear[order] < known[order] + 100 * 100


def test_it_takes_clearly_less_to_change() -> None:
    """A little less is no reason."""
    costs = dict.fromkeys(ORDERS, 100.0)
    assert best_order("WJA", costs) == "WJA"
    assert best_order("WJA", {**costs, "AJW": 96.0}) == "WJA"
    assert best_order("WJA", {**costs, "AJW": 94.0}) == "AJW"


def test_samples_fold_in() -> None:
    """The first sample counts fully, later samples in part."""
    first = smoothed({}, {"AJW": 100.0})
    assert first == {"AJW": 100.0}
    assert first["AJW"] < smoothed(first, {"AJW": 200.0})["AJW"] < 200.0


def test_far_less_changes_at_once_and_clearly_less_when_confirmed() -> None:
    """One sample for a great difference, two for a small one; the second is taken soon."""
    choice = AdaptiveOrder("WJA")
    choice.learn(seen(join=0.01))
    assert (choice.order[:2], choice.changed) == ("AJ", 1)
    choice = AdaptiveOrder("AWJ")
    sample = seen(window=0.9, join=0.75)
    costs = expected_costs(sample)
    assert 0.7 < costs["AJW"] / costs["AWJ"] < 0.95
    choice.learn(sample)
    assert choice.order == "AWJ"
    assert not choice.wants_sample(1, 1, 0)
    choice.work.pieces += int(CONFIRMING_WORK * SAMPLE_NS / PIECE_NS) + 1
    assert choice.wants_sample(1, 1, 0)
    choice.learn(sample)
    assert (choice.order, choice.changed) == ("AJW", 1)


def test_samples_cost_a_share_of_the_work() -> None:
    """Not before there was work, and the next after many times what one costs."""
    choice = AdaptiveOrder("AJW")
    assert not choice.wants_sample(10, 1, 10)
    assert choice.wants_sample(10, 1, int(FIRST_WORK * SAMPLE_NS / LOOKED_NS))
    choice.learn(seen())
    choice.looked(10, 1, 1000, 1000)
    assert not choice.wants_sample(10, 1, 1000)
    choice.work.looked += int(WORK_BETWEEN * SAMPLE_NS / LOOKED_NS)
    assert choice.wants_sample(10, 1, 1000)
    choice.learn(seen())
    assert not choice.wants_sample(10, 1, 1000)


def test_a_surge_is_a_reason_before_it_is_paid_for() -> None:
    """Many times the entries of those before; what is little work is none."""
    choice = AdaptiveOrder("AJW")
    choice.learn(seen(join=0.001))
    choice.looked(1000, 1, 1000, 1000)
    assert not choice.wants_sample(1000, 1, 1900)
    assert not choice.wants_sample(10, 1, 1000)
    assert choice.wants_sample(1000, 1, 2100 + int(SAMPLE_NS / (LOOKED_NS + PAIRED_NS)))
    # What was known is of no use now: the newest sample decides alone.
    choice.learn(seen(window=0.001))
    assert choice.order == "AWJ"


def test_a_burst_is_a_reason_too() -> None:
    """Many more tuples than before, though each examines no more: a query wants tuples that none wanted before."""
    choice = AdaptiveOrder("AJW")
    choice.learn(seen())
    enough = 1 + int(SAMPLE_NS / (LOOKED_NS + PAIRED_NS))
    choice.looked(10, 1, enough, enough)
    assert not choice.wants_sample(20, 1, 2 * enough)
    assert choice.wants_sample(60, 1, 6 * enough)


def test_a_shift_of_what_is_let_through_is_a_reason() -> None:
    """Not chance, and not before there are enough tuples."""
    choice = AdaptiveOrder("AJW")
    choice.learn(seen())
    for after in (500, 480, 530):
        choice.passed("J", 1000, after)
    soon = int(CONFIRMING_WORK * SAMPLE_NS / PIECE_NS) + 1
    choice.work.pieces += soon
    for after in (5, 9, 3):
        choice.passed("W", 100, after)
    assert not choice.wants_sample(1, 1, 0)
    choice.passed("J", 10, 0)
    assert not choice.wants_sample(1, 1, 0)
    for after in (250, 510, 250):
        choice.passed("J", 1000, after)
        assert not choice.wants_sample(1, 1, 0)
    choice.passed("J", 1000, 240)
    assert choice.wants_sample(1, 1, 0)


def test_a_great_shift_is_believed_at_once() -> None:
    """Four times as little as usual, or less."""
    choice = AdaptiveOrder("AJW")
    choice.learn(seen())
    choice.work.pieces += int(CONFIRMING_WORK * SAMPLE_NS / PIECE_NS) + 1
    choice.passed("J", 1000, 500)
    choice.passed("J", 1000, 130)
    assert not choice.wants_sample(1, 1, 0)
    choice.learn(seen())
    choice.work.pieces += int(CONFIRMING_WORK * SAMPLE_NS / PIECE_NS) + 1
    choice.passed("J", 1000, 500)
    choice.passed("J", 1000, 120)
    assert choice.wants_sample(1, 1, 0)


def test_what_is_usual_is_all_since_the_last_sample() -> None:
    """The first tuples may be of another kind than those after them."""
    choice = AdaptiveOrder("AJW")
    choice.learn(seen())
    choice.work.pieces += int(CONFIRMING_WORK * SAMPLE_NS / PIECE_NS) + 1
    for after in (380, 500, 540, 560, 600, 590, 580):
        choice.passed("J", 1000, after)
        assert not choice.wants_sample(1, 1, 0)


def test_samples_that_change_nothing_become_rare() -> None:
    """Twice the work between them every time, up to a point; one that proposes another order ends that."""
    choice = AdaptiveOrder("AJW")
    after_pieces = []
    for _ in range(8):
        pieces = 0
        while not choice.wants_sample(0, 0, 0):
            choice.work.pieces += 10
            pieces += 10
        after_pieces.append(pieces)
        choice.learn(seen())
    each = SAMPLE_NS / PIECE_NS
    expected = [FIRST_WORK, *(WORK_BETWEEN * 2**n for n in range(5)), *[WORK_BETWEEN * MOST_PATIENCE] * 2]
    for pieces, work in zip(after_pieces, expected, strict=True):
        assert work * each <= pieces <= work * each + 20


def test_work_is_counted_by_kind() -> None:
    """And `work_since_last` returns the new work."""
    choice = AdaptiveOrder("AJW")
    choice.looked(10, 2, 30, 20)
    choice.passed("J", 20, 5)
    assert choice.work == VisitWork(2, 30, 20, 20, 5)
    assert choice.work_since_last() == choice.work.ns() > 0
    assert choice.work_since_last() == 0
    both = VisitWork(1, 1, 1, 1, 1)
    both.add(choice.work)
    assert both == VisitWork(3, 31, 21, 21, 6)


@pytest.mark.parametrize(
    ("satisfied", "work_ns", "at_once"),
    [(50, 1000.0, True), (1000, 1000.0, False), (990, 1e7, True), (990, 10.0, False)],
)
def test_attributes_are_evaluated_at_once_where_it_spares_work(satisfied: int, work_ns: float, at_once: bool) -> None:
    """Where many are refused, or where what few cost is much."""
    for now in (True, False):
        entry = AdaptiveEntry(2, now)
        entry.passed(1000, satisfied)
        entry.end(RECHECK_TUPLES, RECHECK_TUPLES * work_ns)
        assert entry.at_once == at_once


def test_work_is_what_is_left_where_attributes_have_refused() -> None:
    """One in ten is wanted: without the attributes there would be ten times the work, not twice."""
    entry = AdaptiveEntry(2, True)
    entry.passed(1000, 100)
    entry.end(RECHECK_TUPLES, RECHECK_TUPLES * 20.0)
    assert entry.at_once


def test_it_is_looked_at_now_and_then() -> None:
    """Some are tried although none need be."""
    entry = AdaptiveEntry(1, False)
    assert not entry.wants_sample(RECHECK_TUPLES - 1)
    entry.end(RECHECK_TUPLES - 1, 0.0)
    assert entry.wants_sample(1)
    assert not AdaptiveEntry(1, True).wants_sample(RECHECK_TUPLES)


TEXT = "".join(
    f"CREATE STREAM S{n} (ts TIMESTAMP, v BIGINT) WITH (topic = 'S{n}', timestamp = 'ts');\n" for n in range(2)
) + """INSERT INTO 'q' SELECT A.ts, B.ts AS other FROM S0 A [RANGE 600 MILLISECONDS], S1 B [RANGE 600 MILLISECONDS]
WHERE A.v < B.v AND A.v >= 0 WINDOW A.ts >= B.ts - 99 AND A.ts <= B.ts;"""
SPAN = 9_000


def drifting() -> dict[str, Batch]:
    """A tuple per stream and ms. In turn every pair satisfies the join predicate, one in a hundred does, every one."""
    ts = np.arange(SPAN, dtype=np.int64)
    rng = np.random.default_rng(1)
    third = ts // (SPAN // 3)
    batches = {}
    for n in range(2):
        spread = rng.integers(0, 50, SPAN) + (0 if n else 43)
        values = np.where(third == 1, spread, n).astype(np.int64)
        columns = {"ts": Column(Type.TIMESTAMP, ts), "v": Column(Type.BIGINT, values)}
        batches[f"S{n}"] = Batch(ts, columns)
    return batches


def run(order: str, batches: Mapping[str, Batch]) -> tuple[Juggler, list[dict[tuple[str, ...], str]], list[Any]]:
    """All of it in slices of 100 ms; the orders after each, and the results' row ids."""
    group = query_group(parse_program(TEXT).queries)
    sources = GroupSources(group)
    juggler = Juggler(sources, group, order)
    orders, rows = [], []
    for begin in range(0, SPAN, 100):
        epoch = {}
        for source in group.inputs:
            batch = batches[source.stream.name].slice(begin, begin + 100)
            ids = sources.stores[source.stream.name].append(batch)
            expiry = sources.expiry(source.alias, ids, batch.ts)
            epoch[source.alias] = Tuples((source.alias,), ids[np.newaxis], batch.ts, expiry)
        sources.cut = begin + 100
        rows.append(juggler.process(epoch, begin)["q"].rows.tolist())
        juggler.purge(begin + 100)
        sources.purge(begin + 100)
        orders.append(juggler.orders())
    return juggler, orders, rows


def test_it_follows_a_drift() -> None:
    """What lets least through changes, and the order of a visit with it, a few times only; results stay the same."""
    batches = drifting()
    _, orders, rows = run("adaptive", batches)
    visit = next(inputs for inputs in orders[0] if inputs[0].startswith("S1") or inputs[0] == "B")
    assert [orders[n][visit].strip("A")[0] for n in (29, 59, 89)] == ["W", "J", "W"]
    changes = sum(before != after for before, after in pairwise(orders))
    assert 2 <= changes <= 6
    fixed, same, expected = run("WAJ", batches)
    assert rows == expected
    assert not fixed.adaptive
    assert all(order == "WAJ" for found in same for order in found.values())


def test_samples_change_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sample every batch, and decide about attributes with every slice."""
    monkeypatch.setattr(adaptive, "SAMPLE_NS", 0.0)
    monkeypatch.setattr(adaptive, "RECHECK_TUPLES", 1)
    batches = drifting()
    juggler, _, rows = run("adaptive", batches)
    assert juggler.adaptive
    assert rows == run("JWA", batches)[2]


