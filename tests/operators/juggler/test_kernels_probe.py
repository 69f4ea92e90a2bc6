"""Bounds of candidates: no narrower than some query requires, and no wider than a bound allows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.kernels.juggler_probe import bound_times, bound_values, bounding, place_times, scan_places
from operators.kernels.scan import OPS
from tests.operators.juggler.test_compiled_lists import HOLDS, masks
from tests.profiles import PROPERTY

QUERIES = (0, 1, 63, 64, 127, 128)
ASKING = st.one_of(st.sets(st.sampled_from(QUERIES), max_size=3), st.just(set(QUERIES)))
SMALL = st.integers(-4, 4)


def covering(op: str, addends: set[Any]) -> list[Any]:
    """The tightest first."""
    return sorted(addends, reverse=op in (">", ">="))


@pytest.mark.parametrize(
    ("alive", "asking", "bounded"),
    [
        ({0, 64}, [{0, 64}], True),
        ({0, 64}, [{0}, {64, 1}], True),
        ({0, 64}, [{0, 1, 63}], False),
        ({0, 64}, [{64, 128}], False),
        (set(), [{0}], True),
    ],
)
def test_a_list_bounds_tuples_all_of_whose_queries_ask_for_it(
    alive: set[int], asking: list[set[int]], bounded: bool
) -> None:
    """Whichever block they ask for."""
    found = bounding(masks([alive, {1}, alive]), masks(asking))
    assert found.tolist() == [bounded, {1} <= set().union(*asking), bounded]


@pytest.mark.parametrize("op", ["<=", ">=", "="])
@PROPERTY
@given(
    st.booleans(),
    st.lists(st.tuples(SMALL, ASKING), min_size=1, max_size=4, unique_by=lambda one: one[0]),
    st.lists(st.tuples(st.integers(0, 9), ASKING, st.booleans(), st.integers(0, 5), st.integers(3, 9)), max_size=5),
)
def test_times_are_bounded_by_what_is_asked(
    op: str, found_is_x: bool, asked: list[tuple[int, set[int]]], tuples: list[tuple[int, set[int], bool, int, int]]
) -> None:
    """What is left encloses the times at which some predicate holds that a query of the tuple asks for."""
    by = dict(asked)
    addends = covering(op, set(by))
    times, alive, bounded, low, high = ([one[k] for one in tuples] for k in range(5))
    lows, highs = np.array(low, np.int64), np.array(high, np.int64)
    bound_times(
        OPS[op], found_is_x, np.array(times, np.int64), np.array(addends), masks([by[a] for a in addends]),
        np.array(bounded, np.bool_), masks(alive), lows, highs,
    )  # fmt: skip
    for n, (time, queries, narrowed, first, last) in enumerate(tuples):
        some = [a for a in addends if by[a] & queries]
        good = list(range(-20, 30))
        if narrowed and some:
            pairs = {t: (t, time) if found_is_x else (time, t) for t in good}
            input_state = [t for t, (x, y) in pairs.items() if any(HOLDS[op](x, y + a) for a in some)]
            good = list(range(input_state[0], input_state[-1] + 1))
        assert (lows[n], highs[n]) == (max(first, good[0]), min(last, good[-1]))


@PROPERTY
@given(st.lists(st.integers(0, 9), max_size=8), st.integers(0, 20), st.lists(st.tuples(SMALL, SMALL), max_size=5))
def test_places_of_times(times: list[int], lo: int, bounds: list[tuple[int, int]]) -> None:
    """In a ring that wraps around, both ends included."""
    times = sorted(times)
    ring = np.full(8, -1, np.int64)
    ring[np.arange(lo, lo + len(times)) & 7] = times
    low, high = (np.array([one[k] + 4 for one in bounds], np.int64) for k in range(2))
    first, last = place_times(low, high, ring, lo, lo + len(times))
    for n in range(len(bounds)):
        assert first[n] == lo + sum(t < low[n] for t in times)
        assert last[n] == max(first[n], lo + sum(t <= high[n] for t in times))


@st.composite
def value_bounds(draw: st.DrawFn, op: str) -> tuple[Any, ...]:
    """A list by blocks, over a run of values, and tuples that look at it."""
    whole = op not in ("<", ">") and draw(st.booleans())
    number: st.SearchStrategy[Any] = SMALL if whole else st.sampled_from([-2.5, -1.0, -0.5, 0.0, 0.5, 1.5, 3.0])
    lines = st.tuples(number.filter(bool), st.integers(1, 3) if whole else st.just(1.0))
    # Of several predicates that are asked for, each may be the one that goes furthest.
    asked = st.dictionaries(number, ASKING, min_size=draw(st.integers(1, 3)), max_size=4)
    blocks = draw(st.dictionaries(lines, asked, min_size=draw(st.integers(1, 2)), max_size=3))
    tuples = st.tuples(number, ASKING, st.sampled_from([True, True, False]), st.sampled_from([0, 0, 0, 1, 2]))
    return (
        draw(st.booleans()),
        np.int64 if whole else np.float64,
        sorted(draw(st.lists(number, min_size=draw(st.integers(0, 6)), max_size=9))),
        blocks,
        draw(st.lists(tuples, min_size=4, max_size=8)),
    )


@pytest.mark.parametrize("op", list(OPS))
@PROPERTY
@given(st.data())
def test_values_are_bounded_by_what_is_asked(op: str, data: st.DataObject) -> None:
    """Every place is left where some predicate holds that a query asks for; of one block no place beyond those that the
    predicates of the list enclose."""
    sorted_is_x, dtype, values, blocks, tuples = data.draw(value_bounds(op))
    ordered = {line: covering(op, set(by)) for line, by in blocks.items()}
    first, last = np.full(len(tuples), 1), np.full(len(tuples), max(1, len(values)))
    bound_values(
        OPS[op], sorted_is_x, np.array(values, dtype), np.array([t[0] for t in tuples], dtype),
        np.array([t[3] for t in tuples], np.uint8), np.array([f for f, _ in blocks], dtype),
        np.array([d for _, d in blocks], dtype), np.array([a for found in ordered.values() for a in found], dtype),
        np.cumsum([0, *map(len, ordered.values())]),
        masks([blocks[line][a] for line, found in ordered.items() for a in found]),
        np.array([t[2] for t in tuples], np.bool_), masks([t[1] for t in tuples]), first, last,
    )  # fmt: skip

    def holds(op: str, line: tuple[Any, Any], addend: Any, value: Any, other: Any) -> bool:
        x, y = (value, other) if sorted_is_x else (other, value)
        return bool(HOLDS[op](line[1] * x, line[0] * y + addend))

    for n, (other, queries, bounded, state) in enumerate(tuples):
        places, everywhere = set(range(first[n], last[n])), set(range(1, len(values)))
        if not bounded or state == 2:
            assert places == everywhere
            continue
        if state == 1:
            assert not places
            continue
        asked = {k: [a for a in found if blocks[k][a] & queries] for k, found in ordered.items()}
        good = {
            p for p in everywhere for k, some in asked.items() for a in some if holds(op, k, a, values[p], other)
        }
        assert good <= places
        if len(blocks) == 1:
            ((line, some),) = asked.items()
            if op == "=" and some:
                least, most = min(some), max(some)
                good = {
                    p
                    for p in everywhere
                    if holds(">=", line, least, values[p], other) and holds("<=", line, most, values[p], other)
                }
            assert places == good


@PROPERTY
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4), SMALL, SMALL), max_size=5),
    st.lists(SMALL, min_size=16, max_size=16),
    st.integers(1, 4),
    st.booleans(),
)
def test_places_are_scanned_piece_by_piece(
    tuples: list[tuple[int, int, int, int]], ts: list[int], room: int, ring: bool
) -> None:
    """All rows of the right times, once each and in order, however small the output is."""
    mask = 15 if ring else -1
    first = np.array([begin + 9 * ring for begin, *_ in tuples], np.int64)
    last = first + np.array([size for _, size, *_ in tuples], np.int64)
    low, high = (np.array([one[k] for one in tuples], np.int64) for k in (2, 3))
    rows, times = np.arange(100, 116), np.array(ts, np.int64)
    found: list[tuple[int, int]] = []
    start, resume, seen = 0, -1, 0
    probe, out = np.zeros(room, np.int64), np.zeros(room, np.int64)
    while start < len(tuples):
        count, start, resume, looked = scan_places(
            first, last, low, high, start, resume, rows, times, mask, probe, out
        )
        assert count == room or start == len(tuples)
        seen += looked
        found += zip(probe[:count].tolist(), out[:count].tolist(), strict=True)
    places = [(n, p & mask) for n in range(len(tuples)) for p in range(first[n], last[n])]
    assert found == [(n, 100 + at) for n, at in places if low[n] <= ts[at] <= high[n]]
    assert seen == len(places)
