"""Builds the probe path of a new tuple: a tree of visits to the other inputs that queries share as far as they can.

`operators.juggler.operator` calls `visits` once per input. A visit adds one input to those covered. Queries over
different inputs share visits while they can; a query produces its results where all of its inputs are covered. Where
queries have the same equalities between the inputs covered and the input visited, the visit has a hash key. Queries
with other equalities branch off, each to a visit with a key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from operators.juggler.predicates.lists import JOIN, WINDOW, Lists, PredicateList
from operators.plan.predicates import Operand, Term, join_condition
from schemas.groups import QueryGroup
from schemas.query import ColumnRef, aliases_of


@dataclass(slots=True)
class Visit:
    """A node of the tree of visits.

    Attributes:
        inputs: the inputs covered, in the order of the visits; the last one is visited here.
        queries: the numbers of the queries that use the visit.
        finished: the numbers of those queries whose inputs are all covered.
        key: the equalities of the visit's hash key, inputs covered before on their left; empty without a key.
        lists: by type, the lists over two or more inputs that can be evaluated from here on.
        index: the column by whose values the visit can find candidates, and whether it holds whole numbers; or None.
        next: the visits that follow.
    """

    inputs: tuple[str, ...]
    queries: frozenset[int]
    finished: tuple[int, ...]
    key: tuple[Term, ...] = ()
    lists: dict[str, list[PredicateList]] = field(default_factory=dict)
    index: tuple[ColumnRef, bool] | None = None
    next: list[Visit] = field(default_factory=list)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The operands of the hash key in the input visited."""
        return tuple(term.right for term in self.key)

    def all(self) -> Iterator[Visit]:
        """This visit and all visits below it."""
        yield self
        for visit in self.next:
            yield from visit.all()


def visits(group: QueryGroup, lists: Lists, source: str) -> Visit:
    """The tree of visits of a new tuple of `source`."""
    members = group.members
    queries = frozenset(n for n, member in enumerate(members) if source in member.inputs)
    return _extended(group, lists, Visit((source,), queries, _finished(group, queries, (source,))))


def _finished(group: QueryGroup, queries: frozenset[int], covered: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(sorted(n for n in queries if set(group.members[n].inputs) == set(covered)))


def _extended(group: QueryGroup, lists: Lists, visit: Visit) -> Visit:
    rest = visit.queries - set(visit.finished)
    while rest:
        name, queries, key = _next_input(group, visit.inputs, rest)
        covered = (*visit.inputs, name)
        following = Visit(covered, queries, _finished(group, queries, covered), key)
        _add_lists(following, lists)
        visit.next.append(_extended(group, lists, following))
        rest -= queries
    return visit


def _next_input(
    group: QueryGroup, covered: tuple[str, ...], rest: frozenset[int]
) -> tuple[str, frozenset[int], tuple[Term, ...]]:
    """Choose the next input: the one that most queries reach by one equality, else by some predicate, else that most
    queries read. Returns the input, the queries that visit it, and the equalities that they share."""
    keys: dict[tuple[int, str], tuple[Term, ...]] = {}
    equal: Counter[tuple[str, Term]] = Counter()
    related: Counter[str] = Counter()
    read: Counter[str] = Counter()
    for n in sorted(rest):
        member = group.members[n]
        for name in member.inputs:
            if name in covered:
                continue
            read[name] += 1
            predicates = member.over_inputs.predicates
            here = [p for p in predicates if name in aliases_of(p) and aliases_of(p) <= {*covered, name}]
            related[name] += any(len(aliases_of(p)) > 1 for p in here)
            keys[n, name] = join_condition(here, covered, (name,)).keys
            for term in dict.fromkeys(keys[n, name]):
                equal[name, term] += 1
    if equal:
        (name, term), _ = equal.most_common(1)[0]
        queries = [n for n in sorted(rest) if term in keys.get((n, name), ())]
        shared = [t for t in keys[queries[0], name] if all(t in keys[n, name] for n in queries)]
        return name, frozenset(queries), tuple(dict.fromkeys(shared))
    name, _ = max(related.items(), key=lambda found: (found[1], read[found[0]]))
    return name, frozenset(n for n in rest if name in group.members[n].inputs), ()


def _add_lists(visit: Visit, lists: Lists) -> None:
    """Add the lists that can be evaluated once the visit covers its input, and the column by which it can search."""
    source, name = visit.inputs[0], visit.inputs[-1]
    covered = set(visit.inputs)
    values: Counter[tuple[ColumnRef, bool]] = Counter()
    for kind in (JOIN, WINDOW):
        visit.lists[kind] = []
    for one in lists.lists:
        asking = len(visit.queries & one.queries())
        if name not in one.inputs or not one.inputs <= covered or len(one.inputs) < 2 or not asking:
            continue
        if one.source not in (None, source):
            continue
        visit.lists[one.kind].append(one)
        if one.kind == JOIN and one.form is not None and one.form.y is not None:
            for column in (one.form.x, one.form.y):
                if isinstance(column, ColumnRef) and column.alias == name:
                    values[column, one.form.whole] += asking
    if values:
        visit.index = values.most_common(1)[0][0]
