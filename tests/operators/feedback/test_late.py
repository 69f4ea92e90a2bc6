"""Tuples that enter a join's state after their time: among those that came in time if they may, else apart."""

from __future__ import annotations

import numpy as np
import pytest

from operators.data.tuples import Tuples
from operators.engine.engine import Engine
from operators.join.binary_join import BinaryJoin
from operators.plan.plan import parse_plan
from operators.state.match import LEFT, RIGHT
from tests.operators.inside import executor_of, sources_of
from tests.operators.tiny import numbers, query

PAIRS = "SELECT A.k FROM a A {w}, b B {w} WHERE A.k = B.k"


class Late:
    """A join of A and B, whose tuples are stored but not joined."""

    def __init__(self, window: str = "[RANGE 100 ms]") -> None:
        bound = query(PAIRS.format(w=window))
        self.engine = Engine(bound, plan=parse_plan("(A B)", bound))
        ((_, self.join),) = executor_of(self.engine).joins
        assert isinstance(self.join, BinaryJoin)

    def tuples(self, stream: str, *ts: int) -> Tuples:
        """All of one key, ascending by ts."""
        return self.engine.store(stream, numbers(np.array(ts), k=np.ones(len(ts), np.int64)))[stream.upper()]

    def found(self, *ts: int) -> list[tuple[int, int]]:
        """What tuples of B make with those of A, as pairs of rows."""
        found = self.join.process(Tuples.empty(("A",)), self.tuples("b", *ts), ts[0])
        return sorted(zip(*found.rows.tolist(), strict=True))

    def own(self) -> list[int]:
        """The times of A's tuples, without those that are kept apart, in their order."""
        state = self.join.states[LEFT]
        older, state.older = state.older, None
        ts = state.tuples().ts.tolist()
        state.older = older
        return list(ts)


def test_what_comes_after_all_that_is_there_is_put_behind_it() -> None:
    """In the order of its times, in whatever order it comes; so the next one may be put behind it, too."""
    late = Late()
    late.join.process(late.tuples("a", 1, 2), Tuples.empty(("B",)), 1)
    rest = late.tuples("a", 5, 5, 7, 8, 9)
    late.join.enter_late(LEFT, rest.take(np.array([2, 1, 0])), 20)
    late.join.enter_late(LEFT, rest.take(np.array([4, 3])), 20)
    state = late.join.states[LEFT]
    assert (state.older, late.own()) == (None, [1, 2, 5, 5, 7, 8, 9])
    assert state.tuples().rows[0].tolist() == list(range(7)), "of equal ts as they came"
    late.join.process(late.tuples("a", 20), Tuples.empty(("B",)), 20)
    assert late.found(106) == [(row, 0) for row in range(4, 8)], "7 to 20; 5 is over"
    late.join.purge(200)
    assert len(state) == 0


@pytest.mark.parametrize(("late_ts", "now"), [(4, 20), (3, 20), (30, 30), (31, 30)])
def test_what_comes_among_others_is_kept_apart(late_ts: int, now: int) -> None:
    """Of a time that the state has tuples of, or that may still come: the state stays ascending by ts."""
    late = Late()
    late.join.process(late.tuples("a", 1, 4), Tuples.empty(("B",)), 1)
    late.join.enter_late(LEFT, late.tuples("a", late_ts), now)
    state = late.join.states[LEFT]
    assert state.older is not None
    assert (late.own(), len(state)) == ([1, 4], 3)
    assert late.found(40) == [(0, 0), (1, 0), (2, 0)]


def test_rows_windows_find_the_dead_among_what_came_late() -> None:
    """The last three of A live: by their rows, which ascend in its state."""
    late = Late("[ROWS 3]")
    batch = numbers(np.full(6, 5), k=np.ones(6, np.int64))
    horizons = sources_of(late.engine).horizons({"a": batch})["a"]
    engine = late.engine
    given = engine._selection.enter(sources_of(engine), "a", batch, horizons, restored=False)["A"]
    late.join.enter_late(LEFT, given.take(np.array([3, 0, 5, 1, 4, 2])), 20)
    state = late.join.states[LEFT]
    assert state.older is None
    state.purge_rows("A", 3)
    assert state.tuples().rows[0].tolist() == [3, 4, 5]
    assert len(late.join.states[RIGHT]) == 0
