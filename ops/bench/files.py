"""`weir bench files`: `weir run` from JSON lines to JSON lines, compared with decoders that merely read them."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from ops.bench.engine import agreement
from ops.bench.measuring.commands import WEIR, Finished, run_command
from ops.bench.measuring.measure import Progress, clocked, repeat, tells_memory
from ops.bench.measuring.report import Report, number
from ops.bench.references import (
    DECODERS,
    SLOW_DECODERS,
    Reader,
    duckdb_files,
    duckdb_version,
    read_weir,
)
from ops.bench.workloads import Workload, clique, three_way

EXPECTED = (
    "should win: the three-way join, where reading is most of the work: Weir decodes while it joins;",
    "  the ceiling is the fastest of the decoders that read the same files, polars and pyarrow on all cores.",
    "should lose: short files (the process takes a second to start) and the clique, bound by the join.",
    "DuckDB answers an easier question: all data at hand, no order, nothing before the end.",
)
WRITTEN_SECONDS = 10
"""Event time per chunk when files are written."""


@dataclass(frozen=True, slots=True)
class FilesSettings:
    """Sizes of `weir bench files`.

    Attributes:
        runs: repetitions of every figure.
        seconds: event time of the three-way files; slow programs read a fifth, the clique three fifths.
        quick: leave out the cold start.
        share: as in `EngineSettings`.
    """

    runs: int = 5
    seconds: int = 200
    seed: int = 1
    quick: bool = False
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Files:
    """A workload's files on disk."""

    workload: Workload
    folder: Path
    seconds: int

    @property
    def paths(self) -> dict[str, Path]:
        """The files by stream."""
        return {stream: self.folder / f"{stream}.jsonl" for stream in self.workload.streams}

    @property
    def query(self) -> Path:
        """The file with the program."""
        return self.folder / "query.sql"

    @property
    def events(self) -> int:
        """The number of lines of all files."""
        return self.seconds * self.workload.events_per_second


def write_files(workload: Workload, folder: Path, seconds: int, seed: int) -> Files:
    """Write the events of `seconds` of event time, a file per stream, and the query."""
    folder.mkdir(parents=True)
    files = Files(workload, folder, seconds)
    files.query.write_text(workload.sql())
    for start in range(0, seconds, WRITTEN_SECONDS):
        events = workload.seconds(start, min(start + WRITTEN_SECONDS, seconds), seed)
        for stream, path in files.paths.items():
            frame = pl.DataFrame({name: c.values for name, c in events[stream].columns.items()})
            with path.open("ab") as out:
                frame.write_ndjson(out)
    return files


@dataclass(frozen=True, slots=True)
class Ran:
    """One `weir run`: the whole command, and its statistics."""

    command: Finished
    stats: Mapping[str, object]

    @property
    def results(self) -> int:
        """The number of results written."""
        return int(str(self.stats["results"]))

    @property
    def seconds(self) -> float:
        """Seconds without the start of the process."""
        return float(str(self.stats["seconds"]))


def run_weir(files: Files, environment: Mapping[str, str] | None = None) -> Ran:
    """Run `weir run` over the files."""
    stats = files.folder / "stats.json"
    sources = [f"--source={stream}={path}" for stream, path in files.paths.items()]
    out = files.folder / "weir.jsonl"
    done = run_command([*WEIR, "run", str(files.query), *sources, f"--out={out}", f"--stats={stats}"], environment)
    return Ran(done, json.loads(stats.read_bytes()))


def run_naive(files: Files) -> tuple[int, float]:
    """Results and seconds of the naive program over the files, without the start of the process."""
    sources = [f"{stream}={path}" for stream, path in files.paths.items()]
    out = files.folder / "naive.jsonl"
    window = str(files.workload.window_ms)
    done = run_command([sys.executable, "-m", "ops.bench.naive", "--window", window, "--out", str(out), *sources])
    found = json.loads(done.output)
    return found["results"], found["seconds"]


def read_all(files: Files, reader: Reader) -> float:
    """Decode all files, one after the other; returns events per second."""
    with clocked() as clock:
        events = sum(reader(files.workload, stream, path) for stream, path in files.paths.items())
    if events != files.events:
        raise AssertionError(f"{reader.__name__} read {events} events of {files.events}")
    return events / clock[0].seconds


def bench_files(settings: FilesSettings, progress: Progress) -> Report:
    """Measure everything; the report's rows contain the required figures."""
    small = max(11, settings.seconds // 5)
    report = Report(
        "weir bench files",
        EXPECTED,
        {
            "workload": "that of weir bench engine as JSON lines, one file per stream, in order",
            "runs, seconds of event time, seed": f"{settings.runs}, {settings.seconds}, {settings.seed}",
        },
    )
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as name:
        base = Path(name)
        join = three_way().scaled(settings.share)
        progress.say("writing files")
        large = write_files(join, base / "large", settings.seconds, settings.seed)
        run_weir(write_files(join.scaled(0.01), base / "tiny", 11, settings.seed))
        size = sum(path.stat().st_size for path in large.paths.values()) >> 20
        report.settings = {**report.settings, "files": f"{large.events:,} events, {size} MiB"}
        lesser = write_files(join, base / "small", small, settings.seed)
        _three_way(report, settings, progress, large, lesser)
        _others(report, settings, progress, lesser)
        shape = clique().scaled(settings.share)
        seconds = max(11, settings.seconds * 3 // 5)
        progress.say("writing files")
        wide = write_files(shape, base / "clique", seconds, settings.seed)
        brief = write_files(shape, base / "brief", max(11, seconds // 6), settings.seed)
        _clique(report, settings, progress, wide, brief)
        _start(report, settings, progress, Files(join.scaled(0.01), base / "tiny", 11))
    return report


def _three_way(report: Report, settings: FilesSettings, progress: Progress, files: Files, small: Files) -> None:
    """Weir and the ceilings in turns, so that other load on the machine affects all of them."""
    rates: dict[str, list[float]] = {name: [] for name in (*DECODERS, *SLOW_DECODERS)}
    ran: list[Ran] = []
    for run in range(1, settings.runs + 1):
        for name, reader in DECODERS.items():
            progress.say(f"{name} reads: run {run} of {settings.runs}")
            rates[name].append(read_all(files, reader))
        for name, reader in SLOW_DECODERS.items():
            progress.say(f"{name} reads: run {run} of {settings.runs}")
            rates[name].append(read_all(small, reader))
        progress.say(f"weir run: run {run} of {settings.runs}")
        ran.append(run_weir(files))
    for name, found in rates.items():
        by_objects = name in SLOW_DECODERS
        note = f"by way of Python objects, {small.events:,} events" if by_objects else ""
        report.add(f"{name} merely reads the files", "events/s", found, note=note)
    fastest = max(rates, key=lambda name: statistics.median(rates[name]))
    best = rates[fastest]
    whole = [files.events / r.command.seconds for r in ran]
    net = [files.events / r.seconds for r in ran]
    cpu = statistics.median(r.command.cpu_seconds for r in ran)
    report.add(
        "weir run, the whole command",
        "events/s",
        whole,
        at_least=800_000,
        note=f"{ran[-1].results:,} results; {files.events / cpu:,.0f} events per processor second",
    )
    report.add("weir run without the start of the process", "events/s", net)
    report.add(
        f"share of {fastest}, both without their start",
        "of the ceiling",
        [a / b for a, b in zip(net, best, strict=True)],
        at_least=0.5,
    )
    report.add(
        f"share of {fastest}, the whole command",
        "of the ceiling",
        [a / b for a, b in zip(whole, best, strict=True)],
    )
    if tells_memory():
        report.add(
            "memory of weir run at its highest",
            "MB, whole process",
            [r.command.peak_bytes / 1e6 for r in ran],
            note=f"{files.workload.live_tuples:,} live source tuples",
        )
    report.add(
        "Weir's decoder alone, one core",
        "events/s",
        repeat(settings.runs, "Weir's decoder", progress, lambda: read_all(files, read_weir)),
    )


def _others(report: Report, settings: FilesSettings, progress: Progress, files: Files) -> None:
    """Programs too slow for the large files, on small ones; all results must agree."""
    ours = run_weir(files).results
    naive = repeat(settings.runs, "naive", progress, lambda: run_naive(files))
    report.add(
        "naive program, dicts and orjson",
        "events/s",
        [files.events / seconds for _, seconds in naive],
        note=f"{files.events:,} events; {agreement(naive[-1][0], ours)}",
    )
    _duckdb(report, settings, progress, files, ours, "DuckDB in batch")


def _duckdb(report: Report, settings: FilesSettings, progress: Progress, files: Files, ours: int, name: str) -> None:
    if duckdb_version() is None:
        report.skipped.append(f"{name} (not installed: pip install 'weir-streams[bench]')")
        return
    out = files.folder / "duckdb.jsonl"
    found = repeat(settings.runs, name, progress, lambda: duckdb_files(files.workload, files.paths, out))
    report.add(
        name,
        "events/s",
        [files.events / seconds for _, seconds in found],
        note=f"{files.events:,} events; {agreement(found[-1][0], ours)}",
    )


def _clique(report: Report, settings: FilesSettings, progress: Progress, wide: Files, brief: Files) -> None:
    ran = repeat(settings.runs, "clique, weir run", progress, lambda: run_weir(wide))
    cpu = statistics.median(r.command.cpu_seconds for r in ran)
    plan = ran[-1].stats["plan"]
    report.add(
        "4-way clique, weir run, the whole command",
        "events/s",
        [wide.events / r.command.seconds for r in ran],
        at_least=50_000,
        note=f"plan {plan}; {number(wide.events / cpu)} events per processor second",
    )
    ours = run_weir(brief).results
    naive = repeat(settings.runs, "clique, naive", progress, lambda: run_naive(brief))
    report.add(
        "4-way clique, naive program",
        "events/s",
        [brief.events / seconds for _, seconds in naive],
        note=f"{brief.events:,} events; {agreement(naive[-1][0], ours)}",
    )
    _duckdb(report, settings, progress, brief, ours, "4-way clique, DuckDB in batch")


def _start(report: Report, settings: FilesSettings, progress: Progress, tiny: Files) -> None:
    def cold() -> float:
        with tempfile.TemporaryDirectory(prefix="weir-cold-") as cache:
            return run_weir(tiny, {"NUMBA_CACHE_DIR": cache}).command.seconds

    warm = repeat(settings.runs, "warm start", progress, lambda: run_weir(tiny).command.seconds)
    note = f"{tiny.events:,} events, the command to its end"
    report.add("warm start to first result", "s", warm, at_most=6, note=note)
    if settings.quick:
        report.skipped.append("cold start (--quick)")
        return
    report.add(
        "cold start to first result, kernels compiled",
        "s",
        repeat(settings.runs, "cold start", progress, cold),
        at_most=40,
        note=f"{note}; load {os.getloadavg()[0]:.1f}",
    )
