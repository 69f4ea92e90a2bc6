"""Commit messages: they survive a round trip, foreign messages are refused, no message grows too long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import NewerFormatError, StateError
from schemas.messages.commits import (
    MAX_COMMIT_BYTES,
    MAX_FLOOR_BYTES,
    UNSEEN,
    Commit,
    Floor,
    StreamPoint,
    decode_commit,
    floor_bytes,
    needed_floors,
)

OFFSETS = st.integers(0, 2**62)
TIMES = st.integers(0, 4_102_444_799_999)
POINTS = st.builds(
    StreamPoint,
    OFFSETS,
    st.one_of(TIMES, st.just(UNSEEN)),
    st.lists(st.builds(Floor, OFFSETS, TIMES), max_size=3).map(tuple),
)


@given(
    st.builds(
        Commit,
        st.text("0123456789abcdef", min_size=16, max_size=16),
        OFFSETS,
        TIMES,
        st.integers(0, 99),
        st.integers(1, 10_000),
        st.lists(POINTS, min_size=1, max_size=2).map(tuple),
        st.lists(st.text("0123456789abcdef", min_size=8, max_size=8), max_size=3).map(tuple),
        repeats=st.one_of(st.just((0, 0)), st.tuples(OFFSETS, st.integers(1, 2**62))),
        topic_id=st.sampled_from(["", "Xy3kJ0aZQ9uPqv-_m1B2cA"]),
    )
)
def test_round_trip(commit: Commit) -> None:
    assert decode_commit(commit.encode(), "t[0]") == commit


def test_the_longest_message_fits() -> None:
    """A message has the largest number of floors that a lane permits, far apart, and one more."""
    floors: tuple[Floor, ...] = ()
    while floor_bytes(floors) < MAX_FLOOR_BYTES:
        floors = (*floors, Floor(2**62 + 10**17 * len(floors), 10**12 * (len(floors) + 1)))
    commit = Commit("f" * 16, 2**62, 4_102_444_799_999, 10**6, 10**6, (StreamPoint(2**62, 4_102_444_799_999, floors),))
    assert len(commit.encode()) <= MAX_COMMIT_BYTES


def test_the_message_of_a_query_without_tables_has_no_field_for_them() -> None:
    """It is as before there were tables, so older versions can read it."""
    assert '"t"' not in Commit("f" * 16, 1, 1, 1, 1, (StreamPoint(1, 1),)).encode()


def test_a_longer_one_is_refused() -> None:
    floors = tuple(Floor(10**17 * i, 10**12 * i) for i in range(500))
    with pytest.raises(StateError, match=f"at most {MAX_COMMIT_BYTES} fit"):
        Commit("f" * 16, 1, 1, 1, 1, (StreamPoint(1, 1, floors),)).encode()


@pytest.mark.parametrize("text", ["", None, "x", "[]", "{}", '"v"', "3"])
def test_what_others_commit_is_refused(text: str | None) -> None:
    with pytest.raises(StateError, match=r"committed offset of t\[7\] carries .*no commit message of Weir"):
        decode_commit(text, "t[7]")


def test_another_version_is_refused() -> None:
    with pytest.raises(NewerFormatError, match=r"of t\[7\] was written by a newer .*format 99, this one reads 1"):
        decode_commit('{"v": 99}', "t[7]")


@pytest.mark.parametrize("text", ['{"v":1}', '{"v":1,"q":"a","e":1,"w":1,"p":0,"n":1,"r":[[1]]}', '{"v":1,"r":3}'])
def test_a_damaged_message_is_refused(text: str) -> None:
    with pytest.raises(StateError, match="damaged message"):
        decode_commit(text, "t[7]")


def test_needed_floors() -> None:
    floors = [Floor(10, 100), Floor(20, 200), Floor(30, 300), Floor(40, 400)]
    assert needed_floors(floors, 0, 0) == tuple(floors)
    assert needed_floors(floors, 0, 200) == (Floor(30, 300), Floor(40, 400))
    # Of those at or before the replay's beginning the last is sufficient.
    assert needed_floors(floors, 30, 0) == (Floor(30, 300), Floor(40, 400))
    assert needed_floors(floors, 35, 0) == (Floor(30, 300), Floor(40, 400))
    assert needed_floors(floors, 99, 400) == ()
