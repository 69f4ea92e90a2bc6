"""`weir bench kafka --formats`: the same worker, query and events from topics in JSON, Avro and Protobuf.

The schemas are in a registry. `A(id, ts, x, y)` is a record of four numbers in Avro, none of which may be null, with
`ts` as timestamp-millis; in Protobuf `ts` is a google.protobuf.Timestamp. The formats take turns.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import orjson

from ops.bench.kafka.kafka_log import Encode, count_records, fill, json_lines, running_broker
from ops.bench.kafka.topic_to_topic import Bench, KafkaSettings, drain, expected_results
from ops.bench.measuring.measure import Progress
from ops.bench.measuring.report import Report
from ops.bench.workloads import Workload, three_way
from schemas.avro import encoder as avro
from schemas.codecs.encode import Encoded
from schemas.columns import Batch
from schemas.members import flat_members
from schemas.protobuf import encoder as protobuf
from schemas.query import Type
from services.broker import registry as registries
from services.formats.registry_access import RegistryAccess
from services.formats.schema_registry import register_schema

EXPECTED = (
    "should win: Avro and Protobuf against JSON: records are shorter, and numbers are not made of digits.",
    "should lose: Protobuf against Avro: each value has a tag, and a time is a message of its own.",
    "the broker, the registry, the worker and the measuring consumer share this machine's cores.",
)
PAIRS = (("json", "json"), ("avro", "json"), ("avro", "avro"), ("protobuf", "json"), ("protobuf", "protobuf"))
"""What is measured: the format of the topics, and that of the results."""

ASKED = 0.8
"""The least throughput, as a share of that from JSON to JSON."""

_AVRO_TYPES = {Type.BIGINT: "long", Type.TIMESTAMP: {"type": "long", "logicalType": "timestamp-millis"}}
_PROTO_TYPES = {Type.BIGINT: "int64", Type.TIMESTAMP: "google.protobuf.Timestamp"}


def bench_formats(
    settings: KafkaSettings,
    progress: Progress,
    registry: str | None = None,
    pairs: Sequence[tuple[str, str]] = PAIRS,
) -> Report:
    """Measure pairs of formats; the report's rows contain the required figures.

    Args:
        registry: the URL of a registry that runs already; None starts one.
        pairs: the first one is what the others are compared with.
    """
    report = Report(
        "weir bench kafka --formats",
        EXPECTED,
        {
            "workload": "that of weir bench engine, one topic of one partition per stream and format, one worker",
            "runs, seconds of event time, seed": f"{settings.runs}, {settings.seconds}, {settings.seed}",
        },
    )
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-") as name,
        running_broker(settings.bootstrap, settings.heap, Path(name) / "broker", progress) as (bootstrap, pid, about),
        _running_registry(registry, Path(name) / "registry", progress) as url,
    ):
        report.settings = {**report.settings, "broker": about}
        tag = f"weir-bench-{os.urandom(3).hex()}"
        _measure(Bench(report, settings, progress, bootstrap, pid, Path(name), tag), url, pairs)
    return report


@contextmanager
def _running_registry(url: str | None, folder: Path, progress: Progress) -> Iterator[str]:
    """Yield the URL of a registry; starts one where none is given."""
    if url is not None:
        yield url
        return
    try:
        yield registries.start(folder, 0, progress=progress.say).url
    finally:
        registries.stop(folder)


def _measure(bench: Bench, registry: str, pairs: Sequence[tuple[str, str]]) -> None:
    settings, report, progress = bench.settings, bench.report, bench.progress
    workload = three_way().scaled(settings.share)
    topics = {}
    for format in dict.fromkeys(format for format, _ in pairs):
        topics[format] = bench.topics(workload, format)
        encode = _encoder(format, workload, topics[format], registry)
        fill(bench.bootstrap, workload, topics[format], settings.seconds, settings.seed, progress, encode)
    expected = expected_results(workload, settings)
    rates: dict[tuple[str, str], list[float]] = {pair: [] for pair in pairs}
    per_cpu: dict[tuple[str, str], list[float]] = {pair: [] for pair in pairs}
    counts = []
    for run in range(1, settings.runs + 1):
        for format, result_format in pairs:
            progress.say(f"{format} to {result_format}: run {run} of {settings.runs}")
            sink = f"{bench.tag}-{format}-{result_format}-{run}"
            query = bench.query(workload, topics[format], sink, format, result_format)
            rate, cpu, _ = drain(bench, workload, query, sink, "--registry", registry)
            rates[format, result_format].append(rate)
            per_cpu[format, result_format].append(cpu)
            counts.append(count_records(bench.bootstrap, sink, expected))
    for (format, result_format), found in rates.items():
        note = f"{statistics.median(per_cpu[format, result_format]):,.0f} per processor second"
        report.add(f"{format} to {result_format}", "events/s", found, note=note)
    if any(count != expected for count in counts):
        report.skipped.append(f"WRONG RESULTS: {counts} records in the sinks, expected {expected} in each")
    base = rates[pairs[0]]
    for format, result_format in pairs[1:]:
        shares = [own / other for own, other in zip(rates[format, result_format], base, strict=True)]
        name = f"{format} to {result_format}, share of {pairs[0][0]} to {pairs[0][1]}"
        report.add(name, "of its events/s", shares, at_least=ASKED)


def _encoder(format: str, workload: Workload, topics: dict[str, str], registry: str) -> Encode:
    """What makes the records of a format, with the numbers of their schemas, which it registers."""
    if format == "json":
        return json_lines
    numbers = {}
    for stream, batch in workload.second(0, 1).items():
        schema = _avro_schema(stream, batch) if format == "avro" else _proto(stream, batch)
        subject = f"{topics[stream]}-value"
        numbers[stream] = register_schema(registry, RegistryAccess(), subject, schema, format.upper())

    def encode(stream: str, events: Batch) -> Sequence[bytes]:
        columns = list(events.columns.values())
        if format == "avro":
            never_null = [False] * len(columns)
            return _split(avro.encode_records(numbers[stream], columns, never_null, None, b"", len(events)))
        members = flat_members(list(events.columns))
        return _split(protobuf.encode_records(numbers[stream], members, columns, b"", len(events)))

    return encode


def _avro_schema(stream: str, events: Batch) -> str:
    fields = [{"name": name, "type": _AVRO_TYPES[column.type]} for name, column in events.columns.items()]
    return orjson.dumps({"type": "record", "name": stream, "fields": fields}).decode()


def _proto(stream: str, events: Batch) -> str:
    columns = enumerate(events.columns.items(), 1)
    fields = "".join(f"  {_PROTO_TYPES[column.type]} {name} = {number};\n" for number, (name, column) in columns)
    head = 'syntax = "proto3";\nimport "google/protobuf/timestamp.proto";\n'
    return f"{head}message {stream} {{\n{fields}}}\n"


def _split(found: Encoded) -> Sequence[bytes]:
    offsets = found.offsets.tolist()
    return [found.data[begin : end - 1] for begin, end in pairwise(offsets)]
