"""When it pays to have something kept back: bytes not sent against answers."""

from __future__ import annotations

import numpy as np
import pytest

from operators.distributed.feedback import payoff
from operators.distributed.feedback.payoff import KindPayoff
from schemas.codecs.notice import Notice, Words
from schemas.columns import Batch

NONE: Words = np.zeros(0, np.uint64)
ROW, LIFE = 64, 1_000


def words(*numbers: int) -> Words:
    """Signatures of kind 1."""
    return np.array([(number << 10) + 1 for number in numbers], np.uint64)


def record(
    one: KindPayoff, now: int, suspended: Words, resumed: Words = NONE, rows: int = 0, *, whole: bool = False
) -> None:
    """A notice of channel 0 is read."""
    nothing = Batch(np.zeros(0, np.int64), {})
    one.record(now, Notice(0, 1, whole, suspended, resumed, nothing), suspended, rows)


def run(one: KindPayoff, begin: int, kept: int, rows: int, apart: int) -> bool:
    """`kept` signatures are suspended; one of them comes back, with so many rows, and goes, so and so often."""
    record(one, begin, words(*range(kept)))
    rests = False
    for turn in range(1, payoff.ANSWERS + 1):
        record(one, begin + turn * apart, NONE, words(0), rows)
        rests |= one.review(begin + turn * apart)
        record(one, begin + turn * apart, words(0))
    return rests


@pytest.mark.parametrize(
    ("kept", "rows", "apart", "rests"),
    [
        # 100 keep back 10 rows each within a window; an answer every half window: 490 rows, of 31 KB.
        (100, 10, 500, False),
        # Five of them: 15 rows, of 960 bytes.
        (5, 10, 500, True),
        # The same, 20 times as much time in between, but no more than a window of it counts: 40 rows, of 2.5 KB.
        (5, 10, 10_000, False),
        # Four of them: 30 rows, of 1.9 KB.
        (4, 10, 10_000, True),
        # One that is kept back for less than a window: what comes back was sent before.
        (1, 1_000, 500, True),
        # Nothing came of what was kept back.
        (1_000, 0, 500, True),
    ],
)
def test_what_is_spared_is_weighed_against_answers(kept: int, rows: int, apart: int, rests: bool) -> None:
    one = KindPayoff(1, ROW, LIFE, 1)
    record(one, 0, NONE)
    begin = 100 * LIFE
    assert run(one, begin, kept, rows, apart) is rests
    assert one.rests(begin + payoff.ANSWERS * apart) is rests


def test_it_rests_twice_as_long_each_time() -> None:
    """And not for long again after it has paid once. What comes back while it rests does not count."""
    one = KindPayoff(1, ROW, LIFE, 1)
    record(one, 0, NONE)
    now = 100 * LIFE
    for windows in (payoff.FIRST_REST, 2 * payoff.FIRST_REST, 4 * payoff.FIRST_REST):
        assert run(one, now, 5, 10, 500)
        now += payoff.ANSWERS * 500
        assert one.rests(now + windows * LIFE - 1)
        now += windows * LIFE
        assert not one.rests(now)
        record(one, now - 1, NONE, words(*range(5)), 1_000_000)
    assert not run(one, now, 1_000, 10, 500)
    now += payoff.ANSWERS * 500
    record(one, now, NONE, words(*range(1_000)))
    one.review(now)
    assert run(one, now, 5, 10, 500)
    now += payoff.ANSWERS * 500
    assert not one.rests(now + payoff.FIRST_REST * LIFE)
