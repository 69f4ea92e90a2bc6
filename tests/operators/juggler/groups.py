"""Random groups of queries and their input, and how to run them (Hypothesis strategies). No tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import strategies as st

from operators.data.evaluate import evaluate
from operators.data.tuples import Tuples
from operators.feedback.payoff import guard as payoff
from operators.feedback.payoff import tuple_cost
from operators.juggler.feedback import demand
from operators.juggler.operator import Juggler
from operators.juggler.state.sources import GroupSources
from schemas.columns import Batch
from schemas.groups import QueryGroup, query_group
from schemas.query import (
    Arithmetic,
    ColumnRef,
    Compare,
    Expr,
    Literal,
    Negate,
    Output,
    Query,
    Source,
    Stream,
    Type,
    Window,
    type_of,
)
from tests.cases import FIELDS, ORDER, VALUES, column, join_predicate, selection, window
from tests.feeding import canonical, to_batch, to_rows
from tests.oracle import results

STREAMS = tuple(Stream(f"S{i}", FIELDS, f"S{i}", timestamp="ts") for i in range(3))
Rows = dict[str, list[dict[str, Any]]]

BY_K, BY_V = (Compare("=", column("A", name), column(other, name)) for name, other in (("k", "B"), ("v", "C")))


def hub(name: str, *more: Expr, life: int = 10) -> Query:
    """A joined with B, which is found by k, and with C, by v."""
    sources = tuple(Source(alias, STREAMS[n], Window("RANGE", life)) for n, alias in enumerate("ABC"))
    outputs = tuple(Output(alias, column(alias, "ts")) for alias in "ABC")
    return Query(name, None, sources, (BY_K, BY_V, *more), outputs)


def rows(*of: tuple[int, int, int], d: float = 0.5) -> list[dict[str, Any]]:
    """Rows with these ts, k and v."""
    return [{"ts": ts, "k": k, "v": v, "d": d, "s": "a", "b": True} for ts, k, v in of]


def linear(alias: str, kinds: tuple[str, ...] = ("k", "v", "d", "ts", "_ts")) -> st.SearchStrategy[Expr]:
    """`factor * column + addend`, whole or real, in one of several equivalent spellings."""

    @st.composite
    def build(draw: st.DrawFn) -> Expr:
        of = column(alias, draw(st.sampled_from(kinds)))
        expr: Expr = of
        real = of.type is Type.DOUBLE or draw(st.integers(0, 3)) == 0
        kind = Type.DOUBLE if real else Type.BIGINT
        if draw(st.booleans()):
            factors: list[float] = [2.0, 0.5, -1.0, 3.0, 0.1, 1e308] if real else [2, -1, 3, -2, 0, 2**40]
            factor = Literal(draw(st.sampled_from(factors)), kind)
            expr = Arithmetic("*", *draw(st.permutations((expr, factor))), kind)
        if draw(st.booleans()):
            addends: list[float] = [1.0, -0.5, 0.1, 1e308] if real else [1, -1, 5, 2**62]
            op = draw(st.sampled_from(["+", "-"]))
            sides = (expr, Literal(draw(st.sampled_from(addends)), kind))
            expr = Arithmetic(op, *(sides if op == "-" else draw(st.permutations(sides))), kind)
        if draw(st.integers(0, 5)) == 0:
            expr = Negate(expr, Type.DOUBLE if type_of(expr) is Type.DOUBLE else Type.BIGINT)
        return expr

    return build()


def predicate(one: str, other: str) -> st.SearchStrategy[Expr]:
    """Between two aliases: linear of all shapes, or what tests of the engine draw."""
    times = ("ts", "_ts")
    plain = st.sampled_from(["k", "v", "d"])

    def bare(op: str, name: str, addend: int) -> Expr:
        left, right = column(one, name), column(other, name)
        if left.type is Type.DOUBLE:
            return Compare(op, left, Arithmetic("+", right, Literal(addend / 2, Type.DOUBLE), Type.DOUBLE))  # type: ignore[arg-type]
        return Compare(op, left, Arithmetic("+", right, Literal(addend, Type.BIGINT), Type.BIGINT))  # type: ignore[arg-type]

    comparison = st.sampled_from(["<", "<=", ">", ">=", "="])
    return st.one_of(
        st.builds(bare, comparison, plain, st.integers(-3, 3)),
        st.builds(Compare, comparison, linear(one), linear(other)),
        st.builds(Compare, comparison, linear(other), linear(one)),
        st.builds(Compare, comparison, linear(one, times), linear(other, times)),
        st.builds(lambda: Compare("=", column(one, "k"), column(other, "k"))),
        join_predicate([one], [other]),
    )


def single(alias: str) -> st.SearchStrategy[Expr]:
    """Over one alias: linear against a constant, or what tests of the engine draw."""
    whole = st.builds(Literal, st.sampled_from([0, 1, 2, -3, 7, 2**53 + 1, -(2**63)]), st.just(Type.BIGINT))
    real = st.builds(Literal, st.sampled_from([0.0, 1.0, 0.5, -1.5, 0.3, 9.3e18]), st.just(Type.DOUBLE))
    comparison = st.sampled_from(["<", "<=", ">", ">=", "="])
    constants = st.one_of(whole, real)
    return st.one_of(
        st.builds(Compare, comparison, linear(alias), constants),
        st.builds(Compare, comparison, constants, linear(alias)),
        selection(alias),
        st.builds(Compare, ORDER, linear(alias), linear(alias)),
    )


@dataclass(frozen=True)
class Family:
    """Predicates between two aliases that go into one list: `one.x op factor * other.y + addend`."""

    one: str
    other: str
    x: str
    y: str
    op: str
    real: bool

    def some(self) -> st.SearchStrategy[Expr]:
        """One of them, sometimes solved for the other side."""
        factors: list[float] = [1.0, 1.0, 2.0, 0.5, -1.0, 0.3] if self.real else [1, 1, 1, 2, -1, 3]
        addends = [n / 2 for n in range(-6, 7)] if self.real else list(range(-4, 5))
        return st.builds(self._of, st.sampled_from(factors), st.sampled_from(addends), st.integers(0, 3))

    def _of(self, factor: float, addend: float, shape: int) -> Expr:
        kind = Type.DOUBLE if self.real else Type.BIGINT
        left, right = column(self.one, self.x), column(self.other, self.y)
        line: Expr = right if factor == 1 else Arithmetic("*", Literal(factor, kind), right, kind)
        if shape == 0 and addend:
            # addend - ... is moved across: the left side is no column any more.
            moved = Arithmetic("-", left, Literal(addend, kind), kind)
            return Compare(self.op, moved, line)  # type: ignore[arg-type]
        line = Arithmetic("+", line, Literal(addend, kind), kind) if addend else line
        if shape == 1:
            mirrored = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}[self.op]
            return Compare(mirrored, line, left)  # type: ignore[arg-type]
        return Compare(self.op, left, line)  # type: ignore[arg-type]


@st.composite
def families(draw: st.DrawFn) -> Family:
    """Over small numbers, so that much matches."""
    one, other = draw(st.permutations(["A", "B", "C", "D"]))[:2]
    real = draw(st.integers(0, 2)) == 0
    times = not real and draw(st.integers(0, 3)) == 0
    names = ["ts", "_ts"] if times else ["d"] if real else ["k", "v"]
    op = draw(st.sampled_from(["<", "<=", ">", ">=", "="]))
    return Family(one, other, draw(st.sampled_from(names)), draw(st.sampled_from(names)), op, real)


@st.composite
def queries(draw: st.DrawFn, name: str, shared: list[Family], *, most: int = 3) -> Query:
    """A query over some of the streams, perhaps over one twice."""
    aliases = draw(st.permutations(["A", "B", "C", "D"]))[: draw(st.integers(1, most))]
    places = {"A": 0, "B": 1, "C": 2, "D": 1}
    long = st.builds(Window, st.just("RANGE"), st.sampled_from([10, 20, 50]))
    windows = st.one_of(long, long, window(), st.just(Window("UNBOUNDED")))
    sources = tuple(Source(alias, STREAMS[places[alias]], draw(windows)) for alias in aliases)
    predicates: list[Expr] = []
    for n, alias in enumerate(aliases):
        before = aliases[:n]
        near = [f for f in shared if alias in (f.one, f.other) and {f.one, f.other} & set(before)]
        for _ in range(draw(st.integers(0, 2)) if n else 0):
            if near and draw(st.integers(0, 4)):
                predicates.append(draw(draw(st.sampled_from(near)).some()))
            else:
                predicates.append(draw(predicate(draw(st.sampled_from(before)), alias)))
        if draw(st.integers(0, 3)) == 0:
            predicates.append(draw(single(alias)))
    if draw(st.integers(0, 30)) == 0:
        predicates.append(Compare(draw(st.sampled_from(["<", ">"])), Literal(1, Type.BIGINT), Literal(2, Type.BIGINT)))
    outputs = tuple(Output(f"{alias}.{f.name}", column(alias, f.name)) for alias in aliases for f in FIELDS)
    return Query(name, None, sources, tuple(predicates), outputs)


@st.composite
def registrations(
    draw: st.DrawFn, query_of: Callable[[str, list[Family]], st.SearchStrategy[Query]]
) -> list[tuple[str, Any]]:
    """Queries added and dropped, and event time that passes."""
    shared = draw(st.lists(families(), min_size=2, max_size=4))
    running: list[str] = []
    done: list[tuple[str, Any]] = []
    for n in range(draw(st.integers(2, 7))):
        if running and draw(st.integers(0, 2)) == 0:
            done.append(("drop", running.pop(draw(st.integers(0, len(running) - 1)))))
        else:
            query = draw(query_of(f"q{n}", shared))
            done.append(("add", (query, draw(st.booleans()))))
            running.append(query.name)
        done.append(("to", draw(st.integers(0, 15))))
    return done


@st.composite
def inputs(draw: st.DrawFn, *, most: int = 10) -> Rows:
    """Rows of every stream, ascending by ts, with ties."""
    odd = st.sampled_from([1e308, 5e-324])
    small, real = st.integers(-3, 6), st.sampled_from([-1.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0])
    values = {
        **VALUES,
        "v": st.one_of(small, small, small, VALUES["v"]),
        "d": st.one_of(real, real, real, VALUES["d"], odd),
    }
    found: Rows = {}
    least = draw(st.sampled_from([0, 4, most]))
    for stream in STREAMS:
        rows = draw(
            st.lists(st.fixed_dictionaries({"ts": st.integers(0, 40), **values}), min_size=least, max_size=most)
        )
        found[stream.name] = sorted(rows, key=lambda row: row["ts"])
    return found


@dataclass
class Runner:
    """Feeds a group slice by slice, like an engine, and collects the results of each query."""

    group: QueryGroup
    rows: Rows
    order: str = "adaptive"
    encoding: str = "queries"
    feedback: bool = False

    def __post_init__(self) -> None:
        self.sources = GroupSources(self.group)
        self.juggler = Juggler(self.sources, self.group, self.order, self.encoding, feedback=self.feedback)
        self.found: dict[str, list[dict[str, Any]]] = {}
        self.cut = 0

    def to(self, cut: int) -> None:
        """Process everything before `cut`."""
        group = self.juggler.group
        batches: dict[str, Batch] = {}
        for stream in group.query.streams():
            rows = [row for row in self.rows[stream.name] if self.cut <= row["ts"] < cut]
            if not rows:
                continue
            batches[stream.name] = to_batch(stream, rows)
        epoch = self.sources.enter(batches, self.juggler.wanted(batches))
        now = min((int(batch.ts[0]) for batch in batches.values()), default=cut)
        self.sources.cut = self.cut = cut
        for name, tuples in self.juggler.process(epoch, now).items():
            self.found.setdefault(name, []).extend(self.output(name, tuples))
        self.juggler.purge(cut)
        self.sources.purge(cut)

    def output(self, name: str, tuples: Tuples) -> list[dict[str, Any]]:
        """Results as rows."""
        query = self.juggler.group.member(name).over_inputs
        resolve = self.sources.resolver(tuples.aliases, tuples.rows)
        columns = {o.name: evaluate(o.expr, resolve, len(tuples)) for o in query.outputs}
        return to_rows(Batch(tuples.ts, columns))

    def all(self, step: int) -> Mapping[str, list[dict[str, Any]]]:
        """Process everything in slices of `step` ms."""
        while self.cut <= 41:
            self.to(self.cut + step)
        return self.found


@contextmanager
def eager(budget: float = 1e9, swept: float = 0.0) -> Iterator[None]:
    """Guards watch from the first slice on, whether or not it pays, until they have lost a budget."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(payoff, "TUPLES_PER_UPDATE", 1)
        patch.setattr(payoff, "FIRST_TRIAL_BUDGET", 1e30)
        patch.setattr(payoff, "MARGIN", -1e30)
        patch.setattr(payoff, "GUARD_BUDGET_TRIALS", budget)
        patch.setattr(tuple_cost, "BLACKLIST_NS", -1e30)
        patch.setattr(demand, "LEAST_SWEPT", 1)
        patch.setattr(demand, "SWEPT_SHARE", swept)
        yield


def expected(query: Query, rows: Rows) -> list[dict[str, Any]]:
    """The oracle's results for a query alone."""
    return results(query, rows)


def seen_since(query: Query, since: Mapping[str, int]) -> Query:
    """The query with a floor under the timestamps of its aliases."""
    floors = tuple(
        Compare(">=", ColumnRef(alias, "_ts", Type.TIMESTAMP), Literal(ts, Type.TIMESTAMP))
        for alias, ts in since.items()
    )
    return replace(query, predicates=query.predicates + floors)


def come_and_go(runner: Runner, done: list[tuple[str, Any]]) -> dict[str, tuple[Query, int, int]]:
    """Do what `registrations` has drawn.

    Returns:
        Each query as it sees the input, and from when to when its results are asked for.
    """
    asked: dict[str, tuple[Query, int, int]] = {}
    for what, of in done:
        if what == "to":
            runner.to(runner.cut + of)
        elif what == "drop":
            runner.juggler.drop(of, cut=runner.cut)
            asked[of] = (*asked[of][:2], runner.cut)
        else:
            query, from_now = of
            since = runner.juggler.add(query, from_now=from_now, cut=runner.cut)
            names = runner.juggler.group.member(query.name).input_of()
            floors = {alias: since[name] for alias, name in names.items() if name in since}
            if from_now:
                assert set(floors.values()) <= {runner.cut}
                floors = dict.fromkeys(names, runner.cut)
            asked[query.name] = (seen_since(query, floors), runner.cut, 2**40)
    return asked


def judge(runner: Runner, asked: Mapping[str, tuple[Query, int, int]], rows: Rows) -> None:
    """Each query has produced the results that it produces alone."""
    for name, (query, begin, end) in asked.items():
        wanted = [row for row in expected(query, rows) if begin <= row["_ts"] < min(end, runner.cut)]
        assert canonical(runner.found.get(name, [])) == canonical(wanted), name


@st.composite
def groups(draw: st.DrawFn, *, most: int = 4) -> QueryGroup:
    """Some queries in one group."""
    shared = draw(st.lists(families(), min_size=2, max_size=4))
    return query_group([draw(queries(f"q{n}", shared)) for n in range(draw(st.integers(1, most)))])
