"""The last results, late records and dead letters, read from a real broker."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Producer

from schemas.codecs.encode import Encoded
from schemas.codecs.json_codec import JsonDecoder
from schemas.columns import Batch, Column
from schemas.errors import UsageError
from schemas.language.program import parse_program
from schemas.query import Query, Type
from services.delivery.epoch_output import RejectedRecord, RejectedRecords
from services.formats.encoders import Encoders
from services.formats.registry_access import RegistryAccess
from services.kafka.records import RecordBatch
from services.kafka.topics import TopicAdmin
from services.process.security import KafkaClients
from services.ui.documents import rows
from services.ui.documents.rows import HIDDEN, LAST, MOST, Rows
from tests.broker_fixture import Topics

STREAM = "CREATE STREAM t (k BIGINT, name STRING, at TIMESTAMP) WITH (topic = 'in', format = 'json', timestamp = 'at');"
NOW_MS = int(time.time() * 1000)

Document = dict[str, Any]


def query(into: str) -> Query:
    return parse_program(f"{STREAM} {into} SELECT A.k AS k FROM t A [RANGE 1 SECOND];").queries[0]


def rows_of(clients: KafkaClients, shown: Query, *further: Any) -> Rows:
    return Rows(clients, shown.name, lambda: {shown.name: shown}, *further)


class Output:
    """The topics of a query, to write to."""

    def __init__(self, topics: Topics, partitions: int = 1) -> None:
        self.clients = KafkaClients(topics.bootstrap)
        # `outputs` makes the other topics.
        self.query = query(f"INSERT INTO '{topics('rows', partitions)}'")
        self.sink = self.query.name
        TopicAdmin(self.clients).outputs(self.query.name, self.sink, partitions, 1)
        self.plain = Producer(self.clients.librdkafka())
        self.transactional = Producer(self.clients.librdkafka(transactional__id=self.sink))
        self.transactional.init_transactions(30)

    def write(self, records: Iterable[Document], *, commit: bool | None = True) -> None:
        """Write some records in a transaction; with `commit=None` it stays open."""
        self.transactional.begin_transaction()
        for record in records:
            self.transactional.produce(self.sink, **record)
        if commit is None:
            self.transactional.flush(30)
        elif commit:
            self.transactional.commit_transaction(30)
        else:
            self.transactional.flush(30)
            self.transactional.abort_transaction(30)

    def reject(self, records: Iterable[RejectedRecord]) -> None:
        """Write late records and dead letters, as a sink does."""
        for number, one in enumerate(records):
            self.plain.produce(one.topic, one.value, one.key, 0, headers=list(one.headers), timestamp=NOW_MS + number)
        self.plain.flush(30)

    def rejected(self) -> RejectedRecords:
        return RejectedRecords(f"{self.query.name}.late", f"{self.query.name}.dead")

    def read(self, kind: str, *, hide_values: bool = False) -> Document:
        return rows_of(self.clients, self.query, hide_values).document({"kind": kind})


def result(n: int, partition: int = 0) -> Document:
    return {"value": b'{"n": %d}' % n, "partition": partition, "timestamp": NOW_MS + n}


def numbers(found: Document) -> list[int]:
    return [json.loads(row["value"]["text"])["n"] for row in found["rows"]]


def batch(values: Iterable[bytes], key: bytes | None = None) -> RecordBatch:
    records = [SimpleNamespace(offset=40 + n, timestamp=NOW_MS, key=key, value=value) for n, value in enumerate(values)]
    return RecordBatch("in", 3, 40, 40 + len(records), 0, records, 100)


@pytest.mark.kafka
def test_the_newest_of_all_partitions_come_first(topics: Topics) -> None:
    output = Output(topics, partitions=3)
    for n in range(0, 120, 10):
        output.write(result(m, m % 3) for m in range(n, n + 10))
        output.write([result(10_000 + n, n % 3)], commit=False)
    found = output.read("results")
    assert numbers(found) == list(range(119, 119 - LAST, -1))
    assert {"complete": True, "note": "", "hidden": False, "topic": output.sink}.items() <= found.items()
    newest = found["rows"][0]
    assert (newest["topic"], newest["partition"], newest["time"]) == (output.sink, 119 % 3, NOW_MS + 119)
    assert "reason" not in newest


@pytest.mark.kafka
def test_results_have_their_headers(topics: Topics) -> None:
    output = Output(topics)
    output.write([result(1) | {"headers": [("a.b", "ä".encode()), ("none", None), ("bytes", b"\xff")]}, result(2)])
    second, first = output.read("results")["rows"]
    assert second["headers"] == []
    assert [(one["name"], one["value"] and one["value"]["text"]) for one in first["headers"]] == [
        ("a.b", "ä"),
        ("none", None),
        ("bytes", "ff"),
    ]


@pytest.mark.kafka
def test_offsets_without_records_are_passed_over(topics: Topics) -> None:
    """Every result has a transaction marker behind it, and after the last one many records were aborted."""
    output = Output(topics)
    for n in range(60):
        output.write([result(n)])
    output.write((result(1000 + n) for n in range(150)), commit=False)
    found = output.read("results")
    assert numbers(found) == list(range(59, 59 - LAST, -1))
    assert found["complete"]


@pytest.mark.kafka
def test_what_lies_too_far_back_is_said_to_be_missing(topics: Topics) -> None:
    output = Output(topics)
    output.write([result(1)])
    output.write((result(1000 + n) for n in range(rows.FURTHEST + 10)), commit=False)
    output.write([result(2)])
    found = output.read("results")
    assert numbers(found) == [2]
    assert not found["complete"]


@pytest.mark.kafka
def test_an_open_transaction_is_not_read_and_does_not_hold_the_answer_up(topics: Topics) -> None:
    output = Output(topics)
    output.write([result(1)])
    output.write([result(2)], commit=None)
    begun_s = time.monotonic()
    found = output.read("results")
    assert numbers(found) == [1]
    assert found["complete"]
    assert time.monotonic() - begun_s < rows.DEADLINE_S


@pytest.mark.kafka
def test_values_are_text_or_bytes_in_hexadecimal(topics: Topics) -> None:
    output = Output(topics)
    values: list[bytes | None] = [
        '{"name": "<script>alert(1)</script> é 🙂"}'.encode(),
        b"\x00\x00\x01\xfe",
        b"\x00plain",
        None,
        b"",
        ("é" * (MOST + 1)).encode(),
        ("🙂" * MOST).encode(),
        b"\xff" * (MOST // 2),
        b"\xff" * (MOST // 2 + 1),
    ]
    for n, value in enumerate(values):
        output.plain.produce(output.sink, value, b"key" if n == 0 else None, 0, timestamp=NOW_MS + n)
    output.plain.flush(30)
    found = output.read("results")
    read = list(reversed(found["rows"]))
    assert [row["key"] and row["key"]["text"] for row in read] == ["key"] + [None] * 8
    assert [row["value"] and (row["value"]["text"], row["value"]["hex"], row["value"]["cut"]) for row in read] == [
        ('{"name": "<script>alert(1)</script> é 🙂"}', False, False),
        ("000001fe", True, False),
        ("00706c61696e", True, False),
        None,
        ("", False, False),
        ("é" * MOST + "…", False, True),
        ("🙂" * MOST, False, False),
        ("ff" * (MOST // 2), True, False),
        ("ff" * (MOST // 2) + "…", True, True),
    ]
    assert read[5]["value"]["bytes"] == 2 * (MOST + 1)
    json.dumps(found)


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("format", "key_format"), [("avro", "protobuf"), ("protobuf", "avro"), ("json-schema", "json")]
)
def test_values_and_keys_with_a_schema_are_shown_as_json(
    topics: Topics, registry: str, format: str, key_format: str
) -> None:
    output, access = Output(topics), RegistryAccess(registry)
    into = f"INSERT INTO '{output.sink}' KEY (k) WITH (format = '{format}', key_format = '{key_format}')"
    encoders, written = Encoders(access), query(into)
    encoders.prepare(written)
    ts = np.array([NOW_MS, NOW_MS + 1, NOW_MS + 2])
    made = encoders.of(written).encode(Batch(ts, {"k": Column.from_values([1, None, -3], Type.BIGINT)}))
    values, keys = list(records(made)), list(records(made.keys))
    readable = len(values)
    frame, unknown = values[0][:5], b"\0\x7f\xff\xff\xff"
    if format != "json-schema":
        # Cut off, with something behind, of another message type or branch, of a schema that is not there.
        values += [values[0][:-1], values[0] + b"\7", frame + b"\6" + values[0][6:], unknown + b"\0"]
    for n, value in enumerate(values):
        key = keys[n] if n < readable else None
        output.plain.produce(output.sink, value, key, 0, timestamp=NOW_MS + n)
    output.plain.flush(30)
    found = rows_of(output.clients, written, False, access).document({"kind": "results"})
    shown = [(row["key"], row["value"]) for row in reversed(found["rows"])]
    phase = {} if format == "json-schema" else {"_phase": None}
    for (key, value), k, at in zip(shown, [1, None, -3], ts.tolist(), strict=False):
        assert json.loads(key["text"]) == {"k": k}
        assert json.loads(value["text"]) == {"k": k, "_ts": at} | phase
    assert [value["text"] for _, value in shown[readable:]] == [raw.hex() for raw in values[readable:]]


def records(made: Encoded | None) -> list[bytes]:
    assert made is not None
    return [made.data[begin : end - 1] for begin, end in pairwise(made.offsets.tolist())]


@pytest.mark.kafka
def test_late_records_and_dead_letters_tell_reason_and_origin(topics: Topics) -> None:
    output = Output(topics)
    rejected = output.rejected()
    given = batch([b'{"k": 1, "at": 5}', b'{"k": "seven", "at": 6}'], key=b"7")
    rejected.add_late(given, 0, "t", idle=False)
    rejected.add_late(given, 1, "t", idle=True)
    rejected.add_dead(given, 1, "t", "field 'k' is 'seven', BIGINT accepts an integer")
    # As services.delivery.sink rejects a result that is too large, and cuts what it keeps of it.
    headers = (("reason", b"result of 5000 bytes, topic 'x' takes 10"), ("topic", b"x"), ("truncated", b"5000"))
    too_large = RejectedRecord(f"{output.query.name}.dead", b"{}", None, headers)
    output.reject([*rejected.take(), too_large])
    late, dead = output.read("late"), output.read("dead")
    assert [(row["reason"], row["origin"], row["value"]["text"], row["key"]["text"]) for row in late["rows"]] == [
        ("idle", {"stream": "t", "topic": "in", "partition": 3, "offset": 41}, '{"k": "seven", "at": 6}', "7"),
        ("late", {"stream": "t", "topic": "in", "partition": 3, "offset": 40}, '{"k": 1, "at": 5}', "7"),
    ]
    large, wrong = dead["rows"]
    assert wrong["reason"] == "field 'k' is 'seven', BIGINT accepts an integer"
    assert large["reason"] == "result of 5000 bytes, topic 'x' takes 10"
    assert large["origin"] == {"stream": "", "topic": "x", "partition": None, "offset": None}
    assert large["value"] == {"text": "{}…", "hex": False, "bytes": 5000, "cut": True}


@pytest.mark.kafka
def test_another_programs_records_do_no_harm(topics: Topics) -> None:
    output = Output(topics)
    letters: list[tuple[tuple[str, Any], ...]] = [
        (),
        (("reason", None), ("topic", b"\xff"), ("partition", b"-1"), ("offset", b"many"), ("truncated", b"x")),
    ]
    output.reject(RejectedRecord(f"{output.query.name}.dead", b"v", None, headers) for headers in letters)
    second, first = output.read("dead")["rows"]
    assert (first["reason"], first["origin"]) == ("", None)
    assert second["origin"] == {"stream": "", "topic": "\ufffd", "partition": None, "offset": None}
    assert second["value"]["bytes"] == 1


@pytest.mark.kafka
def test_hidden_values_are_not_in_the_document_not_even_in_a_reason(topics: Topics) -> None:
    output = Output(topics)
    wrong = [
        b'{"k": "secret", "at": 6}',
        b'{"k": 1, "name": ["secret"], "at": 6}',
        b'{"k": 1, "at": "secret"}',
        b'{"k": 1, "at": 987654321987654321}',
        b'{"k": 1}',
        b'"secret"',
        b"['secret']",
        b'["secret"]',
        b'{"k": 1, secret}',
        b"secret",
        b"",
    ]
    given, rejected = batch(wrong, key=b"secret"), output.rejected()
    dead = JsonDecoder(output.query.sources[0].stream).decode_values(wrong).dead
    assert len(dead) == len(wrong)
    for one in dead:
        rejected.add_dead(given, one.row, "t", one.reason)
    rejected.add_late(given, 0, "t", idle=False)
    output.reject(rejected.take())
    output.write([{"value": b"secret", "key": b"secret", "headers": [("of", b"secret")], "partition": 0}])
    for kind in ("results", "late", "dead"):
        found = output.read(kind, hide_values=True)
        assert found["hidden"]
        assert found["rows"]
        assert all("value" not in row and "key" not in row for row in found["rows"])
        assert "secret" not in json.dumps(found).lower()
        assert "987654321987654321" not in json.dumps(found)
    assert found["rows"][-1]["reason"] == f"field 'k': {HIDDEN}"
    assert output.read("late", hide_values=True)["rows"][0]["reason"] == "late"


@pytest.mark.kafka
def test_a_topic_that_is_missing_is_empty_and_stays_missing(topics: Topics) -> None:
    clients = KafkaClients(topics.bootstrap)
    nowhere = query("INSERT INTO 'nowhere-at-all'")
    for kind in ("results", "late", "dead"):
        found = rows_of(clients, nowhere).document({"kind": kind})
        assert found["rows"] == []
        assert found["note"] == f"there is no topic {found['topic']!r} yet, or this user needs READ on it"
    assert not TopicAdmin(clients).exists("nowhere-at-all")


@pytest.mark.kafka
def test_many_pages_cost_one_read(topics: Topics) -> None:
    output = Output(topics)
    output.write([result(1)])
    shared, found = rows_of(output.clients, output.query), list[Document]()
    pages = [threading.Thread(target=lambda: found.append(shared.document({"kind": "results"}))) for _ in range(8)]
    for page in pages:
        page.start()
    for page in pages:
        page.join(30)
    assert len(found) == 8
    assert len({id(one) for one in found}) == 1
    output.write([result(2)])
    deadline_s = time.monotonic() + 20
    while numbers(shared.document({"kind": "results"})) == [1]:
        assert time.monotonic() < deadline_s


@pytest.mark.kafka
def test_the_queries_of_a_group_have_results_each_and_the_rest_together(topics: Topics) -> None:
    one, other = Output(topics), Output(topics)
    group = topics("group", 1)
    TopicAdmin(one.clients).outputs(group, "", 1, 1)
    there = {"first": one.query, "second": other.query}
    shared = Rows(one.clients, group, lambda: there)
    one.write([result(1)])
    other.write([result(2)])
    rejected = RejectedRecords(f"{group}.late", f"{group}.dead")
    rejected.add_late(batch([b'{"k": 1, "at": 5}']), 0, "t", idle=False)
    one.reject(rejected.take())
    assert numbers(shared.document({"kind": "results", "query": "first"})) == [1]
    assert numbers(shared.document({"kind": "results", "query": "second"})) == [2]
    assert [row["topic"] for row in shared.document({"kind": "late"})["rows"]] == [f"{group}.late"]
    assert shared.document({"kind": "dead"})["rows"] == []
    del there["second"]
    with pytest.raises(UsageError, match="query must be one of first, got 'second'"):
        shared.document({"kind": "results", "query": "second"})
    assert numbers(shared.document({"kind": "results"})) == [1]


@pytest.mark.kafka
def test_two_hundred_partitions_are_read_at_once(topics: Topics) -> None:
    output = Output(topics, partitions=200)
    for n in range(400):
        output.plain.produce(output.sink, **result(n, n % 200))
    output.plain.flush(30)
    found = output.read("results")
    assert numbers(found) == list(range(399, 399 - LAST, -1))
    assert found["complete"]


def test_a_broker_that_does_not_answer_is_told() -> None:
    begun_s = time.monotonic()
    found = rows_of(KafkaClients("127.0.0.1:1"), query("INSERT INTO 'out'")).document({"kind": "late"})
    assert found["rows"] == []
    assert not found["complete"]
    assert found["note"].startswith("topic 'out.late' cannot be read now: ")
    assert time.monotonic() - begun_s < 3 * rows.DEADLINE_S


def test_what_cannot_be_asked_for() -> None:
    there = rows_of(KafkaClients("127.0.0.1:1"), query(""))
    with pytest.raises(UsageError, match="kind must be one of results, late, dead, got 'all'"):
        there.document({"kind": "all"})
    with pytest.raises(UsageError, match="got ''"):
        there.document({})
    assert there.document({"kind": "results"})["note"] == "the query has no INSERT INTO, so no topic has its results"
