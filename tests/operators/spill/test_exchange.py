"""Productivity across tasks: own counts plus received ones sum to what a single task would count (state-spill 5)."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from msgspec import structs

from operators.spill.exchange import ProductivityExchange
from operators.spill.productivity import HALF_LIFE, SAMPLED_RESULTS, Productivity
from schemas.errors import InvariantError, StateError
from schemas.messages.control import PartitionTotals, decode_control, encode_control
from tests.operators.spill.test_productivity import CHAIN, GROUPS, Traced, chain_slice

NAMES = ("(A B)", "((A B) C)", "(((A B) C) D)")
PLAN = NAMES[-1]
TASKS = 3


class TaskShares:
    """One run of the chain whose results are counted by several tasks in turn, each of which owns a share of the
    groups."""

    def __init__(self, seed: int) -> None:
        self.whole = Traced(CHAIN, PLAN)
        owner = np.random.default_rng(seed).integers(TASKS, size=(3, GROUPS))
        self.owned = [owner == task for task in range(TASKS)]
        plan = self.whole.sources, self.whole.joins, GROUPS
        self.counts = [Productivity.of_plan(*plan, owned=owned) for owned in self.owned]
        self.tasks = [ProductivityExchange(counts, NAMES) for counts in self.counts]
        self.messages: list[PartitionTotals] = []

    def slice(self, seed: int) -> None:
        # Few rows, so that everything is traced.
        self.whole.slice(**chain_slice(seed, 12))
        assert max(len(made[-1]) for made in self.whole.made) < SAMPLED_RESULTS
        for join, made in enumerate(self.whole.made):
            self.counts[seed % TASKS].note(join, made[-1], final=join == 2)

    def send(self) -> None:
        for number, task in enumerate(self.tasks):
            for message in task.updates("q", number, f"life-{number}"):
                sent = decode_control(encode_control(message), "here")
                assert isinstance(sent, PartitionTotals)
                self.messages.append(sent)

    def check(self) -> None:
        for name in ("output", "inter"):
            pairs = zip(self.owned, self.counts, strict=True)
            together = sum(np.where(owned, getattr(counts, name), 0.0) for owned, counts in pairs)
            assert together == pytest.approx(getattr(self.whole.counts, name))


@pytest.mark.parametrize("seed", range(3))
def test_tasks_together_count_what_one_would(seed: int) -> None:
    """Messages arrive late, several times, and in any order; each at every task."""
    shares = TaskShares(seed)
    for number in range(4):
        shares.slice(number)
        shares.send()
    assert shares.whole.counts.inter.sum() > 0
    for exchange in shares.tasks:
        order = shares.messages * 2
        Random(seed).shuffle(order)
        for message in order:
            exchange.merge(message)
    shares.check()


def test_a_lost_message_is_made_up_for_by_the_next() -> None:
    shares = TaskShares(1)
    shares.slice(0)
    shares.send()
    lost, shares.messages = shares.messages, []
    for _ in range(3):
        shares.slice(0)  # the same rows again: every group that was in a message is in one again
    shares.send()
    sent_groups = {(m.task, m.operator, group) for m in shares.messages for group in m.groups}
    assert {(m.task, m.operator, group) for m in lost for group in m.groups} <= sent_groups
    for exchange in shares.tasks:
        for message in shares.messages:
            exchange.merge(message)
    shares.check()


def test_unchanged_counts_are_not_sent() -> None:
    shares = TaskShares(1)
    shares.slice(0)
    shares.send()
    assert shares.messages
    for message in shares.messages:
        join = NAMES.index(message.operator)
        assert not shares.owned[message.task][join, message.groups].any()
    shares.messages = []
    shares.send()
    assert shares.messages == []


def test_owned_counts_fade_and_sent_ones_do_not() -> None:
    shares = TaskShares(1)
    shares.slice(0)
    counts, owned = shares.counts[0], shares.owned[0]
    before = counts.inter.copy()
    assert before[owned].sum() > 0
    assert before[~owned].sum() > 0
    counts.age(HALF_LIFE)
    assert counts.inter[owned] == pytest.approx(before[owned] / 2)
    assert counts.inter[~owned] == pytest.approx(before[~owned])


def test_received_counts_that_faded_stay_faded() -> None:
    shares = TaskShares(1)
    shares.slice(0)
    shares.send()
    message = next(m for m in shares.messages if sum(m.inter_bytes))
    join, group = NAMES.index(message.operator), message.groups[int(np.argmax(message.inter_bytes))]
    (owner,) = (task for task in range(TASKS) if shares.owned[task][join, group])
    exchange, counts = shares.tasks[owner], shares.counts[owner]
    exchange.merge(message)
    counts.spilled(np.zeros(0, np.int64), np.zeros(0, np.int64), 0.5)
    left = counts.inter.copy()
    assert left[join, group] > 0
    exchange.merge(message)
    assert counts.inter == pytest.approx(left)


def test_messages_that_do_not_fit_are_refused_or_ignored() -> None:
    shares = TaskShares(1)
    task, counts = shares.tasks[0], shares.counts[0]
    good = PartitionTotals(
        query="q", task=1, incarnation="x", operator=PLAN, groups=[3], output=[1.0], inter_bytes=[0.0]
    )
    task.merge(structs.replace(good, operator="(A C)"))
    assert counts.output.sum() == 0
    with pytest.raises(StateError, match="groups 16 to 16; there are 0 to 15"):
        task.merge(structs.replace(good, groups=[16]))
    with pytest.raises(StateError, match="1 groups, 2 outputs, 1 sizes"):
        task.merge(structs.replace(good, output=[1.0, 2.0]))
    task.merge(good)
    assert counts.output.sum() == float(shares.owned[0][2, 3])
    with pytest.raises(InvariantError, match="nothing to report"):
        ProductivityExchange(shares.whole.counts, NAMES)
