"""`weir backfill` and `weir audit` on a real Spark, compared with the oracle and with `weir run`."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from operators.plan.plan import left_deep
from ops.spark.aggregates import folding
from ops.spark.answer import History
from ops.spark.expressions import register_functions, sql_of
from ops.spark.results import answer_of, read_answer
from ops.spark.session import check_installed, spark_session, split_for
from ops.spark.stage import Stage
from schemas.columns import Batch, Column
from schemas.errors import UsageError
from schemas.query import (
    GONE,
    Arithmetic,
    Call,
    ColumnRef,
    Compare,
    Expr,
    InList,
    IsNull,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    Output,
    Query,
    Source,
    Stream,
    Subtraction,
    Type,
    Window,
    type_of,
)
from services.cli import app
from tests import oracle
from tests.cases import ALIASES, FIELDS, Case, aggregated, cases, column, deduplication, in_json
from tests.subtractions import busy_subtractions, subtractions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

QUICK = {
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.codegen.wholeStage": "false",
}
"""Settings that make Spark quick on few rows."""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark for all tests of this file: it takes seconds to start."""
    with spark_session("local[2]", tmp_path_factory.mktemp("spark"), **QUICK) as session:
        register_functions(session)
        split_for(session, 0)
        yield session


# --- Expressions ---------------------------------------------------------------------------------------

EDGES = [
    {"ts": 0, "k": 1, "v": 2**63 - 1, "d": 9.223372036854776e18, "s": "a%b\\_", "b": True},
    {"ts": 1, "k": -1, "v": -(2**63), "d": -9.223372036854775808e18, "s": "", "b": False},
    {"ts": 2, "k": 0, "v": 2**53 + 1, "d": 9007199254740992.0, "s": "Äß\n'\U0001f600x", "b": None},
    {"ts": 3, "k": None, "v": None, "d": None, "s": None, "b": True},
    {"ts": 4, "k": 2, "v": -7, "d": -0.0, "s": "longer than eight", "b": False},
    {"ts": 5, "k": -2, "v": 7, "d": 5e-324, "s": "ab", "b": True},
    {"ts": 6, "k": 3, "v": 0, "d": 1.7976931348623157e308, "s": "a\nb", "b": None},
    {"ts": 7, "k": 7, "v": 2, "d": -2.5, "s": "aab", "b": False},
    {"ts": 8, "k": 0, "v": None, "d": 0.5, "s": "B", "b": True},
]
ROW = {field.name: ColumnRef("A", field.name, field.type) for field in FIELDS}


JSON = (
    r"""{"it's": ["\u00e4\n\"", "\ud800", -7, 1.50, 1e400, -0, -0.0, 9223372036854775808, true, null, {"x": 5}],"""
    r""" "a": {"b": 1, "b": "2"}}"""
)

HUGE = Arithmetic("*", ROW["d"], Literal(1e308, Type.DOUBLE), Type.DOUBLE)
TELLING: list[Expr] = [
    Arithmetic("/", Literal(1.0, Type.DOUBLE), HUGE, Type.DOUBLE),
    Arithmetic("%", ROW["k"], HUGE, Type.DOUBLE),
    Arithmetic("/", ROW["v"], ROW["k"], Type.BIGINT),
    Call("ABS", (ROW["v"],), Type.BIGINT),
    *[Call("SIGN", (number,), Type.BIGINT) for number in (ROW["v"], ROW["d"], HUGE)],
    *[Call(name, (ROW["s"],), Type.STRING) for name in ("LOWER", "UPPER")],
    *[
        Call("JSON_VALUE", (Literal(JSON, Type.STRING), Literal(path, Type.STRING)), kind)
        for path in ("$", "$[9]", *(f"$['it''s'][{n}]" for n in range(11)), "$.a.b", "$.it")
        for kind in (Type.STRING, Type.BIGINT, Type.DOUBLE, Type.BOOLEAN)
    ],
    *[Compare(op, ROW[name], ROW["d"]) for op in ("=", "<>", "<", "<=", ">", ">=") for name in ("k", "v")],
]
"""Expressions that the random ones might miss."""


class Expressions:
    """Random expressions over a row of `FIELDS`."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def number(self, depth: int) -> Expr:
        pick = self._random.choice
        if depth == 0:
            whole = Literal(pick([0, 1, -1, 2, 7, 2**62, -(2**63)]), Type.BIGINT)
            real = Literal(pick([0.0, 0.5, -2.5, 1e308, 9.3e18, 5e-324]), Type.DOUBLE)
            return pick([ROW["k"], ROW["v"], ROW["d"], ROW["d"], whole, real])
        first, second = self.number(depth - 1), self.number(self._random.randrange(depth))
        kind = type_of(first)
        same = kind if kind is type_of(second) else Type.DOUBLE
        return pick(
            [
                *[Arithmetic(op, first, second, same) for op in ("+", "-", "*", "/", "%")],
                Negate(first, kind),
                *[Call(name, (first,), kind) for name in ("ABS", "FLOOR", "CEIL", "ROUND")],
                Call("SQRT", (first,), Type.DOUBLE),
                Call("SIGN", (first,), Type.BIGINT),
                Call("COALESCE", (first, second), same),
                Call("LENGTH", (self.text(depth - 1),), Type.BIGINT),
            ]
        )

    def text(self, depth: int) -> Expr:
        pick = self._random.choice
        if depth == 0:
            return pick([ROW["s"], ROW["s"], Literal("aä'\\\n", Type.STRING)])
        place = [Literal(pick([-(2**63), -1, 0, 1, 2, 3, 2**63 - 1]), Type.BIGINT), ROW["k"], ROW["v"]]
        text = self.text(depth - 1)
        return pick(
            [
                Call("CONCAT", (text, self.text(0)), Type.STRING),
                Call("SUBSTRING", (text, pick(place)), Type.STRING),
                Call("SUBSTRING", (text, pick(place), pick(place)), Type.STRING),
                Call("COALESCE", (text, Literal("z", Type.STRING)), Type.STRING),
                in_json(text, pick(["$.a[0]", "$.a[1]"])),
            ]
        )

    def condition(self, depth: int) -> Expr:
        pick = self._random.choice
        op = pick(["=", "<>", "<", "<=", ">", ">="])
        patterns = ["a%", "%b", "_", "%\\%%", "a_b", "", "%\U0001f600_", "a\\\\%"]
        found = [
            Compare(op, self.number(depth), self.number(depth)),
            Compare(op, self.number(depth), self.number(depth)),
            Compare(op, self.text(depth), self.text(0)),
            IsNull(self.number(depth), pick([True, False])),
            Like(self.text(depth), pick(patterns), pick([True, False])),
            InList(ROW["d"], (Literal(2, Type.BIGINT), Literal(pick([0.5, None]), Type.DOUBLE)), pick([True, False])),
            ROW["b"],
        ]
        if depth:
            found += [
                Not(self.condition(depth - 1)),
                Or((self.condition(depth - 1), self.condition(0))),
            ]
        return pick(found)


def shown(value: Any) -> Any:
    """A value without the sign of zero, which some of Python's own functions lose."""
    return value + 0.0 if isinstance(value, float) else value


@pytest.mark.deep
def test_expressions_mean_in_spark_what_they_mean_to_the_oracle(spark: SparkSession, tmp_path: Path) -> None:
    check_expressions(spark, tmp_path, 5)


@pytest.mark.slow
def test_many_expressions(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(10):
        check_expressions(spark, tmp_path / str(number), 40)


def check_expressions(spark: SparkSession, folder: Path, rounds: int) -> None:
    seed = random.randrange(10**6)
    make = Expressions(seed)
    exprs = TELLING + [
        of(n % 3) for n in range(rounds) for of in (make.number, make.text, make.condition, make.condition)
    ]
    folder.mkdir(exist_ok=True)
    path = folder / "rows.parquet"
    names = {column: name for name, column in ROW.items()}
    columns = batch_of(EDGES, True).columns
    pq.write_table(pa.table({name: column.to_arrow() for name, column in columns.items()}), path)
    texts = [f"{sql_of(expr, names.__getitem__)} AS x{n}" for n, expr in enumerate(exprs)]
    found = spark.read.parquet(str(path)).orderBy("ts").selectExpr(*texts).collect()
    for row, values in zip(EDGES, found, strict=True):
        bound = {"A": oracle.Tuple(0, row, 0, 0, ())}
        for expr, value in zip(exprs, values, strict=True):
            expected = oracle.evaluate(expr, bound)
            assert shown(value) == shown(expected), f"seed {seed}: {expr} of {row}"
            assert type(value) is type(expected), f"seed {seed}: {expr} of {row}"


# --- Answers -------------------------------------------------------------------------------------------


def plain(row: dict[str, Any]) -> str:
    return repr(sorted((name, shown(value)) for name, value in row.items()))


def batch_of(rows: list[dict[str, Any]], timed: bool) -> Batch:
    columns = {f.name: Column.from_values([row.get(f.name) for row in rows], f.type) for f in FIELDS}
    columns[GONE] = Column.from_values([row.get("_op") == "-" for row in rows], Type.BOOLEAN)
    return Batch(np.array([row["ts"] if timed else -1 for row in rows], np.int64), columns)


def batch_answer(spark: SparkSession, case: Case, folder: Path, **span: Any) -> list[dict[str, Any]]:
    query = case.query
    with Stage(folder, query) as stage:
        for stream in query.streams():
            for number, rows in enumerate(case.rows[stream.name]):
                stage.add(stream, number, batch_of(rows, True), np.arange(len(rows), dtype=np.int64))
        for table in query.tables():
            stage.add_table(table, batch_of(case.tables[table.name], False))
    out = folder / "answer"
    answer_of(spark, query, History(stage.paths(), **span)).write.parquet(str(out))
    found: list[dict[str, Any]] = []
    for batch in read_answer(query, out):
        columns = {name: column.to_values() for name, column in batch.columns.items()} | {"_ts": batch.ts.tolist()}
        found += [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return found


@st.composite
def busy_joins(draw: st.DrawFn) -> Case:
    """Joins by a key of few values, with windows about as long as the gaps between equal keys, and many ties."""
    aliases = ALIASES[: draw(st.sampled_from([2, 3, 3]))]
    kinds = [Window("RANGE", 2), Window("RANGE", 6), Window("ROWS", 3), Window("ROWS", 7)]
    disorder = draw(st.sampled_from([3, 40]))
    streams = [
        Stream(f"S{a}", FIELDS, f"S{a}", timestamp="ts", disorder_ms=disorder, **draw(deduplication())) for a in aliases
    ]
    if draw(st.booleans()):
        streams[1] = streams[0]
    sources = tuple(Source(a, s, draw(st.sampled_from(kinds))) for a, s in zip(aliases, streams, strict=True))
    predicates = tuple(Compare("=", column(aliases[0], "k"), column(a, "k")) for a in aliases[1:])
    outputs = tuple(Output(a, column(a, "v")) for a in aliases)
    chance = random.Random(draw(st.integers(0, 10**6)))

    def row(n: int) -> dict[str, Any]:
        real = chance.choice([0.5, -0.0, 0.0, 0.1, 1e308, -1e308, None])
        whole = chance.choice([n, n, n, 2**62])
        text = chance.choice(["", "a", None])
        return {"ts": max(0, n + chance.randrange(-4, 5)), "k": n * 7 % 5 % 2, "v": whole, "d": real, "s": text}

    rows = {stream.name: [[row(n) for n in range(14)] for _ in range(2)] for stream in streams}
    query = Query("q", None, sources, predicates, outputs)
    return Case(query, rows, left_deep(aliases), [1], 1)


def telling(strategy: st.SearchStrategy[Case], least: int) -> st.SearchStrategy[Case]:
    """Cases with results: a case without results cannot fail."""
    return strategy.filter(lambda case: len(oracle.results(case.query, case.given)) >= least)


def looking_up(strategy: st.SearchStrategy[Case]) -> st.SearchStrategy[Case]:
    """Cases with results for which a row of a table has been found."""
    return strategy.filter(
        lambda case: any(
            row.get(f"{one.alias}.v") is not None
            for one in case.query.lookups
            for row in oracle.results(case.query, case.given)
        )
    )


def check(spark: SparkSession, make: Callable[[str], Path], case: Case) -> None:
    found = batch_answer(spark, case, make("answer"))
    expected = oracle.results(case.query, case.given)
    if case.query.subtracted or case.query.aggregation is not None:
        assert [plain(row) for row in found] == [plain(row) for row in expected]
        return
    assert Counter(map(plain, found)) == Counter(map(plain, expected))
    assert [row["_ts"] for row in found] == [row["_ts"] for row in expected]


def check_copartitioned(spark: SparkSession, make: Callable[[str], Path], case: Case) -> None:
    """The answer of copartitioned streams is that of each partition, up to the partition's own end."""
    ends, begin = {0: 9, 1: 23}, 4
    found = batch_answer(spark, case, make("answer"), copartitioned=True, begin=begin, ends=ends)
    expected: list[dict[str, Any]] = []
    for number, end in ends.items():
        rows = {name: parts[number : number + 1] for name, parts in case.rows.items()}
        own = oracle.results(case.query, {**rows, **case.tables})
        expected += [row for row in own if begin <= row["_ts"] < end]
    assert Counter(map(plain, found)) == Counter(map(plain, expected))
    assert [row["_ts"] for row in found] == sorted(row["_ts"] for row in expected)


def property_of(strategy: st.SearchStrategy[Case], examples: int, check: Any = check) -> Any:
    """A test of a few random cases; each costs Spark a second or two, so none is shrunk."""

    @settings(
        max_examples=examples,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(case=telling(strategy, 3))
    def test(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, case: Case) -> None:
        check(spark, tmp_path_factory.mktemp, case)

    return test


test_joins_equal_the_oracles = pytest.mark.deep(property_of(cases(), 2))
test_lookups_equal_the_oracles = pytest.mark.deep(property_of(looking_up(cases(most_aliases=3)), 4))
test_set_differences_look_up = pytest.mark.deep(property_of(looking_up(subtractions(most_aliases=3)), 3))
test_many_lookups = pytest.mark.slow(property_of(looking_up(cases()), 60))
test_busy_joins_equal_the_oracles = pytest.mark.deep(property_of(busy_joins(), 2))
test_set_differences_equal_the_oracles_in_order = pytest.mark.deep(property_of(subtractions(), 2))
test_aggregates_equal_the_oracles_in_order = property_of(aggregated(busy_joins()), 2)
test_many_joins = pytest.mark.slow(property_of(cases(), 60))
test_copartitioned_streams_answer_per_partition = pytest.mark.deep(property_of(busy_joins(), 1, check_copartitioned))
test_many_copartitioned_streams = pytest.mark.slow(
    property_of(st.one_of(busy_joins(), subtractions(), aggregated(busy_joins())), 30, check_copartitioned)
)


@st.composite
def chains(draw: st.DrawFn) -> Case:
    """Busy joins of streams in which equal keys repeat all the time."""
    case = draw(busy_joins())
    names = draw(st.sampled_from([("k",), ("d",), ("s", "k")]))
    options = {"deduplicate": names, "deduplicate_within_ms": draw(st.sampled_from([1, 3, 5]))}
    sources = tuple(replace(s, stream=replace(s.stream, **options)) for s in case.query.sources)
    return replace(case, query=replace(case.query, sources=sources))


test_repeats_are_the_oracles = property_of(chains(), 2)
test_repeats_of_copartitioned_streams = pytest.mark.deep(property_of(chains(), 2, check_copartitioned))
test_many_chains_of_repeats = pytest.mark.slow(property_of(chains(), 40))
test_many_busy_joins = pytest.mark.slow(property_of(busy_joins(), 40))
test_many_ranged_joins = pytest.mark.slow(property_of(cases(ranged=True, most_rows=30), 40))
test_many_set_differences = pytest.mark.slow(property_of(subtractions(), 40))
test_many_busy_set_differences = pytest.mark.slow(property_of(busy_subtractions(), 20))
test_many_busy_aggregates = pytest.mark.slow(property_of(aggregated(busy_joins()), 20))
test_many_aggregates = pytest.mark.slow(property_of(aggregated(cases(most_aliases=3)), 40))


def check_unborn(spark: SparkSession, make: Callable[[str], Path]) -> None:
    """A match that dies at the instant at which it arrives changes nothing."""
    a, b = (Stream(name, FIELDS, name, timestamp="ts") for name in ("a", "b"))
    sources = (Source("A", a, Window("RANGE", 20)), Source("B", b, Window("ROWS", 1)))
    part = Subtraction("B", (Compare("=", column("A", "k"), column("B", "k")),))
    query = Query("q", None, sources, (), (Output("k", column("A", "k")),), subtracted=(part,))
    rows = {"a": [[{"ts": 0, "k": 1}]], "b": [[{"ts": 5, "k": 1}, {"ts": 5, "k": 2}]]}
    check(spark, make, Case(query, rows, left_deep(("A", "B")), [1], 1))


def test_a_match_that_never_lives_changes_nothing(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check_unborn(spark, tmp_path_factory.mktemp)


def test_values_of_groups_follow_their_events() -> None:
    check_fold()


def check_fold() -> None:
    """Values enter and leave two groups; the row at each multiple is the oracle's aggregate of the values inside."""
    chance = random.Random(11)
    functions = [(name, double) for name in ("COUNT", "SUM", "MIN", "MAX", "AVG", "MEDIAN") for double in (False, True)]
    functions = [(name, double or name in ("AVG", "MEDIAN")) for name, double in functions]
    wholes, reals = [1, 2, -5, 2**62, 2**62, None], [0.1, 0.2, 1e308, 1e308, -1e308, 5e-324, None]
    inside: list[tuple[Any, ...]] = []
    rows: list[tuple[Any, ...]] = []
    expected: list[tuple[Any, ...]] = []
    for key in ("a", None):
        for at in range(120):
            for _ in range(chance.randrange(4)):
                enters = chance.random() < 0.5 or not inside
                values = tuple(chance.choice(wholes if n % 2 == 0 else reals) for n in range(len(functions)))
                if not enters:
                    values = inside.pop(chance.randrange(len(inside)))
                else:
                    inside.append(values)
                rows.append((key, *values, at, 1 if enters else -1))
            if rows and rows[-1][0] == key and rows[-1][-2] == at:
                stderr = [
                    oracle.aggregated(name, [v[n] for v in inside if v[n] is not None], _kind(name, n))
                    for n, (name, _) in enumerate(functions)
                ]
                expected.append((key, *stderr, at, bool(inside)))
        inside.clear()
    assert list(folding(1, functions)(rows)) == expected


def _kind(function: str, number: int) -> Type:
    return Type.DOUBLE if number % 2 or function in ("AVG", "MEDIAN") else Type.BIGINT


# --- The commands --------------------------------------------------------------------------------------

PROGRAM = """
CREATE STREAM a (x BIGINT, n BIGINT, at TIMESTAMP) WITH (topic = 'a', timestamp = 'at', disorder = '20 MILLISECONDS');
CREATE STREAM b (x BIGINT, s STRING, at TIMESTAMP) WITH (topic = 'b', timestamp = 'at');
CREATE TABLE rooms (x BIGINT, floor BIGINT) WITH (path = 'rooms.csv');
SELECT A.n AS n, B.s AS "a, b", R.floor / 2.0 AS half
FROM a A [RANGE 50 MILLISECONDS], b B [ROWS 20], rooms R WHERE A.x = B.x AND R.x = B.x
"""


class Written:
    """A query's files in a folder."""

    def __init__(self, folder: Path) -> None:
        chance = random.Random(5)
        self.folder = folder
        self.query = folder / "q.sql"
        self.query.write_text(PROGRAM)
        (folder / "rooms.csv").write_text("x,floor\n0,1\n1,2\n2,3\n")
        a = [{"x": chance.randrange(4), "n": n, "at": 5 * n + chance.randrange(60)} for n in range(300)]
        b = [{"x": chance.randrange(4), "s": f"ä{n}ß", "at": 5 * n} for n in range(300)]
        self._lines("a1.jsonl", a[:100])
        self._lines("a2.jsonl", a[100:])
        self._lines("a.jsonl", a)
        self._lines("b.jsonl", b, [b"{no tuple}"])

    def _lines(self, name: str, rows: list[dict[str, Any]], more: list[bytes] | None = None) -> None:
        (self.folder / name).write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows) + b"\n".join(more or []))

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def command(self, command: str, *options: str) -> tuple[int, str, str]:
        """Exit code, standard output and standard error of a command over the files."""
        given = [command, self.path("q.sql"), *options]
        result = CliRunner().invoke(app, given)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            return 2, result.stdout, str(result.exception)
        return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("history"))


def sorted_lines(path: str) -> list[bytes]:
    return sorted(Path(path).read_bytes().splitlines())


def test_a_backfill_gives_the_lines_of_a_run_and_audits_tell_what_is_wrong(
    spark: SparkSession, written: Written
) -> None:
    run = ["--source", f"a={written.path('a.jsonl')}", "--source", f"b={written.path('b.jsonl')}"]
    code, _, stderr = written.command("run", *run, "--out", written.path("run.jsonl"))
    assert code == 0, stderr
    pieces = ["--source", f"a={written.path('a1.jsonl')}", "--source", f"a={written.path('a2.jsonl')}", *run[2:]]
    code, _, stderr = written.command("backfill", *pieces, "--out", written.path("batch.jsonl"))
    assert code == 0, stderr
    assert "1 dead letter" in stderr
    lines = sorted_lines(written.path("batch.jsonl"))
    assert lines == sorted_lines(written.path("run.jsonl"))
    assert len(lines) > 100
    times = [orjson.loads(line)["_ts"] for line in Path(written.path("batch.jsonl")).read_bytes().splitlines()]
    assert times == sorted(times)

    assert len(set(lines)) == len(lines)
    stray = lines[2].replace(b'"n":', b'"n":1')
    damaged = [*lines[1:-1], lines[3], lines[3], stray, b"no result"]
    Path(written.path("damaged.jsonl")).write_bytes(b"\n".join(damaged) + b"\n")
    code, out, _ = written.command("audit", *run, "--results", written.path("damaged.jsonl"))
    assert code == 1
    assert "2 missing, 1 extra, 2 doubled" in out
    assert "no result of this query: 1 record" in out
    assert f"extra, 1 of 0, line {damaged.index(stray) + 1}: {stray.decode()}" in out
    places = f"line {damaged.index(lines[3]) + 1} to line {len(damaged) - 2}"
    assert f"doubled, 3 of 1, {places}: {lines[3].decode()}" in out
    assert out.endswith("WRONG\n")

    middle = times[len(times) // 2]
    span = ["--from", str(middle), "--to", str(middle + 200)]
    code, _, stderr = written.command("backfill", *run, *span, "--out", written.path("span.parquet"))
    assert code == 0, stderr
    code, out, _ = written.command("audit", *run, *span, "--results", written.path("span.parquet"))
    assert code == 0, out
    expected = sum(middle <= time < middle + 200 for time in times)
    assert f"expected {expected:,} results, found {expected:,}: 0 missing, 0 extra, 0 doubled" in out
    assert out.endswith("exact\n")


def test_a_repeat_is_one_with_all_elements_of_its_array(spark: SparkSession, tmp_path: Path) -> None:
    options = "timestamp = 'at', deduplicate = 'id', deduplicate_within = '1 SECOND'"
    (tmp_path / "q.sql").write_text(
        f"CREATE STREAM a (id BIGINT, parts ARRAY<STRING>, at TIMESTAMP) WITH ({options});"
        "SELECT A.id AS id, P._ordinal AS place, P.part AS part "
        "FROM a A [ROWS 3] CROSS JOIN UNNEST(A.parts) AS P (part)"
    )
    given = [(1, "xyx"), (1, "z"), (2, ""), (2, "xy")]
    records = [{"id": id, "parts": list(parts), "at": n} for n, (id, parts) in enumerate(given)]
    (tmp_path / "a.jsonl").write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    found = []
    for command in ("run", "backfill"):
        out = str(tmp_path / command)
        files = ["--source", f"a={tmp_path / 'a.jsonl'}", "--out", out]
        result = CliRunner().invoke(app, [command, str(tmp_path / "q.sql"), *files])
        assert result.exit_code == 0, result.stderr
        found.append(sorted_lines(out))
    assert found[0] == found[1]
    assert len(found[0]) == 5


@pytest.mark.parametrize(
    ("options", "stderr"),
    [
        (["audit", "--source", "a=a.jsonl"], "--source and --results belong together"),
        (["audit", "--results", "r.jsonl"], "--source and --results belong together"),
        (["backfill", "--source", "a=a.jsonl"], "no source for 'b'"),
        (["backfill", "--source", "c=a.jsonl", "--source", "b=b.jsonl"], "the query reads no such stream"),
        (["backfill", "--source", "a=-", "--source", "a=-", "--source", "b=b.jsonl"], "can be read once only"),
        (["backfill", "--from", "soon"], "--from: 'soon' is not of the form YYYY-MM-DD"),
        (["backfill", "--from", "1969-12-31"], "--from: the event time '1969-12-31' is before 1970"),
        (["backfill", "--from", "20", "--to", "20"], "must be before --to"),
        (
            ["backfill", "--source", "a=a.jsonl", "--source", "b=b.jsonl", "--out", "a.jsonl"],
            "is the same file as --source a",
        ),
        (
            ["backfill", "--source", "a=a.jsonl", "--source", "b=b.jsonl", "--out", "rooms.csv"],
            "is the same file as table rooms",
        ),
        (["backfill", "--out", "q.sql"], "is the same file as the query"),
        (
            ["backfill", "--source", "a=a.jsonl", "--source", "b=b.jsonl", "--master", "spark://h:7077"],
            "--work-dir is needed with --master spark://h:7077",
        ),
    ],
)
def test_wrong_use_is_refused_in_one_line(
    written: Written, monkeypatch: pytest.MonkeyPatch, options: list[str], stderr: str
) -> None:
    monkeypatch.chdir(written.folder)
    code, _, message = written.command(*options)
    assert code == 2
    assert stderr in message
    assert "\n" not in message.strip()


def test_what_is_not_installed_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pyspark", None)
        with pytest.raises(
            UsageError, match=r"pyspark is not installed; accepted: pip install 'weir-streams\[spark\]'"
        ):
            check_installed()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(UsageError, match="Spark needs Java 17 or newer"):
        check_installed()


def test_an_expression_too_deep_for_spark_is_refused() -> None:
    expr: Expr = ROW["d"]
    for _ in range(40):
        expr = Arithmetic("/", ROW["d"], expr, Type.DOUBLE)
    with pytest.raises(UsageError, match="nested too deep for Spark"):
        sql_of(expr, lambda column: column.name)
