"""Lists laid out for one kernel: what is left of pairs is what every predicate by itself leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.juggler.predicates.compiled_lists import REARRANGED_PAIRS, CompiledLists, PairSide, PairsLeft
from operators.juggler.predicates.fields import Fields
from operators.juggler.predicates.lists import JOIN, PredicateList, list_table, query_mask
from operators.juggler.predicates.normal_form import Limits, NormalForm
from schemas.columns import Column
from schemas.query import ColumnRef, Type
from tests.profiles import PROPERTY

QUERIES = (0, 1, 63, 64, 70, 127, 128)
WORDS = 3
HOLDS = {
    "<": lambda x, y: x < y,
    "<=": lambda x, y: x <= y,
    ">": lambda x, y: x > y,
    ">=": lambda x, y: x >= y,
    "=": lambda x, y: x == y,
}
Rows = list[dict[ColumnRef, int | float | None]]


def column(alias: str, name: str) -> ColumnRef:
    """`k` and `v` are whole, `d` is not."""
    return ColumnRef(alias, name, Type.DOUBLE if name == "d" else Type.BIGINT)


def listed(*asked: tuple[NormalForm, set[int]]) -> PredicateList:
    """A list of predicates with the queries that contain them."""
    one = PredicateList(JOIN, frozenset({"A", "B"}))
    for form, queries in asked:
        for query in queries:
            one.add(form, None, query)
    one.arrange()
    return one


def input_state(alias: str, rows: Rows, capacity: int, lo: int) -> PairSide:
    """Rows as an input's fields hold them, from row id `lo` on."""
    fields = Fields()
    for name in ("v", "k", "d"):
        fields.add(column(alias, name), name != "d", Limits())
    fields.grow(np.zeros(0, np.int64), capacity)

    def resolve(of: ColumnRef) -> Column:
        values = [row[of] for row in rows]
        dtype: Any = np.float64 if of.type is Type.DOUBLE else np.int64
        some = np.array([0 if value is None else value for value in values], dtype)
        return Column(of.type, some, np.array([value is not None for value in values], np.bool_))

    ids = np.arange(lo, lo + len(rows))
    fields.write(ids, resolve)
    return PairSide(ids, fields)


@dataclass(frozen=True)
class Pairs:
    """Lists and what they are evaluated on; masks are sets of queries, of b by row."""

    lists: list[PredicateList]
    a: Rows
    b: Rows
    pairs: list[tuple[int, int]]
    alive_a: list[set[int]]
    alive_b: list[set[int]] | None
    mask: set[int]

    def left(self) -> list[tuple[int, set[int]]]:
        """Pairs with a query left, one predicate after the other."""
        found = []
        for number, (a, b) in enumerate(self.pairs):
            row, queries = {**self.a[a], **self.b[b]}, self.wanted(a, b)
            for entry in (entry for one in self.lists for entry in one.entries):
                if not holds(entry.form, row):
                    queries -= entry.queries
            if queries:
                found.append((number, queries))
        return found

    def wanted(self, a: int, b: int) -> set[int]:
        """Who may be satisfied of a pair at first."""
        return self.alive_a[a] & self.mask & (self.mask if self.alive_b is None else self.alive_b[b])

    def program(self) -> tuple[CompiledLists, PairsLeft]:
        """The program, and what it leaves."""
        a, b = input_state("A", self.a, 8, 5), input_state("B", self.b, 16, 11)
        program = CompiledLists([(one, list_table(one, WORDS)) for one in self.lists], "A", (a.fields, b.fields))
        return program, self.run(program, a, b)

    def run(self, program: CompiledLists, a: PairSide, b: PairSide) -> PairsLeft:
        """What the program leaves."""
        probe, at = (np.array([pair[side] for pair in self.pairs], np.int64) for side in range(2))
        of_b = None
        if self.alive_b is not None:
            of_b = np.zeros((16, WORDS), np.uint64)
            of_b[b.rows & 15] = masks(self.alive_b)
        found = PairSide(b.rows[at], b.fields)
        return program.run(probe, a, found, masks(self.alive_a), of_b, query_mask(self.mask, WORDS))


def masks(sets: list[set[int]]) -> Any:
    return np.array([query_mask(queries, WORDS) for queries in sets], np.uint64).reshape(len(sets), WORDS)


def holds(form: NormalForm | None, row: dict[ColumnRef, Any]) -> bool:
    """Whether a predicate holds; not where a value is null."""
    assert form is not None
    assert isinstance(form.x, ColumnRef)
    x, y = row[form.x], 0 if form.y is None else row[form.y]
    if x is None or y is None:
        return False
    return bool(HOLDS[form.op](form.divisor * x, form.factor * y + form.addend))


@st.composite
def lists(draw: st.DrawFn, op: str) -> PredicateList:
    """A list over both inputs, or over one."""
    whole = op not in ("<", ">") and draw(st.booleans())
    names = st.sampled_from(["k", "v"] if whole else ["d"])
    x, y = draw(st.permutations([column("A", draw(names)), column("B", draw(names))]))
    other = y if draw(st.integers(0, 3)) else None
    number = st.integers(-3, 3) if whole else st.sampled_from([-1.5, -1.0, 0.0, 0.5, 2.0])
    form = st.builds(
        lambda factor, addend, divisor: NormalForm(x, op, other, factor, addend, divisor, whole, Limits()),
        draw(st.sampled_from([st.just(1), number.filter(bool)])) if other else st.just(0 if whole else 0.0),
        number,
        draw(st.sampled_from([st.just(1), st.integers(1, 3) if whole else st.just(1)])),
    )
    asked = st.tuples(form, st.sets(st.sampled_from(QUERIES), min_size=1, max_size=3))
    return listed(*draw(st.lists(asked, min_size=draw(st.integers(1, 3)), max_size=5)))


@st.composite
def cases(draw: st.DrawFn, op: str) -> Pairs:
    """Few rows and values, so that predicates hold and fail, and many queries are never asked about."""
    values = {"k": st.integers(-3, 3), "v": st.integers(-4, 4), "d": st.sampled_from([-2.0, -0.5, 0.0, 0.5, 1.0, 3.0])}
    queries = st.one_of(st.just(set(QUERIES)), st.sets(st.sampled_from(QUERIES)))

    def rows(alias: str, most: int) -> Rows:
        nulls = draw(st.sampled_from([st.nothing(), st.none()]))
        row = st.fixed_dictionaries({column(alias, n): st.one_of(nulls, v, v, v) for n, v in values.items()})
        return draw(st.lists(row, min_size=draw(st.integers(1, 4)), max_size=most))

    a, b = rows("A", 8), rows("B", 16)
    pair = st.tuples(st.integers(0, len(a) - 1), st.integers(0, len(b) - 1))
    return Pairs(
        draw(st.lists(lists(op), max_size=3)),
        a,
        b,
        draw(st.lists(pair, min_size=draw(st.integers(0, 8)), max_size=24)),
        [draw(queries) for _ in a],
        draw(st.one_of(st.none(), st.just([draw(queries) for _ in b]))),
        draw(queries),
    )


@pytest.mark.parametrize("op", list(HOLDS))
@PROPERTY
@given(st.data())
def test_a_program_leaves_what_its_predicates_leave(op: str, data: st.DataObject) -> None:
    """Pairs stay in order, each with the queries whose predicates all pass."""
    case = data.draw(cases(op))
    _, left = case.program()
    expected = case.left()
    assert left.at.tolist() == [number for number, _ in expected]
    assert left.alive.tolist() == masks([queries for _, queries in expected]).tolist()
    assert left.entered == sum(bool(case.wanted(a, b)) for a, b in case.pairs)


def form(op: str, addend: int, factor: int = 1) -> NormalForm:
    """`A.v op factor * B.v + addend`."""
    return NormalForm(column("A", "v"), op, column("B", "v"), factor, addend, 1, True, Limits())


def rows(alias: str, *values: int | None) -> Rows:
    """Rows with these values of v."""
    return [{column(alias, "v"): v, column(alias, "k"): v, column(alias, "d"): None} for v in values]


def test_nothing_is_compared_for_nobody() -> None:
    """Lists, and blocks of a list, that no query left asks for; and nulls have no value to compare."""
    blocks = listed((form(">=", 0), {0}), (form(">=", 0, 2), {64}))
    a, b = rows("A", 1, None), rows("B", 1)
    for alive, at, compared in (({0, 64}, 0, 2), ({0}, 0, 1), ({64}, 0, 1), ({1}, 0, 0), ({0, 64}, 1, 0)):
        case = Pairs([blocks], a, b, [(at, 0)], [alive, alive], None, set(QUERIES))
        _, left = case.program()
        assert left.comparisons == compared
        assert [at for at, _ in case.left()] == left.at.tolist()
    # The list that refuses all ends it.
    for first, second in ((5, -5), (-5, 5)):
        several = [
            listed((form(">=", addend), queries)) for addend, queries in ((first, {0, 1}), (second, {0}), (0, {70}))
        ]
        _, left = Pairs(several, a, b, [(0, 0)], [{0, 1}] * 2, None, {0, 1}).program()
        assert left.comparisons == (1 if first > 0 else 2)


@pytest.mark.parametrize(("value", "left"), [(2**60, [0]), (2**60 + 1, [])])
def test_whole_numbers_that_are_no_doubles(value: int, left: list[int]) -> None:
    """They are compared exactly."""
    one = listed((form("<=", 2**60), {0}))
    _, found = Pairs([one], rows("A", value), rows("B", 0), [(0, 0)], [{0}], None, {0}).program()
    assert found.at.tolist() == left


def test_the_list_that_takes_most_queries_away_comes_first() -> None:
    """By how many, not by how often: one refuses a query of every pair and the other two."""
    often = listed((form("<=", -1), {0}), (form("<=", 5), set(range(1, 40))))
    more = listed((form("<=", -1), {0, 2, 3}))
    pairs = [(0, 0)] * REARRANGED_PAIRS
    case = Pairs([often, more], rows("A", 1), rows("B", 1), pairs, [{0, 2, 3}], None, {0, 2, 3})
    program, before = case.program()
    after = case.run(program, input_state("A", case.a, 8, 5), input_state("B", case.b, 16, 11))
    assert len(before.at) == len(after.at) == 0
    assert after.comparisons == len(pairs) < before.comparisons
