"""`FOR SYSTEM_TIME AS OF`: what it binds to, and what is wrong with a text."""

from __future__ import annotations

import pytest

from schemas.language.program import parse_program
from schemas.query import ColumnRef, Compare, IsNull, Lookup, Query, Type
from tests.schemas.language.refusals import refused

DECLARED = """
CREATE STREAM orders (cur STRING, amount DOUBLE, k BIGINT, "R.rate" DOUBLE) WITH (topic = 'orders');
CREATE STREAM ships (k BIGINT, cur STRING) WITH (topic = 'ships');
CREATE TABLE rates (cur STRING PRIMARY KEY, rate DOUBLE, at TIMESTAMP) WITH (topic = 'rates', timestamp = 'at');
CREATE TABLE prices (a BIGINT PRIMARY KEY, b BIGINT PRIMARY KEY, price DOUBLE) WITH (topic = 'prices');
CREATE TABLE rooms (k BIGINT) WITH (path = 'rooms.csv');
"""


def query(select: str) -> Query:
    return parse_program(DECLARED + select).queries[0]


def lookup(select: str) -> Lookup:
    (found,) = query(select).lookups
    return found


O_CUR = ColumnRef("O", "cur", Type.STRING)
HOUR = "[RANGE 1 HOUR]"
RATES = "rates FOR SYSTEM_TIME AS OF O._ts AS T"


@pytest.mark.parametrize(
    "source",
    [
        f"orders O {HOUR}, {RATES} WHERE T.cur = O.cur",
        f"orders O {HOUR}, rates FOR SYSTEM_TIME AS OF O._ts T WHERE O.cur = T.cur",
        f"orders O {HOUR} JOIN {RATES} ON T.cur = O.cur",
        f"rates for system_time as of O._ts AS T, orders O {HOUR} WHERE T.cur = O.cur",
    ],
)
def test_ways_to_write_it(source: str) -> None:
    bound = query(f"SELECT T.rate AS rate FROM {source}")
    assert [one.alias for one in bound.sources] == ["O"]
    assert [(one.alias, one.table.name, one.of, one.key) for one in bound.lookups] == [("T", "rates", "O", (O_CUR,))]
    assert bound.outputs[0].expr == ColumnRef("O", "T.rate", Type.DOUBLE)
    assert bound.predicates == (IsNull(ColumnRef("O", "T.cur", Type.STRING), negated=True),)
    assert [stream.name for stream in bound.streams()] == ["orders", "rates"]
    assert [stream.name for stream in bound.joined_streams()] == ["orders"]


def test_a_left_join_keeps_what_has_no_row() -> None:
    kept = query(f"SELECT T.rate AS r FROM orders O {HOUR} LEFT JOIN {RATES} ON T.cur = O.cur")
    assert kept.predicates == ()
    outer = query(f"SELECT T.rate AS r FROM orders O {HOUR} LEFT OUTER JOIN {RATES} ON T.cur = O.cur")
    assert outer.lookups == kept.lookups


def test_without_an_alias_the_table_has_its_own_name() -> None:
    assert (
        lookup(f"SELECT rate FROM orders O {HOUR}, rates FOR SYSTEM_TIME AS OF O._ts WHERE rates.cur = O.cur").alias
        == "rates"
    )


def test_every_column_of_a_star() -> None:
    names = [
        one.name
        for one in query(
            f"SELECT * FROM ships S {HOUR}, rates FOR SYSTEM_TIME AS OF S._ts AS R WHERE R.cur = S.cur"
        ).outputs
    ]
    assert names == ["S.k", "S.cur", "R.cur", "R.rate", "R.at"]


def test_a_key_of_several_columns_and_of_constants() -> None:
    found = lookup(
        f"SELECT P.price AS p FROM ships S {HOUR}, prices FOR SYSTEM_TIME AS OF S._ts P WHERE P.b = 7 AND P.a = S.k + 1"
    )
    assert [type(one).__name__ for one in found.key] == ["Arithmetic", "Literal"]


def test_other_conditions_stay() -> None:
    bound = query(
        f"SELECT O.k AS k FROM orders O {HOUR}, {RATES}, ships S {HOUR} "
        "WHERE T.cur = O.cur AND T.rate > O.amount AND S.cur = T.cur"
    )
    joins = [one for one in bound.predicates if isinstance(one, Compare)]
    assert joins[0].left == ColumnRef("O", "T.rate", Type.DOUBLE)
    assert joins[1].right == ColumnRef("O", "T.cur", Type.STRING)


def test_both_sides_of_except() -> None:
    """Conditions on what a subtracted stream is looked up in are in its ON."""
    bound = query(
        f"SELECT * FROM orders O {HOUR} LEFT JOIN {RATES} ON T.cur = O.cur, rates FOR SYSTEM_TIME AS OF S._ts AS U "
        f"WHERE T.rate > 1 EXCEPT ships S {HOUR} ON S.k = O.k AND S.cur = U.cur AND U.rate > T.rate"
    )
    assert [(one.alias, one.of) for one in bound.lookups] == [("T", "O"), ("U", "S")]
    assert [output.name for output in bound.outputs][4:] == ["T.cur", "T.rate", "T.at"]
    (part,) = bound.subtracted
    u_rate, t_rate = ColumnRef("S", "U.rate", Type.DOUBLE), ColumnRef("O", "T.rate", Type.DOUBLE)
    there = IsNull(ColumnRef("S", "U.cur", Type.STRING), negated=True)
    assert part.on[1:] == (Compare(">", u_rate, t_rate), there)
    assert len(bound.predicates) == 1


def test_partitions() -> None:
    bound = query(
        f"SELECT S.k AS k FROM ships S {HOUR}, rates FOR SYSTEM_TIME AS OF S._ts AS R WHERE R.cur = S.cur "
        "PARTITION BY S.cur, R.cur"
    )
    assert bound.partition_by == (ColumnRef("S", "cur", Type.STRING),)


ERRORS = [
    (f"SELECT O.k FROM orders O {HOUR}, rates T", "rates T", "changes over time: say when"),
    (
        f"SELECT O.k FROM orders O {HOUR}, rates FOR SYSTEM_TIME AS OF O.k AS T",
        "O.k AS",
        "takes the event time of a stream",
    ),
    ("SELECT T.rate FROM rates FOR SYSTEM_TIME AS OF T._ts AS T", "T._ts AS", "and FROM has none"),
    (
        f"SELECT O.k FROM orders O {HOUR}, rooms FOR SYSTEM_TIME AS OF O._ts AS T",
        "FOR SYSTEM_TIME AS OF O._ts",
        "never change",
    ),
    (
        f"SELECT O.k FROM orders O {HOUR}, ships FOR SYSTEM_TIME AS OF O._ts AS T",
        "FOR SYSTEM_TIME AS OF O._ts",
        "is a stream",
    ),
    (
        f"SELECT O.k FROM orders O {HOUR}, {RATES} WHERE T.rate = O.amount",
        RATES,
        "is read by its primary key: write T.cur = ..., with columns of O",
    ),
    (
        f"SELECT O.k FROM orders O {HOUR}, {RATES}, ships S {HOUR} WHERE T.cur = S.cur",
        RATES,
        "with columns of O",
    ),
    (
        f"SELECT O.k FROM orders O {HOUR}, prices FOR SYSTEM_TIME AS OF O._ts AS P WHERE P.a = O.amount AND P.b = 1",
        "prices FOR SYSTEM_TIME AS OF O._ts AS P",
        "P.a is BIGINT, and what it equals here is DOUBLE",
    ),
    (
        f"SELECT O.k FROM orders O {HOUR} LEFT JOIN {RATES} ON T.cur = O.cur AND T.rate > 1",
        "T.cur = O.cur AND T.rate > 1",
        "equates the primary key and nothing else",
    ),
    (
        f"SELECT O.k FROM orders O {HOUR} LEFT JOIN {RATES} ON T.rate = 1 WHERE T.cur = O.cur",
        RATES,
        "in the ON of LEFT JOIN",
    ),
    (
        f"SELECT O.k FROM orders O {HOUR}, rates FOR SYSTEM_TIME AS OF O._ts AS R WHERE R.cur = O.cur",
        "rates FOR SYSTEM_TIME AS OF O._ts AS R",
        "'R.rate' is a column of stream 'orders'",
    ),
    (
        f"SELECT O.k FROM orders O {HOUR}, {RATES} [ROWS 1] WHERE T.cur = O.cur",
        "[ROWS 1]",
        "a version of a row holds until its next version",
    ),
    (
        f"SELECT S.k FROM ships S {HOUR}, rates FOR SYSTEM_TIME AS OF S._ts R WHERE R.cur = S.cur PARTITION BY S.cur",
        "S.cur",
        "none is given of R",
    ),
    (
        f"SELECT S.k FROM ships S {HOUR}, prices FOR SYSTEM_TIME AS OF S._ts AS P WHERE P.a = S.k AND P.b = S.k "
        "PARTITION BY S.k, P.a",
        "PARTITION",
        "is partitioned by its primary key (a, b), not by a",
    ),
    (
        f"SELECT O.k FROM orders O {HOUR} EXCEPT rates FOR SYSTEM_TIME AS OF O._ts AS T ON T.cur = O.cur",
        RATES,
        "write LEFT JOIN ... ON, and T.key IS NULL in WHERE",
    ),
    (
        f"SELECT O.k FROM orders O {HOUR}, rates FOR SYSTEM_TIME AS OF S._ts AS T WHERE T.cur = S.cur "
        f"EXCEPT ships S {HOUR} ON S.k = O.k",
        "T.cur",
        "what EXCEPT subtracts has no columns in the answer: this reads O only, not T",
    ),
    (
        f"SELECT O.k FROM orders O {HOUR} JOIN rates FOR SYSTEM_TIME AS OF S._ts AS T ON T.cur = S.cur "
        f"EXCEPT ships S {HOUR} ON S.k = O.k",
        "T.cur",
        "this reads O only, not T",
    ),
    (
        f"SELECT O.k FROM orders O {HOUR}, rates FOR SYSTEM_TIME AS OF S._ts AS T EXCEPT ships S {HOUR} ON S.k = O.k",
        "rates FOR SYSTEM_TIME AS OF S._ts AS T",
        "write T.cur = ..., with columns of S in ON after EXCEPT S",
    ),
    (
        f"SELECT O.k FROM orders O {HOUR}, rates FOR SYSTEM_TIME AS OF S._ts AS T "
        f"EXCEPT ships S {HOUR} ON S.k = O.k AND T.cur = S.cur EXCEPT ships U {HOUR} ON U.k = O.k AND T.rate > 1",
        "T.rate",
        "ON after EXCEPT compares O with U, not T",
    ),
    (
        f"SELECT O.k FROM orders O {HOUR}, ships S {HOUR}, {RATES} EXCEPT ships U {HOUR} ON U.k = O.k",
        f"ships S {HOUR}",
        "EXCEPT takes from one stream",
    ),
    (
        "CREATE TABLE u (k BIGINT PRIMARY KEY, \"b.c\" BIGINT) WITH (topic = 'u'); "
        "CREATE TABLE v (k BIGINT PRIMARY KEY, c BIGINT) WITH (topic = 'v'); "
        f"SELECT S.k FROM ships S {HOUR}, u FOR SYSTEM_TIME AS OF S._ts AS a, "
        'v FOR SYSTEM_TIME AS OF S._ts AS "a.b" WHERE a.k = S.k AND "a.b".k = S.k',
        'v FOR SYSTEM_TIME AS OF S._ts AS "a.b"',
        "'a.b.c' is a column of table 'u'",
    ),
    (
        "CREATE TABLE w (k TIMESTAMP PRIMARY KEY) WITH (topic = 'w'); "
        f"SELECT S.k FROM ships S {HOUR}, w FOR SYSTEM_TIME AS OF S._ts AS W WHERE W.k = S.k PARTITION BY S.k, W.k",
        "PARTITION",
        "PARTITION BY columns must have one type",
    ),
    ("CREATE TABLE t (a BIGINT) WITH (topic = 't')", "t", "needs a key, which tells its rows apart"),
    ("CREATE TABLE t (a BIGINT PRIMARY KEY) WITH (path = 't')", "PRIMARY KEY", "have no keys"),
    ("CREATE TABLE t (a BIGINT PRIMARY KEY, b BIGINT KEY) WITH (topic = 't')", "KEY) WITH", "write PRIMARY KEY"),
    ("CREATE STREAM t (a BIGINT PRIMARY KEY)", "PRIMARY KEY", "a stream has no PRIMARY KEY"),
    ("CREATE TABLE t (a BIGINT PRIMARY KEY, _op STRING) WITH (topic = 't')", "_op", "has a use of its own"),
]


@pytest.mark.parametrize(("text", "place", "piece"), ERRORS)
def test_errors_say_where_and_what(text: str, place: str, piece: str) -> None:
    refused(DECLARED + text, place.removesuffix(" AS").removesuffix(") WITH"), piece)
