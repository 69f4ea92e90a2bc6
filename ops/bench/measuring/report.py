"""A benchmark's report: machine and versions, which shapes should win, and the figures required and measured."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from ops.bench.measuring.measure import Spread

PACKAGES = (
    "weir-streams",
    "numpy",
    "numba",
    "pyarrow",
    "polars",
    "orjson",
    "msgspec",
    "duckdb",
    "confluent-kafka",
)


@dataclass(frozen=True, slots=True)
class Limit:
    """A required figure: the median must be at least (`at_least`) or at most this."""

    value: float
    at_least: bool = True

    def met(self, measured: float) -> bool:
        """Whether a measured figure is good enough."""
        return measured >= self.value if self.at_least else measured <= self.value


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a figure that is required (`limit`), or one that explains others."""

    name: str
    unit: str
    spread: Spread
    limit: Limit | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the required figure is reached; None when none is required."""
        return None if self.limit is None else self.limit.met(self.spread.median)


@dataclass(slots=True)
class Report:
    """A benchmark's outcome.

    Attributes:
        title: what was measured.
        expected: which shapes should win and which should lose, one sentence each.
        settings: sizes, seeds, durations of this run.
        skipped: what could not be measured, and why.
    """

    title: str
    expected: tuple[str, ...]
    settings: Mapping[str, object]
    rows: list[Row] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    machine: dict[str, str] = field(default_factory=lambda: machine())

    def add(
        self,
        name: str,
        unit: str,
        values: list[float],
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        note: str = "",
    ) -> Spread:
        """Add a line from the values of its runs."""
        spread = Spread.of(values)
        limit = None
        if at_least is not None:
            limit = Limit(at_least)
        elif at_most is not None:
            limit = Limit(at_most, at_least=False)
        self.rows.append(Row(name, unit, spread, limit, note))
        return spread

    def show(self, console: Console) -> None:
        """Print the header, the table and what was skipped."""
        console.print(f"[bold]{self.title}[/bold]")
        for name, value in {**self.machine, **{k: str(v) for k, v in self.settings.items()}}.items():
            console.print(f"  {name}: {value}", highlight=False)
        for sentence in self.expected:
            console.print(f"  {sentence}", highlight=False)
        table = Table(box=box.SIMPLE, pad_edge=False)
        table.add_column("figure", overflow="fold")
        for name in ("asked", "median", "min", "max"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("unit", overflow="fold")
        table.add_column("", no_wrap=True)
        table.add_column("note", overflow="fold")
        for row in self.rows:
            s = row.spread
            asked = ""
            if row.limit is not None:
                asked = f"{'>=' if row.limit.at_least else '<='} {number(row.limit.value)}"
            mark = {None: "", True: "[green]met[/green]", False: "[red]MISSED[/red]"}[row.met]
            table.add_row(row.name, asked, number(s.median), number(s.low), number(s.high), row.unit, mark, row.note)
        console.print(table)
        for reason in self.skipped:
            console.print(f"not measured: {reason}", highlight=False)

    def to_json(self) -> str:
        """The report as JSON, for storing; `met` is null where no figure is required."""
        rows = [{**asdict(row), "met": row.met} for row in self.rows]
        whole = {
            "title": self.title,
            "machine": self.machine,
            "settings": dict(self.settings),
            "expected": list(self.expected),
            "rows": rows,
            "skipped": self.skipped,
        }
        return json.dumps(whole, indent=2) + "\n"


def number(value: float) -> str:
    """A figure with as many digits as it deserves."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value == int(value) else f"{value:.3g}"


def machine() -> dict[str, str]:
    """What the figures depend on: machine, load, versions, commit."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    load = os.getloadavg()[0]
    return {
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {_memory_gib():.0f} GiB, {platform.system()}",
        "load before": f"{load:.1f}" + (" (something else runs: read the figures with care)" if load > 0.7 else ""),
        "python": platform.python_version(),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "commit": _commit(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30


def _commit() -> str:
    """The checkout's commit, with a mark when files differ from it; "unknown" outside a checkout."""
    git = shutil.which("git")
    if git is None:
        return "unknown"
    here = Path(__file__).resolve().parent

    def ask(*args: str) -> str:
        done = subprocess.run([git, "-C", str(here), *args], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = ask("rev-parse", "--short", "HEAD")
    if not commit:
        return "unknown"
    return commit + (" with local changes" if ask("status", "--porcelain", "--untracked-files=no") else "")
