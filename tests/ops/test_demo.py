"""The demonstration: its data, its comparison with DuckDB, and the whole demonstration on Kafka."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest
from rich.console import Console
from typer.testing import CliRunner

from operators.engine.engine import Engine
from ops.demo.compare import compare, expected_results
from ops.demo.drift import FIRST, demonstrate_drift
from ops.demo.flights import AIRPORTS, QUERY, Feed, last_watermarks, load, package_folder
from ops.demo.replay import create_topics
from ops.demo.screen import Moment, Screen
from ops.demo.show import produce
from schemas.codecs.encode import encode_results
from schemas.columns import Batch, Column
from schemas.query import Query, Stream
from services.broker import broker as brokers
from services.cli import app
from services.files.query_files import read_query
from services.formats.registry_access import RegistryAccess
from tests.broker_fixture import SessionBroker

RESULTS = 9_848
PUSH_ROWS = 5_000


@pytest.fixture(scope="module")
def feeds() -> tuple[Feed, Feed]:
    return load()


@pytest.fixture(scope="module")
def query() -> Query:
    return read_query(QUERY, None, RegistryAccess())


@pytest.fixture(scope="module")
def expected(feeds: tuple[Feed, Feed]) -> pl.DataFrame:
    return expected_results(feeds)


@pytest.fixture(scope="module")
def lines(feeds: tuple[Feed, Feed], query: Query) -> list[bytes]:
    """Weir's results, computed in memory, an engine per airport as the worker has a task per partition."""
    return [line for airport in AIRPORTS for line in run_engine(query, feeds, airport)]


def run_engine(query: Query, feeds: tuple[Feed, Feed], airport: str) -> list[bytes]:
    """The results of one airport, its records pushed in the order of their arrival."""
    engine = Engine(query)
    streams = {stream.name: stream for stream in query.streams()}
    results: list[bytes] = []
    rows = [(feed, feed.rows.filter(pl.col("airport") == airport)) for feed in feeds]
    for start in range(0, max(len(part) for _, part in rows), PUSH_ROWS):
        for feed, part in rows:
            batch = to_batch(streams[feed.stream], part.slice(start, PUSH_ROWS))
            late = engine.push(feed.stream, 0, batch).late
            assert not late.any()
        results += encode_results(engine.advance()).data.splitlines()
    for feed, _ in rows:
        engine.close(feed.stream, 0)
    return results + encode_results(engine.advance()).data.splitlines()


def to_batch(stream: Stream, rows: pl.DataFrame) -> Batch:
    assert stream.timestamp is not None
    columns = {f.name: Column.from_arrow(rows[f.name].to_arrow(), f.type) for f in stream.fields}
    return Batch(rows[stream.timestamp].to_numpy(), columns)


# --- The data ------------------------------------------------------------------------------------------


def test_every_flight_that_left_and_every_observation_is_there(feeds: tuple[Feed, Feed]) -> None:
    departures, weather = feeds
    assert (len(departures), len(weather)) == (328_521, 26_115)
    assert departures.rows["id"].n_unique() == len(departures)
    assert weather.rows["gust_mph"].null_count() == 20_778
    assert weather.rows["gust_mph"].is_nan().sum() == 0


def test_event_times_agree_with_the_clocks_at_the_airports(feeds: tuple[Feed, Feed]) -> None:
    """`dep_time`, the local time as HHMM from the package, is not used for the event times."""
    archive = package_folder() / "flights.csv.zip"
    raw = pl.read_csv(io.BytesIO(zipfile.ZipFile(archive).read("flights.csv")), null_values="NA")
    left = raw.filter(pl.col("dep_time").is_not_null())
    clocks = {(f["origin"], f["carrier"], f["flight"], f["dep_time"] % 2400) for f in left.iter_rows(named=True)}
    zone = ZoneInfo("America/New_York")
    for row in feeds[0].rows.gather_every(100).iter_rows(named=True):
        local = datetime.fromtimestamp(row["departed"] / 1000, UTC).astimezone(zone)
        clock = local.hour * 100 + local.minute
        assert (row["airport"], row["carrier"], row["flight"], clock) in clocks


def test_no_record_comes_later_than_the_declared_disorder(feeds: tuple[Feed, Feed], query: Query) -> None:
    disorder_ms = {stream.name: stream.disorder_ms for stream in query.streams()}
    for feed in feeds:
        assert (np.diff(feed.arrival) >= 0).all()
        ts = feed.rows[feed.timestamp].to_numpy()
        behind = np.maximum.accumulate(ts) - ts
        assert behind.max() <= disorder_ms[feed.stream]
    assert behind.max() == 0  # the weather's
    departed = feeds[0].rows["departed"].to_numpy()
    assert (np.diff(departed) < 0).mean() > 0.1, "departures are meant to come out of order"


def test_the_query_declares_the_columns_of_the_data(feeds: tuple[Feed, Feed], query: Query) -> None:
    by_name = {stream.name: stream for stream in query.streams()}
    for feed in feeds:
        assert feed.rows.columns == [field.name for field in by_name[feed.stream].fields]
        assert feed.timestamp == by_name[feed.stream].timestamp


# --- The comparison ------------------------------------------------------------------------------------


def test_the_results_equal_duckdbs(expected: pl.DataFrame, lines: list[bytes]) -> None:
    comparison = compare(expected, lines)
    assert comparison.equal
    assert comparison.found == comparison.expected == RESULTS


def test_no_result_lies_beyond_the_last_watermark(
    feeds: tuple[Feed, Feed], query: Query, expected: pl.DataFrame
) -> None:
    """Otherwise a worker, whose input never ends, would not have delivered the result when the demonstration looks."""
    for number, watermark in last_watermarks(feeds, query).items():
        last = expected.filter(pl.col("airport") == AIRPORTS[number])["_ts"].to_numpy().max()
        assert last < watermark


def test_the_comparison_sees_a_lost_result(expected: pl.DataFrame, lines: list[bytes]) -> None:
    comparison = compare(expected, lines[:-1])
    assert not comparison.equal
    assert (len(comparison.missing), len(comparison.unexpected)) == (1, 0)


def test_the_comparison_sees_a_result_that_came_twice(expected: pl.DataFrame, lines: list[bytes]) -> None:
    comparison = compare(expected, [*lines, lines[-1]])
    assert not comparison.equal
    assert (len(comparison.missing), len(comparison.unexpected)) == (0, 1)


def test_the_comparison_sees_a_wrong_value(expected: pl.DataFrame, lines: list[bytes]) -> None:
    wrong = lines[0].replace(b'"first_delay_minutes":', b'"first_delay_minutes":9')
    assert wrong != lines[0]
    comparison = compare(expected, [wrong, *lines[1:]])
    assert (len(comparison.missing), len(comparison.unexpected)) == (1, 1)


def test_the_comparison_sees_a_null_that_became_a_value(expected: pl.DataFrame, lines: list[bytes]) -> None:
    at = next(i for i, line in enumerate(lines) if b'"gust_mph":null' in line)
    wrong = lines[at].replace(b'"gust_mph":null', b'"gust_mph":0.0')
    assert not compare(expected, [*lines[:at], wrong, *lines[at + 1 :]]).equal


def test_the_comparison_sees_results_out_of_order(expected: pl.DataFrame, lines: list[bytes]) -> None:
    comparison = compare(expected, lines[::-1])
    assert not len(comparison.missing)
    assert comparison.out_of_order > 0
    assert not comparison.equal


def test_no_result_at_all_is_compared_too(expected: pl.DataFrame) -> None:
    comparison = compare(expected, [])
    assert (comparison.found, len(comparison.missing)) == (0, RESULTS)


# --- What is shown -------------------------------------------------------------------------------------


def shown_moment(lines: list[bytes]) -> Moment:
    return Moment(1_357_035_420_000, 0.5, 177_318, 12_000.0, len(lines), 300.0, 25, lines[:3])


def test_a_terminal_shows_counts_results_and_where_to_look(lines: list[bytes]) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=40)
    with Screen(console) as screen:
        screen.notes = [("metrics", "http://127.0.0.1:1/metrics")]
        screen.show(shown_moment(lines))
    out = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())  # type: ignore[attr-defined]
    for text in ("01 Jan 2013", "177,318 records in", "9,848 results out", "EWR", "/metrics"):
        assert text in out


def test_a_pipe_gets_each_phase_and_the_first_results_once(lines: list[bytes]) -> None:
    out = io.StringIO()
    with Screen(Console(file=out)) as screen:
        for _ in range(3):
            screen.phase("starting Kafka")
        for _ in range(3):
            screen.show(shown_moment(lines))
    assert out.getvalue().splitlines() == ["starting Kafka", *(line.decode() for line in lines[:3])]


def test_a_wrong_duration_is_refused_before_anything_starts() -> None:
    result = CliRunner().invoke(app, ["demo", "--replay", "soon"])
    assert "a duration is a number and a unit" in str(result.exception)


# --- On Kafka ------------------------------------------------------------------------------------------


@pytest.mark.kafka
@pytest.mark.deep
def test_the_whole_demonstration_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", "demo", "--replay", "0s", "--dir", str(folder)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # DuckDB's modules, at the end of the process.
    assert "leaked" not in done.stderr
    assert f"{RESULTS:,} rows: equal, row for row, and in order" in done.stdout
    assert not folder.exists()


@pytest.mark.deep
@pytest.mark.kafka
def test_a_failed_demonstration_stops_its_kafka_and_keeps_the_logs(tmp_path: Path) -> None:
    """A file at the path of the worker's state folder makes the worker end at once."""
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "state").write_text("in the way")
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", "demo", "--replay", "0s", "--dir", str(folder)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the worker ended with code" in done.stderr
    assert (folder / "worker.log").is_file()
    assert brokers.status(folder / "broker") is None


@pytest.mark.deep
@pytest.mark.kafka
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demonstration_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "demo"
    command = [sys.executable, "-m", "services.cli", "demo", "--dir", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith("starting the worker"):
                break
        demo.send_signal(number)
        demo.send_signal(number)
        rest = demo.stdout.read()
        assert demo.wait(60) == 130, rest
    assert not folder.exists()


@pytest.mark.deep
@pytest.mark.kafka
def test_produce_fills_the_topics_once(broker: SessionBroker, query: Query) -> None:
    out = io.StringIO()
    assert produce(Console(file=out, width=200), broker.bootstrap, 0.0) == 354_636
    assert create_topics(broker.bootstrap, query.streams()) == 354_636
    assert produce(Console(file=out, width=200), broker.bootstrap, 0.0) == 0
    assert "the topics hold 354,636 records already" in out.getvalue()


@pytest.mark.deep
@pytest.mark.kafka
def test_a_worker_that_adapts_beside_a_pinned_one(tmp_path: Path) -> None:
    """Two phases: it says why it changes its plan, and both have the same results. On a machine that is busy with other
    things, a change pays only in longer phases than the first."""
    for phase_s in (8.0, 20.0, 40.0):
        shown = io.StringIO()
        outcome = demonstrate_drift(Console(file=shown, width=400), tmp_path / "demo", 2, phase_s)
        assert outcome.equal
        assert outcome.compared > 1000
        if outcome.decisions:
            break
    assert outcome.decisions
    assert outcome.decisions[0].from_plan == FIRST
    assert [one.version > 0 for one in outcome.contenders] == [True, False]
    assert "it saves" in shown.getvalue()
    assert any("the same" in line for line in outcome.lines())
    assert not (tmp_path / "demo").exists()
