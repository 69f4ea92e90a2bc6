"""Strategies choose the right groups: the paper's examples, and what holds for every strategy (state-spill 3)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.spill.productivity import heights_of
from operators.spill.strategies import STRATEGIES, SpillCandidates, choose, strategy_of
from schemas.errors import InvariantError, UsageError

Row = tuple[int, int, int, float, float, float]
"""join, group, size, local, output, inter."""


def candidates(*rows: Row, heights: tuple[int, ...] = (0, 1, 2), spill_number: int = 0) -> SpillCandidates:
    joins, groups, sizes, local, output, inter = (np.array(column) for column in zip(*rows, strict=True))
    return SpillCandidates(
        joins.astype(np.int64),
        groups.astype(np.int64),
        np.array(heights, np.int64)[joins],
        sizes.astype(np.int64),
        local.astype(float),
        output.astype(float),
        inter.astype(float),
        spill_number=spill_number,
    )


def chosen(name: str, some: SpillCandidates, wanted_bytes: int) -> list[tuple[int, int]]:
    """(join, group) of the groups to spill, in order."""
    at = choose(STRATEGIES[name], some, wanted_bytes)
    return list(zip(some.joins[at].tolist(), some.groups[at].tolist(), strict=True))


# --- The paper's examples ---------------------------------------------------------------------------------


def test_a_group_whose_results_go_far_is_kept() -> None:
    """Fig. 6: the group's results go to two groups of the next join, one of which makes many more. The group is kept
    for them, though its own join makes fewer results for its size than for the other group's."""
    some = candidates((0, 1, 100, 50, 900, 0), (0, 2, 100, 80, 10, 0), (1, 1, 60, 10, 10, 0), (1, 2, 60, 900, 900, 0))
    assert chosen("local-output", some, 150) == [(1, 1), (0, 1)]
    assert chosen("global-output", some, 150) == [(0, 2), (1, 1)]


def test_of_equal_productivity_the_one_with_more_intermediate_results_goes() -> None:
    """Fig. 10: equal size and output, but one group makes 2 tuples per input that are stored above, the other 20."""
    some = candidates((0, 1, 10, 20, 5, 20), (0, 2, 10, 200, 5, 200))
    assert chosen("global-output-penalty", some, 10) == [(0, 2)]
    assert chosen("global-output", some, 10) == [(0, 1)]  # a tie
    assert chosen("local-output", some, 10) == [(0, 1)]


def test_groups_of_all_joins_are_compared() -> None:
    """Fig. 7."""
    some = candidates((0, 1, 10, 1, 9, 0), (1, 1, 10, 9, 1, 0), (2, 1, 10, 5, 5, 0))
    assert chosen("local-output", some, 30) == [(0, 1), (2, 1), (1, 1)]
    assert chosen("global-output", some, 30) == [(1, 1), (2, 1), (0, 1)]


def test_results_count_relative_to_the_size_of_a_group() -> None:
    """3.2.1, 3.2.3: the first makes more results than the second, but fewer for its bytes, and for those above."""
    some = candidates((0, 1, 60, 30, 30, 40), (0, 2, 20, 20, 20, 180))
    for name in ("local-output", "global-output"):
        assert chosen(name, some, 10) == [(0, 1)]
    assert chosen("global-output-penalty", some, 10) == [(0, 2)]
    heavy = candidates((0, 1, 60, 30, 30, 20), (0, 2, 20, 20, 20, 18))
    assert chosen("global-output-penalty", heavy, 10) == [(0, 1)]


def test_bottom_up_empties_one_join_after_the_other() -> None:
    rows: list[Row] = [(join, group, 10, 0, 0, 0) for join in (2, 0, 1) for group in range(8)]
    gone = chosen("bottom-up", candidates(*rows), 200)
    assert [join for join, _ in gone] == [0] * 8 + [1] * 8 + [2] * 4
    assert [group for _, group in gone[:8]] != sorted(group for _, group in gone[:8])
    again = chosen("bottom-up", candidates(*rows, spill_number=1), 200)
    assert [join for join, _ in again] == [join for join, _ in gone]
    assert again[:8] != gone[:8]
    assert sorted(again[:8]) == sorted(gone[:8])


def test_every_group_of_the_bottom_has_equal_chances() -> None:
    rows: list[Row] = [(0, group, 1 + group, group, 7 - group, 0) for group in range(8)]
    first = [chosen("bottom-up", candidates(*rows, spill_number=spill_number), 1)[0][1] for spill_number in range(800)]
    counts = np.bincount(first, minlength=8)
    assert counts.min() > 60
    assert counts.max() < 140


def test_heights_of_plans() -> None:
    assert heights_of([("A", "B"), ("A", "B", "C"), ("A", "B", "C", "D")]) == [0, 1, 2]
    assert heights_of([("A", "B"), ("C", "D"), ("A", "B", "C", "D")]) == [0, 0, 1]
    assert heights_of([("A", "B"), ("A", "B", "C"), ("D", "E"), ("A", "B", "C", "D", "E")]) == [0, 1, 0, 2]


# --- What holds for every strategy ------------------------------------------------------------------------

amounts = st.integers(0, 5).map(float)
groups = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(1, 4), amounts, amounts, amounts),
    min_size=1,
    max_size=25,
    unique_by=lambda row: row[:2],
)
every = pytest.mark.parametrize("name", STRATEGIES)


@every
@given(rows=groups, wanted=st.integers(1, 120))
def test_no_more_go_than_are_needed(name: str, rows: list[Row], wanted: int) -> None:
    some = candidates(*rows)
    at = choose(STRATEGIES[name], some, wanted)
    assert len(set(at.tolist())) == len(at) > 0
    freed = some.size_bytes[at]
    assert freed.sum() >= min(wanted, some.size_bytes.sum())
    assert freed[:-1].sum() < wanted


@every
@given(rows=groups, wanted=st.integers(1, 60), random=st.randoms(use_true_random=False))
def test_the_sequence_of_candidates_does_not_matter(name: str, rows: list[Row], wanted: int, random) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert chosen(name, candidates(*rows), wanted) == chosen(name, candidates(*shuffled), wanted)


@pytest.mark.parametrize("name", ["local-output", "global-output", "global-output-penalty"])
@given(rows=groups, which=st.integers(0, 24), more=st.integers(1, 5))
def test_more_productive_groups_do_not_go_sooner(name: str, rows: list[Row], which: int, more: int) -> None:
    which %= len(rows)
    some = candidates(*rows)
    raised = replace(some, local=some.local.copy(), output=some.output.copy())
    raised.local[which] += more
    raised.output[which] += more
    before, after = (list(STRATEGIES[name](c)).index(which) for c in (some, raised))
    assert after >= before


@given(rows=groups, which=st.integers(0, 24), more=st.integers(1, 9))
def test_groups_with_more_intermediate_results_do_not_go_later(rows: list[Row], which: int, more: int) -> None:
    which %= len(rows)
    some = candidates(*rows)
    raised = replace(some, inter_bytes=some.inter_bytes.copy())
    raised.inter_bytes[which] += more
    before, after = (list(STRATEGIES["global-output-penalty"](c)).index(which) for c in (some, raised))
    assert after <= before


@pytest.mark.parametrize("name", ["local-output", "global-output", "global-output-penalty"])
def test_of_unproductive_groups_the_largest_go_first(name: str) -> None:
    some = candidates((0, 3, 10, 0, 0, 9), (1, 2, 30, 0, 0, 0), (1, 1, 20, 0, 0, 0), (0, 1, 10, 0, 0, 0))
    assert chosen(name, some, 100) == [(1, 2), (1, 1), (0, 1), (0, 3)]


@every
def test_nothing_wanted_nothing_gone(name: str) -> None:
    some = candidates((0, 1, 10, 1, 1, 1))
    assert chosen(name, some, 0) == chosen(name, some, -5) == []
    none = candidates((0, 1, 10, 1, 1, 1))
    none = SpillCandidates(*(getattr(none, field)[:0] for field in (
        "joins", "groups", "heights", "size_bytes", "local", "output", "inter_bytes"
    )))  # fmt: skip
    assert chosen(name, none, 10) == []
    with pytest.raises(InvariantError, match="0 bytes"):
        chosen(name, candidates((0, 1, 0, 1, 1, 1)), 10)


def test_an_unknown_strategy_is_refused() -> None:
    assert strategy_of("bottom-up") is STRATEGIES["bottom-up"]
    with pytest.raises(UsageError, match="'random'; there are bottom-up, local-output, global-output"):
        strategy_of("random")
