"""Partitions that are out of step in event time: far ahead, silent, behind."""

from __future__ import annotations

import json
import random
from pathlib import Path

import orjson
import pytest

from tests.faults.conftest import MakeTrial
from tests.faults.trial import no_traceback
from tests.faults.workload import BASE, FAR_MS, QUERY, STEP_MS, Record, Row, Workload, closing, workload
from tests.worker_harness import WorkerProcess

pytestmark = pytest.mark.kafka

PADDING = "p" * 2000
HISTORY = 50_000
"""Tuples of the fast stream: 100 MB of padding, which a worker must not have in memory at once."""


def resident_bytes(worker: WorkerProcess) -> int:
    """Main memory of a worker's process."""
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")))


def one_stream_far_ahead() -> list[Record]:
    """Stream a's whole history is in the log; b and c, whose clocks are decisive, arrive slowly."""
    rng = random.Random(3)
    fast: list[Record] = []
    for n in range(HISTORY):
        row: Row = {"n": n, "k": n % 500, "s": PADDING, "x": 3.0, "at": BASE + n * STEP_MS}
        fast.append(Record("a", 0, json.dumps(row).encode(), row))
    slow: list[Record] = []
    for n in range(0, HISTORY, 100):
        for stream, more in (("b", {"s": PADDING, "y": 2}), ("c", {"z": None})):
            row = {"n": n, "k": (n + rng.randrange(20)) % 500, **more, "at": BASE + n * STEP_MS}
            slow.append(Record(stream, 0, json.dumps(row).encode(), row))
    return [*fast, *slow, *closing(1, BASE + HISTORY * STEP_MS + FAR_MS)]


def test_a_partition_far_ahead_is_paused(make_trial: MakeTrial) -> None:
    """Temporal alignment: the fast stream is read only at the speed of the slow streams, so that the waiting tuples in
    memory stay bounded, and the results equal the oracle's."""
    trial = make_trial(Workload(one_stream_far_ahead(), 1), text=QUERY.replace("A.s = B.s AND ", ""))
    least = 5_000
    worker = trial.start("--max-pending", str(least), "--max-ahead", "20s").wait_running()
    before = resident_bytes(worker)
    trial.send(HISTORY)
    trial.produce(trial.workload.records[HISTORY : HISTORY + 2])
    trial.sent = HISTORY + 2
    trial.wait(lambda: worker.metric("paused_partitions") == 1, "the fast partition is paused", worker)
    trial.wait(lambda: worker.metric("pending_tuples") > least, "tuples wait", worker)
    at_rest = worker.metric("input_tuples_total")
    most_pending, most_bytes, paused = 0.0, 0, 0
    total = len(trial.workload.records)
    for count in range(HISTORY + 2, total, 100):
        trial.send(min(count + 100, total))
        most_pending = max(most_pending, worker.metric("pending_tuples"))
        most_bytes = max(most_bytes, resident_bytes(worker))
        paused += worker.metric("paused_partitions") > 0
    trial.finish(worker)
    print(f"{at_rest} read, at most {most_pending} pending, {(most_bytes - before) >> 20} MiB more, paused {paused} x")
    assert at_rest < HISTORY / 2, worker.with_log("the fast partition was read on")
    assert paused > 0
    assert most_pending < 4 * least, worker.with_log("too many tuples waited")
    assert most_bytes - before < 150 << 20, worker.with_log("memory grew with the history")
    no_traceback(worker)


SILENT = 2
IDLE = QUERY.replace("topic = '{b}',", "topic = '{b}', idle_timeout = '1 SECOND',")


def with_a_silent_partition(seed: int) -> tuple[list[Record], list[Record], list[Record], list[Record]]:
    """A clean workload over three partitions, one of which, of stream b, is silent until all other results are out;
    then, in that partition, tuples that are behind the task; then some that are ahead; then tuples that join with
    those."""
    whole = workload(seed, 400, 3, dirty=False).records
    flowing = [r for r in whole if (r.stream, r.partition) != ("b", SILENT)]
    start = BASE + 400 * STEP_MS + 2 * FAR_MS

    def rows(stream: str, first: int, at: int, **more: object) -> list[Record]:
        made = [{"n": first + i, "k": i % 16, **more, "at": at + i * STEP_MS} for i in range(60)]
        return [Record(stream, SILENT, json.dumps(row).encode(), row) for row in made]

    behind = rows("b", 10_000, BASE, s="u", y=0)
    ahead = rows("b", 20_000, start, s="u", y=0)
    others = [*rows("a", 20_000, start, s="u", x=9.5), *rows("c", 20_000, start, z=True)]
    return flowing, behind, ahead, [*others, *closing(3, start + FAR_MS)]


def test_a_silent_partition_does_not_hold_results_back(make_trial: MakeTrial, fault_seed: int) -> None:
    """After the idle timeout the task continues without the partition. Its later tuples behind the task are late, with
    the reason "idle", each once, also when workers are killed and windows replayed; its tuples ahead join again."""
    flowing, behind, ahead, others = with_a_silent_partition(fault_seed)
    trial = make_trial(Workload([*flowing, *ahead, *others], 3), text=IDLE)
    options = ("--session-timeout", "6s")
    trial.send(len(flowing))
    worker = trial.start(*options)
    trial.wait(
        lambda: worker.metric("idle_partitions") >= 1 and worker.metric("results_total") > 0,
        "results come without the silent partition",
        worker,
    )
    past = BASE + 400 * STEP_MS
    trial.wait(lambda: worker.metric("watermark_milliseconds") > past, "the task is past all tuples", worker)
    trial.wait_caught_up(worker)
    worker.kill()
    worker = trial.start(*options, state=trial.folder / "other").wait_running()
    trial.produce(behind)
    trial.wait_caught_up(worker)
    worker.kill()
    worker = trial.start(*options).wait_running()
    trial.send(len(flowing) + len(ahead))
    trial.wait_caught_up(worker)
    trial.send()
    trial.wait_caught_up(worker)
    assert worker.stop() == 0
    results = [orjson.loads(found.value or b"") for found in trial.read(trial.sink)]
    trial.check_results(results)
    assert any(row["b"] >= 20_000 for row in results)
    letters = trial.read(f"{trial.sink}.late")
    assert sorted(letter.value or b"" for letter in letters) == sorted(r.value or b"" for r in behind)
    assert {letter.headers["reason"] for letter in letters} == {"idle"}
    assert {letter.headers["offset"] for letter in letters} == {str(n) for n in range(len(behind))}
    assert trial.read(f"{trial.sink}.dead") == []
    no_traceback(worker)
