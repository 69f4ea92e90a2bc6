"""A tree's guards rest where nothing is saved, at next to no cost, and are found out when the data change."""

from __future__ import annotations

import numpy as np
import pytest

from operators.data.tuples import Tuples
from operators.data.watermark import END
from operators.engine.engine import Engine
from operators.feedback import tree, watch
from operators.feedback.tree import TreeFeedback
from operators.plan.plan import parse_plan
from tests.operators.inside import feedback_of
from tests.operators.tiny import numbers, query

THREE = query(
    "SELECT A.k FROM a A [RANGE 300 ms], b B [RANGE 300 ms], c C [RANGE 300 ms] WHERE A.k = B.k AND A.v = C.v"
)
CHANGE, UNTIL, STEP = 1000, 2500, 10


class Changing:
    """Nested loops over three streams of a tuple a millisecond: until CHANGE every tuple of A has partners in C, from
    then on none has."""

    def __init__(self, *, feedback: bool) -> None:
        self.engine = Engine(THREE, plan=parse_plan("((A B) C)", THREE), hashed=False, feedback=feedback)
        self.results = 0
        rng = np.random.default_rng(1)
        ts = np.arange(UNTIL)
        for name in "abc":
            apart = (ts >= CHANGE) * (100 * (name == "c"))
            self.engine.push(name, 0, numbers(ts, k=rng.integers(0, 20, UNTIL), v=rng.integers(0, 5, UNTIL) + apart))

    def run(self, begin: int, end: int) -> None:
        for cut in range(begin + STEP, end + 1, STEP):
            self.results += len(self.engine.advance(cut))

    @property
    def feedback(self) -> TreeFeedback:
        found = feedback_of(self.engine)
        assert isinstance(found, TreeFeedback)
        return found


def test_guards_rest_unasked_until_the_data_change() -> None:
    fed, plain = Changing(feedback=True), Changing(feedback=False)
    for one in (fed, plain):
        one.run(0, CHANGE)
    (edge,) = fed.engine.statistics().feedback
    assert not edge.watching
    assert (edge.suspend - edge.resume, edge.suppressed, edge.kept_back) == (0, 0, 0)
    assert fed.engine.statistics().comparisons == plain.engine.statistics().comparisons
    assert fed.feedback._controller._update_factor > 1, "looked at again and again in vain"
    for one in (fed, plain):
        one.run(CHANGE, UNTIL)
    (edge,) = fed.engine.statistics().feedback
    assert edge.watching
    assert edge.kept_back > 0
    assert fed.engine.statistics().comparisons < 0.85 * plain.engine.statistics().comparisons
    assert fed.results + len(fed.engine.advance(END)) == plain.results + len(plain.engine.advance(END))


def test_what_rests_is_not_looked_at_in_every_slice() -> None:
    """Only one in some slices asks anything; the others are the tree's alone."""
    fed = Changing(feedback=True)
    fed.run(0, 300)
    asked = 0
    for cut in range(300, CHANGE, STEP):
        asked += fed.feedback._unchecked_slices == 0
        fed.run(cut, cut + STEP)
    slices = (CHANGE - 300) // STEP
    assert slices / tree.CHECK_EVERY_SLICES <= asked <= slices / 2


def test_a_guard_takes_over_when_little_comes_that_much_has_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A and B wait while C is silent. One tuple of C fits a hundredth of A: the others wait on, now for what fits them,
    and are there when it comes."""
    monkeypatch.setattr(watch, "MIN_TAKEOVER_NS", 1e4)
    fed, plain = (
        Engine(THREE, plan=parse_plan("((A B) C)", THREE), feedback=feedback) for feedback in (True, False)
    )
    found: list[list[int]] = []
    for engine in (fed, plain):
        ts = np.arange(200)
        engine.push("a", 0, numbers(ts, k=ts % 4, v=ts % 100))
        engine.push("b", 0, numbers(ts, k=ts % 4))
        engine.push("c", 0, numbers(np.array([200, 260]), v=np.array([17, 44])))
        engine.close("a", 0)
        engine.close("b", 0)
        found.append([len(engine.advance(cut)) for cut in range(20, 301, 20)])
    assert found[0] == found[1]
    assert sum(found[0]) == 2 * 2 * 50
    (edge,) = fed.statistics().feedback
    assert edge.watching
    assert (edge.demanded, edge.late, edge.kept_back) == (200, 200, 196)


def test_a_signature_lives_as_long_as_what_is_listed_under_it() -> None:
    """The lattice finds it in a tuple that dies soon; a similar one, kept back later, comes back with it."""
    engine = Engine(THREE, plan=parse_plan("((A B) C)", THREE), hashed=False, feedback=True, detector="lattice")
    found = feedback_of(engine)
    assert isinstance(found, TreeFeedback)
    guard = found.watches[0].guards[0]
    words = np.array([7], np.uint64)
    assert (guard.lists_all, guard.suspend(words, np.array([5]))) == (False, 1)
    late = Tuples(guard.home.aliases, np.array([[3]]), np.array([4]), np.array([50]))
    assert guard.keep_back(late, words, 4) == 0, "known already"
    guard.unlisted.purge(10)
    count, found = guard.resume(words, 10)
    assert (count, found.rows.tolist()) == (1, [[3]])
