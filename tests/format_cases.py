"""Values of every durable format; `fixtures/formats` has their bytes. Weir must read for ever what it has once written.

`python -m tests.format_cases FOLDER` writes the bytes with the Weir that it imports. The files in the repository were
written by commit 808f51c, or by the first commit that had the format. A file is never written again; a new version of a
format adds a file of its own.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from rocksdict import Options, Rdict

from operators.spill.backlog import Backlog, BacklogGroup, BacklogPart, BacklogPiece
from operators.state.checkpoint import Block, Checkpoint
from schemas.codecs.blocks import encode_block
from schemas.codecs.exchange import encode_exchange
from schemas.codecs.notice import Notice, encode_notice
from schemas.columns import Batch, Column
from schemas.messages import control
from schemas.messages.commits import UNSEEN, Commit, Floor, StreamPoint
from schemas.messages.prepared import PreparedTransaction, WrittenRecords
from schemas.messages.repeats import encode_repeats
from schemas.messages.spills import SpillEvent, encode_events
from schemas.query import Field, Type
from services.recovery.starting_point import Snapshot
from services.recovery.state_store import StateStore
from services.spill import backlog as backlogs
from services.spill.block_store import SpillStore

GOLDEN = Path(__file__).parent / "fixtures" / "formats"

COMMIT = Commit(
    "0123456789abcdef",
    7,
    1_772_359_500_000,
    2,
    3,
    (StreamPoint(40, 1_772_359_499_000, (Floor(41, 1_000), Floor(45, 1_500))), StreamPoint(44, UNSEEN)),
    ("00ff00ff",),
    (3, 5),
)

REPEATS = {"sensors": np.array([7, 8, 40, 2**44 + 3], np.int64), "rooms": np.array([2**45], np.int64)}

PREPARED = PreparedTransaction(
    "0a1b2c3d",
    {("results", 3): WrittenRecords(7, 2), ("q.late", 0): WrittenRecords(0, 1)},
    {("sensors", 1): (44, COMMIT.encode())},
)

CONTROL: Mapping[str, control.ControlMessage] = {
    "opened": control.Opened(task=1, incarnation="a1", tasks=2),
    "request": control.Request(
        id="m1", plan="((A B) C)", strategy="auto", fingerprint="0123", asked_ms=5, at=9, timeout_ms=8, prefer="memory"
    ),
    "propose": control.Propose(id="m1", plan="((A B) C)", strategy="jisc", fingerprint="0123", tasks=2, at=9),
    "answer": control.Answer(id="m1", task=1, incarnation="a1", watermark=7, bound=9, error="no"),
    "cut": control.Cut(id="m1", cut=10),
    "withdraw": control.Withdraw(id="m1", reason="late", by="task 3"),
    "started": control.Started(
        id="m1", task=1, version=2, began_at=10, exact=True, strategy="jisc", why="cheap", silence_s=0.5
    ),
    "done": control.Done(
        id="m1", task=1, version=2, began_at=10, finished_at=20, longest_silence_s=0.25, comparisons=3,
        peak_extra_tuples=4, completed_keys=5, first_result_ts=11, first_result_s=0.125, predicted={"silence_s": 1.5},
        restored=True, error="no",
    ),
    "statistics": control.TaskStatistics(
        query="q", task=1, tasks=2, incarnation="a1", sent_ms=5, seconds=1.5, plan_version=2, engine={"results": 7}
    ),
    "query": control.RegisteredQuery(name="q", text="SELECT 1", pick="p", group="g", from_now=True, id="r1"),
    "group": control.RegisteredGroup(name="g", text="CREATE", streams=("a", "b")),
    "member": control.MemberRecord(
        task=1, name="q", id="r1", text="SELECT 1", pick="p", began=5, ended=9, since={"A": 4}, error="no"
    ),
    "member-slot": control.MemberRecord(task=1, name="q", id="r1", text="SELECT 1", began=5, ended=9, slot=2),
    "demanded": control.Demanded(topic="t", partition=3, need=7, suspend=b"12345678", resume=b"87654321"),
    "awaited": control.Awaited(topic="t", partition=3, until=7),
    "partition-totals": control.PartitionTotals(
        query="q", task=1, incarnation="a1", operator="(A B)", groups=[1, 2], output=[0.5, 1.0], inter_bytes=[8.0, 16.0]
    ),
}  # fmt: skip

EVENTS = (
    SpillEvent(10, "leave", ((0, (1, 2)), (1, (3,)))),
    SpillEvent(12, "clean", ((0, (1,)),)),
    SpillEvent(15, "plan"),
    SpillEvent(20, "age", (), 18, 17),
)
EVENT_GROUPS, EVENT_PLAN = 64, "((A B) C)"

FIELDS = [Field("A.k", Type.BIGINT), Field("A.s", Type.STRING), Field("B.d", Type.DOUBLE), Field("B.t", Type.BOOLEAN)]
BATCH = Batch(
    np.array([5, 9], np.int64),
    {
        "A.k": Column.from_values([7, None], Type.BIGINT),
        "A.s": Column.from_values(["kiln", "ä"], Type.STRING),
        "B.d": Column.from_values([0.5, None], Type.DOUBLE),
        "B.t": Column.from_values([None, True], Type.BOOLEAN),
    },
)
EXCHANGE = (3, 1_772_359_500_000, True)
"""Channel, watermark, `last`."""
NOTICE = Notice(3, 12, True, np.array([1, 2**63], np.uint64), np.array([5], np.uint64), BATCH)

STREAM, FIRST_ROW = "temperature", 40
SNAPSHOT = Snapshot(
    "cluster", "0123456789abcdef", 7, 12, {("sensors", 0): COMMIT.points, ("sensors", 1): COMMIT.points[:1]}
)
STREAMS = [STREAM, "humidity"]

PIECE = BacklogPiece("part/1", 10, 99, 5)
DEBT = backlogs.BacklogManifest(
    "d1",
    "SELECT 1",
    "q",
    "0123456789abcdef",
    9,
    Backlog("(A B)", 64, True, 3, 20, (BacklogGroup(0, 5, (BacklogPart((PIECE,), (), 4, True),)),)),
    "topic:results",
    4,
)


def _snapshot() -> tuple[bytes, bytes, bytes]:
    """A manifest, and the key and the value of the one block that it lists."""
    with tempfile.TemporaryDirectory() as folder:
        store = StateStore(Path(folder) / "t", STREAMS)
        store.write(SNAPSHOT, Checkpoint(12, (Block(STREAM, FIRST_ROW, BATCH),), {STREAM: FIRST_ROW}))
        store.close()
        table = Rdict(str(Path(folder) / "t"), Options(raw_mode=True))
        found = {bytes(key): bytes(value) for key, value in table.items()}
        table.close()
    manifest = found.pop(b"m")
    ((key, block),) = found.items()
    return manifest, key, block


def _written(write: Callable[[Path], object], name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        return (Path(folder) / name).read_bytes()


def encoded() -> dict[str, bytes]:
    """The bytes of each value, by the name of its file."""
    manifest, key, block = _snapshot()
    return {
        "commit.json": COMMIT.encode().encode(),
        **{f"control-{name}.json": control.encode_control(message) for name, message in CONTROL.items()},
        "prepared.json": PREPARED.encode(),
        "spills.json": encode_events(EVENTS, EVENT_GROUPS, EVENT_PLAN),
        "repeats.json": encode_repeats(REPEATS),
        "exchange.bin": encode_exchange(FIELDS, *EXCHANGE, BATCH),
        "notice.bin": encode_notice(FIELDS, NOTICE),
        "block.bin": encode_block(STREAM, FIRST_ROW, BATCH),
        "snapshot-manifest.json": manifest,
        "snapshot-key.bin": key,
        "snapshot-block.bin": block,
        "weir-spill": _written(lambda folder: SpillStore(folder).close(), "weir-spill"),
        "debt.json": _written(lambda folder: backlogs.write(folder, DEBT), backlogs.FILE),
    }


if __name__ == "__main__":
    for name, raw in encoded().items():
        (Path(sys.argv[1]) / name).write_bytes(raw)
