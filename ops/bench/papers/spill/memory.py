"""Compares the memory that an engine with a memory budget reports with the memory of its process.

`python -m ops.bench.papers.spill.memory JSON` runs in a process of its own, set up as `weir run --memory` sets up its
own. JSON is a `Probe`; it prints a `Footprint` as JSON.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from operators.engine.engine import Engine
from operators.spill.spilling import MemoryBudget
from ops.bench.measuring.commands import run_command
from ops.bench.measuring.measure import resident_bytes
from ops.bench.papers.spill.runs import INTERARRIVAL_MS, NO_LIMIT, Workload, run, spill_of
from services.process.memory import choose_small_pages, prepare
from services.spill.block_store import SpillStore


@dataclass(frozen=True, slots=True)
class Probe:
    """One run. `budget_bytes` is None for all in memory; see `ops.bench.papers.spill.runs.run`."""

    ratios: tuple[float, float, float]
    tuple_range: int
    tuples: int
    partitions: int
    strategy: str
    budget_bytes: int | None
    seed: int
    steps: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory at the end of each step.

    Attributes:
        minutes: of event time.
        resident_bytes: of the process, less what it had before the first tuple.
        accounted_bytes: what states and source tuples take, as the engine reports it.
        buffers_bytes: what RocksDB's write buffers and its tables' indexes take, as RocksDB reports it.
    """

    minutes: list[float]
    resident_bytes: list[int]
    accounted_bytes: list[int]
    buffers_bytes: list[int]


class _Store(SpillStore):
    """A store that reports its memory."""

    def buffers_bytes(self) -> int:
        """Bytes of write buffers, and of the parts of open files that are read to find blocks in them."""
        names = ("rocksdb.cur-size-all-mem-tables", "rocksdb.estimate-table-readers-mem")
        return 0 if self._table is None else sum(int(self._table.property_int_value(name) or 0) for name in names)


def footprint(probe: Probe) -> Footprint:
    """Run the probe in a process of its own."""
    command = (sys.executable, "-m", "ops.bench.papers.spill.memory", json.dumps(asdict(probe)))
    return Footprint(**json.loads(run_command(command).output))


def watch(probe: Probe) -> Footprint:
    """Run the probe in this process, which should be fresh. The input is made before, so it is not measured."""
    workload = Workload(probe.ratios, tuple_range=probe.tuple_range, tuples=probe.tuples, partitions=probe.partitions)
    small = Workload(probe.ratios, tuple_range=200, tuples=300, partitions=probe.partitions)
    run(small, probe.strategy, 50_000, seed=probe.seed, steps=10)
    batches = workload.batches(probe.seed)
    budget = MemoryBudget(probe.budget_bytes or NO_LIMIT, probe.strategy, groups=probe.partitions)
    minutes, resident, accounted, buffers = [], [], [], []
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder, closing(_Store(Path(folder))) as blocks:
        engine = Engine(workload.query(), plan=workload.plan(), budget=budget, blocks=blocks)
        gc.collect()
        empty = resident_bytes()
        for begin, end in workload.steps(probe.steps):
            for name, batch in batches.items():
                engine.push(name, 0, batch.slice(begin, end))
            engine.advance(end * INTERARRIVAL_MS)
            engine.cleaned()
            minutes.append(end * INTERARRIVAL_MS / 60_000)
            resident.append(resident_bytes() - empty)
            accounted.append(spill_of(engine).used_bytes)
            buffers.append(blocks.buffers_bytes())
    return Footprint(minutes, resident, accounted, buffers)


def main(argument: str) -> None:
    """Run one probe and print its footprint as one line of JSON."""
    prepare()
    choose_small_pages()
    given = json.loads(argument)
    print(json.dumps(asdict(watch(Probe(**{**given, "ratios": tuple(given["ratios"])})))))


if __name__ == "__main__":
    main(sys.argv[1])
