"""A group of queries on a real broker: queries are registered, added and dropped while workers run the group, and at
the end each query's topic is checked.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

from schemas.groups import seeing
from schemas.language.program import parse_program
from schemas.messages.control import MemberRecord, decode_control
from schemas.query import Query, Source, Window
from services.kafka.readback import read_to_end
from services.kafka.topics import ControlTopics
from services.process.security import KafkaClients
from services.registry.group_registration import register_in_group
from services.registry.group_registry import drop_from_group, find_group
from tests import oracle
from tests.broker_fixture import Topics
from tests.worker_harness import Case, Reader, Row, WorkerProcess, canonical, in_time, unmarked, wait_for

STREAMS = """
CREATE STREAM temperature (mote BIGINT, room STRING, celsius DOUBLE, at TIMESTAMP)
  WITH (topic = '{temperature}', format = 'json', timestamp = 'at', disorder = '200 MILLISECONDS');
CREATE STREAM humidity (mote BIGINT, room STRING, percent DOUBLE, at TIMESTAMP)
  WITH (topic = '{humidity}', format = 'json', timestamp = 'at', disorder = '200 MILLISECONDS');
CREATE STREAM light (mote BIGINT, lux DOUBLE, at TIMESTAMP)
  WITH (topic = '{light}', format = 'json', timestamp = 'at', disorder = '200 MILLISECONDS');
"""
READS = (
    "SELECT T.mote FROM temperature T, humidity H, light L WINDOW RANGE 1 SECOND WHERE T.mote = H.mote AND "
    "H.mote = L.mote"
)


def select(rng: random.Random, *, joins: bool = False) -> str:
    """A query that has much in common with others; with `joins` it has no aggregates."""
    wide, narrow, hot = rng.choice([200, 300, 400]), rng.choice([150, 300]), rng.randint(5, 35)
    t, h = f"temperature T [RANGE {wide} MILLISECONDS]", f"humidity H [RANGE {narrow} MILLISECONDS]"
    light = f"light L [RANGE {wide} MILLISECONDS]"
    texts = [
        f"SELECT T.mote, T.celsius, H.percent FROM {t}, {h} WHERE T.mote = H.mote AND T.celsius > {hot}",
        f"SELECT T.mote, H.percent, L.lux FROM {t}, {h}, {light} "
        f"WHERE T.mote = H.mote AND L.mote = H.mote AND T.room = H.room AND H.percent < {hot}",
        f"SELECT T.mote, T.celsius, L.lux FROM {t}, {light} "
        f"WHERE T.mote = L.mote AND L.lux < T.celsius + {hot} AND T.at > L.at",
        f"SELECT H.mote, H.percent, L.lux FROM {h}, {light} WHERE H.mote = L.mote AND H.percent * 2 > L.lux - {hot}",
        f"SELECT T.mote, H.percent FROM temperature T [ROWS {hot}], {h} WHERE T.mote = H.mote",
        f"SELECT T.room, COUNT(*) AS n FROM {t}, {h} WHERE T.mote = H.mote AND T.celsius > {hot} "
        "GROUP BY T.room EMIT EVERY 250 MILLISECONDS",
    ]
    return rng.choice(texts[:-1] if joins else texts)


@dataclass
class GroupTrial:
    """A registered group over fresh topics.

    Attributes:
        case: what its workers read; its `query` is not registered.
        selects: of the queries that are registered now, by sink.
        options: what follows INSERT INTO and the sink.
    """

    case: Case
    name: str
    declared: str
    folder: Path
    selects: dict[str, str] = field(default_factory=dict)
    options: str = ""

    @staticmethod
    def make(
        topics: Topics, folder: Path, partitions: int = 1, streams: str = STREAMS, reads: str = READS
    ) -> GroupTrial:
        """Make the topics; no query is registered yet. `reads` is a query over all streams."""
        case = Case.make(topics, folder, f"{streams}INSERT INTO '{{sink}}' {reads}", partitions=partitions)
        name = f"g{case.sink.rpartition('-')[2]}"
        declared = case.path.read_text().partition("INSERT")[0]
        sources = tuple(Source(s.name, s, Window("UNBOUNDED")) for s in case.query.joined_streams())
        lookups = tuple(replace(one, of=sources[0].alias, key=()) for one in case.query.lookups)
        nobodys = Query(name, None, sources, (), (), lookups=lookups)
        return GroupTrial(Case(case.bootstrap, nobodys, Path(name), partitions, case.rows), name, declared, folder)

    @property
    def clients(self) -> KafkaClients:
        return KafkaClients(self.case.bootstrap)

    def weir(self, *arguments: str, code: int = 0) -> str:
        """Run `weir query`; returns its output, or its error where it must end with another code."""
        command = [sys.executable, "-m", "services.cli", "query", *arguments, "--bootstrap", self.case.bootstrap]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == code, f"{arguments}: {done.stderr}"
        return done.stderr if code else done.stdout

    def file(self, selects: dict[str, str]) -> Path:
        """Write a query file; the keys are parts of the sinks' names."""
        path = self.folder / f"{'-'.join(selects)}.sql"
        queries = (f"INSERT INTO '{self.name}-{sink}' {self.options}\n{text};\n" for sink, text in selects.items())
        path.write_text(self.declared + "".join(queries))
        return path

    def register(self, selects: dict[str, str], *, from_now: bool = False) -> None:
        """Register queries; the keys are parts of their sinks' names."""
        text = self.file(selects).read_text()
        register_in_group(self.clients, self.name, text, None, from_now=from_now, replication=-1)
        self.selects |= {f"{self.name}-{sink}": text for sink, text in selects.items()}

    def drop(self, sink: str) -> None:
        """Drop a query."""
        entry = find_group(self.clients, self.name)
        assert entry is not None
        drop_from_group(self.clients, entry, f"{self.name}-{sink}")
        del self.selects[f"{self.name}-{sink}"]

    def members(self) -> list[MemberRecord]:
        """The newest record of each registration that each of the group's tasks has written."""
        found: dict[tuple[int, str], MemberRecord] = {}
        topic = ControlTopics.of(f"weir-{self.name}").members
        for _, message in read_to_end(self.clients, (topic, 0)):
            member = decode_control(message.value(), "members")
            assert isinstance(member, MemberRecord)
            if member.name:
                found[member.task, member.id] = member
        return list(found.values())

    def wait_begun(self, worker: WorkerProcess) -> None:
        """Wait until exactly the registered queries run, and no query that had one of their names before."""
        wait_for(self.begun, lambda: worker.with_log(f"{self.selects.keys()}, have {self._running().keys()}"))

    def begun(self) -> bool:
        """Whether exactly the registered queries run."""
        said = {name: f"INSERT INTO '{name}' {self.options}\n{text}" for name, text in self.selects.items()}
        running = self._running()
        return running.keys() == said.keys() and all(said[name] in running[name] for name in said)

    def _running(self) -> dict[str, str]:
        """The texts of the queries that run in every task."""
        members = self.members()
        tasks = {m.task for m in members}
        found = {m.name: m.text for m in members if m.began is not None and m.ended is None}
        counts = Counter(m.name for m in members if m.began is not None and m.ended is None)
        return {name: text for name, text in found.items() if counts[name] == len(tasks)}

    def expected(self) -> dict[str, Counter[str]]:
        """By sink, all results of its queries from start to end, over the tuples that they see."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for member in self.members():
            (query,) = [q for q in parse_program(member.text).queries if q.name == member.pick]
            assert member.began is not None, member.error
            end = 2**62 if member.ended is None else member.ended
            rows = oracle.results(seeing(query, member.since), self._read_by(member.task))
            found[member.name] += canonical(row for row in rows if member.began <= row["_ts"] < end)
        return dict(found)

    def _read_by(self, task: int) -> dict[str, list[list[Row]]]:
        """What a task reads: a partition of each stream, if the group is split."""
        entry = find_group(self.clients, self.name)
        if entry is None or entry.declared.partitioned is not True:
            return self.case.rows
        return {stream: [parts[task]] for stream, parts in self.case.rows.items()}

    def judge(self, worker: WorkerProcess) -> int:
        """Check every topic: each result once, those in time in order; returns the number of results."""
        expected = self.expected()
        for sink, rows in expected.items():
            reader = Reader(self.case.bootstrap, sink)
            reader.wait_for_count(sum(rows.values()), worker.alive)
            found = reader.rows()
            times: dict[int, list[int]] = defaultdict(list)
            for record, row in zip(reader.records, found, strict=True):
                if in_time(row):
                    times[record.partition].append(row["_ts"])
            found = unmarked(found)
            reader.close()
            missing, extra = rows - canonical(found), canonical(found) - rows
            wrong = missing or extra
            assert not wrong, worker.with_log(
                f"{sink}: {sum(missing.values())} results missing, {sum(extra.values())} too many; "
                f"missing {list(missing)[:3]}, too many {list(extra)[:3]}; "
                f"{[(m.name, m.id, m.began, m.ended, m.since) for m in self.members()]}"
            )
            assert all(own == sorted(own) for own in times.values()), sink
        return sum(sum(rows.values()) for rows in expected.values())
