"""Chooses a plan from declared or sampled statistics.

The cost of a plan is the number of tuples that its joins take in and give out per second of event time:
inputs are entered and probed, outputs are built. Sizes follow the textbook model (System R): a window
holds rate x length tuples, an equality keeps one pair in max(distinct values), an order comparison one in
three, anything else one in four, independently of each other. Equalities that follow from each other count as one
wherever they join two sides (`operators.plan.equalities`). Exhaustive over bushy trees without cross products up to
EXHAUSTIVE aliases, greedy beyond.

A table's rows do not come: joined with a stream it costs what the stream's tuples cost, joined with another table what
their rows make, once.

A set difference subtracts in the order of its operators' cost per share of the tuples that they stop, which is
the best order of filters that are independent of each other (Hellerstein 1993).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from operators.data.evaluate import Resolve, holds
from operators.data.keys import column_words
from operators.plan.equalities import equality_classes
from operators.plan.plan import Join, Leaf, Plan, left_deep, postorder
from operators.plan.predicates import conjuncts, selections
from schemas.columns import Batch, Column
from schemas.errors import InvariantError
from schemas.query import Column as ColumnRef
from schemas.query import Compare, Expr, InList, IsNull, Like, Query, Stream, aliases_of, columns_of

EXHAUSTIVE = 9
"""Up to this many aliases every bushy tree is considered (3^9 splits)."""

DEFAULT_RATE = 1000.0
DEFAULT_DISTINCT = 1000.0
DEFAULT_SELECTION = 0.25
ORDER_SELECTIVITY = 1 / 3
OTHER_SELECTIVITY = 1 / 4
ENDLESS_SECONDS = 3600.0
"""An UNBOUNDED window is costed as if it were this long, and what is done once as if once in that time."""
DEFAULT_TABLE_ROWS = 1000.0


@dataclass(frozen=True, slots=True)
class Statistics:
    """What is known of the input.

    Attributes:
        rates: tuples per second of event time, by alias, before selections.
        distinct: distinct values, by (alias, column).
        selected: share of tuples that pass the alias's selections.
        rows: how many rows a table has, by alias, before selections.
        sampled: True when any of it was measured.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    distinct: Mapping[tuple[str, str], float] = field(default_factory=dict)
    selected: Mapping[str, float] = field(default_factory=dict)
    sampled: bool = False
    rows: Mapping[str, float] = field(default_factory=dict)


def declared_statistics(query: Query, tables: Mapping[str, Batch] | None = None) -> Statistics:
    """What the stream declarations say (`rate`, `distinct`), and what is in the tables."""
    declared = [(s.alias, s.stream) for s in query.sources if isinstance(s.stream, Stream)]
    rates = {alias: stream.rate for alias, stream in declared if stream.rate is not None}
    distinct = {(alias, name): float(n) for alias, stream in declared for name, n in stream.distinct}
    return _observed(query, tables or {}, Statistics(rates, distinct))


def sample_statistics(query: Query, samples: Mapping[str, Batch]) -> Statistics:
    """Statistics from a prefix of each stream; declared ones take precedence.

    Args:
        samples: by stream name, a batch with all declared fields, any order; by table name, the whole table.
    """
    return replace(_observed(query, samples, declared_statistics(query)), sampled=True)


def _observed(query: Query, samples: Mapping[str, Batch], declared: Statistics) -> Statistics:
    rates, distinct = dict(declared.rates), dict(declared.distinct)
    rows: dict[str, float] = {}
    selected: dict[str, float] = {}
    for source in query.sources:
        batch = samples.get(source.stream.name)
        if batch is not None and source.is_table:
            rows[source.alias] = float(len(batch))
        if batch is None or len(batch) == 0:
            continue
        if not source.is_table:
            span = float(batch.ts.max() - batch.ts.min())
            rates.setdefault(source.alias, len(batch) * 1000.0 / max(span, 1.0))
        passed = np.ones(len(batch), np.bool_)
        for predicate in selections(query, source.alias):
            passed &= holds(predicate, _resolver(batch), len(batch))
        selected[source.alias] = max(float(passed.mean()), 0.5 / len(batch))
        for predicate in conjuncts(query):
            for column in columns_of(predicate):
                key = (column.alias, column.name)
                if column.alias == source.alias and key not in distinct and len(aliases_of(predicate)) > 1:
                    distinct[key] = _distinct(_resolver(batch)(column))
    return Statistics(rates, distinct, selected, rows=rows)


def _resolver(batch: Batch) -> Resolve:
    def resolve(column: ColumnRef) -> Column:
        return Column(column.type, batch.ts) if column.name == "_ts" else batch.columns[column.name]

    return resolve


def _distinct(column: Column) -> float:
    """Distinct values of the population from a sample (Chao 1984): seen + once^2 / (2 * twice)."""
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
    """Expected behaviour of one sub-plan: tuples per second out, tuples alive, cost so far."""

    rate: float
    alive: float
    cost: float


@dataclass(frozen=True, slots=True)
class _Class:
    """Equalities that follow from each other (`operators.plan.equalities`): one of them joins two sides.

    Attributes:
        distinct: values of the operands, by alias, as far as they are known.
    """

    aliases: frozenset[str]
    distinct: Mapping[str, float]

    def spans(self, left: frozenset[str], right: frozenset[str]) -> bool:
        """Whether it has operands on both sides."""
        return not (self.aliases.isdisjoint(left) or self.aliases.isdisjoint(right))

    def share(self, left: frozenset[str], right: frozenset[str]) -> float:
        """Of the pairs that it keeps: what has been joined has no more values than its operand of fewest."""
        sides = ([d for alias, d in self.distinct.items() if alias in side] for side in (left, right))
        return 1.0 / max((min(side) for side in sides if side), default=DEFAULT_DISTINCT)


class CostModel:
    """Sizes of sub-plans of one query under given statistics."""

    def __init__(self, query: Query, statistics: Statistics) -> None:
        self.query = query
        self.statistics = statistics
        classes = {} if query.subtracted else equality_classes(query.predicates)
        self._joins = [(p, aliases_of(p)) for p in conjuncts(query) if len(aliases_of(p)) > 1 and p not in classes]
        self._classes = [
            _Class(frozenset(one.operands), {a: d for a, o in one.operands.items() if (d := self._distinct_of(o))})
            for one in dict.fromkeys(classes.values())
        ]
        # By alias: the others that a predicate reads, or that a class has operands of, and the share kept.
        self._links: dict[str, list[tuple[frozenset[str], float]]] = {source.alias: [] for source in query.sources}
        self._equal: dict[str, list[tuple[frozenset[str], float]]] = {source.alias: [] for source in query.sources}
        for predicate, used in self._joins:
            for alias in used:
                self._links[alias].append((used - {alias}, self._predicate(predicate)))
        for one in self._classes:
            for alias in one.aliases:
                others = one.aliases - {alias}
                self._equal[alias].append((others, one.share(frozenset({alias}), others)))

    def leaf(self, alias: str) -> Estimate:
        """A source after its selections."""
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
        """Share of the pairs of the two sides that the predicates between them keep."""
        share = 1.0
        for predicate, used in self._joins:
            if used <= left | right and not used <= left and not used <= right:
                share *= self._predicate(predicate)
        for one in self._classes:
            if one.spans(left, right):
                share *= one.share(left, right)
        return share

    def _predicate(self, predicate: Expr) -> float:
        if isinstance(predicate, Compare) and predicate.op == "=":
            return 1.0 / (self._distinct_of(predicate) or DEFAULT_DISTINCT)
        if isinstance(predicate, Compare) and predicate.op != "<>":
            return ORDER_SELECTIVITY
        return OTHER_SELECTIVITY if isinstance(predicate, Like | InList | IsNull) else 0.5

    def _distinct_of(self, expr: Expr) -> float | None:
        """The most distinct values of a column that it reads; None where nothing is known."""
        known = self.statistics.distinct
        return max((known[key] for c in columns_of(expr) if (key := (c.alias, c.name)) in known), default=None)

    def shares(self, alias: str, others: Set[str]) -> list[float]:
        """What the predicates between an alias and others keep of the pairs, each; one of a class of equalities."""
        found = [share for used, share in self._links[alias] if used <= others]
        return found + [share for used, share in self._equal[alias] if not used.isdisjoint(others)]

    def connected(self, left: frozenset[str], right: frozenset[str]) -> bool:
        """True when some predicate, written or implied, spans the two sides and nothing else."""
        return any(used <= left | right and used & left and used & right for _, used in self._joins) or any(
            one.spans(left, right) for one in self._classes
        )

    def join(self, left: Estimate, right: Estimate, selectivity: float, hashed: bool) -> Estimate:
        """The join of two sub-plans: each side's new tuples meet the other side's living ones."""
        rate = (left.rate * right.alive + right.rate * left.alive) * selectivity
        if left.rate == right.rate == 0:  # tables, joined once
            pairs = left.alive * right.alive
            once = left.alive + right.alive + pairs * selectivity + (0.0 if hashed else 0.1 * pairs)
            return Estimate(0.0, pairs * selectivity, left.cost + right.cost + once / ENDLESS_SECONDS)
        alive = left.alive * right.alive * selectivity
        examined = 0.0 if hashed else left.rate * right.alive + right.rate * left.alive
        return Estimate(rate, alive, left.cost + right.cost + left.rate + right.rate + rate + 0.1 * examined)

    def subtract(self, left: Estimate, right: Estimate, selectivity: float, hashed: bool) -> Estimate:
        """What is left of a sub-plan when a stream is subtracted: matches come to a tuple independently (Poisson).

        A tuple that has been covered comes again when its match ends.
        """
        free = math.exp(-right.alive * selectivity)
        taken = right.rate * left.alive * free * min(selectivity, 1.0)
        pairs = left.rate * right.alive + right.rate * left.alive
        cost = left.cost + left.rate + right.rate + pairs * (selectivity if hashed else selectivity + 0.1)
        return Estimate(left.rate * free + taken, left.alive * free, cost)

    def hashed(self, left: frozenset[str], right: frozenset[str]) -> bool:
        """True when an equality lies between the sides."""
        return any(
            isinstance(p, Compare) and p.op == "=" and used <= left | right and used & left and used & right
            for p, used in self._joins
        ) or any(one.spans(left, right) for one in self._classes)

    def estimates(self, plan: Plan) -> dict[frozenset[str], Estimate]:
        """Every sub-plan of a plan, by its aliases."""
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
        """The whole plan."""
        return self.estimates(plan)[frozenset(plan.aliases)]


def choose_plan(query: Query, statistics: Statistics | None = None) -> Plan:
    """The cheapest plan under the statistics (declared ones when None). Deterministic."""
    model = CostModel(query, statistics or declared_statistics(query))
    aliases = [source.alias for source in query.sources]
    if query.subtracted:
        return left_deep([aliases[0], *_subtraction_order(model, aliases[0], aliases[1:])])
    if len(aliases) <= EXHAUSTIVE:
        return _exhaustive(model, aliases)
    return _greedy(model, aliases)


def _subtraction_order(model: CostModel, first: str, rest: list[str]) -> list[str]:
    """The cheapest per share of the tuples that it stops comes first; ties in the order of the text."""
    whole = model.leaf(first)

    def price(alias: str) -> float:
        sides = frozenset({first}), frozenset({alias})
        left = model.subtract(whole, model.leaf(alias), model.selectivity(*sides), model.hashed(*sides))
        return left.cost / max(whole.alive - left.alive, 1e-9 * max(whole.alive, 1.0))

    return sorted(rest, key=price)


_SubPlan = tuple[Estimate, Plan, frozenset[str]]


def _candidate(model: CostModel, a: _SubPlan, b: _SubPlan) -> _SubPlan:
    """The join of two sub-plans."""
    estimate = model.join(a[0], b[0], model.selectivity(a[2], b[2]), model.hashed(a[2], b[2]))
    return estimate, Join(a[1], b[1]), a[2] | b[2]


def _exhaustive(model: CostModel, aliases: list[str]) -> Plan:
    """The cheapest tree without cross products; where predicates do not connect all, the cheapest of all."""
    plan = _cheapest(model, aliases, crossing=False) or _cheapest(model, aliases, crossing=True)
    if plan is None:
        raise InvariantError(f"no plan over {aliases}")
    return plan


def _cheapest(model: CostModel, aliases: list[str], *, crossing: bool) -> Plan | None:
    """The cheapest tree by dynamic programming over sets of aliases; None when all have cross products."""
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
    """Join the pair of sub-plans with the smallest output, until one is left (Fegaras 1998).

    A sub-plan goes by the place of its first alias. Each pair is judged once: O(n^2) candidates.
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
