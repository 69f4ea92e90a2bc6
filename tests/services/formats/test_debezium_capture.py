"""What a real Debezium wrote of a real PostgreSQL (`tests.debezium.capture`): the rows are right at all times."""

from __future__ import annotations

import functools
import lzma
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from operators.engine.engine import Engine
from ops.spark.stage import Stage
from schemas.avro.schema import parse_avro
from schemas.columns import Batch
from schemas.language.program import parse_program
from services.broker.kafka_jars import KAFKA
from services.formats.decoders import Decoders
from tests.debezium.capture import CAPTURE, decoded
from tests.debezium.changes import DECLARED, Commit, state_at
from tests.debezium.connect import POM
from tests.feeding import to_batch, to_rows
from tests.services.formats.test_records import Records

FORMS = {
    "json": "format = 'debezium-json'",
    "json-schemas": "format = 'debezium-json'",
    "avro": "format = 'debezium-avro', registry = 'http://r:1'",
}
COLUMNS = ("id", "name", "rate", "amount", "active", "seen", "changed")
PROBED = (
    "CREATE STREAM a (key BIGINT, ts TIMESTAMP) WITH (timestamp = 'ts');"
    "SELECT A.key AS key, A.ts AS ts, " + ", ".join(f"R.{name} AS {name}" for name in COLUMNS) + ", R._ts AS since "
    "FROM a A [RANGE 1 SECOND] LEFT JOIN accounts FOR SYSTEM_TIME AS OF A._ts AS R ON R.id = A.key"
)


def test_the_jars_beside_debezium_are_those_of_the_broker() -> None:
    assert [version(POM, name) for name in ("kafka", "log4j")] == [
        version(KAFKA.pom, name) for name in ("kafka", "log4j")
    ]


def version(pom: Path, name: str) -> str:
    found = ElementTree.parse(pom).findtext(f"{{*}}properties/{{*}}{name}.version")
    assert found
    return found


@functools.cache
def capture() -> dict[str, Any]:
    return dict(orjson.loads(lzma.decompress(CAPTURE.read_bytes())))


def commits() -> list[Commit]:
    return [Commit(ms, dict(changed)) for ms, changed in capture()["commits"]]


def envelopes(form: str) -> list[dict[str, Any]]:
    """The changes, of JSON."""
    values = [decoded(record["value"]) for record in capture()["topics"][form]]
    found = [orjson.loads(value) for value in values if value is not None]
    return [one["payload"] if "schema" in one else one for one in found]


def test_it_holds_all_that_may_happen() -> None:
    """And says what Debezium does: a snapshot's time is after changes that are behind its rows; rows that get another
    key end and begin; a transaction has one time; a tombstone has the time of writing it."""
    for form in ("json", "json-schemas"):
        changes = envelopes(form)
        operations = Counter(change["op"] for change in changes)
        assert min(operations[op] for op in "rcud") > 5, operations
        snapshot = {change["source"]["ts_ms"] for change in changes if change["op"] == "r"}
        assert len(snapshot) == 1
        records = capture()["topics"][form]
        assert sum(record["value"] is None for record in records) == operations["d"]
        assert any("__debezium.newkey" in record["headers"] for record in records)
        transactions: dict[int, set[int]] = {}
        for change in changes:
            if change["op"] != "r":
                transactions.setdefault(change["source"]["txId"], set()).add(change["source"]["ts_ms"])
        assert {len(times) for times in transactions.values()} == {1}
        known = {commit.ms for commit in commits()}
        assert set().union(*transactions.values()) <= known
        last = max(known)
        assert all(record["timestamp"] > last - 60_000 for record in records if record["value"] is None)
    early = [
        change
        for form in ("json", "json-schemas")
        for change in envelopes(form)
        if change["op"] != "r" and change["source"]["ts_ms"] < envelopes(form)[0]["source"]["ts_ms"]
    ]
    assert early, "no change was made while a snapshot began"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [7, 10_000])
def test_the_rows_are_postgresqls(form: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the beginning, in the middle and at the end of each commit's millisecond, from the snapshot on."""
    (query,) = parse_program(DECLARED.format(accounts="t", options=FORMS[form]) + ";" + PROBED).queries
    stream, table = query.streams()
    schemas = {int(number): parse_avro(text) for number, text in capture()["schemas"].items()}
    monkeypatch.setattr(Decoders, "_schemas_of", lambda self, stream, part: schemas.__getitem__)
    decoder = Decoders().records_of(table)
    engine = Engine(query, partitions={"a": [0], "accounts": [0]})
    taken: list[Batch] = []
    records = capture()["topics"][form]
    for begin in range(0, len(records), size):
        part = records[begin : begin + size]
        found = decoder.decode(Records([decoded(r["value"]) for r in part], [decoded(r["key"]) for r in part]))
        assert not found.dead
        late = engine.push("accounts", 0, found.batch, begin + found.rows).late
        assert not late.any()
        taken.append(found.batch)
    truth = commits()
    snapshot, last = int(taken[0].ts[0]), int(np.max([batch.ts.max() for batch in taken if len(batch)]))
    assert last == truth[-1].ms
    times = sorted({ms + more for ms in [snapshot, *(one.ms for one in truth)] for more in (-1, 0, 1)})
    times = [ms for ms in times if snapshot <= ms < last]
    keys = sorted({key for commit in truth for key in commit.changed} | {7})
    engine.push("a", 0, to_batch(stream, [{"key": key, "ts": ms} for ms in times for key in keys]))
    engine.close("a", 0)
    expected = []
    for ms in times:
        state = state_at(truth, ms)
        expected += [{"key": key, "ts": ms} | dict.fromkeys(COLUMNS) | state.get(key, {}) for key in keys]
    rows = to_rows(engine.advance())
    assert [{name: row[name] for name in ("key", "ts", *COLUMNS)} for row in rows] == expected
    assert len(times) > 200


def test_an_audit_stages_the_capture_whole(tmp_path: Path) -> None:
    """A tombstone without a version made a gap in the offsets, as compaction does; and changes behind a snapshot with
    lower times were counted as late, which no worker reports."""
    (query,) = parse_program(DECLARED.format(accounts="t", options=FORMS["json"]) + ";" + PROBED).queries
    _, table = query.streams()
    records = capture()["topics"]["json"]
    found = (
        Decoders()
        .records_of(table)
        .decode(Records([decoded(r["value"]) for r in records], [decoded(r["key"]) for r in records]))
    )
    with Stage(tmp_path, query) as stage:
        late = stage.add(table, 0, found.batch, found.rows)
        assert not late.any()
        assert stage.late[table.name] == 0
        assert not stage.gaps
        assert stage.tuples == len(records)
