"""Which queries a group's task runs, over incarnations that die after commits and before them; without Kafka."""

from __future__ import annotations

import math
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from operators.data.watermark import END as NEVER_ENDS
from operators.groups.sharing import group_engine
from operators.spill.spilling import MemoryBudget
from schemas.codecs.encode import Encoded
from schemas.errors import UsageError
from schemas.groups import seeing
from schemas.language.program import parse_program
from schemas.messages.control import MemberRecord, RegisteredQuery, decode_control
from schemas.messages.spills import decode_events
from services.delivery.epoch_output import BlockRecord
from services.formats.encoders import Encoders
from services.kafka.topics import Lane
from services.process.logs import get_log
from services.process.metrics import WorkerMetrics
from services.program.group_members import GroupMembers, StartingQueries
from services.program.group_program import GroupProgram, late_results_of
from services.registry.group_registration import check_group_queries
from services.registry.group_watch import WantedQuery
from services.registry.member_log import BEGAN, newest_records
from services.spill.spill_log import LogRecord, SpillLog
from services.task.spec import RereadNeeded
from services.task.spill import SpillStart, TaskSpill
from tests import oracle
from tests.feeding import to_batch
from tests.profiles import mostly_deep
from tests.worker_harness import canonical, in_time, unmarked

DECLARED = """
CREATE STREAM a (k BIGINT, v BIGINT, at TIMESTAMP) WITH (topic = 'a', timestamp = 'at');
CREATE STREAM b (k BIGINT, v BIGINT, at TIMESTAMP) WITH (topic = 'b', timestamp = 'at');
"""
PAIRS = "SELECT A.v AS a, B.v AS b FROM a A [RANGE {} MILLISECONDS], b B [RANGE {} MILLISECONDS] WHERE A.k = B.k"
SELECTS = (
    PAIRS.format(30, 30),
    PAIRS.format(10, 50) + " AND A.v > B.v - 990",
    PAIRS.format(30, 30) + " AND A.at > B.at",
    "SELECT A.k, COUNT(*) AS n FROM a A [RANGE 20 MILLISECONDS], b B [RANGE 20 MILLISECONDS] WHERE A.k = B.k "
    "GROUP BY A.k EMIT EVERY 10 MILLISECONDS",
    "SELECT A.v FROM a A [RANGE 30 MILLISECONDS] EXCEPT b B [RANGE 30 MILLISECONDS] ON A.k = B.k",
)
END = 600
BUDGETS = [1, 150_000, 1 << 30]
GROUPS = 1


class Registry:
    """The registered queries, as `GroupWatch` shows them."""

    def __init__(self) -> None:
        self.wanted: tuple[WantedQuery, ...] = ()
        self._ids = 0

    def register(self, name: str, select: str, *, from_now: bool = False) -> None:
        """Register a query; replaces a query of the same name."""
        self._ids += 1
        text = f"{DECLARED}INSERT INTO {name} {select};"
        message = RegisteredQuery(name=name, text=text, pick=name, group="g", from_now=from_now, id=f"id{self._ids}")
        others = tuple(one for one in self.wanted if one.message.name != name)
        self.wanted = (*others, WantedQuery(message, parse_program(text).queries[0]))

    def wait(self, name: str, *, waits: bool) -> None:
        """Take a query's topic or schema away, or give it back."""
        self.wanted = tuple(
            replace(one, query=None if waits else parse_program(one.message.text).queries[0])
            if one.message.name == name
            else one
            for one in self.wanted
        )

    def drop(self, name: str) -> None:
        """Forget a query."""
        self.wanted = tuple(one for one in self.wanted if one.message.name != name)


class TaskHistory:
    """The incarnations of one task over a log of input, and what they have committed.

    Attributes:
        out: results by topic.
        written: records of members, in order.
        log: what Kafka's compaction leaves of the topic of members: the newest record of each key, the oldest first.
        reads_again: whether the log has everything.
        rereads: how often an incarnation has restarted to read the log again.
        metrics: of the worker.
    """

    def __init__(
        self,
        registry: Registry,
        rng: random.Random,
        *,
        reads_again: bool = True,
        spilled: Path | None = None,
        transactional: bool = True,
    ) -> None:
        """Args: `spilled`: the folder of spilled state, with another budget in each incarnation; None: no limit."""
        self._transactional = transactional
        self._rng = rng
        self._spilled = spilled
        self._records: list[BlockRecord] = []
        self._span = (0, 0)
        self.registry = registry
        self.reads_again = reads_again
        self.rereads = 0
        self.metrics = WorkerMetrics("g")
        self.streams = parse_program(DECLARED).streams
        self.rows = {
            s.name: [{"k": rng.randrange(4), "v": 1000 * n + at, "at": at} for at in range(n, END, 3)]
            for n, s in enumerate(self.streams)
        }
        self.out: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.written: list[MemberRecord] = []
        self.log: dict[bytes, MemberRecord] = {}
        self._cut = 0
        self._committed: dict[str, int] = {}
        self._points: dict[str, tuple[int, int]] = {}
        self.begin()

    def begin(self) -> None:
        """Start an incarnation at the last commit."""

        def readable(places: Mapping[Lane, int]) -> bool:
            assert set(places) == {("a", 0), ("b", 0)}
            return self.reads_again

        known = newest_records(self.log.values()) if self._committed else None
        partitions = {s.name: (0,) for s in self.streams}
        spilled = None if self._spilled is None else self._spill_start(self._spilled)
        delivered_before = NEVER_ENDS if spilled is None else spilled.delivered_before
        queries = StartingQueries(0, known, self._cut, self.registry.wanted, delivered_before)
        engine = group_engine(
            queries.queries,
            streams=self.streams,
            tables={},
            partitions=partitions,
            since=queries.since,
            began=queries.began,
            ended=queries.ended,
            clock=time.monotonic,
            budget=None if spilled is None else spilled.budget,
            blocks=None if spilled is None else spilled.blocks,
        )
        self.spill = None
        if spilled is not None:
            self.spill = TaskSpill(spilled, engine, self._cut, lambda: late_results_of(engine, Encoders()))
        self.members = GroupMembers(
            engine,
            queries,
            partitions,
            task=0,
            topic="members",
            wanted=lambda: self.registry.wanted,
            readable=readable,
            transactional=self._transactional,
            log=get_log("test"),
        )
        self.program = GroupProgram(engine, self.members, Encoders(), lambda found: None)
        self._taken: dict[str, int] = {}
        self._starts = dict(self._points)
        for name in self.rows:
            offset, max_ts = self._points.get(name, (0, -1))
            if max_ts >= 0:
                self.program.engine.set_clock(name, 0, max_ts)
            self._push(name, offset, self._committed.get(name, 0))
        if self._cut:
            self.program.engine.advance(self._cut)

    def _spill_start(self, folder: Path) -> SpillStart:
        numbers = range(*self._span)
        newest = {int(record.key or b""): record for record in self._records}
        said = [decode_events(newest[number].value, GROUPS, "log") for number in numbers]
        known = [LogRecord(n, one.events, one.plan, offset=n) for n, one in zip(numbers, said, strict=True)]
        log = SpillLog(("spills", 0), GROUPS, known, self._span[1])
        return SpillStart(MemoryBudget(self._rng.choice(BUDGETS), "bottom-up", GROUPS), folder, log)

    def die(self) -> None:
        """Lose everything that was not committed."""
        if self.spill is not None:
            self.spill.close()
        self.begin()

    def _push(self, name: str, begin: int, end: int) -> None:
        stream = next(stream for stream in self.streams if stream.name == name)
        if end > begin:
            self.program.engine.push(name, 0, to_batch(stream, self.rows[name][begin:end]), np.arange(begin, end))
        self._taken[name] = end

    def epoch(self, until: int, *, commit: bool, written: float = 0.0) -> None:
        """Process the tuples before an event time, and commit, or die before the commit.

        Args:
            written: without a commit, the share of the output that is written nevertheless, as without transactions.
                Records are in one partition, so of these the first ones are written.
        """
        for name, rows in self.rows.items():
            end = self._taken[name]
            while end < len(rows) and rows[end]["at"] <= until:
                end += 1
            self._push(name, self._taken[name], end)
            if until >= END:
                self.program.engine.close(name, 0)
        try:
            self.members.look(0.0, 0.0)
        except RereadNeeded:
            self.rereads += 1
            self.die()
            self.epoch(until, commit=commit, written=written)
            return
        commit = commit or (written == 1.0 and self.members.must_commit)
        engine = self.program.engine
        found = self.program.advance(self.members.limit(engine.watermark(), 0.0))
        if self.spill is not None:
            self.spill.advanced()
            if commit or written:
                late, events = self.spill.commit()
                self._write([piece for piece in late if commit or self._rng.random() < written], [])
                self._records += events
            if commit:
                self._span = self.spill.span
        if not commit:
            if written:
                encoded, records = self.program.encode()
                some = [piece for piece in encoded if self._rng.random() < written]
                self._write(some, records[: len(records) if written == 1.0 else self._rng.randrange(len(records) + 1)])
            return
        has_output = self.program.has_output()
        encoded, records = self.program.encode()
        assert found == bool(encoded)
        assert has_output == bool(records)
        assert self.program.encode() == ([], []), "once"
        self._write(encoded, records)
        self._cut, self._committed = engine.cut, dict(self._taken)
        for name in self.rows:
            point = engine.replay_point(name, 0, engine.horizon(name))
            start = self._starts.get(name, (0, -1))
            self._points[name] = start if point.offset <= start[0] else (point.offset, point.max_ts)

    def _write(self, encoded: list[tuple[str, Encoded]], records: list[BlockRecord]) -> None:
        for topic, piece in encoded:
            rows = [orjson.loads(line) for line in piece.data.splitlines()]
            self.out[topic] += rows
            self.program.count({topic: len(rows)}, self.metrics.of("0"))
        for record in records:
            member = decode_control(record.value, "log")
            assert isinstance(member, MemberRecord)
            assert (record.topic, record.partition) == ("members", 0)
            assert record.key is not None
            self.log.pop(record.key, None)
            self.log[record.key] = member
            first = f"0/{member.name}" if self._transactional else f"0/{member.name}/{member.id}"
            if record.key == first.encode():
                self.written.append(member)
                continue
            assert (record.key, member.ended is None) == (f"0//{member.slot}".encode(), False)

    def expected(self) -> dict[str, Counter[str]]:
        """By topic, the results of its queries between their beginnings and ends, from the tuples that they see."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for member in newest_records(self.written):
            if member.name == BEGAN:
                continue
            assert member.began is not None
            end = 2**62 if member.ended is None else member.ended
            (query,) = parse_program(member.text).queries
            rows = oracle.results(seeing(query, member.since), {name: [part] for name, part in self.rows.items()})
            found[member.name] += canonical(row for row in rows if member.began <= row["_ts"] < end)
        return found


@pytest.mark.parametrize("reads_again", [True, False])
@pytest.mark.parametrize("seed", mostly_deep(range(3)))
def test_queries_come_and_go_over_lives(seed: int, reads_again: bool) -> None:
    """Queries are registered, replaced and dropped at random, while commits fail and tasks die."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    registry = Registry()
    for number, select in enumerate(SELECTS[:3]):
        registry.register(f"q{number}", select)
    history = TaskHistory(registry, rng, reads_again=reads_again)
    until = 0
    while until < END:
        until += rng.randrange(5, 25)
        if rng.random() < 0.3:
            registry.register(f"q{rng.randrange(6)}", rng.choice(SELECTS), from_now=rng.random() < 0.3)
        if rng.random() < 0.15 and registry.wanted:
            registry.drop(rng.choice(registry.wanted).message.name)
        commit = until >= END or rng.random() < 0.7
        history.epoch(until, commit=commit)
        if until < END and (not commit or rng.random() < 0.2):
            history.die()
    for _ in range(3):
        history.epoch(END, commit=True)
    assert (history.rereads > 0) == reads_again
    expected = history.expected()
    assert {name: canonical(rows) for name, rows in history.out.items()} == {
        n: rows for n, rows in expected.items() if rows
    }
    page = history.metrics.page().decode()
    counted = re.findall(r'weir_group_results_total{member="(.*)",query="g",task="0"} (.*)', page)
    assert {name: float(results) for name, results in counted} == {n: len(rows) for n, rows in history.out.items()}
    for rows in history.out.values():
        times = [row["_ts"] for row in rows]
        assert times == sorted(times)
    newest = {member.name: member for member in history.written}
    running = {name for name, member in newest.items() if member.ended is None} - {BEGAN}
    assert running == {one.message.name for one in registry.wanted} == set(history.program.engine.names)
    assert sum(sum(rows.values()) for rows in expected.values()) > 500


@pytest.mark.parametrize("budget", [False, True])
@pytest.mark.parametrize("seed", mostly_deep(range(4)))
def test_without_transactions_nothing_is_lost(seed: int, budget: bool, tmp_path: Path) -> None:
    """Deaths leave results and records behind that were not committed: some results come twice, none is missing, and
    none is invented."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    registry = Registry()
    for number, select in enumerate(SELECTS[:3]):
        registry.register(f"q{number}", select)
    history = TaskHistory(registry, rng, spilled=tmp_path / "spilled" if budget else None, transactional=False)
    until = 0
    while until < END:
        until += rng.randrange(5, 25)
        if rng.random() < 0.3:
            registry.register(f"q{rng.randrange(5)}", rng.choice(SELECTS[:3]), from_now=rng.random() < 0.3)
        if rng.random() < 0.15 and len(registry.wanted) > 1:
            registry.drop(rng.choice(registry.wanted).message.name)
        for one in registry.wanted:
            if rng.random() < 0.2:
                registry.wait(one.message.name, waits=one.query is not None)
        commit, dies = until >= END or rng.random() < 0.3, until < END and rng.random() < 0.3
        history.epoch(until, commit=commit, written=0.5 if dies else 1.0)
        if rng.random() < 0.3 and history.spill is not None:
            history.spill.clean_up_between_epochs(math.inf)
        if dies:
            history.die()
    for one in registry.wanted:
        registry.wait(one.message.name, waits=False)
    for _ in range(3):
        history.program.engine.clean()
        history.epoch(END, commit=True)
    rows = {name: [part] for name, part in history.rows.items()}
    texts = {(member.name, member.text) for member in history.written if member.name != BEGAN}
    true: dict[str, set[str]] = defaultdict(set)
    for name, text in texts:
        true[name] |= set(canonical(oracle.results(parse_program(text).queries[0], rows)))
    repeated = 0
    for name, wanted in history.expected().items():
        found = canonical(unmarked(history.out[name]))
        assert not wanted - found, name
        assert set(found) <= true[name], name
        repeated += (found - wanted).total()
    assert repeated > 0
    newest = newest_records(history.written)
    assert {m.name for m in newest if m.ended is None} - {BEGAN} == {w.message.name for w in registry.wanted}


@pytest.mark.parametrize("seed", range(3))
def test_without_transactions_an_end_that_was_undone_stays_undone(seed: int) -> None:
    """The record of the end had been written, without a commit. After one more incarnation, the query had ended."""
    registry = Registry()
    registry.register("q0", SELECTS[0])
    history = TaskHistory(registry, random.Random(seed), transactional=False)
    history.epoch(100, commit=True)
    registry.register("q0", SELECTS[1])
    while not any(member.ended for member in history.written):
        history.die()
        registry.wait("q0", waits=True)
        history.epoch(110, commit=False)
        registry.wait("q0", waits=False)
        history.epoch(120, commit=False, written=0.5)
    registry.wait("q0", waits=True)
    for until in (150, END):
        history.die()
        assert history.program.engine.names == ("q0",)
        history.epoch(until, commit=True)
    for name, wanted in history.expected().items():
        assert not wanted - canonical(history.out[name])
    assert max(row["_ts"] for row in history.out["q0"]) > 590


@pytest.mark.parametrize("seed", mostly_deep(range(2)))
def test_queries_come_and_go_within_a_budget(seed: int, tmp_path: Path) -> None:
    """Incarnations have different memory budgets: pending results are late, marked so, and delivered once."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    registry = Registry()
    for number, select in enumerate(SELECTS[:3]):
        registry.register(f"q{number}", select)
    history = TaskHistory(registry, rng, spilled=tmp_path / "spilled")
    until = 0
    while until < END:
        until += rng.randrange(5, 25)
        if rng.random() < 0.2:
            registry.register(f"q{rng.randrange(5)}", rng.choice(SELECTS[:3]), from_now=rng.random() < 0.3)
        if rng.random() < 0.1 and len(registry.wanted) > 1:
            registry.drop(rng.choice(registry.wanted).message.name)
        commit = until >= END or rng.random() < 0.7
        history.epoch(until, commit=commit)
        if rng.random() < 0.3 and history.spill is not None:
            history.spill.clean_up_between_epochs(math.inf)
        if until < END and (not commit or rng.random() < 0.2):
            history.die()
    history.epoch(END, commit=True)
    history.program.engine.clean()
    history.epoch(END, commit=True)
    expected = {name: rows for name, rows in history.expected().items() if rows}
    assert {name: canonical(unmarked(rows)) for name, rows in history.out.items()} == expected
    late = sum(not in_time(row) for rows in history.out.values() for row in rows)
    assert 100 < late < sum(len(rows) for rows in history.out.values())
    for rows in history.out.values():
        times = [row["_ts"] for row in rows if in_time(row)]
        assert times == sorted(times)


def test_the_topic_does_not_grow_with_every_query_that_ends() -> None:
    """Each left a record for ever, whose text was bound whenever a task began."""
    registry = Registry()
    history = TaskHistory(registry, random.Random(5))
    sizes = []
    for until in range(30, END, 30):
        registry.register("q0", PAIRS.format(until, 30))
        registry.register("q1", PAIRS.format(30, until))
        history.epoch(until, commit=True)
        history.epoch(until, commit=True)
        sizes.append(len(history.log))
        if until > END // 2:
            history.die()
    ended = {member.id for member in history.written if member.ended is not None}
    assert len(ended) > 30
    assert sizes[-1] == sizes[len(sizes) // 2 + 1]
    for _ in range(3):
        history.epoch(END, commit=True)
    expected = {name: rows for name, rows in history.expected().items() if rows}
    assert {name: canonical(rows) for name, rows in history.out.items()} == expected


def test_a_query_with_a_longer_window_sees_all_of_it() -> None:
    """Tuples that the group has not kept are read again from the log; a standalone query sees its past, too."""
    registry = Registry()
    registry.register("q0", PAIRS.format(10, 10) + " AND A.v > 5")
    history = TaskHistory(registry, random.Random(1))
    for until in range(20, 300, 20):
        history.epoch(until, commit=True)
    registry.register("q1", PAIRS.format(200, 200))
    registry.register("q2", SELECTS[3])
    registry.register("q3", PAIRS.format(200, 200), from_now=True)
    for until in (300, 320, 320, END, END):
        history.epoch(until, commit=True)
    assert history.rereads == 1
    began = {member.name: (member.began, member.since) for member in history.written if member.began}
    cut = began["q3"][0]
    assert began == {"q1": (cut, {}), "q2": (cut, {}), "q3": (cut, {"A": cut, "B": cut})}
    expected = history.expected()
    assert {name: canonical(rows) for name, rows in history.out.items()} == expected
    assert sum(expected["q1"].values()) > 1.2 * sum(expected["q3"].values())


def test_a_query_sees_only_what_a_later_incarnation_can_find() -> None:
    """A recent incarnation knows no log offsets from before its start; and no incarnation knows how far back the tuples
    of a ROWS window lie."""
    registry = Registry()
    registry.register("q0", PAIRS.format(10, 10))
    history = TaskHistory(registry, random.Random(2))
    for until in range(20, 300, 20):
        history.epoch(until, commit=True)
    history.begin()
    registry.register("q1", PAIRS.format(200, 200))
    for until in (320, 340, 360):
        history.epoch(until, commit=True)
    registry.register("q2", "SELECT A.v, B.v AS w FROM a A [ROWS 90], b B [RANGE 50 MILLISECONDS] WHERE A.k = B.k")
    for until in (380, 400, END, END):
        history.epoch(until, commit=True)
    began = {member.name: (member.began or 0, member.since) for member in history.written if member.began}
    cut, since = began["q1"]
    assert cut - 200 < since["A"] < cut
    assert cut - 200 < since["B"] < cut
    cut, since = began["q2"]
    assert set(since) == {"A"}
    assert {name: canonical(rows) for name, rows in history.out.items()} == history.expected()


def test_a_query_that_waits_holds_nothing_up() -> None:
    """One that has run runs on, though a new incarnation finds its schema missing. A new one begins once it is
    ready, and only then takes the place of another of its name. The others come and go meanwhile."""
    registry = Registry()
    for name in ("q0", "q1", "q2"):
        registry.register(name, PAIRS.format(30, 30))
    registry.wait("q2", waits=True)
    history = TaskHistory(registry, random.Random(4))

    def running(until: int) -> list[str]:
        history.epoch(until, commit=True)
        return sorted(history.program.engine.names)

    assert running(50) == ["q0", "q1"]
    registry.wait("q1", waits=True)
    assert running(100) == ["q0", "q1"]
    history.begin()
    registry.drop("q0")
    registry.register("q3", PAIRS.format(10, 50))
    assert running(150) == ["q1", "q3"]
    registry.register("q3", PAIRS.format(20, 20))
    registry.wait("q3", waits=True)
    assert running(200) == ["q1", "q3"]
    assert {one.name: one.text for one in history.written}["q3"].count("RANGE 50") == 1
    registry.drop("q1")
    registry.wait("q2", waits=False)
    registry.wait("q3", waits=False)
    assert running(250) == ["q2", "q3"]
    assert {one.name: one.text for one in history.written}["q3"].count("RANGE 50") == 0
    for _ in range(3):
        history.epoch(END, commit=True)
    expected = {name: rows for name, rows in history.expected().items() if rows}
    assert {name: canonical(rows) for name, rows in history.out.items()} == expected
    assert all(sum(expected[name].values()) > 50 for name in ("q0", "q1", "q2", "q3"))


def test_the_error_of_a_refused_query_is_written_once() -> None:
    """A query reads a table that no query of the group has read: its error is written, and it is not tried again."""
    registry = Registry()
    registry.register("q0", PAIRS.format(30, 30))
    history = TaskHistory(registry, random.Random(0))
    history.epoch(50, commit=True)
    table = "CREATE TABLE t (k BIGINT) WITH (path = 't.csv');"
    text = f"{DECLARED}{table}INSERT INTO bad SELECT A.v FROM a A [RANGE 1 SECOND], t T WHERE A.k = T.k;"
    message = RegisteredQuery(name="bad", text=text, pick="bad", group="g", id="bad")
    registry.wanted = (*registry.wanted, WantedQuery(message, parse_program(text).queries[0]))
    for until in (100, 150):
        history.epoch(until, commit=True)
        history.begin()
    registry.register("q1", PAIRS.format(10, 10))
    history.epoch(200, commit=True)
    (refused,) = [member for member in history.written if member.error]
    assert (refused.name, refused.began) == ("bad", None)
    assert refused.error == "query 'bad' reads table 't', which no query of the group has read so far"
    assert history.program.engine.names == ("q0", "q1")


def test_a_group_is_checked_before_it_is_registered() -> None:
    """The registration refuses streams that the group does not read, and queries that read each other."""

    def check(select: str, declared: str = DECLARED) -> None:
        check_group_queries("g", parse_program(DECLARED).streams, parse_program(f"{declared}{select}").queries)

    check(f"INSERT INTO q {PAIRS.format(1, 1)}")
    other = DECLARED + "CREATE STREAM c (k BIGINT) WITH (topic = 'c');"
    with pytest.raises(UsageError, match="stream 'c', which query 'q' reads, and that is not read by group 'g'"):
        check("INSERT INTO q SELECT C.k FROM c C [RANGE 1 SECOND], a A [RANGE 1 SECOND] WHERE A.k = C.k", other)
    with pytest.raises(UsageError, match="stream 'a', which query 'q' declares otherwise than group 'g'"):
        check(f"INSERT INTO q {PAIRS.format(1, 1)}", DECLARED.replace("topic = 'a'", "topic = 'a2'"))
    with pytest.raises(UsageError, match="query 'q' reads what query 'b' of the same group writes, topic 'b'"):
        check(f"INSERT INTO b SELECT A.v FROM a A [RANGE 1 SECOND]; INSERT INTO q {PAIRS.format(1, 1)}")
    with pytest.raises(UsageError, match="begin it with INSERT INTO 'topic'"):
        check(PAIRS.format(1, 1))
