"""From where a log is read again: never too late, and not earlier than need be while everything is remembered."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.distributed import replay_history as history
from operators.distributed.replay_history import ReplayHistory
from tests.profiles import PROPERTY


@PROPERTY
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=20).map(sorted),
    st.integers(0, 32),
    st.integers(0, 32),
    st.sampled_from([2, 3, 100]),
)
def test_reading_again_shows_all_that_is_wanted(clocks: list[int], forgotten: int, wanted: int, room: int) -> None:
    """Stretch i has offset i and moves the clock from clocks[i] to clocks[i + 1]."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "MAX_STRETCHES", room)
        known = ReplayHistory()
        for offset, (before, after) in enumerate(pairwise(clocks)):
            known.remember(offset, before, after)
        known.forget(min(forgotten, wanted))
        point = known.point(wanted)
    needed = [offset for offset, after in enumerate(clocks[1:]) if after >= wanted]
    if not needed:
        assert point is None
        return
    assert point is not None
    assert point.offset <= needed[0]
    assert point.max_ts == clocks[point.offset], "the clock is what it was there"
    if room == 100:
        assert point.offset == needed[0]
