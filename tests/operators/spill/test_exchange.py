"""Productivity across tasks: what each counts alone and is told sums to what one task would count (state-spill 5)."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from msgspec import structs

from operators.spill.exchange import Exchange
from operators.spill.productivity import HALF_LIFE, SAMPLED_RESULTS, Productivity
from schemas.errors import InvariantError, StateError
from schemas.messages.control import PartitionTotals, decode_control, encode_control
from tests.operators.spill.test_productivity import CHAIN, GROUPS, Traced, chain_slice

NAMES = ("(A B)", "((A B) C)", "(((A B) C) D)")
PLAN = NAMES[-1]
TASKS = 3


class Shares:
    """One run of the chain whose results are noted by several tasks in turn, each of which holds a share of groups."""

    def __init__(self, seed: int) -> None:
        self.whole = Traced(CHAIN, PLAN)
        owner = np.random.default_rng(seed).integers(TASKS, size=(3, GROUPS))
        self.held = [owner == task for task in range(TASKS)]
        self.counts = [Productivity(self.whole.sources, self.whole.joins, GROUPS, held=held) for held in self.held]
        self.tasks = [Exchange(counts, NAMES) for counts in self.counts]
        self.messages: list[PartitionTotals] = []

    def slice(self, seed: int) -> None:
        # Few rows, so that everything is traced.
        self.whole.slice(**chain_slice(seed, 12))
        assert max(len(made[-1]) for made in self.whole.made) < SAMPLED_RESULTS
        for join, made in enumerate(self.whole.made):
            self.counts[seed % TASKS].note(join, made[-1], final=join == 2)

    def tell(self) -> None:
        for number, task in enumerate(self.tasks):
            for message in task.updates("q", number, f"life-{number}"):
                sent = decode_control(encode_control(message), "here")
                assert isinstance(sent, PartitionTotals)
                self.messages.append(sent)

    def check(self) -> None:
        for name in ("output", "inter"):
            together = sum(
                np.where(held, getattr(counts, name), 0.0) for held, counts in zip(self.held, self.counts, strict=True)
            )
            assert together == pytest.approx(getattr(self.whole.counts, name))


@pytest.mark.parametrize("seed", range(3))
def test_tasks_together_count_what_one_would(seed: int) -> None:
    """Messages come late, several times, and in any order; each to every task."""
    shares = Shares(seed)
    for number in range(4):
        shares.slice(number)
        shares.tell()
    assert shares.whole.counts.inter.sum() > 0
    for exchange in shares.tasks:
        order = shares.messages * 2
        Random(seed).shuffle(order)
        for message in order:
            exchange.merge(message)
    shares.check()


def test_what_was_lost_comes_with_the_next() -> None:
    shares = Shares(1)
    shares.slice(0)
    shares.tell()
    lost, shares.messages = shares.messages, []
    for _ in range(3):
        shares.slice(0)  # the same rows again: every group that was told of is told of again
    shares.tell()
    told = {(m.task, m.operator, group) for m in shares.messages for group in m.groups}
    assert {(m.task, m.operator, group) for m in lost for group in m.groups} <= told
    for exchange in shares.tasks:
        for message in shares.messages:
            exchange.merge(message)
    shares.check()


def test_nothing_new_is_not_told() -> None:
    shares = Shares(1)
    shares.slice(0)
    shares.tell()
    assert shares.messages
    for message in shares.messages:
        join = NAMES.index(message.operator)
        assert not shares.held[message.task][join, message.groups].any()
    shares.messages = []
    shares.tell()
    assert shares.messages == []


def test_what_is_held_fades_and_what_is_told_does_not() -> None:
    shares = Shares(1)
    shares.slice(0)
    counts, held = shares.counts[0], shares.held[0]
    before = counts.inter.copy()
    assert before[held].sum() > 0
    assert before[~held].sum() > 0
    counts.age(HALF_LIFE)
    assert counts.inter[held] == pytest.approx(before[held] / 2)
    assert counts.inter[~held] == pytest.approx(before[~held])


def test_what_faded_since_it_was_told_stays_so() -> None:
    shares = Shares(1)
    shares.slice(0)
    shares.tell()
    message = next(m for m in shares.messages if sum(m.inter_bytes))
    join, group = NAMES.index(message.operator), message.groups[int(np.argmax(message.inter_bytes))]
    (holder,) = (task for task in range(TASKS) if shares.held[task][join, group])
    exchange, counts = shares.tasks[holder], shares.counts[holder]
    exchange.merge(message)
    counts.spilled(np.zeros(0, np.int64), np.zeros(0, np.int64), 0.5)
    left = counts.inter.copy()
    assert left[join, group] > 0
    exchange.merge(message)
    assert counts.inter == pytest.approx(left)


def test_what_does_not_fit_is_refused_or_passed_over() -> None:
    shares = Shares(1)
    task, counts = shares.tasks[0], shares.counts[0]
    good = PartitionTotals(query="q", task=1, life="x", operator=PLAN, groups=[3], output=[1.0], inter_bytes=[0.0])
    task.merge(structs.replace(good, operator="(A C)"))
    assert counts.output.sum() == 0
    with pytest.raises(StateError, match="groups 16 to 16; there are 0 to 15"):
        task.merge(structs.replace(good, groups=[16]))
    with pytest.raises(StateError, match="1 groups, 2 outputs, 1 sizes"):
        task.merge(structs.replace(good, output=[1.0, 2.0]))
    task.merge(good)
    assert counts.output.sum() == float(shares.held[0][2, 3])
    with pytest.raises(InvariantError, match="nothing to tell"):
        Exchange(shares.whole.counts, NAMES)
