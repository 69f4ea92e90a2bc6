"""The meaning of the language: accepted programs and the model that they bind to."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from schemas.errors import UsageError
from schemas.expression_text import text_of
from schemas.language.program import parse_program
from schemas.paths import parse_json_path, parse_path, path_text
from schemas.query import (
    And,
    Arithmetic,
    Call,
    ColumnRef,
    Compare,
    Expr,
    Field,
    InList,
    IsNull,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    Output,
    Program,
    Query,
    Stream,
    Type,
    Window,
)

STREAMS = """
CREATE STREAM a (k BIGINT, x DOUBLE, s STRING, f BOOLEAN, at TIMESTAMP);
CREATE STREAM b (k BIGINT, y DOUBLE, s STRING, t2 TIMESTAMP, ts BIGINT) WITH (timestamp = 'ts');
"""
A_K = ColumnRef("A", "k", Type.BIGINT)
A_X = ColumnRef("A", "x", Type.DOUBLE)
A_S = ColumnRef("A", "s", Type.STRING)
A_F = ColumnRef("A", "f", Type.BOOLEAN)
A_AT = ColumnRef("A", "at", Type.TIMESTAMP)
B_K = ColumnRef("B", "k", Type.BIGINT)
B_Y = ColumnRef("B", "y", Type.DOUBLE)
B_S = ColumnRef("B", "s", Type.STRING)


def big(value: int) -> Literal:
    return Literal(value, Type.BIGINT)


def query(text: str) -> Query:
    return parse_program(STREAMS + text).queries[0]


def where(condition: str) -> tuple[Expr, ...]:
    """The predicates of a condition over streams A and B."""
    return query(f"SELECT A.k FROM a A [ROWS 1], b B [ROWS 1] WHERE {condition}").predicates


def scalar(expression: str) -> Expr:
    return query(f"SELECT {expression} AS it FROM a A [ROWS 1], b B [ROWS 1]").outputs[0].expr


def windows(text: str) -> list[Window]:
    return [source.window for source in query(text).sources]


# --- CREATE STREAM ---------------------------------------------------------------------------------


def test_the_design_page_query() -> None:
    program = parse_program("""
        CREATE STREAM temperature (mote BIGINT, room STRING, celsius DOUBLE, at TIMESTAMP)
          WITH (topic = 'sensors.temperature', format = 'json', timestamp = 'at', disorder = '2 SECONDS');
        CREATE STREAM humidity (mote BIGINT, room STRING, percent DOUBLE, at TIMESTAMP)
          WITH (topic = 'sensors.humidity', format = 'json', timestamp = 'at', disorder = '2 SECONDS');
        CREATE STREAM light (mote BIGINT, room STRING, lux DOUBLE, at TIMESTAMP)
          WITH (topic = 'sensors.light', format = 'json', timestamp = 'at', disorder = '2 SECONDS');

        INSERT INTO 'alarms'
        SELECT T.mote AS mote, T.celsius, H.percent, L.lux
        FROM temperature T [RANGE 5 MINUTES], humidity H [RANGE 5 MINUTES], light L [RANGE 5 MINUTES]
        WHERE T.mote = H.mote AND T.room = L.room AND T.celsius > 40 AND H.percent < 10;
    """)
    assert [s.name for s in program.streams] == ["temperature", "humidity", "light"]
    temperature = program.streams[0]
    assert temperature == Stream(
        "temperature",
        (
            Field("mote", Type.BIGINT),
            Field("room", Type.STRING),
            Field("celsius", Type.DOUBLE),
            Field("at", Type.TIMESTAMP),
        ),
        topic="sensors.temperature",
        timestamp="at",
        disorder_ms=2000,
    )
    (found,) = program.queries
    assert (found.name, found.sink) == ("alarms", "alarms")
    assert [(s.alias, s.stream.name, s.window) for s in found.sources] == [
        ("T", "temperature", Window("RANGE", 300_000)),
        ("H", "humidity", Window("RANGE", 300_000)),
        ("L", "light", Window("RANGE", 300_000)),
    ]
    assert [o.name for o in found.outputs] == ["mote", "T.celsius", "H.percent", "L.lux"]
    mote = Type.BIGINT
    assert found.predicates == (
        Compare("=", ColumnRef("T", "mote", mote), ColumnRef("H", "mote", mote)),
        Compare("=", ColumnRef("T", "room", Type.STRING), ColumnRef("L", "room", Type.STRING)),
        Compare(">", ColumnRef("T", "celsius", Type.DOUBLE), big(40)),
        Compare("<", ColumnRef("H", "percent", Type.DOUBLE), big(10)),
    )
    assert found.text.startswith("INSERT INTO 'alarms'")
    assert found.text.endswith("H.percent < 10")


def test_every_option() -> None:
    (stream,) = parse_program(
        "CREATE STREAM s (room STRING, mote BIGINT, t BIGINT) "
        "WITH (topic='x.y-z_1', FORMAT='JSON', timestamp='t', "
        "disorder='250ms', idle_timeout='30 SECONDS', rate=12.5, distinct='room:20, mote : 50', "
        "deduplicate='mote , room', deduplicate_within='10 MINUTES')"
    ).streams
    assert stream == Stream(
        "s",
        (Field("room", Type.STRING), Field("mote", Type.BIGINT), Field("t", Type.BIGINT)),
        topic="x.y-z_1",
        timestamp="t",
        disorder_ms=250,
        idle_timeout_ms=30_000,
        rate=12.5,
        distinct=(("room", 20), ("mote", 50)),
        deduplicate=("mote", "room"),
        deduplicate_within_ms=600_000,
    )


def test_repeats_are_told_by_what_a_record_has_beside_its_value() -> None:
    (stream,) = parse_program(
        "CREATE STREAM s (room STRING, k STRING FROM '_key', id STRING FROM '_headers[\"a,b\"]', n STRING KEY) "
        "WITH (deduplicate='_headers[\"a,b\"], _key, n', deduplicate_within='1 SECOND')"
    ).streams
    assert stream.deduplicate == ("id", "k", "n")


def test_quoted_option_names() -> None:
    assert parse_program("CREATE STREAM s (a BIGINT) WITH ('topic' = 'x')").streams[0].topic == "x"


@pytest.mark.parametrize(
    ("columns", "timestamp"),
    [("a BIGINT", None), ("a BIGINT, t TIMESTAMP", "t"), ("t TIMESTAMP, u TIMESTAMP", None)],
)
def test_the_only_timestamp_column_is_event_time(columns: str, timestamp: str | None) -> None:
    (stream,) = parse_program(f"CREATE STREAM s ({columns})").streams
    assert (stream.timestamp, stream.topic, stream.format, stream.disorder_ms) == (timestamp, "s", "json", 0)


def test_streams_may_follow_their_queries_and_go_unused() -> None:
    program = parse_program("SELECT * FROM b [ROWS 1]; CREATE STREAM b (x BIGINT); CREATE STREAM idle (x BIGINT);")
    assert [s.name for s in program.streams] == ["b", "idle"]
    assert program.queries[0].outputs == (Output("b.x", ColumnRef("b", "x", Type.BIGINT)),)


@pytest.mark.parametrize(
    "text",
    [
        "CREATE STREAM s (x BIGINT)",
        ";;CREATE STREAM s (x BIGINT);;",
        "create stream s (x bigint);",
        "\ufeffCREATE STREAM s (x BIGINT);\r\n",
        "-- first\nCREATE /* in\nside */ STREAM s (x BIGINT) -- last",
        "CREATE STREAM s (x BIGINT); /* ; */ -- ;",
        "CREATE STREAM s (x BIGINT) WITH (disorder = '0s');",
    ],
)
def test_separators_case_and_comments(text: str) -> None:
    assert parse_program(text) == Program((Stream("s", (Field("x", Type.BIGINT),), topic="s"),), ())


# --- FROM and windows ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "window"),
    [
        ("[RANGE 5 MINUTES]", Window("RANGE", 300_000)),
        ("[RANGE 250 MILLISECONDS]", Window("RANGE", 250)),
        ("[RANGE 1 MILLISECOND]", Window("RANGE", 1)),
        ("[RANGE 7 MS]", Window("RANGE", 7)),
        ("[range 1 second]", Window("RANGE", 1000)),
        ("[RANGE 1.5 SECONDS]", Window("RANGE", 1500)),
        ("[RANGE 6sec]", Window("RANGE", 6000)),
        ("[RANGE 2 HOURS]", Window("RANGE", 7_200_000)),
        ("[RANGE 1 DAY]", Window("RANGE", 86_400_000)),
        ("[ROWS 100]", Window("ROWS", 100)),
        ("[UNBOUNDED]", Window("UNBOUNDED")),
    ],
)
def test_windows(written: str, window: Window) -> None:
    assert windows(f"SELECT * FROM a {written}") == [window]


@pytest.mark.parametrize(
    "form", ["WINDOW RANGE 6 SECONDS", "WINDOW [RANGE 6 SECONDS]", "MAXWINDOW 6 SECONDS", "maxwindow 6sec"]
)
def test_a_window_for_all_that_have_none(form: str) -> None:
    assert windows(f"SELECT * FROM a, b [ROWS 3], a C {form}") == [
        Window("RANGE", 6000),
        Window("ROWS", 3),
        Window("RANGE", 6000),
    ]


@pytest.mark.parametrize(("form", "kind"), [("ROWS 7", "ROWS"), ("UNBOUNDED", "UNBOUNDED")])
def test_other_windows_for_all(form: str, kind: str) -> None:
    assert windows(f"SELECT * FROM a WINDOW {form}")[0].kind == kind


def test_aliases() -> None:
    found = query('SELECT X.k FROM a AS X [ROWS 1], a Y [ROWS 1], b [ROWS 1], a "odd name" [ROWS 1]')
    assert [s.alias for s in found.sources] == ["X", "Y", "b", "odd name"]
    assert [s.name for s in found.streams()] == ["a", "b"]


def test_join_on_is_from_and_where() -> None:
    joined = query(
        "SELECT A.k FROM a A [ROWS 1] JOIN b B [ROWS 2] ON A.k = B.k AND A.x < B.y "
        "INNER JOIN a C [ROWS 3] ON C.k = A.k WHERE A.f"
    )
    listed = query(
        "SELECT A.k FROM a A [ROWS 1], b B [ROWS 2], a C [ROWS 3] WHERE A.k = B.k AND A.x < B.y AND C.k = A.k AND A.f"
    )
    assert joined == listed


def test_juggler_clauses_in_the_papers_order() -> None:
    found = query("""
        Select B.k From b B, a T
        Window B.ts > T.ts and B.ts <= T.ts + 5
        MaxWindow 6sec
        Where T.x < 0.5 * B.y and T.x * 2 = 103
    """)
    event_time = ColumnRef("T", "_ts", Type.TIMESTAMP)
    declared = ColumnRef("B", "ts", Type.BIGINT)
    assert [s.window for s in found.sources] == [Window("RANGE", 6000)] * 2
    assert found.predicates == (
        Compare(">", declared, event_time),
        Compare("<=", declared, Arithmetic("+", event_time, big(5), Type.TIMESTAMP)),
        Compare("<", ColumnRef("T", "x", Type.DOUBLE), Arithmetic("*", Literal(0.5, Type.DOUBLE), B_Y, Type.DOUBLE)),
        Compare("=", Arithmetic("*", ColumnRef("T", "x", Type.DOUBLE), big(2), Type.DOUBLE), big(103)),
    )


def test_a_window_condition_may_use_any_time() -> None:
    found = query("SELECT A.k FROM a A, b B WINDOW A.at < B.t2 AND A._ts < B.ts AND A._ts <> B._ts WINDOW RANGE 1 DAY")
    assert len(found.predicates) == 3


def test_partition_by_comes_in_from_order() -> None:
    found = query(
        "SELECT A.k FROM a A [ROWS 1], b B [ROWS 1], a C [ROWS 1] "
        "WHERE C.k = B.k AND B.k = A.k PARTITION BY B.k, C.k, A.k"
    )
    assert found.partition_by == (A_K, B_K, ColumnRef("C", "k", Type.BIGINT))


# --- SELECT ----------------------------------------------------------------------------------------


def test_output_names() -> None:
    found = query(
        'SELECT A.k, x, A.x + 1 AS more, "A"."s", A._ts, B.s AS "quoted ""one""" FROM a A [ROWS 1], b B [ROWS 1]'
    )
    assert [o.name for o in found.outputs] == ["A.k", "x", "more", "A.s", "A._ts", 'quoted "one"']
    assert found.outputs[1].expr == A_X
    assert found.outputs[4].expr == ColumnRef("A", "_ts", Type.TIMESTAMP)


def test_star_is_every_alias_and_column_in_order() -> None:
    columns_of_a = ["k", "x", "s", "f", "at"]
    found = query("SELECT * FROM a Y [ROWS 1], a X [ROWS 1]")
    assert [o.name for o in found.outputs] == [f"{alias}.{name}" for alias in "YX" for name in columns_of_a]


def test_star_of_an_alias() -> None:
    found = query("SELECT B.*, A.k FROM a A [ROWS 1], b B [ROWS 1]")
    assert [o.name for o in found.outputs] == ["B.k", "B.y", "B.s", "B.t2", "B.ts", "A.k"]


def test_without_a_sink() -> None:
    found = query("SELECT * FROM a [ROWS 1]")
    assert (found.name, found.sink) == ("results", None)


def test_sink_as_a_name() -> None:
    assert query("INSERT INTO alarms SELECT * FROM a [ROWS 1]").sink == "alarms"


def test_several_queries() -> None:
    program = parse_program(
        STREAMS + "INSERT INTO 'x' SELECT * FROM a [ROWS 1]; INSERT INTO 'y' SELECT * FROM b [ROWS 1];"
    )
    assert [q.name for q in program.queries] == ["x", "y"]


# --- Conditions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "op"),
    [("=", "="), ("<", "<"), ("<=", "<="), (">", ">"), (">=", ">="), ("<>", "<>"), ("!=", "<>")],
)
def test_comparisons(written: str, op: str) -> None:
    (found,) = where(f"A.k {written} B.k")
    assert isinstance(found, Compare)
    assert (found.op, found.left, found.right) == (op, A_K, B_K)


def test_conjuncts_are_split_through_parentheses() -> None:
    one, two, three = (Compare("=", A_K, big(n)) for n in (1, 2, 3))
    assert where("A.k = 1 AND (A.k = 2 AND (A.k = 3))") == (one, two, three)
    assert where("A.k = 1 OR A.k = 2 AND A.k = 3") == (Or((one, And((two, three)))),)
    assert where("(A.k = 1 OR A.k = 2) AND A.k = 3") == (Or((one, two)), three)
    assert where("NOT A.k = 1 AND A.k = 2") == (Not(one), two)
    assert where("NOT (A.k = 1 AND A.k = 2)") == (Not(And((one, two))),)


def test_between_is_two_comparisons() -> None:
    low, high = Compare(">=", A_K, big(1)), Compare("<=", A_K, big(5))
    assert where("A.k BETWEEN 1 AND 5 AND A.f") == (low, high, A_F)
    assert where("A.k NOT BETWEEN 1 AND 5") == (Or((Compare("<", A_K, big(1)), Compare(">", A_K, big(5)))),)
    assert where("A.k BETWEEN B.k - 1 AND B.k + 1 OR A.f") == (
        Or(
            (
                And(
                    (
                        Compare(">=", A_K, Arithmetic("-", B_K, big(1), Type.BIGINT)),
                        Compare("<=", A_K, Arithmetic("+", B_K, big(1), Type.BIGINT)),
                    )
                ),
                A_F,
            )
        ),
    )


def test_a_pattern_is_not_endless() -> None:
    """Arrow refused it when the first tuple came, and again after each restart."""
    with pytest.raises(UsageError, match="a pattern has at most 1,000 characters"):
        where(f"A.s LIKE '{'_' * 1001}'")


def test_in_like_and_is_null() -> None:
    assert where("A.k IN (1, -2, NULL)") == (InList(A_K, (big(1), big(-2), Literal(None, Type.BIGINT)), False),)
    assert where("A.s NOT IN ('it''s')") == (InList(A_S, (Literal("it's", Type.STRING),), True),)
    assert where("A.at IN ('1970-01-02')") == (InList(A_AT, (Literal(86_400_000, Type.TIMESTAMP),), False),)
    assert where("A.s LIKE 'a%'") == (Like(A_S, "a%", False),)
    assert where("A.s NOT LIKE '_\\\\'") == (Like(A_S, "_\\\\", True),)
    assert where("A.s IS NULL AND A.k + 1 IS NOT NULL") == (
        IsNull(A_S, False),
        IsNull(Arithmetic("+", A_K, big(1), Type.BIGINT), True),
    )


def test_boolean_columns_and_constants_are_conditions() -> None:
    assert where("A.f AND NOT A.f AND TRUE AND A.f = FALSE") == (
        A_F,
        Not(A_F),
        Literal(True, Type.BOOLEAN),
        Compare("=", A_F, Literal(False, Type.BOOLEAN)),
    )


def test_strings_beside_timestamps_are_iso_8601() -> None:
    new_year = Literal(1_356_998_400_000, Type.TIMESTAMP)
    assert where("A.at >= '2013-01-01T00:00:00Z'") == (Compare(">=", A_AT, new_year),)
    assert where("'2013-01-01' < A.at") == (Compare("<", new_year, A_AT),)
    assert where("A.at = TIMESTAMP '2013-01-01T01:00:00+01:00'") == (Compare("=", A_AT, new_year),)
    assert where("A._ts BETWEEN '2013-01-01' AND '2013-01-01'") == (
        Compare(">=", ColumnRef("A", "_ts", Type.TIMESTAMP), new_year),
        Compare("<=", ColumnRef("A", "_ts", Type.TIMESTAMP), new_year),
    )


# --- Expressions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "value", "type_"),
    [
        ("7", 7, Type.BIGINT),
        ("-7", -7, Type.BIGINT),
        ("- -7", 7, Type.BIGINT),
        ("+7", 7, Type.BIGINT),
        ("007", 7, Type.BIGINT),
        ("0" * 5000 + "7", 7, Type.BIGINT),
        ("-" + "0" * 5000, 0, Type.BIGINT),
        ("9223372036854775807", 2**63 - 1, Type.BIGINT),
        ("-9223372036854775808", -(2**63), Type.BIGINT),
        ("1.5", 1.5, Type.DOUBLE),
        (".5", 0.5, Type.DOUBLE),
        ("5.", 5.0, Type.DOUBLE),
        ("-1e3", -1000.0, Type.DOUBLE),
        ("'it''s'", "it's", Type.STRING),
        ("''", "", Type.STRING),
        ("'-- no comment /*'", "-- no comment /*", Type.STRING),
        ("'ünï\n☃'", "ünï\n☃", Type.STRING),
        ("true", True, Type.BOOLEAN),
        ("5 MINUTES", 300_000, Type.BIGINT),
        ("1.5 SECONDS", 1500, Type.BIGINT),
        ("-5 SECONDS", -5000, Type.BIGINT),
        ("INTERVAL '5' MINUTE", 300_000, Type.BIGINT),
        ("INTERVAL '5 MINUTES'", 300_000, Type.BIGINT),
        ("timestamp '1970-01-01 00:00:01.5'", 1500, Type.TIMESTAMP),
        ("TIMESTAMP '1969-12-31'", -86_400_000, Type.TIMESTAMP),
    ],
)
def test_literals(written: str, value: object, type_: Type) -> None:
    found = scalar(written)
    assert isinstance(found, Literal)
    assert (found.value, type(found.value), found.type) == (value, type(value), type_)


def test_precedence_and_types() -> None:
    assert scalar("A.k + 2 * A.k - 1") == Arithmetic(
        "-",
        Arithmetic("+", A_K, Arithmetic("*", big(2), A_K, Type.BIGINT), Type.BIGINT),
        big(1),
        Type.BIGINT,
    )
    assert scalar("(A.k + 2) * A.x") == Arithmetic("*", Arithmetic("+", A_K, big(2), Type.BIGINT), A_X, Type.DOUBLE)
    assert scalar("A.k / 2 % 3") == Arithmetic("%", Arithmetic("/", A_K, big(2), Type.BIGINT), big(3), Type.BIGINT)
    assert scalar("-A.x") == Negate(A_X, Type.DOUBLE)
    assert scalar("A.at + 5 MINUTES") == Arithmetic("+", A_AT, big(300_000), Type.TIMESTAMP)
    assert scalar("5 MINUTES + A.at") == Arithmetic("+", big(300_000), A_AT, Type.TIMESTAMP)
    assert scalar("A.at - B.t2") == Arithmetic("-", A_AT, ColumnRef("B", "t2", Type.TIMESTAMP), Type.BIGINT)


def test_functions() -> None:
    assert scalar("abs(A.k)") == Call("ABS", (A_K,), Type.BIGINT)
    assert scalar("ROUND(A.x)") == Call("ROUND", (A_X,), Type.DOUBLE)
    assert scalar("SQRT(A.k)") == Call("SQRT", (A_K,), Type.DOUBLE)
    assert scalar("SIGN(A.k)") == Call("SIGN", (A_K,), Type.BIGINT)
    assert scalar("SIGN(A.x)") == Call("SIGN", (A_X,), Type.BIGINT)
    assert scalar("LENGTH(LOWER(A.s))") == Call("LENGTH", (Call("LOWER", (A_S,), Type.STRING),), Type.BIGINT)
    assert scalar("COALESCE(NULL, A.k, 0.5)") == Call(
        "COALESCE", (Literal(None, Type.BIGINT), A_K, Literal(0.5, Type.DOUBLE)), Type.DOUBLE
    )
    assert scalar("SUBSTRING(CONCAT(A.s, B.s), 1, A.k)") == Call(
        "SUBSTRING", (Call("CONCAT", (A_S, B_S), Type.STRING), big(1), A_K), Type.STRING
    )
    path = Literal("$['it''s'][0]", Type.STRING)
    written = "JSON_VALUE(LOWER(A.s), '$[''it''''s''][0]'{})"
    for returning, type in (("", Type.STRING), (" RETURNING string", Type.STRING), (" returning Bigint", Type.BIGINT)):
        found = scalar(written.format(returning))
        assert found == Call("JSON_VALUE", (Call("LOWER", (A_S,), Type.STRING), path), type)
        assert scalar(text_of(found)) == found


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("$", ()),
        ("$.a.b_1", ("a", "b_1")),
        ("$.größe.x-y.$ref.@id", ("größe", "x-y", "$ref", "@id")),
        ("$[0][12].a[3]", (0, 12, "a", 3)),
        ("$['a.b'][\"it's\"]", ("a.b", "it's")),
        ("$['it''s']", ("it's",)),
        ('$["a""b"].c', ('a"b', "c")),
        ('$."a b".c', ("a b", "c")),
        ("$['']", ("",)),
    ],
)
def test_paths_of_json_value(path: str, steps: tuple[str | int, ...]) -> None:
    assert parse_json_path(path) == steps


@pytest.mark.parametrize(
    ("path", "wrong"),
    [("", 1), ("a.b", 1), ("a", 1), ("lax $.a", 1), ("$a", 2), ("$.", 2), ("$..a", 2), ("$.*", 2), ("$.a b", 4),
     ("$[*]", 2), ("$[-1]", 2), ("$[1 to 2]", 2), ("$['a]", 2), ("$.a.size()", 9), ("$.a ? (@ > 1)", 4), ("$[0", 2),
     ("$[a]", 2), (" $.a", 1)],
)  # fmt: skip
def test_wrong_paths_of_json_value(path: str, wrong: int) -> None:
    with pytest.raises(UsageError, match=f"wrong from character {wrong}$"):
        parse_json_path(path)


@pytest.mark.parametrize(
    ("path", "steps"),
    [("a.b[0]", ("a", "b", 0)), ('a["b.c"].d', ("a", "b.c", "d")), ("a['b.c'].d", ("a", "b.c", "d")),
     ("a['it''s']", ("a", "it's")), ('a["x\""y"]', ("a", 'x"y')), ("['a'][1]", ("a", 1)), ("a['x\"']", ("a", 'x"'))],
)  # fmt: skip
def test_paths_of_columns(path: str, steps: tuple[str | int, ...]) -> None:
    assert parse_path(path) == steps
    assert parse_path(path_text(steps)) == steps


@pytest.mark.parametrize(("path", "wrong"), [("", 1), ("a.", 2), ("a['b\"]", 2), ("a['b", 2), ("a[b]", 2), ("[0]", 1)])
def test_wrong_paths_of_columns(path: str, wrong: int) -> None:
    with pytest.raises(UsageError, match=f"wrong from character {wrong}$"):
        parse_path(path)


# --- Names -----------------------------------------------------------------------------------------

KEYWORD_LIKE = [
    "light",
    "at",
    "rows",
    "range",
    "value",
    "timestamp",
    "unbounded",
    "window",
    "maxwindow",
    "partition",
    "stream",
    "by",
    "interval",
    "inner",
    "minutes",
    "second",
    "topic",
    "format",
    "group",
    "order",
    "left",
    "limit",
    "offset",
    "emit",
    "every",
    "table",
    "bigint",
    "string",
    "double",
    "count",
    "min",
    "abs",
    "case",
    "distinct",
]


@pytest.mark.parametrize("name", KEYWORD_LIKE)
def test_keyword_like_names_are_names(name: str) -> None:
    program = parse_program(
        f"""
        CREATE STREAM {name} ({name} BIGINT, "{name} 2" BIGINT);
        SELECT {name}, {name}.{name} AS {name}2, {name} + 1 AS {name}3, "{name} 2"
        FROM {name} [ROWS 1]
        WHERE {name} > 1 AND {name}.{name} IN (1, 2) OR {name} = {name}
    """
    )
    column = ColumnRef(name, name, Type.BIGINT)
    assert [o.name for o in program.queries[0].outputs] == [name, f"{name}2", f"{name}3", f"{name} 2"]
    assert program.queries[0].outputs[0].expr == program.queries[0].outputs[1].expr == column


@pytest.mark.parametrize("name", KEYWORD_LIKE)
def test_keyword_like_aliases_after_as(name: str) -> None:
    found = query(f"SELECT {name}.k FROM a AS {name} [ROWS 1] WINDOW {name}.ts = {name}._ts")
    assert found.sources[0].alias == name
    assert len(found.predicates) == 1


def test_names_are_case_sensitive_and_unicode() -> None:
    program = parse_program(
        'CREATE STREAM température (Größe BIGINT, größe BIGINT, "two words" BIGINT);'
        'SELECT Größe, T."größe", "two words" AS 数 FROM température T [ROWS 1] WHERE Größe < größe'
    )
    assert [o.name for o in program.queries[0].outputs] == ["Größe", "T.größe", "数"]


# --- Size ------------------------------------------------------------------------------------------


def test_a_join_of_101_streams_parses_quickly() -> None:
    aliases = [f"S{i}" for i in range(101)]
    text = "CREATE STREAM s (k BIGINT, v BIGINT, ts TIMESTAMP);\nSELECT * FROM " + ", ".join(
        f"s {alias} [RANGE 5 MINUTES]" for alias in aliases
    )
    text += " WHERE " + " AND ".join(f"{a}.k = {b}.k" for a, b in pairwise(aliases))
    parse_program(text)
    begin = time.perf_counter()
    program = parse_program(text)
    seconds = time.perf_counter() - begin
    assert (len(program.queries[0].predicates), len(program.queries[0].outputs)) == (100, 303)
    assert seconds < 1, f"took {seconds:.2f} s"


def test_long_conditions_and_deep_parentheses() -> None:
    assert len(where(" AND ".join(["A.k = B.k"] * 2000))) == 2000
    assert len(where("(" * 2000 + "A.k = B.k" + ")" * 2000)) == 1
    (found,) = where("A.k IN (" + ", ".join(map(str, range(2000))) + ")")
    assert isinstance(found, InList)
    assert len(found.items) == 2000
