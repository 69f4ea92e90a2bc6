"""`weir bench decode`: records per second of one core, from the bytes of a topic, by format, shape and decoder.

Every decoder has to find the values that the records were made of; if one does not, the report says so and has no
figure of it. Decoders take turns, so that other load on the machine affects all of them.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata

from ops.bench.decode.contenders import CONTENDERS, WEIR, Contender, Decoding
from ops.bench.decode.shapes import FLAT, NESTED, Records, Shape, records_of
from ops.bench.measuring.measure import Progress
from ops.bench.measuring.report import Report
from schemas.errors import InvariantError
from schemas.paths import path_text

EXPECTED = (
    "rates are per second of processor time of all threads: a decoder gains nothing by a second core.",
    "should win: decoders that make columns. The others run Python for each record, and objects are no columns yet.",
    "should lose: Weir against compiled libraries that make Arrow. Their nested columns stay nested, all records of a",
    "  batch have one schema, and one that cannot be read fails the batch; Weir makes it a dead letter.",
    "should lose: nested records against flat ones, with seven columns against four.",
)
ASKED = {("avro", "flat"): 2e6, ("avro", "nested"): 1e6, ("protobuf", "flat"): 1.5e6, ("protobuf", "nested"): 0.75e6}
"""What Weir has to reach, in records per second, by format and shape."""


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """Sizes of `weir bench decode`.

    Attributes:
        runs: repetitions of every figure.
        records: how many of each shape; they are decoded again and again.
        batch: how many a decoder gets at once.
        seconds: processor time of each measurement.
    """

    runs: int = 5
    records: int = 100_000
    batch: int = 10_000
    seconds: float = 0.5
    seed: int = 1


@dataclass(frozen=True, slots=True)
class _Line:
    """A decoder and what it decodes: a line of the table.

    Attributes:
        rates: one per run.
    """

    contender: Contender
    shape: Shape
    decoding: Decoding
    batches: list[list[bytes]]
    rates: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.contender.format}, {self.shape.name}: {self.contender.name}"

    @property
    def record_bytes(self) -> float:
        """The mean size of a record."""
        return statistics.mean(len(record) for records in self.batches for record in records)


def bench_decode(settings: DecodeSettings, progress: Progress, contenders: Sequence[Contender] = CONTENDERS) -> Report:
    """Measure everything; the report's rows contain the required figures."""
    report = Report(
        "weir bench decode",
        EXPECTED,
        {
            **{f"{shape.name} records": _columns(shape) for shape in (FLAT, NESTED)},
            "frames": "those of schema registries around Avro and Protobuf; their one schema is known",
            "runs, records, at once, seconds, seed": (
                f"{settings.runs}, {settings.records:,}, {settings.batch:,}, {settings.seconds:g}, {settings.seed}"
            ),
            "decoders": ", ".join(sorted({_version(one.package) for one in contenders})),
        },
    )
    lines: list[_Line] = []
    for shape in (FLAT, NESTED):
        progress.say(f"making {shape.name} records")
        records = records_of(shape, settings.records, settings.seed)
        for contender in contenders:
            progress.say(f"checking {contender.name}, {shape.name}")
            if (line := _checked(contender, shape, records, settings.batch, report)) is not None:
                lines.append(line)
    gc.collect()
    gc.freeze()  # else what the decoders make would be searched for garbage together with all records
    try:
        for run in range(1, settings.runs + 1):
            for line in lines:
                progress.say(f"{line.name}: run {run} of {settings.runs}")
                line.rates.append(_rate(line, settings.seconds))
    finally:
        gc.unfreeze()
    for line in sorted(lines, key=lambda one: (one.contender.format, one.shape.name)):
        about = f"{line.contender.produces}; {line.record_bytes:.0f} bytes a record"
        asked = ASKED.get((line.contender.format, line.shape.name)) if line.contender.name == WEIR else None
        report.add(line.name, "records/s of one core", line.rates, at_least=asked, note=about)
    return report


def _checked(contender: Contender, shape: Shape, records: Records, batch: int, report: Report) -> _Line | None:
    """Make a decoder of a shape; None, and a note in the report, if it is not installed or finds other values."""
    try:
        decoding = contender.make(shape)
    except ImportError:
        missing = f"{contender.name} (not installed: pip install 'weir-streams[bench]')"
        if missing not in report.skipped:
            report.skipped.append(missing)
        return None
    raw = records.raw[contender.format]
    line = _Line(contender, shape, decoding, [raw[at : at + batch] for at in range(0, len(raw), batch)])
    found = [values for part in line.batches for values in decoding.values(decoding.decode(part))]
    if found == records.values:
        return line
    wrong = f"{line.name} finds other values than the records have"
    for number, (own, expected) in enumerate(zip(found, records.values, strict=False)):
        if own != expected:
            wrong += f": {own} in record {number}, expected {expected}"
            break
    if contender.name == WEIR:
        raise InvariantError(wrong)
    report.skipped.append(wrong)
    return None


def _rate(line: _Line, seconds: float) -> float:
    """Decode for some time; returns records per second of processor time."""
    count, began = 0, time.process_time()
    while True:
        for part in line.batches:
            line.decoding.decode(part)
            count += len(part)
            if (took := time.process_time() - began) >= seconds:
                return count / took


def _columns(shape: Shape) -> str:
    return ", ".join(f"{path_text(column.place)} {column.type}" for column in shape.columns)


def _version(package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return f"{package} not installed"
