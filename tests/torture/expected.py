"""Computes the expected outcome of a trial from the contents of its input topics.

The rules are `tests.oracle`'s: lateness, windows, expressions, aggregates. Two things are computed here, since the
oracle's nested loops would take minutes for a trial: combinations, with an index per equality, and the changes of a set
difference, as intervals of each tuple. `test_verdict.py` compares both with the oracle.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas import query as q
from schemas.language.program import parse_program
from tests import oracle
from tests.faults.workload import BAD, canonical
from tests.torture.data import Record, Row
from tests.torture.scenario import Scenario

Place = tuple[str, int, int]
"""Stream, partition, offset."""

Content = tuple[bytes | None, bytes | None]
"""The key and the value of a record."""

Log = Mapping[tuple[str, int], Sequence[tuple[int, Content]]]
"""The contents of the input topics: offsets, keys and values by stream and partition."""


@dataclass(frozen=True)
class Stay:
    """The run of a query of a group in one task, as the task reports it: results from `began` on and before `ended`,
    over tuples with ts >= `since` by alias."""

    task: int
    sink: str
    text: str
    began: int
    ended: int | None
    since: Mapping[str, int]


@dataclass
class Expected:
    """Results by sink, and the late and dead-letter records by stream, partition and offset."""

    results: dict[str, Counter[str]] = field(default_factory=dict)
    late: dict[Place, bytes | None] = field(default_factory=dict)
    dead: dict[Place, tuple[bytes | None, str]] = field(default_factory=dict)

    def total(self) -> int:
        """The number of all records that must arrive."""
        return sum(found.total() for found in self.results.values()) + len(self.late) + len(self.dead)


class Truth:
    """The tuples of a trial's input.

    Args:
        known: every record that may be in the log.
    """

    def __init__(self, scenario: Scenario, prefix: str, known: Iterable[Record], log: Log) -> None:
        self.scenario = scenario
        self.prefix = prefix
        self.rows: dict[str, list[list[Row]]] = {
            f"s{alias.lower()}": [[] for _ in range(scenario.count(alias))] for alias in scenario.inputs
        }
        self.expected = Expected()
        self._places: dict[tuple[str, int], list[tuple[int, bytes | None]]] = defaultdict(list)
        by_content = {(record.key, record.value): record for record in known}
        for (stream, partition), entries in sorted(log.items()):
            for offset, (key, value) in entries:
                record = by_content[key, value]
                if record.row is None:
                    self.expected.dead[stream, partition, offset] = (value, BAD[record.bad][1])
                elif record.row.get("items", True):  # without elements it is no tuple
                    self.rows[stream][partition].append(record.row)
                    self._places[stream, partition].append((offset, value))
        program = parse_program(scenario.text(prefix))
        self._streams = {stream.name: stream for stream in program.streams}
        self.end = self._watermark()
        for (stream, partition), places in self._places.items():
            judged = oracle.with_lateness(self._streams[stream], self.rows[stream][partition])
            for (offset, value), (_, late) in zip(places, judged, strict=True):
                if late:
                    self.expected.late[stream, partition, offset] = value

    def _watermark(self) -> int:
        """The event time up to which all results are complete once all input has been processed."""
        return min(
            max((row["at"] for row in rows), default=0) - self._streams[stream].disorder_ms
            for stream, parts in self.rows.items()
            for rows in parts
        )

    def judge_by(self, stays: Sequence[Stay]) -> Expected:
        """The expected outcome, with the results of the scenario's query, or of a group's queries."""
        if self.scenario.group:
            for sink in {stay.sink for stay in stays}:
                self.expected.results[sink] = Counter()
            for stay in stays:
                only = stay.task if self.scenario.partition_by else None
                rows = self.results(stay.text, stay.sink, stay.since, only)
                last = self.end + 1 if stay.ended is None else stay.ended
                self.expected.results[stay.sink] += canonical(r for r in rows if stay.began <= r["_ts"] < last)
            return self.expected
        sink = f"{self.prefix}.q"
        rows = self.results(self.scenario.text(self.prefix), sink, {})
        self.expected.results[sink] = canonical(row for row in rows if row["_ts"] <= self.end)
        return self.expected

    def results(self, text: str, sink: str, since: Mapping[str, int], only: int | None = None) -> list[Row]:
        """All results of one query over the input, or over one partition of it; those of the closing tuples too."""
        (query,) = [one for one in parse_program(text).queries if one.sink == sink]
        given = self.rows
        if only is not None:
            given = {name: [rows if n == only else [] for n, rows in enumerate(parts)] for name, parts in given.items()}
        streams = oracle.in_order(query, given)
        if query.subtracted:
            return changes(query, streams)
        found = [bound for bound in combinations(query, streams) if all(bound[a].ts >= ts for a, ts in since.items())]
        if query.aggregation is not None:
            return oracle.emissions(query, query.aggregation, streams, found)
        return [
            {output.name: oracle.evaluate(output.expr, bound) for output in query.outputs}
            | {"_ts": oracle.latest(bound).ts}
            for bound in found
        ]


def combinations(query: q.Query, streams: Mapping[str, Sequence[oracle.Tuple]]) -> list[oracle.Bound]:
    """Like `oracle.combinations`, but finds candidates by an equality with a bound tuple, where there is one."""
    checks = oracle.first_checks(query)
    indexes: dict[str, tuple[q.ColumnRef, dict[Any, list[oracle.Tuple]]]] = {}
    for n, source in enumerate(query.sources):
        bound_before = {s.alias for s in query.sources[:n]}
        for check in checks[source.alias]:
            pair = _equality(check, source.alias, bound_before)
            if pair is not None:
                own, other = pair
                index: dict[Any, list[oracle.Tuple]] = defaultdict(list)
                for tuple_ in streams[source.stream.name]:
                    if tuple_.row.get(own.name) is not None:
                        index[tuple_.row[own.name]].append(tuple_)
                indexes[source.alias] = (other, index)
                break
    found: list[oracle.Bound] = []

    def extend(bound: dict[str, oracle.Tuple]) -> None:
        if len(bound) == len(query.sources):
            found.append(bound)
            return
        source = query.sources[len(bound)]
        candidates: Sequence[oracle.Tuple] = streams[source.stream.name]
        if source.alias in indexes:
            other, index = indexes[source.alias]
            candidates = index.get(bound[other.alias].row.get(other.name), [])
        for candidate in oracle.near(query, bound, source, candidates):
            now = {**bound, source.alias: candidate}
            if oracle.all_alive(query, now) and all(oracle.evaluate(p, now) is True for p in checks[source.alias]):
                extend(now)

    extend({})
    return sorted(found, key=lambda bound: oracle.latest(bound).position)


def _equality(check: q.Expr, alias: str, bound: set[str]) -> tuple[q.ColumnRef, q.ColumnRef] | None:
    """The column of `alias` and that of a bound alias, if the predicate is an equality of the two."""
    if not (isinstance(check, q.Compare) and check.op == "="):
        return None
    sides = (check.left, check.right)
    for own, other in (sides, sides[::-1]):
        columns = isinstance(own, q.ColumnRef) and isinstance(other, q.ColumnRef)
        if columns and own.alias == alias and other.alias in bound:
            return own, other
    return None


def changes(query: q.Query, streams: Mapping[str, Sequence[oracle.Tuple]]) -> list[Row]:
    """Like `oracle.changes`, but from the instants at which each tuple of the first stream enters and leaves the
    answer."""
    first = query.sources[0]
    forever = 2**62
    lifetimes: dict[str, list[tuple[oracle.Tuple, int, int]]] = {}
    for source in query.sources:
        lifetimes[source.alias] = []
        for tuple_ in streams[source.stream.name]:
            begin, dead = oracle.instants(source.window, tuple_, streams[source.stream.name])
            lifetimes[source.alias].append((tuple_, begin, forever if dead is None else dead))
    longest = {alias: max((dead - begin for _, begin, dead in of), default=0) for alias, of in lifetimes.items()}
    found: list[tuple[int, int, int, Row]] = []
    for tuple_, begin, dead in lifetimes[first.alias]:
        if not all(oracle.evaluate(p, {first.alias: tuple_}) is True for p in query.predicates):
            continue
        blocked: list[tuple[int, int]] = []
        for part in query.subtracted:
            others = lifetimes[part.alias]
            start = bisect_left(others, begin - longest[part.alias], key=lambda lifetime: lifetime[1])
            for other, other_begin, other_dead in others[start:]:
                if other_begin >= dead:
                    break
                bound = {first.alias: tuple_, part.alias: other}
                overlaps = other_dead > begin and other_begin < other_dead
                if overlaps and all(oracle.evaluate(p, bound) is True for p in part.on):
                    blocked.append((other_begin, other_dead))
        values = {output.name: oracle.evaluate(output.expr, {first.alias: tuple_}) for output in query.outputs}
        for come, gone in _free(begin, dead, blocked):
            found.append((come, 1, tuple_.position, values | {"_op": "+", "_ts": come}))
            if gone < forever:
                found.append((gone, 0, tuple_.position, values | {"_op": "-", "_ts": gone}))
    return [row for *_, row in sorted(found, key=lambda entry: entry[:3])]


def _free(begin: int, end: int, blocked: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The parts of [begin, end) outside the blocked intervals."""
    found = []
    for low, high in sorted(blocked):
        if low > begin:
            found.append((begin, min(low, end)))
        begin = max(begin, high)
        if begin >= end:
            return found
    return [*found, (begin, end)] if begin < end else found


def stays(members: Iterable[bytes]) -> tuple[list[Stay], list[str]]:
    """The runs of a group's queries, by the newest record of each registration in each task; and the errors of queries
    that the group could not take."""
    last: dict[tuple[str, int], dict[str, Any]] = {}
    for value in members:
        message = json.loads(value)
        if message.get("text"):
            last[message["id"], message["task"]] = message
    found, wrong = [], []
    for message in last.values():
        if message.get("began") is None:
            wrong.append(f"{message['name']} was left out: {message.get('error')}")
            continue
        since = message.get("since") or {}
        if any(ts > message["began"] for ts in since.values()):
            wrong.append(f"{message['name']} began at {message['began']} and sees less than what came then: {since}")
        found.append(
            Stay(message["task"], message["name"], message["text"], message["began"], message.get("ended"), since)
        )
    return found, wrong
