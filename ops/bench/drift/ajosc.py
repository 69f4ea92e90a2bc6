"""Compares Weir with AJOSC (SIGMOD 2025) on the events of a drift scenario.

AJOSC (https://github.com/pkumod/AJOSC) enumerates the answers of a join in memory, and chooses join orders anew while
tuples are inserted and deleted. Its authors give its source but no licence, so it is fetched and built elsewhere:

    git clone https://github.com/pkumod/AJOSC && cd AJOSC && cmake -B build && make -C build
    python -m ops.bench.drift.ajosc build/ours --scenario recurring

What differs: AJOSC has no windows, so each tuple is inserted once and deleted when no later tuple can join it. It reads
text files and counts answers; the time is its own, of one core, without reading the files. Weir's includes making the
results.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ops.bench.drift.outcomes import EPOCH_MS, Outcome
from ops.bench.drift.runs import DriftSettings, run
from ops.bench.drift.scenarios import Scenario, scenarios
from schemas.columns import Batch


@dataclass(frozen=True, slots=True)
class Comparison:
    """One scenario in both.

    Attributes:
        tuples: after the windows have been filled.
        ajosc_s, weir_s: seconds of one core for them.
    """

    tuples: int
    ajosc_s: float
    weir_s: float

    def line(self) -> str:
        """Return the comparison as one line."""
        ajosc, weir = self.tuples / self.ajosc_s, self.tuples / self.weir_s
        return f"AJOSC {ajosc:,.0f} tuples/s, Weir {weir:,.0f} tuples/s: {weir / ajosc:.1f}x"


def compare(binary: Path, scenario: Scenario, settings: DriftSettings, folder: Path) -> Comparison:
    """Run a scenario in both.

    Raises:
        ValueError: AJOSC gives no time.
    """
    outcome = run(scenario, settings, settings.seed, lambda text: None)
    warm = write_files(scenario, outcome, settings, folder)
    names = ("schema", "query", "static", "dynamic", "keys")
    command = [str(binary), *(str(folder / name) for name in names), "-l", str(warm)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"time\(sec\): (\S+)", said)
    if found is None:
        raise ValueError(f"AJOSC gives no time: {said[-500:]}")
    rates = [scenario.at(n / settings.seconds).rates for n in range(settings.seconds)]
    return Comparison(round(sum(map(sum, rates))), float(found[1]), outcome.total("adapt"))


def write_files(scenario: Scenario, outcome: Outcome, settings: DriftSettings, folder: Path) -> int:
    """Write the events as insertions and deletions; returns how many of them fill the windows."""
    tables = [f"{name} {len(_edges_of(scenario, n)) + 1} id " for n, name in enumerate(scenario.names)]
    columns = [" ".join(f"e{e}" for e in _edges_of(scenario, n)) for n in range(scenario.streams)]
    _write(folder / "schema", [table + own for table, own in zip(tables, columns, strict=True)])
    count = str(scenario.streams)
    joins = [f"{a} e{n} {b} e{n}" for n, (a, b) in enumerate(scenario.edges)]
    numbered = [f"{n} {name}" for n, name in enumerate(scenario.names)]
    _write(folder / "query", [count, " ".join(scenario.names) + " ", count, *numbered, "", *joins])
    _write(folder / "keys", [f"{name} 1 id" for name in scenario.names])
    _write(folder / "static", [])
    warm_ms = outcome.first * EPOCH_MS
    living: dict[str, deque[tuple[int, str]]] = {name: deque() for name in scenario.names}
    number = operations = warm = 0
    with (folder / "dynamic").open("w") as file:
        for begin in range(0, warm_ms + settings.seconds * 1000, EPOCH_MS):
            share = max(begin - warm_ms, 0) / (settings.seconds * 1000)
            batches = scenario.events(scenario.at(share), begin, EPOCH_MS, settings.window_ms, settings.seed)
            if begin == warm_ms:
                warm = operations
            for ts, name, values in _in_order(batches):
                for other, rows in living.items():
                    while rows and rows[0][0] < ts - settings.window_ms:
                        file.write(f"0 {other} {rows.popleft()[1]}\n")
                        operations += 1
                number += 1
                line = f"{number},{values}"
                living[name].append((ts, line))
                file.write(f"1 {name} {line}\n")
                operations += 1
    return warm


def _in_order(batches: dict[str, Batch]) -> list[tuple[int, str, str]]:
    """Return the tuples of all streams by ts, each as its ts, its stream and its values."""
    found = []
    for name, batch in batches.items():
        values = [np.asarray(column.values).tolist() for key, column in batch.columns.items() if key != "ts"]
        rows = zip(*values, strict=True)
        found += [(ts, name, "".join(f"{v}," for v in row)) for ts, row in zip(batch.ts.tolist(), rows, strict=True)]
    return sorted(found)


def _edges_of(scenario: Scenario, number: int) -> list[int]:
    return [n for n, edge in enumerate(scenario.edges) if number in edge]


def _write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description="Compares Weir with AJOSC on the events of a drift scenario.")
    parser.add_argument("binary", type=Path, help="AJOSC's program `ours`")
    parser.add_argument("--scenario", default="recurring", help="by default `recurring`")
    parser.add_argument("--seconds", type=int, default=40, help="event time after the windows are filled")
    parser.add_argument("--rate", type=float, default=1_000.0, help="events per second and stream")
    given = parser.parse_args()
    settings = DriftSettings(seconds=given.seconds, rate=given.rate, plans=1, executors=())
    (scenario,) = (s for s in scenarios(settings.rate, settings.phases) if s.name == given.scenario)
    with tempfile.TemporaryDirectory() as folder:
        print(f"{scenario.name}: {compare(given.binary, scenario, settings, Path(folder)).line()}")


if __name__ == "__main__":
    main()
