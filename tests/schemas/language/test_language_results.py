"""INSERT INTO 'topic' WITH (...): how results are written."""

from __future__ import annotations

import pytest

from schemas.errors import QueryError
from schemas.language.program import parse_program
from schemas.query import Query, ResultFormat

STREAM = "CREATE STREAM a (k BIGINT, a_k BIGINT, s STRING);\n"


def bound(insert: str, outputs: str = "a.k") -> Query:
    return parse_program(f"{STREAM}{insert} SELECT {outputs} FROM a [ROWS 1]").queries[0]


@pytest.mark.parametrize(
    ("options", "format"),
    [
        ("", ResultFormat()),
        ("WITH (format = 'json')", ResultFormat()),
        ("with (FORMAT = 'Avro')", ResultFormat("avro")),
        ("WITH (format = 'json-schema', subject = 'record')", ResultFormat("json-schema", subject="record")),
        (
            "WITH (format = 'avro', registry = 'http://r:8081/api', subject = 'topic-record', record = 'com.acme.A_1')",
            ResultFormat("avro", "http://r:8081/api", "topic-record", "com.acme.A_1"),
        ),
    ],
)
def test_formats_of_results(options: str, format: ResultFormat) -> None:
    query = bound(f"INSERT INTO 'x' {options}")
    assert query.result_format == format
    assert query.sink == "x"


def test_a_topic_may_be_called_with() -> None:
    assert bound("INSERT INTO 'with' WITH (format = 'avro')").sink == "with"


@pytest.mark.parametrize(
    ("options", "message", "line"),
    [
        ("format = 'xml'", "option 'format' is one of json, avro, json-schema, protobuf", 2),
        ("format = 'avro', registry = 'r:8081'", "option 'registry' is the URL of a schema registry", 2),
        ("registry = 'http://r'", "and format = 'protobuf'; the format here is 'json'", 2),
        ("subject = 'topic'", "option 'subject' is for format = 'avro'", 2),
        ("format = 'avro', subject = 'name'", "option 'subject' is one of topic, record, topic-record", 2),
        ("format = 'avro', record = '1a'", "option 'record' is a name in Avro", 2),
        ("format = 'avro', record = 'a.string'", "option 'record' is a name in Avro", 2),
        ("format = 'avro', record = 'a..b'", "option 'record' is a name in Avro", 2),
        ("timestamp = 'at'", "unknown option 'timestamp'; accepted: format, key_format, registry, subject", 2),
    ],
)
def test_wrong_options(options: str, message: str, line: int) -> None:
    with pytest.raises(QueryError) as found:
        bound(f"INSERT INTO 'x' WITH ({options})")
    assert message in str(found.value)
    assert found.value.line == line


def test_outputs_that_would_be_one_field() -> None:
    message = "in avro 'a.k' and 'a_k' would be one field; rename one with AS"
    with pytest.raises(QueryError, match=message):
        bound("INSERT INTO 'x' WITH (format = 'avro')", "a.k, a.a_k AS a_k")
    assert bound("INSERT INTO 'x'", "a.k, a.a_k AS a_k").outputs
    names = 'a.k AS room_id, a.a_k AS "roomId"'
    assert bound("INSERT INTO 'x' WITH (format = 'avro')", names).outputs
    with pytest.raises(QueryError, match="in protobuf 'room_id' and 'roomId' would be one field"):
        bound("INSERT INTO 'x' WITH (format = 'protobuf')", names)
    with pytest.raises(QueryError, match="in protobuf '_ts' and 'Ts' would be one field"):
        bound("INSERT INTO 'x' WITH (format = 'protobuf')", "a.k AS Ts")


@pytest.mark.parametrize(
    ("insert", "outputs", "key", "format"),
    [
        ("INSERT INTO 'x' KEY (k)", "a.k AS k", ("k",), "string"),
        ("INSERT INTO 'x' key (a.k)", "a.k", ("a.k",), "string"),
        ("INSERT INTO 'x' KEY (\"a.k\", z)", "a.k, a.k * 2 AS z", ("a.k", "z"), "json"),
        ("INSERT INTO 'x' KEY (z)", "a.k / 2.0 AS z", ("z",), "json"),
        ("INSERT INTO 'x' KEY (k) WITH (key_format = 'json')", "a.k AS k", ("k",), "json"),
        ("INSERT INTO 'x' KEY (k) WITH (key_format = 'avro', registry = 'http://r')", "a.k AS k", ("k",), "avro"),
        ("INSERT INTO 'x' KEY (k) WITH (format = 'avro')", "a.k AS k", ("k",), "string"),
        ("INSERT INTO key KEY (key)", "a.k AS key", ("key",), "string"),
    ],
)
def test_keys_of_results(insert: str, outputs: str, key: tuple[str, ...], format: str) -> None:
    found = bound(insert, outputs).result_format
    assert (found.key, found.key_format) == (key, format)


@pytest.mark.parametrize(
    ("insert", "outputs", "message"),
    [
        ("INSERT INTO 'x' KEY (m)", "a.k AS mm", "none is called 'm'; did you mean mm?"),
        ("INSERT INTO 'x' KEY (q)", "a.k AS mm", "none is called 'q'; it has mm"),
        ("INSERT INTO 'x' KEY (k, k)", "a.k AS k", "KEY names 'k' twice"),
        ("INSERT INTO 'x' WITH (key_format = 'json')", "a.k", "is for results with a key: INSERT INTO 'topic'"),
        ("INSERT INTO 'x' KEY (k) WITH (key_format = 'csv')", "a.k AS k", "is one of string, json, avro, json-schema"),
        ("INSERT INTO 'x' KEY (k, z) WITH (key_format = 'string')", "a.k AS k, a.a_k AS z", "takes one output"),
        ("INSERT INTO 'x' KEY (k) WITH (key_format = 'string')", "a.k / 2.0 AS k", "which is no DOUBLE"),
    ],
)
def test_wrong_keys(insert: str, outputs: str, message: str) -> None:
    with pytest.raises(QueryError) as found:
        bound(insert, outputs)
    assert message in str(found.value)


def test_aggregates_have_a_key_of_their_own() -> None:
    text = f"{STREAM}INSERT INTO 'x' KEY (n) SELECT COUNT(*) AS n FROM a [ROWS 1] EMIT EVERY 1 SECOND"
    with pytest.raises(QueryError, match="have the values of GROUP BY as their key; leave KEY out"):
        parse_program(text)


def test_schemas_of_ones_own() -> None:
    found = bound("INSERT INTO 'x' WITH (format = 'avro', schema = 'x.avsc')").result_format
    assert found == ResultFormat("avro", schema="x.avsc")
    options = "format = 'protobuf', schema = 'registered', message = 'a.B', subject = 'record', record = 'a.B'"
    found = bound(f"INSERT INTO 'x' WITH ({options})").result_format
    assert found == ResultFormat("protobuf", subject="record", record="a.B", schema="registered", message="a.B")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("schema = 'x.avsc'", "option 'schema' is for format = 'avro' and format = 'protobuf'; the format here"),
        ("format = 'json-schema', schema = 'x'", "option 'schema' is for format = 'avro' and format = 'protobuf'"),
        ("format = 'avro', schema = ' '", "option 'schema' names a file"),
        ("format = 'protobuf', message = 'a.B'", "option 'message' is a type in a schema of your own"),
        ("format = 'avro', schema = 'x', message = 'a.B'", "option 'message' is for format = 'protobuf'"),
        ("format = 'avro', schema = 'x', record = 'a.B'", "option 'record' is the name in the schema that Weir makes"),
    ],
)
def test_wrong_schemas_of_ones_own(options: str, message: str) -> None:
    with pytest.raises(QueryError) as found:
        bound(f"INSERT INTO 'x' WITH ({options})")
    assert message in str(found.value)
    assert found.value.line == 2


def test_headers_of_results() -> None:
    given = 'a.k AS k, a.s AS "_headers.trace-id", LOWER(a.s) AS "_headers.a..b"'
    found = bound("INSERT INTO 'x' KEY (k)", given)
    assert [(output.header, output.path) for output in found.outputs] == [
        (None, ("k",)),
        ("trace-id", ("_headers", "trace-id")),
        ("a..b", ("_headers", "a..b")),
    ]


@pytest.mark.parametrize(
    ("insert", "outputs", "message"),
    [
        ("", 'a.k AS "_headers.n"', "a header is a STRING; '_headers.n' is BIGINT"),
        ("", "a.s AS _headers", "'_headers' has the headers of a result; name one, as in AS \"_headers.trace-id\""),
        ("", 'a.s AS "_headers."', "dots are between the names of objects in each other"),
        ("", 'a.s AS "_headers.t"', "a result needs a value beside its headers"),
        ("", 'a.k, a.s AS "_headers.t", a.s AS "_headers.t"', "two results are called '_headers.t'"),
        ("INSERT INTO 'x' KEY (\"_headers.t\")", 'a.k, a.s AS "_headers.t"', "'_headers.t' is a header; KEY takes"),
    ],
)
def test_wrong_headers(insert: str, outputs: str, message: str) -> None:
    with pytest.raises(QueryError) as found:
        bound(insert, outputs)
    assert message in str(found.value)
    assert found.value.line
