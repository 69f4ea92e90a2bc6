"""The order of predicate types: what is expected of each, and when it changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from operators.juggler.order import ORDERS, Observed, best_order, expected_cost
from schemas.groups import query_group
from schemas.language import parse_program
from tests.feeding import canonical
from tests.operators.juggler.groups import Rows, Runner, expected

SEEN = Observed(0.5, 0.5, 0.5, 3.0, 3.0, 3.0, 0.5, 0.5, living=100.0, samples=1)


@pytest.mark.parametrize(
    ("seen", "order"),
    [
        (replace(SEEN, join=0.001, join_found=0.001), "J"),
        (replace(SEEN, window=0.001, window_found=0.001), "W"),
        (replace(SEEN, attribute=0.001), "A"),
        (replace(SEEN, attribute=1.0, attribute_cost=100.0, join=0.001, join_found=0.001), "J"),
    ],
)
def test_the_most_selective_comes_first(seen: Observed, order: str) -> None:
    """Or the first after the attributes, where those cost next to nothing."""
    best = min(ORDERS, key=lambda one: expected_cost(one, seen))
    assert best[0] == order or (best[0] == "A" and best[1] == order)


def test_it_takes_clearly_less_to_change() -> None:
    """A little less is no reason, and nothing seen is none."""
    assert best_order("WJA", Observed()) == "WJA"
    for order in ORDERS:
        assert best_order(order, SEEN) in ORDERS
    costs = {order: expected_cost(order, SEEN) for order in ORDERS}
    near = [order for order in ORDERS if min(costs.values()) > 0.8 * costs[order] > 0]
    assert len(near) > 1
    assert all(best_order(order, SEEN) == order for order in near)
    assert all(best_order(order, SEEN) != order for order in ORDERS if order not in near)


def test_slices_fold_in() -> None:
    """The first says all, later ones a part."""
    first = Observed().folded(SEEN)
    assert first == SEEN
    second = first.folded(replace(SEEN, join=1.0))
    assert 0.5 < second.join < 1.0
    assert second.samples == 2


def rows(joining: bool, begin: int) -> Rows:
    """A tuple per stream and ms. Either every pair satisfies the join predicate, or one in a hundred."""

    def row(stream: int, ts: int) -> dict[str, Any]:
        spread = (ts * 7 + stream * 3) % 50
        return {"ts": ts, "v": stream if joining else spread if stream else spread + 44}

    return {f"S{n}": [row(n, ts) for ts in range(begin, begin + 300)] for n in range(2)}


TEXT = "".join(
    f"CREATE STREAM S{n} (ts TIMESTAMP, v BIGINT) WITH (topic = 'S{n}', timestamp = 'ts');\n"
    for n in range(2)
)


def test_it_follows_a_drift() -> None:
    """What lets least through changes, and the order with it, a few times only; the results are the oracle's."""
    program = parse_program(
        TEXT + """INSERT INTO 'q' SELECT A.ts, B.ts AS other FROM S0 A [RANGE 60 MILLISECONDS],
        S1 B [RANGE 60 MILLISECONDS] WHERE A.v < B.v WINDOW A.ts >= B.ts - 9 AND A.ts <= B.ts;"""
    )
    (query,) = program.queries
    given: Rows = {"S0": [], "S1": []}
    for n, joining in enumerate((True, False, True)):
        for name, some in rows(joining, 300 * n).items():
            given[name] += some
    runner = Runner(query_group([query]), given)
    orders = []
    while runner.cut < 900:
        runner.to(runner.cut + 20)
        orders.append(runner.juggler.order)
    assert [orders[n].strip("A")[0] for n in (14, 29, 44)] == ["W", "J", "W"]
    assert 2 <= runner.juggler.choice.changed <= 4
    assert canonical(runner.found["q"]) == canonical(expected(query, given))
