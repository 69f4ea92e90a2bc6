"""State folders that are full, damaged or forbidden: recovery takes longer, results stay exact."""

from __future__ import annotations

import contextlib
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from tests.faults.conftest import MakeTrial
from tests.faults.trial import Trial, logged_once, no_traceback, problems
from tests.faults.workload import workload
from tests.worker_harness import WorkerProcess

pytestmark = pytest.mark.kafka

INODES = 500

OFTEN = ("--snapshot", "100ms", "--session-timeout", "6s")


# --- Damage -------------------------------------------------------------------------------------------


def table_of(trial: Trial) -> Path:
    """The folder of the only task's table."""
    return trial.folder / "state" / "slot-0" / trial.group / "task-0"


def flip_a_block(table: Path) -> None:
    """Change a byte of a stored block, in a way that RocksDB does not notice."""
    db = Rdict(str(table), Options(raw_mode=True))
    keys = [key for key in list(db.keys()) if key[:1] == b"b"]
    value = bytearray(db[keys[len(keys) // 2]])
    value[len(value) // 2] ^= 0x10
    db[keys[len(keys) // 2]] = bytes(value)
    db.close()


def lose_a_block(table: Path) -> None:
    """Delete a block, in a way that RocksDB does not notice."""
    db = Rdict(str(table), Options(raw_mode=True))
    keys = sorted(key for key in list(db.keys()) if key[:1] == b"b")
    del db[keys[len(keys) // 2]]
    db.close()


def scramble_the_manifest(table: Path) -> None:
    """Replace the manifest by bytes that are not JSON."""
    db = Rdict(str(table), Options(raw_mode=True))
    db[b"m"] = bytes(db[b"m"])[:-7]
    db.close()


def overwrite_a_table_file(table: Path) -> None:
    """Damage a file so that RocksDB's own checksums find it."""
    file = max(table.glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 4 : len(data) // 2] = bytes(len(data) // 2 - len(data) // 4)
    file.write_bytes(bytes(data))


def cut_the_manifest_file(table: Path) -> None:
    """Cut RocksDB's manifest, so that it cannot open the table at all."""
    (file,) = table.glob("MANIFEST-*")
    file.write_bytes(file.read_bytes()[:30])


def remove_a_table_file(table: Path) -> None:
    """Remove a file that RocksDB lists."""
    next(iter(sorted(table.glob("*.sst")))).unlink()


def wait_snapshot(trial: Trial, worker: WorkerProcess) -> None:
    """Wait until all committed state is on disk."""

    def is_there() -> bool:
        cut = worker.metric("watermark_milliseconds")
        return 0 < cut <= worker.metric("snapshot_watermark_milliseconds")

    trial.wait(is_there, "a snapshot of all that is committed", worker)


DAMAGES = (
    flip_a_block,
    lose_a_block,
    scramble_the_manifest,
    overwrite_a_table_file,
    remove_a_table_file,
    cut_the_manifest_file,
)


def test_damaged_snapshots(make_trial: MakeTrial, fault_seed: int) -> None:
    """A snapshot that is damaged is not used: there is one warning, the windows are read again from Kafka, and a
    good snapshot replaces it, which the next damage finds.

    RocksDB's iterator ends at a damaged block as it does at the end of the table, and an incarnation continued with
    half of its window; a table that could not be opened was never recreated.
    """
    trial = make_trial(workload(fault_seed, 900, 1))
    worker = trial.start(*OFTEN)
    for number, damage in enumerate(DAMAGES):
        trial.flow_to((number + 1) / (len(DAMAGES) + 1), worker)
        wait_snapshot(trial, worker)
        worker.kill()
        damage(table_of(trial))
        worker = trial.start(*OFTEN).wait_running()
        print(damage.__name__)
        line = logged_once(worker, "(warning|error) ")
        assert ": snapshot unusable, rebuilding from Kafka " in line, line
        assert "task=0" in line
        assert "source=window" in worker.text(), worker.with_log("recovery")
        no_traceback(worker)
    trial.finish(worker)


# --- Full ---------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path | None]:
    """A file system of 3 MiB, or None where mounting is not permitted."""
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size=3m,nr_inodes={INODES}", "tmpfs", str(path)]
    mounted = shutil.which("mount") and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield path if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(path)], check=False)


def start_cramped(trial: Trial, disk: Path | None, *options: str, limit: int = 100_000) -> WorkerProcess:
    """Start a worker whose state folder has little room: on the small disk, or with a limit on file sizes."""
    if disk is not None:
        return trial.start(*options, state=disk / "state")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        return trial.start(*options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_disk_fills_up_in_mid_run(make_trial: MakeTrial, fault_seed: int, small_disk: Path | None) -> None:
    """There is one clear error and no wrong result, now and after a kill -9 with the disk still full."""
    trial = make_trial(workload(fault_seed, 700, 2))
    trial.send(0.2)
    first = start_cramped(trial, small_disk, *OFTEN)
    trial.wait_caught_up(first)
    fill(small_disk)
    trial.wait(lambda: "snapshot failed" in first.text(), "the snapshot fails", first, flow=0.5)
    trial.send(0.6)
    trial.wait_caught_up(first)
    logged_once(first, r"error .*snapshot failed; continuing without snapshots.*(No space left|File too large)")
    assert len(problems(first)) == 1, first.with_log("one error is enough")
    assert first.metric("snapshot_failures_total") == 1
    first.kill()
    second = start_cramped(trial, small_disk, *OFTEN)
    trial.finish(second)
    no_traceback(first)
    no_traceback(second)


def test_disk_full_from_the_start(make_trial: MakeTrial, fault_seed: int, small_disk: Path | None) -> None:
    """There is no room for a single block: one error, and the worker continues as if it had no disk."""
    trial = make_trial(workload(fault_seed, 300, 2))
    fill(small_disk)
    trial.send(0.3)
    worker = start_cramped(trial, small_disk, *OFTEN, limit=1000)
    trial.wait_caught_up(worker)
    trial.finish(worker)
    logged_once(worker, "error .*(no snapshots: continuing without|snapshot failed; continuing without)")
    no_traceback(worker)


def test_state_folder_cannot_be_made(make_trial: MakeTrial, small_disk: Path | None) -> None:
    """There is no room even for a folder: one line that names the path and the reason, exit code 1."""
    if small_disk is None:
        pytest.skip("needs the right to mount a file system: a limit on file sizes refuses no folder")
    trial = make_trial(workload(1, 10, 1))
    with contextlib.suppress(OSError):
        for number in range(INODES):
            (small_disk / f"folder-{number}").mkdir()
    worker = trial.start(state=small_disk / "state")
    trial.wait(lambda: worker.process.poll() is not None, "the worker refuses")
    assert worker.process.returncode == 1
    line = logged_once(worker, "^weir: state directory .* cannot be used")
    assert str(small_disk) in line
    assert "No space left on device" in line
    no_traceback(worker)


def fill(disk: Path | None) -> None:
    """Leave no room on a small disk."""
    if disk is not None:
        with (disk / "filler").open("wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(4096))
            except OSError:
                return


def test_state_folder_is_not_ours(make_trial: MakeTrial, tmp_path: Path) -> None:
    """A file where the folder should be: exit code 1, one line that names the path."""
    trial = make_trial(workload(1, 10, 1))
    place = tmp_path / "file"
    place.write_text("not a folder")
    worker = trial.start(state=place)
    trial.wait(lambda: worker.process.poll() is not None, "the worker refuses")
    assert worker.process.returncode == 1
    assert str(place) in logged_once(worker, "^weir: state directory .* cannot be used")
    no_traceback(worker)


def test_foreign_snapshot(make_trial: MakeTrial, fault_seed: int) -> None:
    """A snapshot of another query, found in this query's folder, is not used."""
    trial = make_trial(workload(fault_seed, 300, 1))
    other = make_trial(workload(fault_seed, 300, 1))
    for each in (trial, other):
        each.send(0.4)
        worker = each.start(*OFTEN)
        each.wait_caught_up(worker)
        assert worker.stop() == 0
    shutil.rmtree(table_of(trial))
    shutil.copytree(table_of(other), table_of(trial))
    worker = trial.start(*OFTEN).wait_running()
    assert "source=window" in worker.text(), worker.with_log("recovery")
    logged_once(worker, "warning .*snapshot")
    trial.finish(worker)
