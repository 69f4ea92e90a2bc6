"""Estimates the sizes of a query's sub-plans now, and the work of joining them, in comparisons and seconds.

`operators.migration.cost` uses it. A source's window holds `living` tuples, of which `rate` arrive per second. A
sub-plan holds the combinations that satisfy the predicates between its sources. If the running plan has a state of the
same sources, their number is the number that it counts there. Otherwise it is the product of the inputs' sizes and of
the selectivities of the predicates between them (`LinkStatistics`), taken as independent. A combination is made when
its latest component arrives, so a sub-plan's rate is its size times the sum of its sources' rate / living. A state's
tuples beyond the living ones have not been purged yet.

Joining two inputs by a key means walking the chains of equal keys and of the index's collisions; without a key, it
means scanning all pairs. The unit costs are measured; a loaded machine takes longer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from operators.data.statistics import EngineStatistics, LinkStatistics
from operators.plan.equalities import EqualityClass, equality_classes
from operators.plan.plan import Join, Leaf, Plan, postorder
from operators.plan.predicates import JoinCondition, Operand, conjuncts, join_condition
from schemas.query import Expr, Query, aliases_of

# Seconds per step, the best of seven runs of `python -m ops.bench.papers.unit_costs` on one 2.1 GHz Xeon core.
ENTER_S = 25e-9
"""Entering a tuple into a state."""
PROBE_S = 20e-9
"""Probing a hashed state with a tuple."""
MAKE_S = 150e-9
"""Making a tuple of two, including the comparisons that find it."""
SCAN_S = 11e-9
"""Checking a pair in a nested loop."""
COUNT_S = 110e-9
"""Counting a key: JISC counts a state's keys, a piece per slice."""
READ_S = 1e-6
"""Reading a spilled tuple, and storing it again."""
CALL_S = 70e-6
"""The fixed cost of calling a join."""
SLICE_S = 200e-6
"""The fixed cost of a slice."""

BOTH_SIDES = 2.0
"""Two whole inputs that probe each other walk every chain twice."""

HELD = 1.5
"""Tuples in a sub-plan's state per living tuple: expired tuples leave when room is needed."""

MIN_RING_SLOTS = 1024
"""The least slots of a state's index. They double, so a bucket has up to one entry more than it should."""

ENDLESS_S = 3600.0
"""The assumed length of an UNBOUNDED window."""

Aliases = frozenset[str]


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a source or sub-plan.

    Attributes:
        living: Tuples that a future tuple can match.
        held: Tuples in its state.
        rate: Tuples made per second.
    """

    living: float
    held: float
    rate: float


@dataclass(frozen=True, slots=True)
class Work:
    """An amount of work, in comparisons and in seconds."""

    comparisons: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.comparisons + other.comparisons, self.seconds + other.seconds)

    def __mul__(self, share: float) -> Work:
        return Work(self.comparisons * share, self.seconds * share)


def total(parts: Iterator[Work] | list[Work]) -> Work:
    """Return the sum."""
    found = Work()
    for part in parts:
        found += part
    return found


class Sizes:
    """The sizes of sub-plans of one query, and the work of joining them.

    Attributes:
        query: The query.
        leaves: Per alias, the size of the source.
        window_s: Per alias, the window in seconds; infinite for a table.
    """

    def __init__(self, query: Query, observed: EngineStatistics) -> None:
        self.query = query
        self._predicates = conjuncts(query)
        self._classes = {} if query.subtracted else equality_classes(query.predicates)
        self._touching = _touching(self._predicates, self._classes)
        self._links: tuple[LinkStatistics, ...] = tuple(link for link in observed.links if link.equality < 0)
        # `measure_links` numbers them in this order.
        self._numbered: list[EqualityClass] = list(dict.fromkeys(self._classes.values()))
        self._equal = [link for link in observed.links if link.equality >= 0]
        self.leaves: dict[str, Size] = {}
        self.window_s: dict[str, float] = {}
        for source in observed.sources:
            living = float(source.living_tuples)
            rate = max(source.per_second, 1e-9)
            if query.source(source.alias).is_static:
                self.leaves[source.alias] = Size(living, living, 0.0)
                self.window_s[source.alias] = math.inf
                continue
            match query.source(source.alias).window.kind:
                case "RANGE":
                    window = query.source(source.alias).window.size / 1000
                case "ROWS":
                    window = query.source(source.alias).window.size / rate
                case _:
                    window = max(ENDLESS_S, observed.span_ms / 1000)
            self.window_s[source.alias] = max(window, 1e-3)
            self.leaves[source.alias] = Size(living, living, rate)
        self._known: dict[Aliases, tuple[float, float]] = {}
        for operator in observed.operators:
            for side in (0, 1):
                if len(operator.aliases[side]) > 1 and operator.complete[side] and operator.track != "new":
                    counted = float(operator.living_tuples[side]), float(operator.state_tuples[side])
                    self._known.setdefault(frozenset(operator.aliases[side]), counted)
        self._sizes: dict[Aliases, Size] = {}
        self._signatures: dict[tuple[tuple[str, ...], tuple[str, ...], int], tuple[object, ...]] = {}
        self._conditions: dict[tuple[tuple[str, ...], tuple[str, ...]], JoinCondition] = {}
        self._shares: dict[tuple[Aliases, Aliases, bool], float] = {}

    @property
    def longest_s(self) -> float:
        """The longest window; tables have none."""
        return max(window for window in self.window_s.values() if window < math.inf)

    @property
    def arriving(self) -> float:
        """New tuples per second, of all sources."""
        return sum(size.rate for size in self.leaves.values())

    def life_s(self, aliases: Aliases) -> float:
        """Return how long after it is made a tuple can be matched, in seconds."""
        return min(self.window_s[alias] for alias in aliases)

    def share(self, left: Aliases, right: Aliases, *, of_key: bool = False) -> float:
        """Return the share of pairs that satisfy the predicates between two sides, or only their equalities."""
        key = left, right, of_key
        if key not in self._shares:
            self._shares[key] = self._share(left, right, of_key)
        return self._shares[key]

    def _share(self, left: Aliases, right: Aliases, of_key: bool) -> float:
        found = 1.0
        for link in self._links:
            used = frozenset(link.aliases)
            if used <= left | right and used & left and used & right:
                found *= link.key_share if of_key else link.share
        for number, one in enumerate(self._numbered):
            if one.between(left, right) is not None:
                found *= self._equality(number, left, right)
        return found

    def _equality(self, number: int, left: Aliases, right: Aliases) -> float:
        """Return the selectivity of one equality of a class: that of its members between the two sides, else that of
        the whole class."""
        of_class = [link for link in self._equal if link.equality == number]
        spanning = [link for link in of_class if left & set(link.aliases) and right & set(link.aliases)]
        shares = [max(link.share, 1e-300) for link in spanning or of_class]
        return math.exp(sum(map(math.log, shares)) / max(len(shares), 1))

    def size(self, plan: Plan) -> Size:
        """Return the size of a sub-plan."""
        if isinstance(plan, Leaf):
            return self.leaves[plan.alias]
        aliases = frozenset(plan.aliases)
        if aliases not in self._sizes:
            living, held = self._known.get(aliases, (-1.0, -1.0))
            if living < 0:
                left, right = frozenset(plan.left.aliases), frozenset(plan.right.aliases)
                found, other = self.size(plan.left).living, self.size(plan.right).living
                share = self.share(left, right)
                # A set difference keeps tuples without a match; a tuple's matches are taken as independent.
                living = found * math.exp(-other * share) if self.query.subtracted else found * other * share
                held = living * HELD
            turnover = sum(self.leaves[a].rate / max(self.leaves[a].living, 1.0) for a in aliases)
            self._sizes[aliases] = Size(living, held, living * turnover)
        return self._sizes[aliases]

    def key(self, join: Join, side: int) -> tuple[Operand, ...]:
        """Return the operands by which a side's state is indexed; empty for a nested loop."""
        return tuple(term.operand(side) for term in self.condition(join).keys)

    def condition(self, join: Join) -> JoinCondition:
        """Return the predicates of a join."""
        key = join.left.aliases, join.right.aliases
        if key not in self._conditions:
            # A predicate over two sides reads the smaller one.
            touching = {n for alias in min(key, key=len) for n in self._touching.get(alias, ())}
            here = [self._predicates[n] for n in sorted(touching)]
            self._conditions[key] = join_condition(here, *key, self._classes)
        return self._conditions[key]

    def signature(self, join: Join, side: int) -> tuple[object, ...]:
        """Return what a side's state contains: states of equal signatures are interchangeable (`Match.signature`)."""
        key = join.left.aliases, join.right.aliases, side
        if key not in self._signatures:
            self._signatures[key] = self._signature(join, side)
        return self._signatures[key]

    def _signature(self, join: Join, side: int) -> tuple[object, ...]:
        condition = self.condition(join)
        terms = (condition.keys, condition.int_terms, condition.float_terms)
        child = join.right if side else join.left
        return child.aliases, *(tuple(term.operand(side) for term in some) for some in terms)

    def probing(self, join: Join, probes: float, state: Size, *, dead: bool = False) -> Work:
        """Return the work of `probes` tuples of one side that look for partners in the other side's state, including
        its `dead` tuples."""
        left, right = frozenset(join.left.aliases), frozenset(join.right.aliases)
        share = self.share(left, right, of_key=True)
        if not self.key(join, 0):
            pairs = probes * state.living
            scanned = probes * (state.held if dead else state.living)
            return Work(pairs, scanned * SCAN_S + pairs * self.share(left, right) * MAKE_S)
        walked = probes * (state.held if dead else state.living) * share
        slots = MIN_RING_SLOTS
        while slots < state.held:
            slots *= 2
        collisions = probes * state.held * (1 - share) / slots
        return Work(walked + collisions, probes * PROBE_S + walked * MAKE_S)

    def running(self, join: Join) -> Work:
        """Return the work of a join per second of event time."""
        left, right = self.size(join.left), self.size(join.right)
        entering = (left.rate + right.rate) * ENTER_S
        return (
            self.probing(join, left.rate, right, dead=True)
            + self.probing(join, right.rate, left, dead=True)
            + Work(0.0, entering)
        )

    def computing(self, join: Join) -> Work:
        """Return the work to join all living tuples of both inputs at once and to enter the results."""
        left, right = self.size(join.left), self.size(join.right)
        made = self.size(join).living
        if self.key(join, 0):
            found = self.probing(join, left.living, right) + self.probing(join, right.living, left)
            found = Work(found.comparisons, found.seconds / BOTH_SIDES)
        else:
            found = self.probing(join, left.living, right)
        return found + Work(0.0, CALL_S + (left.living + right.living + made) * ENTER_S)


def _touching(predicates: tuple[Expr, ...], classes: Mapping[Expr, EqualityClass]) -> dict[str, list[int]]:
    """Return the indexes of the predicates that read each alias. For a class of equalities it is the index of its first
    one, which decides the order of a key's components."""
    found: dict[str, list[int]] = {}
    first: dict[EqualityClass, int] = {}
    for number, predicate in enumerate(predicates):
        one = classes.get(predicate)
        place = number if one is None else first.setdefault(one, number)
        for alias in aliases_of(predicate):
            found.setdefault(alias, []).append(place)
    return found


def joins_of(plan: Plan) -> list[Join]:
    """Return the joins of a plan, children before parents."""
    return [node for node in postorder(plan) if isinstance(node, Join)]


def below_root(plan: Plan) -> dict[Aliases, Join]:
    """Return the sub-plans that have states of their own."""
    return {frozenset(join.aliases): join for join in joins_of(plan) if join is not plan}
