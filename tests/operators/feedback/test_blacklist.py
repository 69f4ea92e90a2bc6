"""Blacklists against a plain list: what comes out is what was put in under the signature and still lives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.data.tuples import Tuples
from operators.feedback import blacklist
from operators.feedback.blacklist import Blacklist
from operators.kernels.blacklist import has_lists, link_entries, take_lists
from operators.kernels.hashing import U64
from tests.profiles import PROPERTY


@dataclass(frozen=True)
class Listed:
    """A tuple and its signature."""

    row: int
    ts: int
    expiry: int
    signature: int


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blacklist, "FIRST_CAPACITY", 2)


def words(values: list[int]) -> U64:
    return np.array(values, np.uint64)


def put(blacklist: Blacklist, listed: list[Listed], now: int) -> None:
    """List tuples over A B whose rows are row and row + 1000."""
    rows = np.array([e.row for e in listed], np.int64)
    ts, expiry = np.array([e.ts for e in listed], np.int64), np.array([e.expiry for e in listed], np.int64)
    tuples = Tuples(("A", "B"), np.array([rows, rows + 1000]), ts, expiry)
    blacklist.put(tuples, words([e.signature for e in listed]), now)


def shown(tuples: Tuples) -> list[tuple[int, int, int]]:
    """(row, ts, expiry) of tuples that are as `put` made them, ascending by ts."""
    assert tuples.aliases == ("A", "B")
    assert (tuples.rows[1] == tuples.rows[0] + 1000).all()
    assert (np.diff(tuples.ts) >= 0).all()
    return list(zip(tuples.rows[0].tolist(), tuples.ts.tolist(), tuples.expiry.tolist(), strict=True))


EVERY = [0, 1, 4, 5, 2**64 - 1]
SIGNATURE = st.sampled_from(EVERY)


@PROPERTY
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.lists(st.tuples(SIGNATURE, st.integers(0, 5)), max_size=6)),
            st.tuples(st.just("take"), st.lists(SIGNATURE, max_size=4)),
            st.just(("purge", [])),
            st.just(("take_all", [])),
        ),
        max_size=14,
    )
)
def test_what_lives_comes_out_once(steps: list[tuple[str, list]]) -> None:
    """Tuples of many slices, one per step, in a pool that grows, is swept and shrinks all the time."""
    held, model, row = Blacklist(("A", "B")), [], 0
    for now, (step, given_) in enumerate(steps):
        if step == "put":
            new = [Listed(row + i, now - i, now + life, s) for i, (s, life) in enumerate(given_)]
            row += len(new)
            put(held, new, now)
            model += new
        elif step == "purge":
            held.purge(now)
        else:
            asked = given_ if step == "take" else [e.signature for e in model]
            got = held.take(words(asked), now) if step == "take" else held.take_all(now)
            expected = [(e.row, e.ts, e.expiry) for e in model if e.signature in asked and e.expiry >= now]
            assert sorted(shown(got)) == sorted(expected)
            model = [e for e in model if e.signature not in asked]
        assert sum(e.expiry >= now for e in model) <= len(held) <= len(model)
        living = {e.signature for e in model if e.expiry >= now}
        known = {s for s in EVERY if held.has(words([s]))[0]}
        assert living <= known <= {e.signature for e in model}
        assert held.signatures == len(known)


def test_ties_come_out_as_they_went_in() -> None:
    """Of equal ts the one listed first comes first."""
    held = Blacklist(("A", "B"))
    put(held, [Listed(1, 5, 9, 7), Listed(2, 5, 9, 8), Listed(3, 4, 9, 7)], 0)
    put(held, [Listed(4, 5, 9, 7)], 0)
    assert shown(held.take(words([7, 7, 9]), 5)) == [(3, 4, 9), (1, 5, 9), (4, 5, 9)]
    assert len(held) == 1
    assert shown(held.take(words([7]), 5)) == []
    assert shown(held.take(words([8]), 9)) == [(2, 5, 9)], "what expires now lives now"


def test_a_signature_that_comes_and_goes_costs_nothing_more() -> None:
    """A thousand times beside others that stay: the pool is swept, never longer than what lives makes it."""
    held = Blacklist(("A", "B"))
    put(held, [Listed(k, 0, 9999, k) for k in range(20)], 0)
    for turn in range(1000):
        put(held, [Listed(turn, turn, 9999, 50)], turn)
        assert shown(held.take(words([50]), turn)) == [(turn, turn, 9999)]
    assert len(held) == 20
    assert held.size_bytes() <= 32 * (5 * 8 + 4) + 64 * 4


def test_memory_follows_the_living() -> None:
    """Down to nothing when all have died, once that has been paid for."""
    held = Blacklist(("A", "B"))
    least = held.size_bytes()
    put(held, [Listed(k, 0, 10 + k, k) for k in range(100)], 0)
    full = held.size_bytes()
    held.purge(0)
    assert len(held) == 100
    held.purge(109)
    assert len(held) == 100, "swept just before"
    held.take(words([200] * 100), 109)
    held.purge(109)
    assert len(held) == 1
    assert least <= held.size_bytes() < full
    assert shown(held.take_all(109)) == [(99, 0, 109)]
    held.purge(110)
    assert (len(held), held.size_bytes()) == (0, least)


def test_dead_rows_stay_away() -> None:
    """Of a ROWS window, whose tuples do not know when they die: neither taken out nor kept."""
    held = Blacklist(("A", "B"))
    put(held, [Listed(k, k, 99, k % 2) for k in range(40)], 0)
    held.purge_rows("B", 1030)
    assert [row for row, _, _ in shown(held.take(words([1]), 0))] == [31, 33, 35, 37, 39]
    held.purge_rows("A", 36)
    held.take(words([7] * 40), 0)
    held.purge(0)
    assert (len(held), held.signatures) == (2, 1)
    assert [row for row, _, _ in shown(held.take_all(0))] == [36, 38]


def test_what_is_dropped_does_not_come_back() -> None:
    """Of a list, at its head and in its midst; what was taken before has no place any more."""
    held = Blacklist(("A", "B"))
    put(held, [Listed(k, 9 - k, 20, k % 2) for k in range(6)], 0)
    held.take(words([0]), 0)
    assert held.has(words([0, 1])).tolist() == [False, True]
    places, tuples = held.living(0)
    assert tuples.rows[0].tolist() == [1, 3, 5]
    held.drop(places[[1, 2]])
    assert len(held) == 1
    assert shown(held.take_all(0)) == [(1, 8, 20)]
    assert len(held) == 0


def test_a_signature_is_known_as_long_as_its_list_is_there() -> None:
    """It has no partner still, though all that was listed has been dropped: what is similar joins the list, and both
    are gone when a partner comes, also when nothing was there to take."""
    held = Blacklist(("A", "B"))
    assert not held.has(words([7]))[0]
    put(held, [Listed(1, 5, 9, 7)], 0)
    held.drop(held.living(0)[0])
    assert (len(held), held.signatures, held.has(words([7]))[0]) == (0, 1, True)
    put(held, [Listed(2, 5, 9, 7)], 0)
    assert held.signatures == 1
    assert shown(held.take(words([7]), 0)) == [(2, 5, 9)]
    put(held, [Listed(3, 5, 9, 7)], 0)
    held.drop(held.living(0)[0])
    assert shown(held.take(words([7]), 0)) == []
    assert (held.signatures, held.has(words([7]))[0]) == (0, False)


def test_lists_move_up_when_one_before_them_is_taken() -> None:
    """By home slot in a table of 8: 7 7 0 1, pushed to 7 0 1 2; one whose home is 5 stays there."""
    pool = words([7, 15, 8, 9, 5])
    behind, heads = np.zeros(5, np.int32), np.zeros(8, np.int32)
    assert link_entries(0, 5, pool, behind, heads) == 5
    assert heads.tolist() == [2, 3, 4, 0, 0, 5, 0, 1]
    entries, lists = take_lists(words([23, 7]), pool, behind, heads)
    assert (entries.tolist(), lists, heads.tolist()) == ([0], 1, [3, 4, 0, 0, 0, 5, 0, 2])
    assert has_lists(words([7, 15, 8, 9, 5]), pool, heads).tolist() == [False, True, True, True, True]


def test_what_stands_at_home_stays() -> None:
    """Taking 7 out must not move 0 away from its home, nor 8 before it."""
    pool = words([7, 0, 8])
    behind, heads = np.zeros(3, np.int32), np.zeros(8, np.int32)
    link_entries(0, 3, pool, behind, heads)
    take_lists(words([7]), pool, behind, heads)
    assert heads.tolist() == [2, 3, 0, 0, 0, 0, 0, 0]
