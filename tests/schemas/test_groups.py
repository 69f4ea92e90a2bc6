"""Query groups as a model: the inputs that their queries share, the inputs' windows, and queries that no group
takes."""

from __future__ import annotations

import re

import pytest

from schemas.errors import UsageError
from schemas.groups import QueryGroup, query_group, streams_of
from schemas.language.program import parse_program
from schemas.query import Query, aliases_of

STREAMS = """
CREATE STREAM blood (patient BIGINT, pressure BIGINT, at TIMESTAMP) WITH (topic = 'b', timestamp = 'at');
CREATE STREAM temp (patient BIGINT, fluct BIGINT, at TIMESTAMP) WITH (topic = 't', timestamp = 'at');
CREATE TABLE wards (ward BIGINT, floor BIGINT) WITH (path = 'wards.csv');
"""


def queries(*selects: str) -> tuple[Query, ...]:
    """The queries, which write to q1, q2, ..."""
    texts = [f"INSERT INTO q{number} {select};" for number, select in enumerate(selects, 1)]
    return parse_program(STREAMS + "\n".join(texts)).queries


def group(*selects: str) -> QueryGroup:
    return query_group(queries(*selects))


def shown(group: QueryGroup) -> list[str]:
    return [f"{source.alias}: {source.stream.name} {source.window}" for source in group.inputs]


def test_the_same_alias_of_a_stream_is_one_input_with_the_longest_window() -> None:
    found = group(
        "SELECT B.pressure FROM blood B [RANGE 4 SECONDS], temp T [RANGE 4 SECONDS] WHERE B.pressure > T.fluct",
        "SELECT B.pressure FROM temp T [RANGE 1 SECOND], blood B [RANGE 6 SECONDS]",
    )
    assert shown(found) == ["B: blood [RANGE 6 SECONDS]", "T: temp [RANGE 4 SECONDS]"]
    assert [member.inputs for member in found.members] == [("B", "T"), ("T", "B")]


def test_another_alias_takes_the_inputs_of_its_stream_in_turn() -> None:
    found = group(
        "SELECT x.pressure FROM blood x [RANGE 1 SECOND]",
        "SELECT y.pressure FROM blood y [RANGE 1 SECOND], blood z [RANGE 2 SECONDS] WHERE y.patient = z.patient",
        "SELECT z.pressure FROM blood a [RANGE 1 SECOND], blood z [RANGE 9 SECONDS]",
    )
    assert shown(found) == ["x: blood [RANGE 1 SECOND]", "z: blood [RANGE 9 SECONDS]"]
    assert [dict(member.input_of()) for member in found.members] == [
        {"x": "x"},
        {"y": "x", "z": "z"},
        {"a": "x", "z": "z"},
    ]


def test_an_input_has_the_longest_window_of_each_kind() -> None:
    first, second, third, fourth = queries(
        "SELECT B.pressure FROM blood B [ROWS 4], temp T [RANGE 4 SECONDS]",
        "SELECT B.pressure FROM blood B [RANGE 1 SECOND], temp T [UNBOUNDED]",
        "SELECT B.pressure FROM blood B [ROWS 9], temp T [ROWS 9]",
        "SELECT B.pressure FROM blood B [RANGE 2 SECONDS], temp T [ROWS 7]",
    )
    assert shown(query_group([first])) == ["B: blood [ROWS 4]", "T: temp [RANGE 4 SECONDS]"]
    found = query_group([first, second, third, fourth])
    assert [str(window) for window in found.windows("B")] == ["[RANGE 2 SECONDS]", "[ROWS 9]"]
    assert [str(window) for window in found.windows("T")] == ["[UNBOUNDED]"]
    assert shown(found) == ["B: blood [RANGE 2 SECONDS]", "T: temp [UNBOUNDED]"]
    assert [str(window) for window in found.dropping("q2").windows("T")] == ["[RANGE 4 SECONDS]", "[ROWS 9]"]


def test_an_alias_that_two_streams_bear_names_one_input_only() -> None:
    found = group("SELECT s.pressure FROM blood s [RANGE 1 SECOND]", "SELECT s.fluct FROM temp s [RANGE 1 SECOND]")
    assert shown(found) == ["s: blood [RANGE 1 SECOND]", "s_2: temp [RANGE 1 SECOND]"]
    assert found.member("q2").inputs == ("s_2",)


def test_a_member_over_inputs_is_its_query_under_other_names() -> None:
    both = queries(
        "SELECT T.fluct FROM temp T [RANGE 1 SECOND]",
        "SELECT u.fluct + 1 AS more FROM blood B [RANGE 1 SECOND], temp u [RANGE 2 SECONDS] "
        "WHERE u.fluct < B.pressure AND (u.patient = 1 OR u.patient IS NULL) WINDOW B.ts > u.ts",
    )
    found = query_group(both)
    member = found.member("q2")
    assert [source.alias for source in member.over_inputs.sources] == ["B", "T"]
    assert [str(source.window) for source in member.over_inputs.sources] == ["[RANGE 1 SECOND]", "[RANGE 2 SECONDS]"]
    assert [aliases_of(predicate) for predicate in member.over_inputs.predicates] == [{"B", "T"}, {"T"}, {"B", "T"}]
    assert [output.name for output in member.over_inputs.outputs] == ["more"]
    assert member.query == both[1]
    assert sorted(f"{column.alias}.{column.name}" for column in found.columns()) == [
        "B._ts",
        "B.pressure",
        "T._ts",
        "T.fluct",
        "T.patient",
    ]


def test_the_query_over_all_inputs_has_nothing_else() -> None:
    found = group(
        "SELECT B.pressure FROM blood B [RANGE 1 SECOND], wards w WHERE B.patient = w.ward",
        "SELECT T.fluct FROM temp T [UNBOUNDED]",
    )
    whole = found.query
    assert whole.sources == found.inputs
    assert [str(source.window) for source in whole.sources] == ["[RANGE 1 SECOND]", "[UNBOUNDED]", "[UNBOUNDED]"]
    assert (whole.predicates, whole.outputs, whole.sink) == ((), (), None)
    assert [stream.name for stream in whole.streams()] == ["blood", "temp"]
    assert streams_of(member.query for member in found.members) == whole.streams()


def test_adding_and_dropping_a_query_leaves_the_inputs_of_the_others() -> None:
    first, second, third = queries(
        "SELECT x.pressure FROM blood x [RANGE 9 SECONDS]",
        "SELECT y.pressure FROM blood x [RANGE 1 SECOND], blood y [RANGE 2 SECONDS]",
        "SELECT t.fluct FROM temp t [RANGE 3 SECONDS], blood y [RANGE 1 SECOND]",
    )
    both = query_group([first, second])
    assert both.adding(third).dropping("q1").members == (both.members[1], both.adding(third).members[2])
    assert shown(both.dropping("q1")) == ["x: blood [RANGE 1 SECOND]", "y: blood [RANGE 2 SECONDS]"]
    assert shown(both.adding(third).dropping("q2")) == [
        "x: blood [RANGE 9 SECONDS]",
        "y: blood [RANGE 1 SECOND]",
        "t: temp [RANGE 3 SECONDS]",
    ]
    assert both.dropping("q2").dropping("q1") == query_group([])
    with pytest.raises(UsageError, match="the group has no query 'q3', it has 'q1', 'q2'"):
        both.dropping("q3")


@pytest.mark.parametrize(
    ("select", "why"),
    [
        (
            "SELECT COUNT(*) AS n FROM blood B [ROWS 5] EMIT EVERY 1 SECOND",
            "a shared operator does not go with aggregates over",
        ),
        (
            "SELECT B.patient FROM blood B [RANGE 1 SECOND] EXCEPT temp T [RANGE 1 SECOND] ON B.patient = T.patient",
            "a shared operator does not go with EXCEPT",
        ),
    ],
)
def test_what_a_group_cannot_take_is_said_in_a_line(select: str, why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)) as error:
        group(select)
    assert str(error.value).splitlines()[0].endswith("run it standalone")


def test_queries_that_do_not_go_together_are_refused() -> None:
    (query,) = queries("SELECT B.pressure FROM blood B [RANGE 1 SECOND]")
    with pytest.raises(UsageError, match="two queries of the group are called 'q1'"):
        query_group([query, query])
    (other,) = parse_program(
        STREAMS.replace("fluct BIGINT", "fluct DOUBLE") + "INSERT INTO x SELECT T.fluct FROM temp T [RANGE 1 SECOND];"
    ).queries
    with pytest.raises(UsageError, match="query 'q1' declares stream 'temp' otherwise"):
        query_group([other, *queries("SELECT T.fluct FROM temp T [RANGE 1 SECOND]")])
    writer, reader = parse_program(
        STREAMS
        + "INSERT INTO t SELECT B.pressure FROM blood B [RANGE 1 SECOND];"
        + "INSERT INTO x SELECT T.fluct FROM temp T [RANGE 1 SECOND];"
    ).queries
    for pair in ([writer, reader], [reader, writer]):
        with pytest.raises(UsageError, match="query 'x' reads what query 't' of the same group writes, topic 't'"):
            query_group(pair)
