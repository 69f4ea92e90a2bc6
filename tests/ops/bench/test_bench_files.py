"""`weir bench files` at tiny sizes: it runs, its table is complete, every program produces the same results."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from ops.bench.files import FilesSettings, bench_files, read_all, run_naive, run_weir, write_files
from ops.bench.measuring.commands import run_command
from ops.bench.measuring.measure import Progress
from ops.bench.references import DECODERS, SLOW_DECODERS, duckdb_files, duckdb_version, read_weir
from ops.bench.workloads import clique, three_way
from schemas.errors import WeirError


@pytest.mark.parametrize("whole", [three_way(), clique()], ids=lambda whole: whole.name)
def test_all_programs_read_the_same_files_to_the_same_results(whole, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    files = write_files(whole.scaled(0.01), tmp_path / "data", 12, seed=3)
    assert sum(path.read_bytes().count(b"\n") for path in files.paths.values()) == files.events
    for reader in (*DECODERS.values(), *SLOW_DECODERS.values(), read_weir):
        assert read_all(files, reader) > 0
    ran = run_weir(files)
    assert ran.results > 10
    assert 0 < ran.seconds < ran.command.seconds
    assert run_naive(files)[0] == ran.results
    if duckdb_version() is not None:
        assert duckdb_files(files.workload, files.paths, tmp_path / "out.jsonl")[0] == ran.results
    weir = sorted((files.folder / "weir.jsonl").read_bytes().splitlines())
    assert weir == sorted((files.folder / "naive.jsonl").read_bytes().splitlines())


def test_the_benchmark_runs_and_prints_its_table() -> None:
    settings = FilesSettings(runs=1, seconds=12, quick=True, share=0.01)
    with Progress() as progress:
        report = bench_files(settings, progress)
    out = io.StringIO()
    report.show(Console(file=out, width=200))
    asked = {row.name: row.limit.value for row in report.rows if row.limit is not None}
    assert asked["weir run, the whole command"] == 800_000
    assert asked["4-way clique, weir run, the whole command"] == 50_000
    assert 0.5 in asked.values()
    assert asked["warm start to first result"] == 6
    assert "DIFFERENT" not in out.getvalue()
    for decoder in (*DECODERS, *SLOW_DECODERS):
        assert f"{decoder} merely reads the files" in out.getvalue()


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(WeirError, match=r"ended with 3:\nit broke"):
        run_command([sys.executable, "-c", "import sys; print('it broke', file=sys.stderr); sys.exit(3)"])
