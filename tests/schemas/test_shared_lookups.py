"""Names of lookups that queries have in common: equal for what is looked up alike, and for nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schemas.errors import UsageError
from schemas.groups import query_group
from schemas.language.program import parse_program
from schemas.query import Query
from schemas.shared_lookups import with_shared_names

DECLARED = """
CREATE STREAM orders (id BIGINT, cur STRING, "rates(cur).rate" BIGINT, at TIMESTAMP) WITH (timestamp = 'at');
CREATE STREAM ships (id BIGINT, cur STRING, at TIMESTAMP) WITH (timestamp = 'at');
CREATE STREAM odd (x STRING, z STRING, "x, y" STRING, "y, z" STRING, at TIMESTAMP) WITH (timestamp = 'at');
CREATE TABLE rates (cur STRING PRIMARY KEY, rate BIGINT) WITH (topic = 'rates');
CREATE TABLE pairs (a STRING PRIMARY KEY, b STRING PRIMARY KEY, rate BIGINT) WITH (topic = 'pairs');
"""


def query(select: str, number: int = 0) -> Query:
    (found,) = parse_program(f"{DECLARED} INSERT INTO q{number} {select}").queries
    return found


def names(select: str) -> list[str]:
    return [lookup.alias for lookup in with_shared_names(query(select)).lookups]


def looked(alias: str, key: str, of: str = "ships S") -> str:
    time = of.rpartition(" ")[2]
    return (
        f"SELECT {alias}.rate AS r FROM {of} [RANGE 1 SECOND], rates FOR SYSTEM_TIME AS OF {time}._ts AS {alias} "
        f"WHERE {alias}.cur = {key}"
    )


def test_the_table_and_its_key_are_the_name() -> None:
    assert names(looked("R", "S.cur")) == names(looked("Other", "X.cur", "ships X")) == ["rates(cur)"]
    both = "pairs FOR SYSTEM_TIME AS OF S._ts AS P WHERE P.b = S.cur AND P.a = S.cur"
    assert names(f"SELECT S.id FROM ships S [RANGE 1 SECOND], {both}") == ["pairs(cur, cur)"]


def test_other_keys_have_other_names() -> None:
    found = [names(looked("R", key))[0] for key in ("S.cur", "'S.cur'", "'cur'", "LOWER(S.cur)", "CONCAT(S.cur, 'a')")]
    assert len({*found}) == len(found)
    assert all(name.startswith("rates(#") for name in found[1:])


def test_a_key_of_several_columns_has_one_meaning() -> None:
    """Also where one of them is an expression, or has a name with a comma in it."""
    pairs = "pairs FOR SYSTEM_TIME AS OF D._ts AS P WHERE P.a = {} AND P.b = {}"
    pairs = f"SELECT P.rate AS r FROM odd D [RANGE 1 SECOND], {pairs}"
    keys = [("D.x", "LOWER(D.z)"), ("D.x", "'z'"), ("LOWER(D.z)", "D.x"), ('D."x, y"', "D.z"), ("D.x", 'D."y, z"')]
    found = [names(pairs.format(*key))[0] for key in keys]
    assert len({*found}) == len(found)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT R.cur AS c, COUNT(*) AS n, SUM(R.rate) AS s FROM ships S [RANGE 1 SECOND], RATES, orders O [ROWS 3] "
        "WHERE R.cur = LOWER(S.cur) AND R.rate > O.id AND O.cur = S.cur GROUP BY R.cur EMIT EVERY 1 SECOND",
        "SELECT S.id, R._ts AS t FROM ships S [RANGE 1 SECOND], RATES, orders O [RANGE 1 SECOND] "
        "WHERE R.cur = S.cur AND O.cur = R.cur PARTITION BY O.cur, S.cur, R.cur",
        "SELECT S.id, R.rate AS r FROM ships S [RANGE 1 SECOND], RATES WHERE R.cur = S.cur "
        "EXCEPT orders O [RANGE 1 SECOND] ON O.id = R.rate",
    ],
)
def test_the_alias_is_nowhere_left(text: str) -> None:
    """Queries that differ in the alias of a lookup, or of its stream, become one."""
    text = text.replace("RATES", "rates FOR SYSTEM_TIME AS OF S._ts AS R")
    first, second = (with_shared_names(query(one)) for one in (text, text.replace("R.", "Z.").replace("AS R", "AS Z")))
    assert replace(first, text="") == replace(second, text="")
    of_other = with_shared_names(query(text.replace("S.", "X.").replace("ships S", "ships X")))
    assert [one.alias for one in of_other.lookups] == [one.alias for one in first.lookups]


def test_equal_lookups_of_a_query_are_one() -> None:
    others = "rates FOR SYSTEM_TIME AS OF S._ts AS R, rates FOR SYSTEM_TIME AS OF S._ts AS Z"
    text = (
        f"SELECT R.rate AS r, Z.rate AS z FROM ships S [RANGE 1 SECOND], {others} WHERE R.cur = S.cur AND Z.cur = S.cur"
    )
    found = with_shared_names(query(text))
    assert [one.alias for one in found.lookups] == ["rates(cur)"]
    assert found.outputs[0].expr == found.outputs[1].expr


def test_a_column_of_the_stream_is_not_hidden() -> None:
    assert names(looked("R", "O.cur", "orders O")) == ["rates(cur)'"]


def test_a_name_is_that_of_its_name() -> None:
    """Also where the key is looked up."""
    chained = query(
        "SELECT P.rate AS r FROM ships S [RANGE 1 SECOND], rates FOR SYSTEM_TIME AS OF S._ts AS R, "
        "pairs FOR SYSTEM_TIME AS OF S._ts AS P WHERE R.cur = S.cur AND P.a = R.cur AND P.b = S.cur "
        "EXCEPT ships T [RANGE 1 SECOND] ON T.id = S.id AND T.cur = P.b"
    )
    once = with_shared_names(chained)
    assert once.lookups[1].key[0].name == "rates(cur).cur"  # type: ignore[union-attr]
    assert with_shared_names(once) == once
    plain = query("SELECT S.id FROM ships S [RANGE 1 SECOND]")
    assert with_shared_names(plain) is plain


def test_a_group_has_each_lookup_once() -> None:
    """Of an input; queries whose aliases differ read one column."""
    selects = [looked("R", "S.cur"), looked("T", "X.cur", "ships X"), looked("R", "'USD'")]
    group = query_group(query(select, n) for n, select in enumerate(selects))
    assert [(one.of, one.alias.partition("#")[0]) for one in group.query.lookups] == [
        ("S", "rates(cur)"),
        ("S", "rates("),
    ]
    first, second, other = (member.over_inputs.outputs[0].expr for member in group.members)
    assert first == second != other
    assert [stream.name for stream in group.query.streams()] == ["ships", "rates"]


@pytest.mark.parametrize("alike", [True, False])
def test_a_group_has_one_declaration_of_a_table(alike: bool) -> None:
    group = query_group([query(looked("R", "S.cur"))])
    declared = DECLARED if alike else DECLARED.replace("KEY, rate BIGINT) WITH (topic = 'r", "KEY) WITH (topic = 'r")
    select = "SELECT S.id FROM ships S [RANGE 1 SECOND], rates FOR SYSTEM_TIME AS OF S._ts AS R WHERE R.cur = S.cur"
    (second,) = parse_program(f"{declared} INSERT INTO q1 {select}").queries
    if alike:
        assert len(group.adding(second).members) == 2
    else:
        with pytest.raises(UsageError, match="declares table 'rates' otherwise than the group's other queries"):
            group.adding(second)
