"""`weir bench decode` at tiny sizes: it runs, every decoder finds the values, and one that does not has no figure."""

from __future__ import annotations

import io
import json
import time
from dataclasses import replace

import fastavro
import pytest
from rich.console import Console

from ops.bench.decode.contenders import CONTENDERS, WEIR, Contender, Decoding
from ops.bench.decode.shapes import FLAT, FRAME, NESTED, Shape, records_of
from ops.bench.decode.table import DecodeSettings, bench_decode
from ops.bench.measuring.measure import Progress
from ops.bench.measuring.report import Report
from schemas.errors import InvariantError

TINY = DecodeSettings(runs=1, records=250, batch=100, seconds=0.001)


def bench(*contenders: Contender) -> Report:
    with Progress() as progress:
        return bench_decode(TINY, progress, contenders or CONTENDERS)


def test_the_benchmark_runs_and_prints_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    # Some libraries return times without a time zone, which would be taken for those of this place.
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        report = bench()
    finally:
        monkeypatch.undo()
        time.tzset()
    out = io.StringIO()
    report.show(Console(file=out, width=200))
    for heading in ("commit:", "should win", "should lose", "asked", "customer.address.city STRING"):
        assert heading in out.getvalue()
    stored = json.loads(report.to_json())
    asked = {row["name"]: row["limit"]["value"] for row in stored["rows"] if row["limit"] is not None}
    assert asked == {
        "avro, flat: Weir": 2_000_000,
        "avro, nested: Weir": 1_000_000,
        "protobuf, flat: Weir": 1_500_000,
        "protobuf, nested: Weir": 750_000,
    }
    left_out = {line.split(" ", 1)[0] for line in report.skipped}
    assert left_out <= {"pyruhvro", "ptars"}, report.skipped
    names = [f"{one.format}, {shape.name}: {one.name}" for one in CONTENDERS for shape in (FLAT, NESTED)]
    assert {row.name for row in report.rows} == {name for name in names if name.split(": ")[1] not in left_out}
    assert all("not installed" in line for line in report.skipped)


def spoiled(contender: Contender, name: str) -> Contender:
    """A decoder that swaps two values of each record."""

    def make(shape: Shape) -> Decoding:
        whole = contender.make(shape)
        return Decoding(whole.decode, lambda found: ((b, a, *rest) for a, b, *rest in whole.values(found)))

    return replace(contender, name=name, make=make)


def absent(shape: Shape) -> Decoding:
    raise ImportError


def test_a_decoder_that_is_wrong_has_no_figure() -> None:
    right, wrong = CONTENDERS[1], spoiled(CONTENDERS[1], "wrong")
    report = bench(right, wrong, replace(right, name="absent", make=absent))
    assert [row.name for row in report.rows] == ["json, flat: orjson", "json, nested: orjson"]
    missing, *others = sorted(report.skipped)
    assert missing == "absent (not installed: pip install 'weir-streams[bench]')"
    assert [line.split(" finds other values")[0] for line in others] == ["json, flat: wrong", "json, nested: wrong"]
    assert "in record 0, expected (0, " in others[0]


def test_weir_itself_must_be_right() -> None:
    with pytest.raises(InvariantError, match="json, flat: Weir finds other values than the records have"):
        bench(spoiled(CONTENDERS[0], WEIR))


@pytest.mark.parametrize("shape", [FLAT, NESTED], ids=lambda shape: shape.name)
def test_records_in_avro_are_those_of_another_writer(shape: Shape) -> None:
    made, schema = records_of(shape, 200, 3), fastavro.parse_schema(dict(shape.avro))
    assert len({len(record) for record in made.raw["avro"]}) > 3
    for record, row in zip(made.raw["avro"], map(json.loads, made.raw["json"]), strict=True):
        body = io.BytesIO()
        fastavro.schemaless_writer(body, schema, row)
        assert record == FRAME + body.getvalue()
    if shape is NESTED:
        assert 0 < sum(values[1] is None for values in made.values) < 50
