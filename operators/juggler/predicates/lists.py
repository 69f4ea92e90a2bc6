"""Builds the predicate lists: similar predicates of all queries in covering order (Juggler 3.2.1, Fig. 3.9).

`operators.juggler.operator` calls `predicate_lists` for a group. Similar predicates read the same columns with the same
operator. They differ in factor and addend. Those with one factor form a *block*, in the fixed order of their addends,
the tightest first. Which of two different factors covers the other depends on the value of y, so no order of the whole
list would be right for all tuples; every block is searched by itself. (The thesis orders by factor first, and notes
that its data happened not to contradict this.)

A predicate is stored once, with the queries that contain it. A predicate without a normal form
(`operators.juggler.predicates.normal_form`) is a list of its own, shared by the queries that contain it, and is
evaluated as written.

The types are *attribute* over one input, *window* over two inputs' event times, and *join* for the rest. A query's own
windows are window predicates too: `s.ts <= j.ts + d` for a new tuple of s, which is the latest, and a row of j that it
finds. They matter where d is less than the time for which the operator stores j. `[ROWS n]` on j is `horizon of i <=
number of j + n - 1` for every other input i (`operators.juggler.predicates.rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from operators.juggler.predicates.normal_form import Limits, NormalForm, event_times, normal_forms, value_forms
from operators.juggler.predicates.rows import NUMBER, counted_pairs
from operators.kernels.hashing import U64
from operators.kernels.scan import OPS
from schemas.columns import I64
from schemas.groups import Member, QueryGroup
from schemas.query import ColumnRef, Compare, Expr, Literal, Query, Type, aliases_of, columns_of, substitute

ATTRIBUTE, JOIN, WINDOW = "A", "J", "W"
TYPES = (ATTRIBUTE, JOIN, WINDOW)


@dataclass(slots=True)
class ListEntry:
    """A predicate of a list.

    Attributes:
        form: its normal form; None if it is evaluated as written.
        queries: the numbers of the queries that contain it.
        bit: its bit in a tuple's sets of predicates.
    """

    form: NormalForm | None
    queries: set[int]
    bit: int = 0


@dataclass(slots=True)
class PredicateList:
    """Similar predicates, or one that is evaluated as written.

    Attributes:
        kind: one of TYPES.
        inputs: the inputs that it reads.
        source: for queries' own windows, the input whose new tuple probes; None for predicates written in queries.
        entries: the predicates, in covering order within each block.
        written: every predicate as written, with the numbers of the queries that contain it.
    """

    kind: str
    inputs: frozenset[str]
    source: str | None = None
    entries: list[ListEntry] = field(default_factory=list)
    written: dict[Expr, set[int]] = field(default_factory=dict)

    @property
    def form(self) -> NormalForm | None:
        """The form of the first entry, which the others resemble; None of a list that is evaluated as written."""
        return self.entries[0].form

    @property
    def own(self) -> bool:
        """Whether it stands for queries' own windows, which no query contains as a predicate."""
        return self.source is not None or self.counts

    @property
    def counts(self) -> bool:
        """Whether it stands for ROWS windows."""
        return self.form is not None and self.form.y is not None and self.form.y.name == NUMBER

    def add(self, form: NormalForm | None, predicate: Expr | None, query: int) -> None:
        """Register a query's predicate."""
        if predicate is not None:
            self.written.setdefault(predicate, set()).add(query)
        found = next((entry for entry in self.entries if _same(entry.form, form)), None)
        if found is None:
            self.entries.append(ListEntry(form, {query}))
        else:
            found.queries.add(query)
            if found.form is not None and form is not None:
                found.form = _with_limits(found.form, form.limits)

    def arrange(self) -> None:
        """Put the entries into covering order."""
        if self.form is not None:
            self.entries.sort(key=_covering_order)

    def limits(self) -> Limits:
        """The values for which every form of the list agrees with its predicate as written."""
        limits = Limits()
        for entry in self.entries:
            if entry.form is not None:
                limits = limits.intersect(entry.form.limits)
        return limits

    def queries(self) -> set[int]:
        """The numbers of the queries that contain any of its predicates."""
        return set().union(*(entry.queries for entry in self.entries))

    def __str__(self) -> str:
        return ", ".join(str(entry.form or next(iter(self.written))) for entry in self.entries)


def _same(a: NormalForm | None, b: NormalForm | None) -> bool:
    if a is None or b is None:
        return a is b
    return (a.factor, a.addend, a.divisor) == (b.factor, b.addend, b.divisor)


def _with_limits(form: NormalForm, limits: Limits) -> NormalForm:
    return NormalForm(
        form.x, form.op, form.y, form.factor, form.addend, form.divisor, form.whole, form.limits.intersect(limits)
    )


def _covering_order(entry: ListEntry) -> tuple[float, float, float]:
    form = entry.form
    assert form is not None
    return -form.factor, form.divisor, -form.addend if form.op in (">", ">=") else form.addend


@dataclass(frozen=True, slots=True, eq=False)
class ListTable:
    """The arrays of a list as its kernels read them; see `operators.kernels.juggler.narrow`.

    Attributes:
        op: a code of `operators.kernels.scan.OPS`.
        factors, divisors: (b,) per block, int64 or float64.
        addends: (p,) per predicate, of the same type.
        blocks: (b + 1,) the position where each block begins.
        before, after: (p + b, words) the queries before a position, and from it on.
        asking: (b, words) the queries that contain any predicate of a block.
        masks: (p, words) the queries that contain each predicate.
        bits: (p,) each predicate's bit in a tuple's sets of predicates.
        limits: the values for which all forms agree with the predicates as written.
    """

    op: int
    factors: npt.NDArray[Any]
    divisors: npt.NDArray[Any]
    addends: npt.NDArray[Any]
    blocks: I64
    before: U64
    after: U64
    asking: U64
    masks: U64
    bits: I64
    limits: Limits


def list_table(one: PredicateList, words: int) -> ListTable:
    """The arrays of a list of normal forms, for queries numbered below 64 * words."""
    forms = [entry.form for entry in one.entries if entry.form is not None]
    heads = [k for k, f in enumerate(forms) if k == 0 or (f.factor, f.divisor) != _block(forms[k - 1])]
    blocks = np.array([*heads, len(forms)], np.int64)
    masks = np.array([query_mask(entry.queries, words) for entry in one.entries], np.uint64)
    count = len(heads)
    before, after = (np.zeros((len(forms) + count, words), np.uint64) for _ in range(2))
    asking = np.zeros((count, words), np.uint64)
    for b in range(count):
        begin, end = int(blocks[b]), int(blocks[b + 1])
        for p in range(begin, end):
            before[p + 1 + b] = before[p + b] | masks[p]
        for p in range(end - 1, begin - 1, -1):
            after[p + b] = after[p + 1 + b] | masks[p]
        asking[b] = after[begin + b]
    dtype = np.int64 if forms[0].whole else np.float64
    return ListTable(
        OPS[forms[0].op],
        np.array([forms[k].factor for k in heads], dtype),
        np.array([forms[k].divisor for k in heads], dtype),
        np.array([f.addend for f in forms], dtype),
        blocks,
        before,
        after,
        asking,
        masks,
        np.array([entry.bit for entry in one.entries], np.int64),
        one.limits(),
    )


def _block(form: NormalForm) -> tuple[float, int]:
    return form.factor, form.divisor


def query_mask(queries: set[int], words: int) -> U64:
    """(words,) a mask with the bits of these queries."""
    mask = np.zeros(words, np.uint64)
    for query in queries:
        mask[query >> 6] |= np.uint64(1 << (query & 63))
    return mask


@dataclass(frozen=True, slots=True)
class Lists:
    """All predicate lists of an operator.

    Attributes:
        lists: those of each type in the order of registration.
        predicate_count: the number of distinct predicates.
        dependencies: (queries, predicate words) each query's predicates: its QED (3.2.3).
    """

    lists: tuple[PredicateList, ...]
    predicate_count: int
    dependencies: U64

    def of(self, kind: str) -> list[PredicateList]:
        """The lists of a type that queries contain as predicates."""
        return [one for one in self.lists if one.kind == kind and not one.own]


def predicate_lists(
    group: QueryGroup, since: Mapping[str, Mapping[str, int]], impossible: Callable[[Expr], bool]
) -> Lists:
    """Register the predicates of all queries, in the group's order.

    Args:
        since: by query and input, the least ts of tuples that the query may see.
        impossible: of a predicate without columns, whether it never holds.
    """
    lists: list[PredicateList] = []
    for number, member in enumerate(group.members):
        predicates = list(member.over_inputs.predicates)
        for name, ts in since.get(member.name, {}).items():
            floor = Compare(">=", ColumnRef(name, "_ts", Type.TIMESTAMP), Literal(ts, Type.TIMESTAMP))
            predicates.append(floor)
        for predicate in predicates:
            used = aliases_of(predicate)
            if not used:
                if impossible(predicate):
                    # It acts as a predicate over the query's first input that no tuple satisfies.
                    used = frozenset(member.inputs[:1])
                else:
                    continue
            _register(lists, predicate, used, member.over_inputs, number)
    for source in group.inputs:
        for other in group.inputs:
            _register_windows(lists, group, source.alias, other.alias)
    _register_counts(lists, group)
    bit = 0
    for one in lists:
        one.arrange()
        for entry in one.entries:
            entry.bit = bit
            bit += 1
    dependencies = np.zeros((len(group.members), max(1, -(-bit // 64))), np.uint64)
    for one in lists:
        for entry in one.entries:
            for query in entry.queries:
                dependencies[query, entry.bit >> 6] |= np.uint64(1 << (entry.bit & 63))
    return Lists(tuple(lists), bit, dependencies)


def _register(
    lists: list[PredicateList], predicate: Expr, used: frozenset[str], query: Query, number: int
) -> None:
    times = {column: event_times(column, query) for column in columns_of(predicate)}
    canonical = substitute(predicate, times)
    windowed = len(used) == 2 and all(column.name == "_ts" for column in times.values())
    kind = ATTRIBUTE if len(used) == 1 else WINDOW if windowed else JOIN
    forms = list(normal_forms(canonical)) or list(value_forms(canonical))
    for form in forms:
        for one in lists:
            if one.kind == kind and one.source is None and one.form is not None and _similar(one.form, form):
                one.add(form, predicate, number)
                return
    if not forms:
        for one in lists:
            if one.form is None and one.inputs == used and predicate in one.written:
                one.add(None, predicate, number)
                return
    new = PredicateList(kind, used)
    new.add(forms[0] if forms else None, predicate, number)
    lists.append(new)


def _similar(a: NormalForm, b: NormalForm) -> bool:
    return (a.x, a.y, a.op, a.whole) == (b.x, b.y, b.op, b.whole)


def _register_windows(lists: list[PredicateList], group: QueryGroup, source: str, other: str) -> None:
    """Register the queries' own windows of `other`, for new tuples of `source` that find its rows."""
    if source == other:
        return
    longest = group.query.source(other)
    bounded = all(window.kind != "ROWS" for window in group.windows(other))
    asking: list[tuple[int, Member]] = [
        (number, member) for number, member in enumerate(group.members) if {source, other} <= set(member.inputs)
    ]
    sizes = {number: member.over_inputs.source(other).window for number, member in asking}
    if longest.is_static or (bounded and all(window == longest.window for window in sizes.values())):
        return
    new = PredicateList(WINDOW, frozenset({source, other}), source)
    x, y = (ColumnRef(name, "_ts", Type.TIMESTAMP) for name in (source, other))
    for number, window in sizes.items():
        if window.kind == "RANGE":
            new.add(NormalForm(x, "<=", y, 1, window.size, 1, True, Limits()), None, number)
    if new.entries:
        lists.append(new)


def _register_counts(lists: list[PredicateList], group: QueryGroup) -> None:
    """Register the queries' ROWS windows, one list per horizon and number that they compare."""
    found: dict[tuple[ColumnRef, ColumnRef], PredicateList] = {}
    for number, member in enumerate(group.members):
        for horizon, counted, size in counted_pairs(member):
            kept = found.setdefault(
                (horizon, counted), PredicateList(WINDOW, frozenset({horizon.alias, counted.alias}))
            )
            kept.add(NormalForm(horizon, "<=", counted, 1, size - 1, 1, True, Limits()), None, number)
    lists += found.values()
