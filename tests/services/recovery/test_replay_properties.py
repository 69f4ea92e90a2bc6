"""Recovery without Kafka: a task's reading, committing and snapshotting against scripted logs.

A script of fetches, idle partitions and epochs is run once from end to end, and again with the machine lost
at some commits: from then on a new engine begins where `plan_recovery` says, with or without a snapshot. Both
must deliver the same results, late tuples and dead letters.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import orjson
from hypothesis import given
from hypothesis import strategies as st

from operators.engine.engine import Engine
from operators.state.checkpoint import Block, blocks_by_time
from schemas.codecs.encode import encode_results
from schemas.language.program import parse_program
from schemas.messages.commits import decode_commit
from schemas.messages.repeats import decode_repeats
from services.delivery.epoch_output import RejectedRecords
from services.delivery.repeats_log import KnownRepeats, RepeatsLog, joined
from services.kafka.records import RecordBatch
from services.recovery.starting_point import Committed, RecoveryPlan, Snapshot, plan_recovery
from services.task.commits import first_read
from services.task.lane import InputLane
from tests.profiles import examples

QUERIES = [
    """
    CREATE STREAM a (k BIGINT, at TIMESTAMP) WITH (topic = 'ta', timestamp = 'at', disorder = '3 MILLISECONDS');
    CREATE STREAM b (k BIGINT, at TIMESTAMP) WITH (topic = 'tb', timestamp = 'at', disorder = '1 MILLISECOND');
    INSERT INTO 'out' SELECT A.k AS k, A.at AS a, B.at AS b
    FROM a A [RANGE 6 MILLISECONDS], b B [RANGE 4 MILLISECONDS] WHERE A.k = B.k
    """,
    """
    CREATE STREAM a (k BIGINT, at TIMESTAMP) WITH (topic = 'ta', timestamp = 'at', disorder = '2 MILLISECONDS');
    CREATE STREAM b (k BIGINT, at TIMESTAMP) WITH (topic = 'tb', timestamp = 'at');
    INSERT INTO 'out' SELECT A.k AS k, A.at AS a, B.at AS b FROM a A [ROWS 3], b B [UNBOUNDED] WHERE A.k = B.k
    """,
    # One topic declared twice, with different disorder, and a stream joined with itself.
    """
    CREATE STREAM a (k BIGINT, at TIMESTAMP) WITH (topic = 'ta', timestamp = 'at', disorder = '4 MILLISECONDS');
    CREATE STREAM b (k BIGINT, at TIMESTAMP) WITH (topic = 'ta', timestamp = 'at');
    CREATE STREAM c (k BIGINT, at TIMESTAMP) WITH (topic = 'tb', timestamp = 'at');
    INSERT INTO 'out' SELECT A.at AS a, B.at AS b, C.at AS c, D.at AS d
    FROM a A [RANGE 5 MILLISECONDS], b B [RANGE 5 MILLISECONDS], c C [RANGE 3 MILLISECONDS],
         c D [RANGE 3 MILLISECONDS]
    WHERE A.k = B.k AND B.k = C.k AND C.k = D.k
    """,
    # Streams without repeats, for longer than their windows and for less.
    """
    CREATE STREAM a (k BIGINT, at TIMESTAMP) WITH (topic = 'ta', timestamp = 'at', disorder = '3 MILLISECONDS',
      deduplicate = 'k', deduplicate_within = '9 MILLISECONDS');
    CREATE STREAM b (k BIGINT, at TIMESTAMP) WITH (topic = 'tb', timestamp = 'at', disorder = '1 MILLISECOND',
      deduplicate = 'k', deduplicate_within = '2 MILLISECONDS');
    INSERT INTO 'out' SELECT A.k AS k, A.at AS a, B.at AS b
    FROM a A [RANGE 2 MILLISECONDS], b B [RANGE 5 MILLISECONDS] WHERE A.k = B.k
    """,
    # One topic with and without repeats; a window that is not full, and one that never ends.
    """
    CREATE STREAM a (k BIGINT, at TIMESTAMP) WITH (topic = 'ta', timestamp = 'at', disorder = '4 MILLISECONDS',
      deduplicate = 'k', deduplicate_within = '3 MILLISECONDS');
    CREATE STREAM b (k BIGINT, at TIMESTAMP) WITH (topic = 'ta', timestamp = 'at');
    CREATE STREAM c (k BIGINT, at TIMESTAMP) WITH (topic = 'tb', timestamp = 'at',
      deduplicate = 'k', deduplicate_within = '20 MILLISECONDS');
    INSERT INTO 'out' SELECT A.at AS a, B.at AS b, C.at AS c
    FROM a A [ROWS 8], b B [RANGE 2 MILLISECONDS], c C [UNBOUNDED] WHERE A.k = B.k AND B.k = C.k
    """,
]
BOUND = [parse_program(text).queries[0] for text in QUERIES]
LANES = (("ta", 0), ("ta", 1), ("tb", 0))
Lane = tuple[str, int]


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


@dataclass
class Delivered:
    """Everything that was committed."""

    results: list[bytes] = field(default_factory=list)
    rejected: Counter[tuple[str, str, str]] = field(default_factory=Counter)


class Machine:
    """A task without its thread: one engine and its lanes, started from a recovery plan."""

    def __init__(
        self,
        number: int,
        plan: RecoveryPlan,
        logs: dict[Lane, list[Record]],
        blocks: list[Block],
        topic: dict[int, bytes],
    ) -> None:
        query = BOUND[number]
        self.topic = topic
        known = {n: decode_repeats(topic[n], "it").positions("it") for n in range(*plan.repeats)}
        records = [(n, n, positions) for n, positions in known.items()]
        self.repeats = RepeatsLog(("repeats", 0), KnownRepeats(records=records, following=plan.repeats[1]))
        self.read_from = {key: min(p.offset for p in start.window) for key, start in plan.lanes.items()}
        self.logs = logs
        self.query = query
        partitions = {s.name: [p for topic, p in LANES if topic == s.topic] for s in query.streams()}
        self.engine = Engine(query, partitions=partitions)
        self.engine.record_repeats()
        for stream in query.streams():
            if stream.deduplicate:
                found = joined(iter(known.values())).get(stream.name, np.zeros(0, np.int64))
                self.engine.resume_repeats(stream.name, found, plan.cut)
        self.epoch = plan.epoch
        self.rejected = RejectedRecords("late", "dead")
        self.lanes = {key: InputLane(key, query, plan.lanes[key], plan.floor) for key in plan.lanes}
        for lane in self.lanes.values():
            lane.restore_clocks(self.engine)
        if plan.source == "snapshot":
            self.engine.restore(plan.floor, blocks_by_time(blocks))
        for lane in self.lanes.values():
            while lane.replaying:
                # Fetches after a restart are cut elsewhere than before it.
                lane.replay(self.engine, self.fetch(lane, 7).until(lane.replay_end))
            lane.set_idle(self.engine, True)
        if plan.cut > self.engine.cut:
            self.engine.advance(plan.cut)
        for lane in self.lanes.values():
            lane.set_idle(self.engine, False)

    def fetch(self, lane: InputLane, count: int) -> RecordBatch:
        log = self.logs[lane.key]
        found = [record for record in log if record.offset >= lane.position][:count]
        end = found[-1].offset + 1 if found else lane.position
        return RecordBatch(*lane.key, lane.position, end, 0, found, 0)

    def take(self, key: Lane, count: int) -> None:
        lane = self.lanes[key]
        lane.take(self.engine, self.fetch(lane, count), self.rejected)

    def commit(self, out: Delivered) -> dict[Lane, Committed]:
        results = self.engine.advance(self.engine.watermark())
        encoded = encode_results(results)
        out.results += encoded.data.splitlines()
        out.rejected.update(
            (record.topic, dict(record.headers)["offset"].decode(), dict(record.headers)["topic"].decode())
            for record in self.rejected.take()
        )
        self.epoch += 1
        for record in self.repeats.add(self.engine.take_repeats()):
            assert record.key is not None
            assert record.written is not None
            self.topic[int(record.key)] = record.value
            record.written(int(record.key))
        own = {key: lane.commit_message(self.engine, "q", self.epoch, 3, 0) for key, lane in self.lanes.items()}
        self.read_from |= {key: min(point.offset for point in message.points) for key, message in own.items()}
        self.repeats.forget(first_read(self.engine, self.lanes, self.read_from))
        for end in self.repeats.deletable().values():
            for number in [number for number in self.topic if number < end]:
                del self.topic[number]
        return {
            key: Committed(
                self.lanes[key].position,
                decode_commit(replace(message, repeats=self.repeats.span).encode(), "x"),
            )
            for key, message in own.items()
        }

    def snapshot(self) -> tuple[Snapshot, tuple[Block, ...], dict[str, int]]:
        cut = self.engine.cut
        points = {key: lane.points_at(self.engine, cut) for key, lane in self.lanes.items()}
        checkpoint = self.engine.checkpoint()
        return Snapshot("c", "q", self.epoch, cut, points), checkpoint.blocks, dict(checkpoint.live_from)


@dataclass
class Disk:
    """Blocks as the state store keeps them."""

    snapshot: Snapshot | None = None
    blocks: list[Block] = field(default_factory=list)

    def write(self, made: tuple[Snapshot, tuple[Block, ...], dict[str, int]]) -> None:
        self.snapshot, new, live = made
        held = [b for b in self.blocks if b.first_row + len(b.batch) > live.get(b.stream, 0)]
        self.blocks = sorted([*held, *new], key=lambda block: (block.stream, block.first_row))


Step = tuple[Any, ...]


def run(number: int, logs: dict[Lane, list[Record]], steps: list[Step], losses: dict[int, str]) -> Delivered:
    """Run the steps; `losses` maps the steps before which the machine is lost to whether its disk is lost, too."""
    out, disk = Delivered(), Disk()
    committed: dict[Lane, Committed] = {}
    topic: dict[int, bytes] = {}
    counts = {key: sum(s.topic == key[0] for s in BOUND[number].streams()) for key in LANES}
    log = {key: (0, records[-1].offset + 1 if records else 0) for key, records in logs.items()}

    def begin() -> Machine:
        plan = plan_recovery(
            streams=counts, fingerprint="q", cluster="c", committed=committed, snapshot=disk.snapshot, log=log
        )
        if plan.source != "snapshot":
            disk.snapshot, disk.blocks = None, []
        return Machine(number, plan, logs, disk.blocks, topic)

    machine = begin()
    for at, step in enumerate(steps):
        if at in losses and committed:
            if losses[at] == "disk":
                disk = Disk()
            machine = begin()
        match step:
            case ("take", lane, count):
                machine.take(LANES[lane], count)
            case ("idle", lane):
                if machine.lanes[LANES[lane]].may_idle:
                    machine.lanes[LANES[lane]].set_idle(machine.engine, True)
            case ("awake",):
                for lane in machine.lanes.values():
                    lane.set_idle(machine.engine, False)
            case ("commit", snapshot):
                committed = machine.commit(out)
                if snapshot:
                    disk.write(machine.snapshot())
    return out


@st.composite
def scripts(draw: st.DrawFn) -> tuple[int, dict[Lane, list[Record]], list[Step], dict[int, str]]:
    """A query, logs, and steps in rounds: takes, idle lanes, a commit.

    Machines are lost only right after commits, since a restarted machine may decide differently about what was not
    committed.
    """
    logs: dict[Lane, list[Record]] = {}
    for key in LANES:
        offset, base, log = 0, 0, []
        for _ in range(draw(st.integers(0, 14))):
            offset += draw(st.sampled_from([1, 1, 1, 3]))
            base += draw(st.integers(0, 4))
            at = max(0, base - draw(st.integers(0, 6)))
            value = orjson.dumps({"k": draw(st.integers(0, 1)), "at": at})
            log.append(Record(offset, 0, None, draw(st.sampled_from([value, value, value, value, b"{"]))))
        logs[key] = log
    steps: list[Step] = []
    losses: dict[int, str] = {}
    for _ in range(draw(st.integers(1, 6))):
        for _ in range(draw(st.integers(1, 5))):
            steps.append(
                draw(
                    st.one_of(
                        st.tuples(st.just("take"), st.integers(0, 2), st.integers(1, 6)),
                        st.tuples(st.just("idle"), st.integers(0, 2)),
                    )
                )
            )
        steps.append(("commit", draw(st.booleans())))
        loss = draw(st.sampled_from(["", "memory", "disk"]))
        if loss:
            losses[len(steps)] = loss
            # An idle partition is awake after a restart; so that both runs agree, wake it in both.
            steps.append(("awake",))
    steps += [("take", lane, 99) for lane in range(3)]
    steps += [("idle", 0), ("idle", 1), ("idle", 2), ("commit", False)]
    return draw(st.integers(0, len(QUERIES) - 1)), logs, steps, losses


@examples(150)
@given(scripts())
def test_a_lost_machine_changes_nothing(
    script: tuple[int, dict[Lane, list[Record]], list[Step], dict[int, str]],
) -> None:
    number, logs, steps, losses = script
    whole = run(number, logs, steps, {})
    broken = run(number, logs, steps, losses)
    assert broken.results == whole.results
    assert broken.rejected == whole.rejected
