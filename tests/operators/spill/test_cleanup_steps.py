"""How far an instalment of a cleanup goes: so many tuples, or as many as it takes to end in time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from operators.spill.cleanup import by_join as cleaning
from operators.spill.cleanup import steps as instalments
from operators.spill.cleanup.by_join import Cleaning
from operators.spill.cleanup.steps import Instalments
from operators.spill.spilled_part import FAR_PAST
from operators.state.match import LEFT
from tests.operators.spill.holding import TUPLES, Holding

GROUPS = 100
LIFE = 4_000
PATIENCE = 1_000
"""A quarter of it: how long a cleanup may take."""


class Counted(Cleaning):
    """Knows how often groups were merged together."""

    turns = 0

    def _together(self, *given: Any) -> Iterator[tuple[list[int], int]]:
        for turn in super()._together(*given):
            self.turns += 1
            yield turn


class Owing:
    """All groups of the lower join have left; what of them each instalment cleans up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, least: int) -> None:
        monkeypatch.setattr(instalments, "CLEAN_TUPLES", least)
        held = Holding(GROUPS)
        held.leaving.leave(0, range(GROUPS), TUPLES, 0)
        self.sizes = [held.ledger.size((0, g)) for g in range(GROUPS)]
        parents = ((1, LEFT), None)
        self.cleaning = Counted(
            held.sources, held.joins, parents, held.ledger, held.blocks, held.writer, held.counters, FAR_PAST
        )
        self.told: list[list[int]] = []
        self.cleanup = Instalments(
            self.cleaning, held.ledger, 2, LIFE, lambda _, groups: self.told.append(list(groups.get(0, ())))
        )
        self.cleanup.begin([set(range(GROUPS)), set()], TUPLES)

    def merged(self, turn: int) -> int:
        """Tuples of an instalment."""
        return sum(self.sizes[g] for g in self.told[turn])


def test_an_instalment_has_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """While there is time; the last group may be too much. It goes on where the one before has stopped."""
    least = 150
    owing = Owing(monkeypatch, least)
    turns = 0
    while owing.cleanup:
        owing.cleanup.go_on(TUPLES, 0)
        turns += 1
    cleaned = [owing.merged(turn) for turn in range(turns)]
    assert max(cleaned) < least + max(owing.sizes)
    assert min(cleaned[:-2]) >= least
    assert [g for groups in owing.told for g in groups] == list(range(GROUPS))


def test_all_that_is_left_is_merged_in_large_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """To merge groups one by one takes ten times as long; once only the first turn was large."""
    owing = Owing(monkeypatch, 1)
    monkeypatch.setattr(cleaning, "MERGED_TUPLES", sum(owing.sizes) // 4)
    owing.cleanup.finish(TUPLES, 0)
    assert [g for groups in owing.told for g in groups] == list(range(GROUPS))
    assert 4 <= owing.cleaning.turns <= 8


def test_a_cleanup_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every instalment takes its share of what is left, by the time that has gone by; a group more at most."""
    owing = Owing(monkeypatch, 1)
    done = 0
    for turn, past in enumerate((200, 400, 600, 800, PATIENCE)):
        owing.cleanup.go_on(TUPLES + past, 0)
        done += owing.merged(turn)
        due = past / PATIENCE * sum(owing.sizes)
        assert due - 1 <= done <= due + (turn + 1) * max(owing.sizes)
    assert done == sum(owing.sizes)
