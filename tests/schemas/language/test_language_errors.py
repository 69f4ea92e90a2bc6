"""Errors of the language: each has a position, the accepted form, and a caret."""

from __future__ import annotations

import itertools
import re
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.errors import QueryError
from schemas.language.program import parse_program
from schemas.language.query_text import QueryText
from schemas.query import Program
from tests.profiles import examples
from tests.schemas.language.refusals import failure, refused, underlined

STREAMS = """CREATE STREAM temperature (mote BIGINT, room STRING, celsius DOUBLE, at TIMESTAMP, ok BOOLEAN);
CREATE STREAM light (mote BIGINT, room STRING, lux DOUBLE, at TIMESTAMP);
"""
FROM = "FROM temperature T [RANGE 5 MINUTES], light L [ROWS 5] "
SELECT = f"SELECT T.mote {FROM}"


# Text, what is underlined, and a piece of the message.
CASES = [
    # Syntax: what is expected, and what was found.
    ("SELECT", "", "the text ends too early: expected an expression or '*'"),
    ("SELECT FROM light", "FROM", "expected an expression or '*'; got 'FROM'"),
    ("SLECT * FROM light", "SLECT", "got 'SLECT'; did you mean SELECT?"),
    ("SELECT * FORM light", "FORM", "got 'FORM'; did you mean FROM?"),
    ("SELECT * FROM light 5", "5", "expected a window such as [RANGE 5 MINUTES], an alias, ',', JOIN, WHERE"),
    ("SELECT * FROM light WHRE lux > 5", "lux", "did you mean WHERE for WHRE?"),
    (f"{SELECT} WHRE T.mote = 3", "WHRE", "did you mean WHERE?"),
    (f"{SELECT} WHERE T.mote = 3 T.ok", "T", "expected an operator (+, -, *, /, %), AND, OR, WHERE, WINDOW"),
    (f"{SELECT} WHERE T.mote = ", "", "the text ends too early: expected an expression"),
    (f"{SELECT} WHERE T. = 3", "=", "expected a column's name; got '='"),
    (f"{SELECT} WHERE (T.mote = 3", "", "or ')'"),
    (f"{SELECT} WHERE T.mote = 3)", ")", "got ')'"),
    (f"{SELECT} WHERE T.mote IN ()", ")", "expected an expression; got ')'"),
    (f"{SELECT} WHERE T.mote NOT 5", "5", "expected BETWEEN, IN or LIKE; got '5'"),
    (f"{SELECT} WHERE T.mote IS 5", "5", "expected NULL or NOT NULL; got '5'"),
    (f"{SELECT} WHERE T.mote == 5", "==", "write = for equality"),
    (f"{SELECT} WHERE T.room || 'x' = 'y'", "||", "write CONCAT(a, b)"),
    (f"{SELECT} WHERE T.mote = 12abc", "abc", "got 'abc'"),
    (f"{SELECT} WHERE T.mote = $1", "$", "expected an expression; got '$'"),
    (f"{SELECT} WHERE T.at > L.at + 5 MINTES", "MINTES", "did you mean MINUTES?"),
    (f"{SELECT} WHERE T.room = 'open", "'", "this string is never closed; end it with '"),
    (f'{SELECT} WHERE T."room = 1', '"', "this name is never closed"),
    (f"{SELECT} /* open", "/*", "this comment is never closed"),
    (f"{SELECT} WHERE T.mote /* open", "/*", "this comment is never closed"),
    ('SELECT "" FROM light [ROWS 1]', '""', "expected an expression"),
    ("SELECT * FROM light [5 MINUTES]", "5", "expected RANGE, ROWS or UNBOUNDED; got '5'"),
    ("SELECT * FROM light [RANGE 5]", "]", "expected a unit (MILLISECONDS, SECONDS, MINUTES, HOURS or DAYS)"),
    ("SELECT * FROM light [RANGE 5 MINUTS]", "MINUTS", "did you mean MINUTES?"),
    ("SELECT lux lx FROM light [ROWS 1]", "lx", "expected AS"),
    ("CREATE STREM x (a BIGINT)", "STREM", "expected STREAM or TABLE; got 'STREM'; did you mean STREAM?"),
    ("CREATE STREAM (a BIGINT)", "(", "expected the stream's name; got '('"),
    ("CREATE STREAM x (a)", ")", "expected a type (BIGINT, DOUBLE, STRING, BOOLEAN or TIMESTAMP)"),
    ("CREATE STREAM x (a BIGINT) SELECT 1", "SELECT", "expected WITH or ';'; got 'SELECT'"),
    ("CREATE STREAM x (a BIGINT) WITH (topic = x)", "x", "expected a number or a string"),
    # SQL that the language leaves out.
    ("CREATE VIEW x (a BIGINT)", "VIEW", "CREATE VIEW is not part of this version's language, which accepts"),
    ("SELECT * FROM light LEFT x", "x", "expected JOIN"),
    (
        "SELECT * FROM light L [ROWS 1] LEFT JOIN temperature T [ROWS 1] ON T.mote = L.mote",
        "temperature T [ROWS 1]",
        "LEFT JOIN takes a table in a topic",
    ),
    ("SELECT * FROM light HAVING lux > 1", "HAVING", "HAVING is not part of this version's language"),
    ("SELECT * FROM light EXCEPT (SELECT 1)", "SELECT", "a SELECT inside another statement is not part of"),
    ("SELECT COUNT(DISTINCT lux) AS n FROM light", "DISTINCT", "DISTINCT is not part of"),
    ("SELECT DISTINCT lux FROM light", "DISTINCT", "DISTINCT is not part of"),
    ("SELECT CASE WHEN 1 = 1 THEN 2 END AS x FROM light", "CASE", "CASE is not part of"),
    ("SELECT CAST(lux AS BIGINT) AS x FROM light", "CAST", "CAST is not part of"),
    ("SELECT * FROM (SELECT 1)", "SELECT", "a SELECT inside another statement is not part of"),
    ("INSERT INTO x VALUES (1)", "VALUES", "INSERT INTO ... VALUES is not part of"),
    # Names.
    ("SELECT * FROM ligth [ROWS 1]", "ligth", "unknown stream 'ligth'; did you mean light?"),
    ("SELECT * FROM xyzzy [ROWS 1]", "xyzzy", "declare it with CREATE STREAM"),
    ("SELECT * FROM Light [ROWS 1]", "Light", "unknown stream 'Light'; did you mean light?"),
    (f"{SELECT} WHERE T.celcius > 1", "celcius", "has no column 'celcius'; did you mean celsius?"),
    (f"{SELECT} WHERE T.ts > 1", "ts", "did you mean _ts?"),
    (f"{SELECT} WHERE T.qqq > 1", "qqq", "it has mote, room, celsius, at, ok"),
    (f"{SELECT} WHERE lx > 1", "lx", "unknown column 'lx'; did you mean lux?"),
    (f"{SELECT} WHERE mote > 1", "mote", "ambiguous; write T.mote or L.mote"),
    (f"{SELECT} WHERE temperature.mote > 1", "temperature", "read here as T; use the alias"),
    (f"{SELECT} WHERE X.mote > 1", "X", "unknown alias 'X'; the query has T, L"),
    (f"{SELECT} WHERE T > 1", "T", "'T' is an alias; write a column of it"),
    (f"SELECT Z.* {FROM}", "Z", "unknown alias 'Z'"),
    (f"{SELECT} WHERE SQR(1) > 1", "SQR", "unknown function 'SQR'; did you mean SQRT?"),
    (f"{SELECT} WHERE ZZZ(1) > 1", "ZZZ", "accepted: ABS, FLOOR"),
    ("SELECT * FROM light L [ROWS 1], light L [ROWS 1]", "L", "alias 'L' stands for two streams"),
    ("SELECT * FROM light [ROWS 1], light [ROWS 1]", "light", "alias 'light' stands for two streams"),
    (f"SELECT *, T.mote {FROM}", "T.mote", "two results are called 'T.mote'; rename one with AS"),
    (f"SELECT T.mote AS x, L.mote AS x {FROM}", "L.mote AS x", "two results are called 'x'"),
    (f"SELECT T.mote AS _ts {FROM}", "T.mote AS _ts", "'_ts' is a key that Weir writes itself"),
    (f"SELECT T.mote + 1 {FROM}", "T.mote + 1", "give this expression a name: T.mote + 1 AS name"),
    # Windows and clauses.
    (
        "SELECT * FROM light, temperature [ROWS 1]",
        "light",
        "light has no window; write light [RANGE 5 MINUTES]",
    ),
    ("SELECT * FROM light [RANGE -5 SECONDS]", "-5 SECONDS", "window must be > 0, got -5 SECONDS"),
    ("SELECT * FROM light [RANGE 0 SECONDS]", "0 SECONDS", "window must be > 0, got 0 SECONDS"),
    ("SELECT * FROM light [RANGE 0.5 MS]", "0.5 MS", "a whole number of milliseconds"),
    ("SELECT * FROM light [RANGE 1e999999 DAYS]", "1e999999 DAYS", "at most"),
    ("SELECT * FROM light [ROWS 0]", "0", "ROWS takes a whole number > 0, got 0"),
    ("SELECT * FROM light [ROWS -3]", "-3", "ROWS takes a whole number > 0, got -3"),
    ("SELECT * FROM light [ROWS 1.5]", "1.5", "ROWS takes a whole number > 0, got 1.5"),
    (f"{SELECT} WHERE T.ok WHERE T.ok", "WHERE", "WHERE is given twice"),
    (f"{SELECT} WINDOW RANGE 1 DAY MAXWINDOW 1 DAY", "MAXWINDOW", "given twice"),
    (f"{SELECT} WINDOW T.celsius > L.lux", "T.celsius", "a WINDOW condition compares times"),
    (f"{SELECT} PARTITION BY T.mote", "T.mote", "none is given of L"),
    (f"{SELECT} PARTITION BY T.mote, T.room", "T.room", "this is the second of T"),
    (f"{SELECT} PARTITION BY T.mote, L.mote", "L.mote", "no condition says T.mote = L.mote"),
    ("INSERT INTO 'light' SELECT * FROM light [ROWS 1]", "'light'", "would read its own results"),
    ("INSERT INTO 'a b' SELECT * FROM light [ROWS 1]", "'a b'", "a topic's name has 1 to 240 of"),
    (
        "INSERT INTO 'x' SELECT * FROM light [ROWS 1]; INSERT INTO 'x' SELECT * FROM light [ROWS 1]",
        "'x'",
        "a second query writes to 'x'",
    ),
    # Types.
    (
        f"{SELECT} WHERE T.room = L.mote",
        "T.room = L.mote",
        "cannot compare T.room (STRING) with L.mote (BIGINT)",
    ),
    (f"{SELECT} WHERE T.mote = '3'", "T.mote = '3'", "numbers are written without quotes"),
    (f"{SELECT} WHERE T.at > 'soon'", "'soon'", "not a TIMESTAMP: 'soon'"),
    (f"{SELECT} WHERE T.at > '2013-02-30'", "'2013-02-30'", "not a TIMESTAMP"),
    (f"{SELECT} WHERE T.at > 1.5", "T.at > 1.5", "cannot compare T.at (TIMESTAMP) with 1.5 (DOUBLE)"),
    (f"{SELECT} WHERE T.ok < TRUE", "T.ok < TRUE", "= and <> only"),
    (f"{SELECT} WHERE T.mote", "T.mote", "expected a condition; T.mote is BIGINT"),
    (f"{SELECT} WHERE T.ok AND L.lux OR T.ok", "L.lux", "expected a condition"),
    (f"{SELECT} WHERE NOT L.lux", "L.lux", "expected a condition"),
    (f"{SELECT} WHERE T.mote = NULL", "NULL", "test with IS NULL"),
    (f"{SELECT} WHERE T.room + 'x' = 'y'", "T.room + 'x'", "strings are joined with CONCAT"),
    (
        f"{SELECT} WHERE T.at + L.at > T.at",
        "T.at + L.at",
        "cannot compute T.at (TIMESTAMP) + L.at (TIMESTAMP)",
    ),
    (f"{SELECT} WHERE T.at * 2 > T.at", "T.at * 2", "cannot compute"),
    (f"{SELECT} WHERE -T.room = 'x'", "T.room", "- takes a number"),
    (f"{SELECT} WHERE ABS(T.room) > 1", "ABS(T.room)", "expected ABS(number); got ABS(STRING)"),
    (f"{SELECT} WHERE ABS(1, 2) > 1", "ABS(1, 2)", "does not take 2 arguments"),
    (f"{SELECT} WHERE SIGN(T.at) = 1", "SIGN(T.at)", "expected SIGN(number); got SIGN(TIMESTAMP)"),
    (f"{SELECT} WHERE COALESCE(T.room, 1) = 1", "COALESCE(T.room, 1)", "with values of one type"),
    (f"{SELECT} WHERE T.mote LIKE 'x'", "T.mote", "LIKE takes a STRING"),
    (f"{SELECT} WHERE JSON_VALUE(T.room) = 'x'", "JSON_VALUE(T.room)", "does not take 1 arguments"),
    (f"{SELECT} WHERE JSON_VALUE(T.mote, '$') = 'x'", "JSON_VALUE(T.mote, '$')", "expected JSON_VALUE(string"),
    (f"{SELECT} WHERE JSON_VALUE(T.room, L.room) = 'x'", "L.room", "JSON_VALUE takes a path in quotes"),
    (f"{SELECT} WHERE JSON_VALUE(T.room, '$.*') = 'x'", "'$.*'", "a path begins with $"),
    (f"{SELECT} WHERE JSON_VALUE(T.room, '$' RETURNING TIMESTAMP) = 1", "TIMESTAMP", "it may be STRING, BIGINT"),
    (f"{SELECT} WHERE JSON_VALUE(T.room, '$' RETURNING INT) = 1", "INT", "returns no INT; did you mean BIGINT?"),
    (f"{SELECT} WHERE CONCAT(T.room, '$' RETURNING STRING) = 1", "RETURNING", "RETURNING goes with JSON_VALUE only"),
    (f"{SELECT} WHERE T.room LIKE L.room", "L.room", "LIKE takes a pattern in quotes"),
    (f"{SELECT} WHERE T.room LIKE 'x\\'", "'x\\'", "ends in a lone backslash"),
    (f"{SELECT} WHERE T.mote IN (L.mote)", "L.mote", "an IN list takes literals"),
    (f"{SELECT} WHERE T.mote IN (1, 'x')", "'x'", "cannot compare T.mote (BIGINT) with 'x' (STRING)"),
    (f"{SELECT} WHERE '2013-01-01' IN (TIMESTAMP '2013-01-01')", "TIMESTAMP '2013-01-01'", "cannot compare"),
    (f"{SELECT} WHERE T.mote = 9223372036854775808", "9223372036854775808", "is not a BIGINT"),
    (f"{SELECT} WHERE T.mote = {'9' * 5000}", "9" * 5000, "is not a BIGINT"),
    (f"{SELECT} WHERE T.mote = {'0' * 5000 + '9' * 20}", "0" * 5000 + "9" * 20, "is not a BIGINT"),
    (f"{SELECT} WHERE T.at > L.at - 1e9999999 DAYS", "1e9999999 DAYS", "no exponent of so many digits"),
    (f"{SELECT} WHERE T.at > 1e{'9' * 30} DAYS", f"1e{'9' * 30} DAYS", "no exponent of so many digits"),
    (f"{SELECT} WHERE T.at > 1e-{'9' * 30} DAYS", f"1e-{'9' * 30} DAYS", "no exponent of so many digits"),
    (f"SELECT * FROM light [ROWS {'0' * 5000}]", "0" * 5000, "ROWS takes a whole number > 0"),
    (f"{SELECT} WHERE T.celsius = 1e999", "1e999", "beyond the range of DOUBLE"),
    (f"{SELECT} WHERE {'NOT ' * 101}T.ok", "T.ok", "nests deeper than 100 levels"),
    # Declarations.
    ("CREATE STREAM light (a BIGINT)", "light", "stream 'light' is declared twice"),
    ("CREATE STREAM x (a BIGINT, a STRING)", "a", "column 'a' is declared twice"),
    ("CREATE STREAM x (_ts BIGINT)", "_ts", "'_ts' is every stream's event time"),
    ('CREATE STREAM x ("#" BIGINT)', '"#"', "'#': no column's name begins with '#'; give it another name and FROM '#'"),
    ('CREATE STREAM x ("#a" ARRAY<BIGINT>)', '"#a"', "'#a': no column's name begins with '#'"),
    ("CREATE TABLE x (\"#a.b\" BIGINT) WITH (path = 'x.csv')", '"#a.b"', "FROM '[\"#a.b\"]'"),
    (
        "CREATE STREAM x (a BIGNT)",
        "BIGNT",
        "accepted: BIGINT, DOUBLE, STRING, BOOLEAN, TIMESTAMP; did you mean BIGINT?",
    ),
    ("CREATE STREAM x (a VARCHAR)", "VARCHAR", "did you mean STRING?"),
    (
        "CREATE STREAM x (a BIGINT) WITH (tpic = 'x')",
        "tpic",
        "unknown option 'tpic'; accepted: topic, format",
    ),
    ("CREATE STREAM x (a BIGINT) WITH (tpic = 'x')", "tpic", "did you mean topic?"),
    ("CREATE STREAM x (a BIGINT) WITH (rate = 1, rate = 2)", "rate", "option 'rate' is given twice"),
    ("CREATE STREAM x (a BIGINT) WITH (rate = 'fast')", "'fast'", "takes a number of tuples per second"),
    ("CREATE STREAM x (a BIGINT) WITH (rate = -1)", "-1", "must be > 0"),
    ("CREATE STREAM x (a BIGINT) WITH (topic = 5)", "5", "option 'topic' takes a string"),
    ("CREATE STREAM x (a BIGINT) WITH (topic = '')", "''", "a topic's name has 1 to 240 of"),
    ("CREATE STREAM x (a BIGINT) WITH (format = 'thrift')", "'thrift'", "is one of json, json-schema, avro, protobuf"),
    ("CREATE STREAM x (a BIGINT) WITH (format = 'string')", "'string'", "declare one column, a STRING"),
    ("CREATE STREAM x (a STRING, b STRING) WITH (format = 'string')", "'string'", "declare one column, a STRING"),
    ("CREATE STREAM x (a STRING FROM 'b') WITH (format = 'string')", "'string'", "FROM of column 'a' means nothing"),
    ("CREATE STREAM x (a BIGINT FROM 'b') WITH (format = 'csv')", "'csv'", "FROM of column 'a' means nothing"),
    ("CREATE STREAM x (a BIGINT FROM 'b..c')", "'b..c'", "wrong from character 2"),
    ("CREATE STREAM x (a BIGINT FROM '[0]')", "'[0]'", "wrong from character 1"),
    ("CREATE STREAM x (a BIGINT) WITH (schema = 'x.avsc')", "'x.avsc'", "is for format = 'avro'"),
    ("CREATE STREAM x (a BIGINT) WITH (format = 'avro', registry = 'x')", "'x'", "is the URL of a schema registry"),
    (
        "CREATE STREAM x (a BIGINT) WITH (format = 'avro', schema = 'x', registry = 'http://r')",
        "'http://r'",
        "excludes 'schema'",
    ),
    (
        "CREATE STREAM x (ab BIGINT) WITH (timestamp = 'abc')",
        "'abc'",
        "names no declared column: 'abc'; did you mean ab?",
    ),
    (
        "CREATE STREAM x (a DOUBLE) WITH (timestamp = 'a')",
        "'a'",
        "takes a BIGINT (milliseconds) or TIMESTAMP column",
    ),
    ("CREATE STREAM x (a BIGINT) WITH (disorder = '2 SECNDS')", "'2 SECNDS'", "unknown unit 'SECNDS'"),
    ("CREATE STREAM x (a BIGINT) WITH (disorder = '-2s')", "'-2s'", "not negative"),
    ("CREATE STREAM x (a BIGINT) WITH (idle_timeout = '0s')", "'0s'", "must be > 0"),
    ("CREATE STREAM x (a BIGINT) WITH (distinct = 'a')", "'a'", "takes column:count pairs"),
    ("CREATE STREAM x (a BIGINT) WITH (distinct = 'a:0')", "'a:0'", "takes column:count pairs"),
    ("CREATE STREAM x (a BIGINT) WITH (distinct = 'b:5')", "'b:5'", "names no declared column: 'b'"),
    ("CREATE STREAM x (a BIGINT) WITH (distinct = 'a:5,a:6')", "'a:5,a:6'", "names column 'a' twice"),
    (
        "CREATE STREAM x (a BIGINT) WITH (deduplicate = 'a')",
        "'a'",
        "option 'deduplicate' needs also deduplicate_within = '10 MINUTES'",
    ),
    (
        "CREATE STREAM x (a BIGINT) WITH (deduplicate_within = '1 DAY')",
        "'1 DAY'",
        "option 'deduplicate_within' needs also deduplicate = 'id'",
    ),
    (
        "CREATE STREAM x (a BIGINT) WITH (deduplicate = 'a', deduplicate_within = '0 SECONDS')",
        "'0 SECONDS'",
        "option 'deduplicate_within' must be > 0",
    ),
    ("CREATE STREAM x (a BIGINT) WITH (deduplicate = 'b')", "'b'", "names no declared column: 'b'; declared: a"),
    ("CREATE STREAM x (a BIGINT) WITH (deduplicate = 'a b')", "'a b'", "names no declared column: 'a b'"),
    ("CREATE STREAM x (a BIGINT) WITH (deduplicate = 'a,')", "'a,'", "names columns, with commas between them"),
    ("CREATE STREAM x (a BIGINT) WITH (deduplicate = 'a, a')", "'a, a'", "names column 'a' twice"),
    (
        "CREATE STREAM x (a BIGINT, k STRING FROM '_key') WITH (deduplicate = '_key,k')",
        "'_key,k'",
        "names column 'k' twice",
    ),
    (
        "CREATE STREAM x (a BIGINT) WITH (deduplicate = 'a, _key')",
        "'a, _key'",
        "names _key, which is in no declared column: id STRING FROM '_key'",
    ),
    (
        "CREATE STREAM x (a BIGINT) WITH (deduplicate = '_headers[\"id\"]')",
        "'_headers[\"id\"]'",
        'names _headers["id"], which is in no declared column: id STRING FROM \'_headers["id"]\'',
    ),
]


@pytest.mark.parametrize(("text", "place", "piece"), CASES)
def test_errors_say_where_and_what(text: str, place: str, piece: str) -> None:
    error = refused(STREAMS + text, place, piece)
    assert error.line == 3
    assert f"(line 3, column {error.column})" in str(error)
    assert error.exit_code == 2


def test_the_whole_of_an_error() -> None:
    assert str(failure(STREAMS + "SELECT T.lux\n\tFROM temperature T [ROWS 5],\n\t\tligth L [ROWS 5]")) == (
        "unknown stream 'ligth'; did you mean light? (line 5, column 3)\n  \t\tligth L [ROWS 5]\n  \t\t^^^^^"
    )


@pytest.mark.parametrize("text", ["", "   \n", ";;", "-- nothing\n", "/* nothing */"])
def test_an_empty_program(text: str) -> None:
    error = failure(text)
    assert "there is no statement here; expected CREATE STREAM, SELECT or INSERT INTO" in error.message
    assert (error.line, error.column) == (1, 1)


def test_two_queries_without_a_sink() -> None:
    query = "SELECT * FROM light [ROWS 1]"
    assert "a second query writes to 'results'" in failure(f"{STREAMS}{query};{query}").message


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r", "\u2028", "\x0c"])
def test_lines_are_counted_as_they_are_shown(newline: str) -> None:
    error = failure(newline.join(["CREATE STREAM x (a BIGINT);", "SELECT *", "FROM y [ROWS 1]"]))
    assert (error.line, error.column, underlined(error)) == (3, 6, "y")


def test_the_place_at_the_end_is_after_the_last_word() -> None:
    error = failure("CREATE STREAM x (   \n\n -- comment\n")
    assert (error.line, error.column) == (1, 18)


# --- Damage ----------------------------------------------------------------------------------------

WHOLE = (
    """CREATE STREAM t (mote BIGINT, room STRING, celsius DOUBLE, ok BOOLEAN, at TIMESTAMP)
  WITH (topic = 'sensors.t', format = 'json', timestamp = 'at', disorder = '2 SECONDS', rate = 1.5,
        distinct = 'room:3');
INSERT INTO 'alarms'
SELECT T.mote AS mote, T.celsius, L.*, "T"."at" AS "an at" -- comment
FROM t T [RANGE 5 MINUTES], t H [ROWS 100], t AS L [UNBOUNDED]
WHERE T.mote = H.mote AND T.room = L.room AND T.celsius > 40
  AND NOT (H.celsius < 1e1 OR L.mote IN (1, 2, NULL));""",
    """CREATE STREAM a (k BIGINT, ts TIMESTAMP, s STRING); CREATE STREAM b (k BIGINT, ts BIGINT);
SELECT * FROM a JOIN b ON a.k = b.k /* comment */ WINDOW a.ts > b.ts AND a._ts <= b._ts + 5 MINUTES
MAXWINDOW 6 SECONDS
WHERE a.s LIKE 'x\\_%' AND a.s IS NOT NULL AND a.k NOT BETWEEN -1 AND b.k * 2 PARTITION BY a.k, b.k""",
    """CREATE STREAM a (k BIGINT, d DOUBLE, at TIMESTAMP, f BOOLEAN);
SELECT ABS(-k) + 2 % 3 AS x, COALESCE(d, 1.5, NULL) AS y, SUBSTRING('it''s', 1, k) AS z,
    INTERVAL '5' MINUTE AS i
FROM a WHERE (f OR k = 1) AND at <> '2013-01-01T00:00:00Z' AND at < TIMESTAMP '2014-01-01'
WINDOW RANGE 1 DAY;""",
)
TOKENS = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"[^\"]*\"|\w+|<=|>=|<>|[^\w\s]", re.DOTALL)
INTRUDERS = [
    "",
    "FROM",
    "banana",
    ")",
    "(",
    ",",
    "'",
    '"',
    ";",
    "5",
    "/*",
    "--",
    "=",
    "[",
    "é",
    "\x00",
    "\ud800",
    "NULL",
    "'x'",
]
SOME_DEEP = [*INTRUDERS[:6], *(pytest.param(text, marks=pytest.mark.deep) for text in INTRUDERS[6:])]


def outcome(text: str) -> Program | QueryError:
    """A program or a QueryError with a place; any other exception fails the test."""
    try:
        return parse_program(text)
    except QueryError as caught:
        error = caught
    lines = text.splitlines() or [""]
    assert 1 <= error.line <= len(lines)
    assert 1 <= error.column <= len(lines[error.line - 1]) + 1
    assert "^" in str(error) or not text
    assert "\n" not in error.message
    return error


@pytest.mark.parametrize("text", WHOLE)
def test_whole_programs_are_accepted(text: str) -> None:
    assert isinstance(outcome(text), Program)


@pytest.mark.parametrize("text", WHOLE)
def test_truncated_at_every_character(text: str) -> None:
    """A cut inside a statement is an error; a cut that leaves whole statements, or shorter ones, may not be."""
    errors = sum(isinstance(outcome(text[:end]), QueryError) for end in range(len(text)))
    assert errors > len(text) * 0.5


@pytest.mark.parametrize("intruder", SOME_DEEP)
@pytest.mark.parametrize("text", WHOLE)
def test_damaged_at_every_token(text: str, intruder: str) -> None:
    tokens = list(TOKENS.finditer(text))
    assert len(tokens) > 60
    for token in tokens:
        outcome(f"{text[: token.start()]}{intruder}{text[token.end() :]}")
        outcome(f"{text[: token.start()]}{token.group()} {intruder} {text[token.end() :]}")


@pytest.mark.parametrize("text", WHOLE)
def test_a_token_that_fits_nowhere_is_named_where_it_stands(text: str) -> None:
    for token in TOKENS.finditer(text):
        if token.group().startswith("--"):
            continue
        error = outcome(f"{text[: token.start()]} ¤ {text[token.end() :]}")
        assert isinstance(error, QueryError)
        assert underlined(error) == "¤"
        assert "expected" in error.message
        assert "got '¤'" in error.message


@pytest.mark.parametrize("text", WHOLE)
def test_swapped_neighbours(text: str) -> None:
    tokens = list(TOKENS.finditer(text))
    for one, two in itertools.pairwise(tokens):
        between = text[one.end() : two.start()]
        outcome(f"{text[: one.start()]}{two.group()}{between}{one.group()}{text[two.end() :]}")


PIECES = sorted(
    {token.group() for text in WHOLE for token in TOKENS.finditer(text)}
    | {"JOIN", "ON", "EXCEPT", "GROUP", "EMIT", "EVERY"}
)


@examples(300)
@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_any_sequence_of_tokens(pieces: list[str]) -> None:
    outcome(" ".join(pieces))


@examples(300)
@given(st.lists(st.sampled_from(PIECES), max_size=25))
def test_any_condition(pieces: list[str]) -> None:
    outcome("CREATE STREAM a (k BIGINT, s STRING, at TIMESTAMP); SELECT * FROM a [ROWS 1] WHERE " + " ".join(pieces))


@examples(300)
@given(st.text(max_size=60))
@example("\ud800")
@example("SELECT '\x00' \u2028 FROM")
def test_any_text(text: str) -> None:
    outcome(text)


@examples(200)
@given(st.sampled_from(WHOLE), st.integers(0, 700), st.integers(0, 30), st.text(max_size=8))
def test_any_edit(text: str, at: int, removed: int, inserted: str) -> None:
    outcome(text[:at] + inserted + text[at + removed :])


def test_deep_nesting_never_reaches_the_recursion_limit() -> None:
    """Each of these nests once per repetition; the engine's own recursion is bounded by the same limit."""
    depth = sys.getrecursionlimit() * 2
    for opening, inner, closing in (
        ("NOT ", "TRUE", ""),
        ("- ", "1", " = 1"),
        ("ABS(", "1", ")"),
        ("(1 + ", "1", ")"),
        ("", "1", " + 1"),
        ("(TRUE OR ", "TRUE", ")"),
        ("(", "TRUE", " = TRUE)"),
        ("(", "1", " IS NULL)"),
    ):
        text = f"{STREAMS}SELECT * FROM light [ROWS 1] WHERE {opening * depth}{inner}{closing * depth}"
        assert isinstance(outcome(text), QueryError)


# --- Places ----------------------------------------------------------------------------------------


@given(st.text(alphabet="ab\n\r\u2028 ", max_size=30), st.integers(0, 30))
def test_line_and_column_agree_with_splitlines(text: str, offset: int) -> None:
    """The character at an offset is the one at its line and column."""
    line, column = QueryText(text).line_and_column(min(offset, len(text)))
    lines = text.splitlines(keepends=True) or [""]
    assert 1 <= line <= len(lines)
    before = sum(map(len, lines[: line - 1])) + column - 1
    assert before == min(offset, len(text))
