"""Learning what kinds of work take: factors that explain what was seen, within bounds, and drawn towards 1."""

from __future__ import annotations

import numpy as np
import pytest

from operators.autopilot.learning import BOUND, Learning
from operators.engine.engine import Work


def looks(learning: Learning, factors: tuple[float, float, float], count: int, seed: int = 1) -> None:
    """Looks at an engine whose kinds of work take so many times as long."""
    rng = np.random.default_rng(seed)
    work = Work(0, 0, (), 0, 0, 0, 0.0)
    learning.note(work)
    for number in range(1, count + 1):
        made = int(rng.integers(0, 200_000))
        now = Work(
            number,
            work.tuples + int(rng.integers(1, 100_000)),
            (),
            work.slices + int(rng.integers(1, 20)),
            work.comparisons + made,
            work.made + made,
            0.0,
        )
        took_s = float(learning.predicted(work, now) @ factors)
        work = Work(now.cut, now.tuples, (), now.slices, now.comparisons, now.made, work.busy_s + took_s)
        learning.note(work)


def test_factors_are_found() -> None:
    """Of what has a small share, less is known."""
    learning = Learning(3)
    looks(learning, (1.5, 0.5, 0.25), 200)
    calls, tuples, matches = learning.factors
    assert calls == pytest.approx(1.5, rel=0.15)
    assert tuples < 0.8
    assert matches == pytest.approx(0.25, rel=0.15)
    enter, probe, make, scan = learning.units()
    fresh = Learning(3).units()
    assert (enter / fresh[0], probe / fresh[1]) == pytest.approx((tuples, tuples))
    assert (make / fresh[2], scan / fresh[3]) == pytest.approx((matches, matches))
    assert learning.calls_s(10) == pytest.approx(calls * Learning(3).calls_s(10))


def test_what_has_changed_is_learned_anew() -> None:
    learning = Learning(3)
    looks(learning, (1.0, 1.0, 4.0), 200)
    looks(learning, (1.0, 1.0, 0.5), 400, seed=2)
    assert learning.factors[2] == pytest.approx(0.5, rel=0.15)


def test_one_look_says_little() -> None:
    learning = Learning(3)
    looks(learning, (4.0, 4.0, 4.0), 1)
    assert (learning.factors < 3.5).all()
    assert (learning.factors > 0.9).all()


def test_factors_are_bounded() -> None:
    learning = Learning(3)
    looks(learning, (100.0, 1e-6, 1.0), 400)
    assert learning.factors.max() == BOUND
    learning = Learning(3)
    looks(learning, (1e-6, 1e-6, 1e-6), 400)
    assert learning.factors.min() == pytest.approx(1 / BOUND)
    assert learning.factors.max() < 0.5


def test_nothing_is_learned_without_a_clock() -> None:
    learning = Learning(2)
    for number in range(5):
        learning.note(Work(number, 100 * number, (), number, 10 * number, 10 * number, 0.0))
    assert learning.factors.tolist() == [1.0, 1.0, 1.0]
