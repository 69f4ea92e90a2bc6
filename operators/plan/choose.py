"""Chooses a plan from declared or sampled statistics: `choose_plan`, by the costs of `CostModel`.

The cost of a plan is the number of tuples that its joins take in and put out per second of event time: inputs are
inserted and probed, outputs are built. Sizes follow the textbook model (System R). A window holds rate x length tuples.
An equality keeps one pair in max(distinct values), an order comparison one in three, LIKE, IN and IS NULL one in four,
any other predicate one in two; predicates are independent of each other. Equalities that follow from each other count
as one wherever they join two sides (`operators.plan.equalities`). The search covers all bushy trees without cross
products up to MAX_EXHAUSTIVE_ALIASES aliases and is greedy beyond.

A table's rows do not arrive. A table joined with a stream costs what the stream's tuples cost; joined with another
table it costs their rows and results, once.

A set difference subtracts in ascending order of cost per share of the tuples that an operator stops. That is the best
order of filters that are independent of each other (Hellerstein 1993).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from operators.data.evaluate import batch_reader, holds
from operators.data.keys import column_words
from operators.plan.equalities import equality_classes
from operators.plan.plan import Join, Leaf, Plan, left_deep, postorder
from operators.plan.predicates import conjuncts, selections
from schemas.columns import Batch, Column
from schemas.errors import InvariantError
from schemas.query import Compare, Expr, InList, IsNull, Like, Query, Stream, aliases_of, columns_of

MAX_EXHAUSTIVE_ALIASES = 9
"""Up to this many aliases every bushy tree is considered (3^9 splits)."""

DEFAULT_RATE = 1000.0
DEFAULT_DISTINCT = 1000.0
DEFAULT_SELECTION = 0.25
ORDER_SELECTIVITY = 1 / 3
OTHER_SELECTIVITY = 1 / 4
ENDLESS_SECONDS = 3600.0
"""The length assumed of an UNBOUNDED window, and the period over which one-time work is spread."""
DEFAULT_TABLE_ROWS = 1000.0


@dataclass(frozen=True, slots=True)
class Statistics:
    """What is known of the input.

    Attributes:
        rates: tuples per second of event time, by alias, before selections.
        distinct: number of distinct values, by (alias, column).
        selected: share of the tuples that pass the alias's selections, by alias.
        sampled: True when any of these was measured.
        rows: number of rows of a table, by alias, before selections.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    distinct: Mapping[tuple[str, str], float] = field(default_factory=dict)
    selected: Mapping[str, float] = field(default_factory=dict)
    sampled: bool = False
    rows: Mapping[str, float] = field(default_factory=dict)


def declared_statistics(query: Query, tables: Mapping[str, Batch] | None = None) -> Statistics:
    """Return the statistics in the stream declarations (`rate`, `distinct`), and those of the tables' rows."""
    declared = [(s.alias, s.stream) for s in query.sources if isinstance(s.stream, Stream)]
    rates = {alias: stream.rate for alias, stream in declared if stream.rate is not None}
    distinct = {(alias, name): float(n) for alias, stream in declared for name, n in stream.distinct}
    return _observed(query, tables or {}, Statistics(rates, distinct))


def sample_statistics(query: Query, samples: Mapping[str, Batch]) -> Statistics:
    """Measure statistics on a prefix of each stream; declared ones take precedence.

    Args:
        samples: by stream name, a batch with all declared fields in any order of time; by table name, the whole table.
    """
    return replace(_observed(query, samples, declared_statistics(query)), sampled=True)


def _observed(query: Query, samples: Mapping[str, Batch], declared: Statistics) -> Statistics:
    rates, distinct = dict(declared.rates), dict(declared.distinct)
    rows: dict[str, float] = {}
    selected: dict[str, float] = {}
    for source in query.sources:
        batch = samples.get(source.stream.name)
        if batch is not None and source.is_static:
            rows[source.alias] = float(len(batch))
        if batch is None or len(batch) == 0:
            continue
        if not source.is_static:
            span = float(batch.ts.max() - batch.ts.min())
            rates.setdefault(source.alias, len(batch) * 1000.0 / max(span, 1.0))
        passed = np.ones(len(batch), np.bool_)
        # A sample of a stream lacks what its tuples will be looked up for.
        there = {"_ts", *batch.columns}
        for predicate in selections(query, source.alias):
            if all(column.name in there for column in columns_of(predicate)):
                passed &= holds(predicate, batch_reader(batch), len(batch))
        selected[source.alias] = max(float(passed.mean()), 0.5 / len(batch))
        for predicate in conjuncts(query):
            for column in columns_of(predicate):
                key = (column.alias, column.name)
                read = column.alias == source.alias and column.name in there
                if read and key not in distinct and len(aliases_of(predicate)) > 1:
                    distinct[key] = _distinct(batch_reader(batch)(column))
    return Statistics(rates, distinct, selected, rows=rows)


def _distinct(column: Column) -> float:
    """Estimate the distinct values of the population from a sample (Chao 1984): seen + once^2 / (2 * twice)."""
    words = column_words(column)
    if column.valid is not None:
        words = words[column.valid]
    if len(words) == 0:
        return 1.0
    _, counts = np.unique(words, return_counts=True)
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    return float(len(counts) + once * once / (2.0 * max(twice, 1)))


@dataclass(frozen=True, slots=True)
class Estimate:
    """Expected behaviour of one sub-plan.

    Attributes:
        rate: tuples per second of event time that it produces.
        alive: its tuples that are alive at one time.
        cost: tuples taken in and put out per second by all its joins.
    """

    rate: float
    alive: float
    cost: float


@dataclass(frozen=True, slots=True)
class _ClassSelectivity:
    """The selectivity of an equality class (`operators.plan.equalities`), of which one equality joins two sides.

    Attributes:
        aliases: the aliases that have an operand in the class.
        distinct: number of distinct values of each alias's operand, where it is known.
    """

    aliases: frozenset[str]
    distinct: Mapping[str, float]

    def spans(self, left: frozenset[str], right: frozenset[str]) -> bool:
        """Return whether the class has operands on both sides."""
        return not (self.aliases.isdisjoint(left) or self.aliases.isdisjoint(right))

    def share(self, left: frozenset[str], right: frozenset[str]) -> float:
        """Return the share of the pairs that it keeps.

        A side that has been joined has no more distinct values than its operand with the fewest.
        """
        sides = ([d for alias, d in self.distinct.items() if alias in side] for side in (left, right))
        return 1.0 / max((min(side) for side in sides if side), default=DEFAULT_DISTINCT)


class CostModel:
    """Sizes and costs of the sub-plans of one query under given statistics."""

    def __init__(self, query: Query, statistics: Statistics) -> None:
        self.query = query
        self.statistics = statistics
        classes = {} if query.subtracted else equality_classes(query.predicates)
        self._joins = [(p, aliases_of(p)) for p in conjuncts(query) if len(aliases_of(p)) > 1 and p not in classes]
        self._classes = [
            _ClassSelectivity(
                frozenset(equal.operands), {a: d for a, o in equal.operands.items() if (d := self._distinct_of(o))}
            )
            for equal in dict.fromkeys(classes.values())
        ]
        # By alias: the other aliases of each predicate and of each class, and the share of the pairs that it keeps.
        self._links: dict[str, list[tuple[frozenset[str], float]]] = {source.alias: [] for source in query.sources}
        self._equal: dict[str, list[tuple[frozenset[str], float]]] = {source.alias: [] for source in query.sources}
        for predicate, used in self._joins:
            for alias in used:
                self._links[alias].append((used - {alias}, self._predicate(predicate)))
        for equal in self._classes:
            for alias in equal.aliases:
                others = equal.aliases - {alias}
                self._equal[alias].append((others, equal.share(frozenset({alias}), others)))

    def leaf(self, alias: str) -> Estimate:
        """Estimate a source after its selections."""
        source = self.query.source(alias)
        share = self.statistics.selected.get(alias)
        if share is None:
            share = DEFAULT_SELECTION ** min(len(selections(self.query, alias)), 3)
        if not isinstance(source.stream, Stream):
            return Estimate(0.0, self.statistics.rows.get(alias, DEFAULT_TABLE_ROWS) * share, 0.0)
        rate = self.statistics.rates.get(alias, source.stream.rate or DEFAULT_RATE)
        match source.window.kind:
            case "RANGE":
                alive = rate * share * source.window.size / 1000.0
            case "ROWS":
                alive = float(source.window.size) * share
            case _:
                alive = rate * share * ENDLESS_SECONDS
        return Estimate(rate * share, alive, 0.0)

    def selectivity(self, left: frozenset[str], right: frozenset[str]) -> float:
        """Estimate the share of the pairs of two sides that the predicates between them keep."""
        share = 1.0
        for predicate, used in self._joins:
            if used <= left | right and not used <= left and not used <= right:
                share *= self._predicate(predicate)
        for equal in self._classes:
            if equal.spans(left, right):
                share *= equal.share(left, right)
        return share

    def _predicate(self, predicate: Expr) -> float:
        """Estimate the share of the pairs that a predicate keeps."""
        if isinstance(predicate, Compare) and predicate.op == "=":
            return 1.0 / (self._distinct_of(predicate) or DEFAULT_DISTINCT)
        if isinstance(predicate, Compare) and predicate.op != "<>":
            return ORDER_SELECTIVITY
        return OTHER_SELECTIVITY if isinstance(predicate, Like | InList | IsNull) else 0.5

    def _distinct_of(self, expr: Expr) -> float | None:
        """Return the largest number of distinct values among the columns that it reads; None where none is known."""
        known = self.statistics.distinct
        return max((known[key] for c in columns_of(expr) if (key := (c.alias, c.name)) in known), default=None)

    def shares(self, alias: str, others: Set[str]) -> list[float]:
        """Return the share of the pairs that each predicate between an alias and others keeps.

        An equality class counts as one predicate.
        """
        found = [share for used, share in self._links[alias] if used <= others]
        return found + [share for used, share in self._equal[alias] if not used.isdisjoint(others)]

    def connected(self, left: frozenset[str], right: frozenset[str]) -> bool:
        """Return whether some predicate, written or implied, relates the two sides and no third alias."""
        return any(used <= left | right and used & left and used & right for _, used in self._joins) or any(
            equal.spans(left, right) for equal in self._classes
        )

    def join(self, left: Estimate, right: Estimate, selectivity: float, hashed: bool) -> Estimate:
        """Estimate the join of two sub-plans: each side's new tuples meet the other side's living ones."""
        rate = (left.rate * right.alive + right.rate * left.alive) * selectivity
        if left.rate == right.rate == 0:  # tables, joined once
            pairs = left.alive * right.alive
            once = left.alive + right.alive + pairs * selectivity + (0.0 if hashed else 0.1 * pairs)
            return Estimate(0.0, pairs * selectivity, left.cost + right.cost + once / ENDLESS_SECONDS)
        alive = left.alive * right.alive * selectivity
        examined = 0.0 if hashed else left.rate * right.alive + right.rate * left.alive
        return Estimate(rate, alive, left.cost + right.cost + left.rate + right.rate + rate + 0.1 * examined)

    def subtract(self, left: Estimate, right: Estimate, selectivity: float, hashed: bool) -> Estimate:
        """Estimate the rest of a sub-plan when a stream is subtracted: a tuple's matches are independent (Poisson).

        A tuple that has been covered enters the answer again when its match ends.
        """
        free = math.exp(-right.alive * selectivity)
        taken = right.rate * left.alive * free * min(selectivity, 1.0)
        pairs = left.rate * right.alive + right.rate * left.alive
        cost = left.cost + left.rate + right.rate + pairs * (selectivity if hashed else selectivity + 0.1)
        return Estimate(left.rate * free + taken, left.alive * free, cost)

    def hashed(self, left: frozenset[str], right: frozenset[str]) -> bool:
        """Return whether an equality relates the two sides."""
        return any(
            isinstance(p, Compare) and p.op == "=" and used <= left | right and used & left and used & right
            for p, used in self._joins
        ) or any(equal.spans(left, right) for equal in self._classes)

    def estimates(self, plan: Plan) -> dict[frozenset[str], Estimate]:
        """Estimate every sub-plan of a plan, by its aliases."""
        found: dict[frozenset[str], Estimate] = {}
        for node in postorder(plan):
            if isinstance(node, Leaf):
                found[frozenset({node.alias})] = self.leaf(node.alias)
                continue
            left, right = frozenset(node.left.aliases), frozenset(node.right.aliases)
            combine = self.subtract if self.query.subtracted else self.join
            found[left | right] = combine(
                found[left], found[right], self.selectivity(left, right), self.hashed(left, right)
            )
        return found

    def estimate(self, plan: Plan) -> Estimate:
        """Estimate the whole plan."""
        return self.estimates(plan)[frozenset(plan.aliases)]


def choose_plan(query: Query, statistics: Statistics | None = None) -> Plan:
    """Choose the cheapest plan under the statistics; the declared ones when None. Deterministic."""
    model = CostModel(query, statistics or declared_statistics(query))
    aliases = [source.alias for source in query.sources]
    if query.subtracted:
        return left_deep([aliases[0], *_subtraction_order(model, aliases[0], aliases[1:])])
    if len(aliases) <= MAX_EXHAUSTIVE_ALIASES:
        return _exhaustive(model, aliases)
    return _greedy(model, aliases)


def _subtraction_order(model: CostModel, first: str, rest: list[str]) -> list[str]:
    """Order the subtracted streams by cost per share of the tuples that each stops; ties in the order of the text."""
    whole = model.leaf(first)

    def price(alias: str) -> float:
        sides = frozenset({first}), frozenset({alias})
        left = model.subtract(whole, model.leaf(alias), model.selectivity(*sides), model.hashed(*sides))
        return left.cost / max(whole.alive - left.alive, 1e-9 * max(whole.alive, 1.0))

    return sorted(rest, key=price)


_SubPlan = tuple[Estimate, Plan, frozenset[str]]


def _candidate(model: CostModel, a: _SubPlan, b: _SubPlan) -> _SubPlan:
    """Estimate the join of two sub-plans."""
    estimate = model.join(a[0], b[0], model.selectivity(a[2], b[2]), model.hashed(a[2], b[2]))
    return estimate, Join(a[1], b[1]), a[2] | b[2]


def _exhaustive(model: CostModel, aliases: list[str]) -> Plan:
    """Find the cheapest tree without cross products; where predicates do not connect all aliases, of all trees."""
    plan = _cheapest(model, aliases, crossing=False) or _cheapest(model, aliases, crossing=True)
    if plan is None:
        raise InvariantError(f"no plan over {aliases}")
    return plan


def _cheapest(model: CostModel, aliases: list[str], *, crossing: bool) -> Plan | None:
    """Find the cheapest tree by dynamic programming over sets of aliases.

    Args:
        crossing: allow cross products.

    Returns:
        The tree; None when every tree has a cross product and `crossing` is False.
    """
    best: dict[frozenset[str], _SubPlan] = {}
    for alias in aliases:
        best[frozenset({alias})] = (model.leaf(alias), Leaf(alias), frozenset({alias}))
    for size in range(2, len(aliases) + 1):
        for chosen in combinations(aliases, size):
            whole = frozenset(chosen)
            made = []
            for count in range(1, size):
                for part in combinations(chosen[1:], count):
                    left, right = whole - frozenset(part), frozenset(part)
                    if left in best and right in best and (crossing or model.connected(left, right)):
                        made.append(_candidate(model, best[left], best[right]))
            if made:
                best[whole] = min(made, key=lambda c: c[0].cost)
    found = best.get(frozenset(aliases))
    return None if found is None else found[1]


def _greedy(model: CostModel, aliases: list[str]) -> Plan:
    """Join the pair of sub-plans with the smallest output until one sub-plan is left (Fegaras 1998).

    A sub-plan is identified by the index of its first alias. Each pair is judged once: O(n^2) candidates.
    """
    forest: dict[int, _SubPlan] = {
        i: (model.leaf(alias), Leaf(alias), frozenset({alias})) for i, alias in enumerate(aliases)
    }
    pairs: dict[tuple[int, int], tuple[bool, float, _SubPlan]] = {}

    def judge(i: int, j: int) -> None:
        made = _candidate(model, forest[i], forest[j])
        pairs[i, j] = (not model.connected(forest[i][2], forest[j][2]), made[0].rate, made)

    for i, j in combinations(forest, 2):
        judge(i, j)
    while pairs:
        i, j = min(pairs, key=lambda pair: (*pairs[pair][:2], *pair))
        forest[i] = pairs[i, j][2]
        del forest[j]
        pairs = {pair: found for pair, found in pairs.items() if not {i, j} & {*pair}}
        for k in forest:
            if k != i:
                judge(min(i, k), max(i, k))
    return forest[0][1]
