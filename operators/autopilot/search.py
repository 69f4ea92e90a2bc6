"""Prices plans and finds the cheapest: `price`, `cheapest_plan`, and for comparison `cheapest_by_last_join`.

A plan's price is the work of its joins in seconds of one core per second of event time, by the unit costs of
`operators.migration.sizes`, corrected by what the engine has been seen to take (`operators.autopilot.learning`). Up to
MOST_SUBSETS aliases all bushy trees without cross products are compared, by dynamic programming over subsets. Beyond,
by dynamic programming over the intervals of an order of the aliases, as in linearized dynamic programming (Neumann and
Radke, SIGMOD 2018); the orders tried are the leaves of the running plan and those of a greedy tree (Fegaras 1998).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, combinations
from typing import Any

import numpy as np

from operators.autopilot.evidence import Evidence
from operators.autopilot.sizes import SetSizes, sizes_of
from operators.kernels.hashing import F64
from operators.kernels.plans import cheapest_intervals, cheapest_trees, joining_cost
from operators.plan.plan import Join, Leaf, Plan, postorder
from schemas.columns import I64

MOST_SUBSETS = 12
"""Up to this many aliases all bushy trees are compared: 3^12 / 2 splits take a few milliseconds."""


def price(evidence: Evidence, plan: Plan) -> float:
    """Return the work of a plan, in seconds of one core per second of event time."""
    return float(prices(evidence, plan).sum())


def prices(evidence: Evidence, plan: Plan) -> F64:
    """Return (n,) the work of each of a plan's joins, children before parents."""
    return PlanPrices([plan]).joins(evidence)


class PlanPrices:
    """Prices some plans over the same aliases by one evidence after the other."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._aliases = plans[0].aliases
        nodes = [list(postorder(plan)) for plan in plans]
        number: dict[frozenset[str], int] = {}
        for node in chain.from_iterable(nodes):
            number.setdefault(frozenset(node.aliases), len(number))
        self._members = np.array([[alias in some for alias in self._aliases] for some in number])
        joins = [[node for node in of_plan if isinstance(node, Join)] for of_plan in nodes]
        every = list(chain.from_iterable(joins))
        ends: tuple[list[Plan], ...] = ([*every], [join.left for join in every], [join.right for join in every])
        self._at = [np.array([number[frozenset(node.aliases)] for node in end], np.int64) for end in ends]
        self._begin = np.cumsum([0, *(len(of_plan) for of_plan in joins[:-1])])

    def joins(self, evidence: Evidence) -> F64:
        """Return the work of each plan's joins, plan after plan."""
        sizes = sizes_of(evidence, self._members, self._aliases)
        return np.asarray(joining_cost(*self._at, *_arrays(sizes), np.array(evidence.units)))

    def of(self, evidence: Evidence) -> F64:
        """Return the price of each plan, as `price` does."""
        return np.asarray(np.add.reduceat(self.joins(evidence), self._begin))


def squared_error(plans: PlanPrices, evidence: Evidence, beside: F64) -> float:
    """Return the expected squared error of the logarithm of the first plan's price divided by the second's.

    Prices are products of shares, whose errors are factors. A sample with few matches may leave open by what factor the
    running plan costs more, and leave no doubt that it does.

    Args:
        beside: (plans,) what else each plan costs, in seconds of one core per second of event time.
    """

    def ratio(of: Evidence) -> float:
        first, second, *_ = (plans.of(of) + beside).tolist()
        return math.log(first / second)

    known = ratio(evidence)
    return sum(weight * (ratio(other) - known) ** 2 for other, weight in evidence.varied())


def cheapest_plan(evidence: Evidence, running: Plan) -> Plan:
    """Return the cheapest plan found; of equally cheap ones the running one."""
    aliases = running.aliases
    if _has_no_order(evidence):
        return running
    found = _Subsets(evidence, aliases).best if len(aliases) <= MOST_SUBSETS else _of_intervals(evidence, running)
    if same_tree(found, running):
        return running
    cost, cost_now = PlanPrices([found, running]).of(evidence)
    return running if cost >= cost_now else found


def cheapest_by_last_join(evidence: Evidence, running: Plan, most: int) -> list[Plan]:
    """Return the cheapest plan for each choice of the last join's inputs, without cross products if one has none: the
    cheapest `most` of them, in order. Beyond MOST_SUBSETS aliases, those of the orders that `cheapest_plan` tries."""
    aliases = running.aliases
    if _has_no_order(evidence):
        return []
    if len(aliases) <= MOST_SUBSETS:
        return _Subsets(evidence, aliases).by_last_join(most)
    return sorted(_of_orders(evidence, running), key=lambda plan: price(evidence, plan))[:most]


def _has_no_order(evidence: Evidence) -> bool:
    """Return whether something is subtracted whatever it contains."""
    return bool(evidence.query.subtracted) and len(evidence.pairs) < len(evidence.arrivals) - 1


def same_tree(a: Plan, b: Plan) -> bool:
    """Return whether two plans make the same sub-plans, whichever input is left."""
    return {frozenset(node.aliases) for node in postorder(a)} == {frozenset(node.aliases) for node in postorder(b)}


def _arrays(sizes: SetSizes, shape: tuple[int, ...] = (-1,)) -> tuple[Any, ...]:
    """Return the arguments of the kernels, each in a shape."""
    found = (sizes.rate, sizes.held, sizes.share, sizes.keyed, sizes.links, sizes.keys)
    return tuple(np.ascontiguousarray(array.reshape(shape)) for array in found)


class _Subsets:
    """The cheapest tree of every subset of some aliases, by bit mask."""

    def __init__(self, evidence: Evidence, aliases: tuple[str, ...]) -> None:
        self._aliases = aliases
        masks = np.arange(1 << len(aliases), dtype=np.int64)
        members = (masks[:, np.newaxis] >> np.arange(len(aliases)) & 1).astype(np.bool_)
        self._arrays = _arrays(sizes_of(evidence, members, aliases))
        self._units = np.array(evidence.units)
        self._crossing = False
        self._cost, self._left = cheapest_trees(*self._arrays, self._units, False)
        if not np.isfinite(self._cost[-1]):
            self._crossing = True
            self._cost, self._left = cheapest_trees(*self._arrays, self._units, True)

    @property
    def best(self) -> Plan:
        """The cheapest tree of all aliases."""
        return self._tree(len(self._cost) - 1)

    def by_last_join(self, most: int) -> list[Plan]:
        """Return the cheapest tree for each choice of the last join's inputs: the cheapest `most` of them, in order."""
        whole, links = len(self._cost) - 1, self._arrays[4]
        left = np.arange(1, whole, 2, dtype=np.int64)  # each has the first alias
        below, apart = (of[left] + of[whole ^ left] for of in (self._cost, links))
        there = np.isfinite(below) & (self._crossing | (links[whole] > apart))
        left, below = left[there], below[there]
        cost = below + joining_cost(np.full_like(left, whole), left, whole ^ left, *self._arrays, self._units)
        chosen = left[np.argsort(cost, kind="stable")[:most]].tolist()
        return [Join(self._tree(mask), self._tree(whole ^ mask)) for mask in chosen]

    def _tree(self, mask: int) -> Plan:
        if mask & (mask - 1) == 0:
            return Leaf(self._aliases[mask.bit_length() - 1])
        left = int(self._left[mask])
        return Join(self._tree(left), self._tree(mask ^ left))


def _of_intervals(evidence: Evidence, running: Plan) -> Plan:
    return min(_of_orders(evidence, running), key=lambda plan: price(evidence, plan))


def _of_orders(evidence: Evidence, running: Plan) -> list[Plan]:
    orders = (running.aliases, _greedy(evidence, running.aliases).aliases)
    return [cheapest_of_order(evidence, order) for order in orders]


def cheapest_of_order(evidence: Evidence, aliases: tuple[str, ...]) -> Plan:
    """Return the cheapest plan whose leaves are in this order. O(n^3)."""
    n = len(aliases)
    places = np.arange(n)
    first, last = places[:, np.newaxis, np.newaxis], places[np.newaxis, :, np.newaxis]
    members = ((places >= first) & (places <= last)).reshape(n * n, n)
    members[~members.any(axis=1), 0] = True  # where first > last there is no interval
    arrays = _arrays(sizes_of(evidence, members, aliases), (n, n))
    cost, split = cheapest_intervals(*arrays, np.array(evidence.units), False)
    if not np.isfinite(cost[0, n - 1]):
        cost, split = cheapest_intervals(*arrays, np.array(evidence.units), True)
    return _tree(aliases, split, 0, n - 1)


def _tree(aliases: tuple[str, ...], split: I64, first: int, last: int) -> Plan:
    if first == last:
        return Leaf(aliases[first])
    middle = int(split[first, last])
    return Join(_tree(aliases, split, first, middle), _tree(aliases, split, middle + 1, last))


def _greedy(evidence: Evidence, aliases: tuple[str, ...]) -> Plan:
    """Join the related pair with the fewest results until one tree is left; unrelated pairs last.

    A tree is known by the position of its first alias. Each pair is judged once: O(n^2) pairs.
    """
    trees: dict[int, Plan] = {number: Leaf(alias) for number, alias in enumerate(aliases)}
    judged: dict[tuple[int, int], tuple[bool, float]] = {}

    def judge(pairs: list[tuple[int, int]]) -> None:
        both = [frozenset(trees[i].aliases + trees[j].aliases) for i, j in pairs]
        sets = both + [frozenset(trees[k].aliases) for pair in pairs for k in pair]
        sizes = sizes_of(evidence, np.array([[alias in some for alias in aliases] for some in sets]), aliases)
        apart = sizes.links[len(pairs) :].reshape(-1, 2).sum(axis=1)
        for n, pair in enumerate(pairs):
            judged[pair] = bool(sizes.links[n] <= apart[n]), float(sizes.rate[n])

    judge(list(combinations(trees, 2)))
    while judged:
        i, j = min(judged, key=lambda pair: (*judged[pair], pair))
        trees[i] = Join(trees[i], trees.pop(j))
        for pair in [pair for pair in judged if not {i, j}.isdisjoint(pair)]:
            del judged[pair]
        if len(trees) > 1:
            judge([(min(i, k), max(i, k)) for k in trees if k != i])
    return trees[0]
