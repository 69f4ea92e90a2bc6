"""Parts of the operator by themselves, and a run long enough for structures to grow and be merged."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from operators.data.tuples import FOREVER, Tuples
from operators.data.watermark import END
from operators.engine.engine import Engine
from operators.juggler.operator import ORDERS, Juggler
from operators.juggler.predicates.lists import JOIN, WINDOW
from operators.juggler.predicates.normal_form import normal_forms, value_forms
from operators.juggler.routing.tuples_in_flight import PREDICATES, QUERIES
from operators.juggler.state.sources import GroupSources
from schemas.columns import Batch, Column
from schemas.errors import UsageError
from schemas.groups import QueryGroup, query_group
from schemas.language.program import parse_program
from schemas.query import Query, Type
from tests.feeding import canonical, to_rows
from tests.operators.juggler.groups import Runner, expected, seen_since

STREAMS = """
CREATE STREAM a (k BIGINT, v BIGINT, d DOUBLE, at TIMESTAMP) WITH (topic = 'a', timestamp = 'at');
CREATE STREAM b (k BIGINT, v BIGINT, d DOUBLE, at TIMESTAMP) WITH (topic = 'b', timestamp = 'at');
CREATE STREAM c (k BIGINT, v BIGINT, d DOUBLE, at TIMESTAMP) WITH (topic = 'c', timestamp = 'at');
"""


def queries_of(*conditions: str, window: int = 100) -> tuple[Query, ...]:
    """One query over A and B per condition."""
    size = f"[RANGE {window} MILLISECONDS]"
    text = "".join(
        f"INSERT INTO 'q{n}' SELECT * FROM a A {size}, b B {size} WHERE {condition};\n"
        for n, condition in enumerate(conditions)
    )
    return parse_program(STREAMS + text).queries


def forms(condition: str) -> list[str]:
    """A condition's normal forms."""
    (query,) = queries_of(condition)
    (predicate,) = query.predicates
    return [str(form) for form in list(normal_forms(predicate)) or list(value_forms(predicate))]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("A.v <= B.v", ["A.v <= B.v", "B.v >= A.v"]),
        ("A.v < B.v", ["A.v <= B.v - 1", "B.v >= A.v + 1"]),
        ("A.v + 3 > 2 * B.v", ["A.v >= 2 * B.v - 2", "2 * B.v <= A.v + 2"]),
        ("A.v - B.v < 5", ["A.v <= B.v + 4", "B.v >= A.v - 4"]),
        ("4 - A.v > B.v * -1", ["A.v <= B.v + 3", "B.v >= A.v - 3"]),
        ("2 * A.v <= 4 * B.v + 7", ["A.v <= 2 * B.v + 3", "2 * B.v >= A.v - 3"]),
        ("2 * A.v >= 4 * B.v + 7", ["A.v >= 2 * B.v + 4", "2 * B.v <= A.v - 4"]),
        ("2 * A.v = 4 * B.v + 7", []),  # never; but overflow is no answer either
        ("3 * A.v = -B.v", ["3 * A.v = -B.v", "B.v = -3 * A.v"]),
        ("A.v * 2 < 7", ["A.v <= 3"]),
        ("-2 * A.v < 7", ["A.v >= -3"]),
        ("2 * A.v >= 7", ["A.v >= 4"]),
        ("A.v > 2.5", ["A.v >= 3"]),
        ("A.d <= B.d + 0.5", ["A.d <= B.d + 0.5"]),
        ("A.d < B.d", ["A.d < B.d", "B.d > A.d"]),
        ("0.5 * A.d > B.d", ["A.d > 2 * B.d", "B.d < 0.5 * A.d"]),
        ("-0.5 * A.d > B.d", ["A.d < -2 * B.d", "B.d < -0.5 * A.d"]),
        ("3.0 * A.d > B.d", ["B.d < 3 * A.d"]),  # a third of a double is rounded
        ("A.d * 2 = 103", ["A.d = 51.5"]),
        ("A.d * 3 = 0.7", ["Arithmetic"]),  # true of two doubles
        ("A.d + A.v < B.d", []),
        ("A.d - B.d <= 3", ["Arithmetic"]),
        ("A.v <> B.v", []),
    ],
)
def test_normal_forms(condition: str, expected: list[str]) -> None:
    """One form, for either side where that is exact; any numeric expression against a constant else."""
    found = forms(condition)
    assert [form.split("(")[0] for form in found] == expected


def test_lists_are_in_covering_order() -> None:
    """The tightest first within a factor; a query may ask for several predicates of a list."""
    group = query_group(
        queries_of("A.v <= B.v + 5", "B.v >= A.v - 1", "A.v < B.v + 3 AND A.v <= B.v + 9", "A.v <= 2 * B.v")
    )
    juggler = Juggler(GroupSources(group), group)
    (one,) = juggler.lists.of(JOIN)
    assert str(one) == "A.v <= 2 * B.v, A.v <= B.v + 1, A.v <= B.v + 2, A.v <= B.v + 5, A.v <= B.v + 9"
    assert [sorted(entry.queries) for entry in one.entries] == [[3], [1], [2], [0], [2]]


def test_own_windows_are_lists() -> None:
    """Only where a query's window is shorter than what the operator keeps."""
    long, short = queries_of("A.k = B.k")[0], queries_of("A.k = B.k", "A.v = B.v", window=10)[1]
    group = query_group([long, short])
    juggler = Juggler(GroupSources(group), group)
    own = [one for one in juggler.lists.lists if one.kind == WINDOW]
    assert [(one.source, str(one)) for one in own] == [("A", "A._ts <= B._ts + 10, A._ts <= B._ts + 100"),
                                                        ("B", "B._ts <= A._ts + 10, B._ts <= A._ts + 100")]  # fmt: skip
    same = query_group(queries_of("A.k = B.k", "A.v = B.v"))
    assert not [one for one in Juggler(GroupSources(same), same).lists.lists if one.kind == WINDOW]


def test_refuses_what_it_does_not_know() -> None:
    """Orders and encodings by name."""
    group = query_group(queries_of("A.k = B.k"))
    with pytest.raises(UsageError, match="order 'WAA' of predicate types: one of adaptive, AJW"):
        Juggler(GroupSources(group), group, "WAA")
    with pytest.raises(UsageError, match="encoding 'bits': one of queries, predicates"):
        Juggler(GroupSources(group), group, encoding="bits")
    juggler = Juggler(GroupSources(group), group)
    with pytest.raises(UsageError, match="the group has no query 'q7'"):
        juggler.drop("q7", cut=0)


CONDITIONS = (
    "A.k = B.k AND A.v <= B.v + {n}",
    "A.v >= 3 * B.v - {n} AND A.v <= 3 * B.v + 40 AND A.d < 90",
    "A.k = B.k AND A.d < 0.5 * B.d AND B.v > {n}",
    "A.d >= B.d AND A.d <= B.d + 0.{n} AND A.at <= B.at",
    "A.at >= B.at - {n} AND A.at <= B.at + 2 AND A.v = B.v",
)


def many() -> QueryGroup:
    """More queries than a word has bits, two of other windows, one over three streams, two over one each, three with
    windows that count tuples."""
    text = ""
    for n in range(66):
        size = 200 if n % 9 else 70
        condition = CONDITIONS[n % len(CONDITIONS)].format(n=n % 7 + 1)
        text += (
            f"INSERT INTO 'q{n}' SELECT A.v, B.v AS w, B.at FROM "
            + ("b B [RANGE {0} MILLISECONDS], a A" if n % 4 else "a A [RANGE {0} MILLISECONDS], b B").format(size)
            + f" [RANGE {size} MILLISECONDS] WHERE {condition};\n"
        )
    text += """
    INSERT INTO 'three' SELECT A.v, B.v AS w, C.v AS x
    FROM c C [RANGE 50 MILLISECONDS], a A [RANGE 200 MILLISECONDS], b B [RANGE 200 MILLISECONDS]
    WHERE A.k = B.k AND B.k = C.k AND A.v + B.v + C.v < 60;
    INSERT INTO 'one' SELECT A.v FROM a A [RANGE 1 SECOND] WHERE A.d < 5;
    INSERT INTO 'two' SELECT X.v, Y.v AS w FROM a X [RANGE 20 MILLISECONDS], a Y [RANGE 20 MILLISECONDS]
    WHERE X.v = Y.v AND X.at < Y.at;
    INSERT INTO 'rows' SELECT A.v, B.v AS w FROM a A [ROWS 150], b B [ROWS 9] WHERE A.k = B.k;
    INSERT INTO 'mixed' SELECT A.v, B.v AS w FROM b B [ROWS 40], a A [RANGE 30 MILLISECONDS] WHERE A.v = B.v;
    INSERT INTO 'rows_three' SELECT A.v, B.v AS w, C.v AS x
    FROM c C [ROWS 600], a A [RANGE 200 MILLISECONDS], b B [ROWS 40] WHERE A.k = B.k AND B.k = C.k AND A.v < C.v;
    """
    return query_group(parse_program(STREAMS + text).queries)


UNTIL = 600


def data(group: QueryGroup, n: int = 2 * UNTIL) -> dict[str, Batch]:
    """Random tuples, two per ms and stream, with nulls; more than structures begin with room for."""
    rng = np.random.default_rng(7)
    found = {}
    for stream in group.query.streams():
        at = np.sort(rng.integers(0, n // 2, n))
        columns = {
            "k": Column(Type.BIGINT, rng.integers(0, 40, n)),
            "v": Column(Type.BIGINT, rng.integers(0, 100, n), rng.random(n) < 0.97),
            "d": Column(Type.DOUBLE, rng.uniform(0, 100, n)),
            "at": Column(Type.TIMESTAMP, at),
        }
        found[stream.name] = Batch(at, columns)
    return found


def slices(batches: dict[str, Batch], step: int, until: int = UNTIL) -> Iterator[tuple[dict[str, Batch], int]]:
    """The batches of each step of event time that have tuples."""
    for begin in range(0, until, step):
        end = min(begin + step, until)
        part = {name: b.slice(*np.searchsorted(b.ts, [begin, end]).tolist()) for name, b in batches.items()}
        if any(len(b) for b in part.values()):
            yield {name: b for name, b in part.items() if len(b)}, end


def run(
    group: QueryGroup, batches: dict[str, Batch], order: str, encoding: str = QUERIES
) -> tuple[Juggler, GroupSources, dict[str, list[Tuples]]]:
    """The operator over all slices, and what it gave per query."""
    sources = GroupSources(group)
    juggler = Juggler(sources, group, order, encoding)
    found: dict[str, list[Tuples]] = {name: [] for name in group.names}
    for part, cut in slices(batches, 40):
        epoch = sources.enter(part, juggler.wanted(part))
        sources.cut = cut
        for name, tuples in juggler.process(epoch, min(int(b.ts[0]) for b in part.values())).items():
            found[name].append(tuples)
        juggler.purge(cut)
    return juggler, sources, found


@cache
def answers() -> tuple[QueryGroup, dict[str, list[dict[str, Any]]]]:
    """The group, and the results of engines of their own for some of its queries."""
    group = many()
    batches = data(group)
    found: dict[str, list[dict[str, Any]]] = {}
    for number, member in enumerate(group.members):
        if number % 8 and number < 66:
            continue
        engine, rows = Engine(member.query), found.setdefault(member.name, [])
        for part, cut in slices(batches, 300):
            for name in {s.name for s in member.query.streams()} & part.keys():
                engine.push(name, 0, part[name])
            rows += to_rows(engine.advance(cut))
        assert rows
    return group, found


@pytest.mark.deep
@pytest.mark.parametrize(
    ("order", "encoding"), [*((order, QUERIES) for order in ("adaptive", *ORDERS)), ("WAJ", PREDICATES)]
)
def test_a_long_run(order: str, encoding: str) -> None:
    """Every query produces the results of its own engine in the same order; its own windows set their expiry."""
    group, expected = answers()
    juggler, sources, found = run(group, data(group), order, encoding)
    for member in group.members:
        tuples = Tuples.concat(found[member.name], member.inputs)
        if member.name not in expected:
            continue
        columns = {
            o.name: sources.store(o.expr.alias).gather(o.expr.name, tuples.rows[member.inputs.index(o.expr.alias)])  # type: ignore[union-attr]
            for o in member.over_inputs.outputs
        }
        assert to_rows(Batch(tuples.ts, columns)) == expected[member.name], member.name
        times = [sources.store(a).gather("_ts", tuples.rows[k]).values for k, a in enumerate(member.inputs)]
        ranged = [(t, s.window) for t, s in zip(times, member.query.sources, strict=True) if s.window.kind == "RANGE"]
        ends = [t + window.size for t, window in ranged] or [np.full(len(tuples), FOREVER)]
        assert np.array_equal(tuples.expiry, np.minimum.reduce(ends))
    assert juggler.comparisons() > juggler.intermediate_results() > 0
    assert juggler.state_tuples() > 0
    assert juggler.size_bytes() > 8 * juggler.state_tuples()
    juggler.purge(END)
    assert juggler.state_tuples() == 0
    for input_state in juggler._input_states.values():
        assert len(input_state.by_time) == 0
        assert not any(input_state.by_key.values())


FACTORS = [(1,), (-1,), (3,), (2, -1), (1, 2, -2)]


@pytest.mark.parametrize("op", ["<", "<=", ">", ">=", "="])
@pytest.mark.parametrize("factors", FACTORS, ids=str)
@pytest.mark.parametrize("column", ["v", "d"])
def test_bounds_of_candidates(op: str, factors: tuple[int, ...], column: str) -> None:
    """What no bound lets through is no result: lists of all shapes, whose queries all bound what is found by value."""
    dot = "" if column == "v" else ".0"
    lines = [f"{f}{dot} * B.{column} + {a}{dot}" for f in factors for a in (-20, 4, 50)]
    group = query_group(queries_of(*(f"A.{column} {op} {line}" for line in lines)))
    batches = {
        name: Batch(b.ts, {**b.columns, "d": Column(Type.DOUBLE, np.floor(b.columns["d"].values.astype(np.float64)))})
        for name, b in data(group, 120).items()
    }
    _, _, found = run(group, batches, "JAW")
    for member in group.members:
        engine = Engine(member.query)
        for name, batch in batches.items():
            engine.push(name, 0, batch)
        alone = engine.advance(UNTIL)
        tuples = Tuples.concat(found[member.name], member.inputs)
        assert np.array_equal(tuples.ts, alone.ts), str(member.query.predicates)
        assert len(alone) or op == "=" or factors != (1,)


def test_queries_that_ask_for_less_bound_less() -> None:
    """A bound is the loosest of what a tuple's own queries ask for; where one of them asks for none there is none."""
    conditions = ("A.v <= B.v - 60 AND B.d < 50", "A.v <= B.v + 60 AND B.d > 30", "A.d < 5 AND B.d < 10")
    windows = ("A.at <= B.at - 60 AND B.d < 50", "A.at <= B.at - 5 AND B.d > 30", "A.at >= B.at - 9 AND A.k = B.k")
    keys = ("A.k = B.k AND A.v = B.v", "A.k = B.k AND A.d < 50")
    groups = (conditions[:2], windows[:2], keys, (*conditions, *windows))
    for asked, order in product(groups, ("AJW", "AWJ", "WJA")):
        group = query_group(queries_of(*asked))
        batches = data(group, 300)
        _, _, found = run(group, batches, order)
        for member in group.members:
            engine = Engine(member.query)
            for name, batch in batches.items():
                engine.push(name, 0, batch)
            alone = engine.advance(UNTIL)
            assert np.array_equal(Tuples.concat(found[member.name], member.inputs).ts, alone.ts), member.name
            assert len(alone)


BIG = (2**63 - 1, -(2**63), 2**53 + 1, 2**53, 2**62, 7, None)
REAL = (2.0**53, 9.3e18, -9.3e18, 1e308, 5e-324, 7.0, float("inf"), float("nan"), None)


ODD = (
    "A.v <= B.v + 5",
    "A.v < B.v",
    "A.v + 3 > B.v",
    "A.v - B.v < 4",
    "2 * A.v >= B.v",
    "A.v <= B.d",
    "A.d <= B.v",
    "A.d = B.v",
    "A.d >= 2.0 * B.d",
    "0.5 * A.d < B.d",
    "-1.0 * A.d <= B.d + 1.0",
    "A.v * 2 < 100",
    "A.v + 1 > 8",
    "A.d * 2.0 < 1.0",
    "A.d - 1.0 >= 6.0",
    "A.d - B.d < 0",
    "A.d - B.d > 0",
)


@pytest.mark.parametrize("condition", ODD)
@pytest.mark.parametrize("order", ["JAW", "WAJ"])
def test_odd_values(condition: str, order: str) -> None:
    """Overflow is NULL, and doubles beyond 2**53 lack whole numbers: such values are evaluated as written."""
    group = query_group(queries_of(condition, f"{condition} AND A.k = B.k"))
    rows = odd_rows()
    found = Runner(group, rows, order).all(5)
    for member in group.members:
        assert canonical(found[member.name]) == canonical(expected(member.query, rows))


def odd_rows(times: int = 1) -> dict[str, list[dict[str, Any]]]:
    """16 tuples with all odd values, so often."""
    values = [*product(BIG, REAL[:1]), *product(BIG[-2:-1], REAL)] * times
    return {name: [{"k": 1, "v": v, "d": d, "ts": n, "at": n} for n, (v, d) in enumerate(values)] for name in "ab"}


@pytest.mark.parametrize("added", ODD)
def test_odd_values_of_stored_tuples(added: str) -> None:
    """Values may be odd for a query that is added although they were not for any query before."""
    rows = odd_rows(2)
    for condition in ODD:
        before, after = queries_of(condition, added)
        runner = Runner(query_group([before]), rows, "JAW")
        runner.to(16)
        seen = seen_since(after, runner.juggler.add(after, from_now=False, cut=16))
        runner.to(32)
        wanted = [row for row in expected(seen, rows) if row["_ts"] >= 16]
        assert canonical(runner.found.get(after.name, [])) == canonical(wanted), condition
