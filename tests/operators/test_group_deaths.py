"""A group that dies at any point is rebuilt from the log and what was noted of its queries, and goes on exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.groups.parts import APART, group_engine
from schemas.groups import seeing, streams_of
from schemas.language import parse_program
from schemas.query import Query
from tests import oracle
from tests.feeding import canonical, partitions_of, to_batch, to_rows
from tests.group_cases import GroupCase, group_cases
from tests.operators.profiles import PROPERTY

TURNS = st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=6)


class GroupLife:
    """One life of a group's task: an engine and how far each partition has been consumed.

    Attributes:
        since: by query, what it sees; of those that run.
    """

    def __init__(
        self, case: GroupCase, queries: list[Query], since: dict[str, dict[str, int]], executor: str | None
    ) -> None:
        self.case = case
        self.streams = {stream.name: stream for stream in streams_of(case.queries)}
        self.queries = {query.name: query for query in queries}
        self.since = dict(since)
        self.engine = group_engine(
            queries,
            executor=executor,
            streams=list(self.streams.values()),
            partitions=partitions_of(case.rows),
            since=since,
        )
        self.at = {(name, p): 0 for name, parts in case.rows.items() for p in range(len(parts))}

    def push(self, name: str, p: int, begin: int, stop: int) -> None:
        """Push rows begin .. stop of a partition under their log offsets."""
        rows = self.case.rows[name][p][begin:stop]
        if rows:
            batch = to_batch(self.streams[name], rows)
            self.engine.push(name, p, batch, np.arange(begin, begin + len(rows)))
        self.at[name, p] = max(self.at[name, p], begin + len(rows))

    def turn(self, size: int, out: dict[str, list[dict[str, Any]]], *, last: bool = False) -> None:
        """Consume a little of every partition, or all of the rest, then advance as far as the watermark allows."""
        for (name, p), begin in list(self.at.items()):
            self.push(name, p, begin, len(self.case.rows[name][p]) if last else begin + size)
            if last:
                self.engine.close(name, p)
        for name, found in self.engine.advance().items():
            out[name] += to_rows(found)

    def heir(self, executor: str | None) -> GroupLife:
        """The next life, which has read again no more than the horizons say."""
        born = GroupLife(self.case, list(self.queries.values()), self.since, executor)
        for (name, p), position in self.at.items():
            point = self.engine.replay_point(name, p, self.engine.horizon(name))
            born.engine.set_clock(name, p, point.max_ts)
            born.push(name, p, point.offset, position)
            born.at[name, p] = position
        born.engine.advance(self.engine.cut)
        return born


@PROPERTY
@given(group_cases(most_rows=14, tables=False), TURNS, st.data(), st.sampled_from([None, APART]))
def test_queries_come_and_go_and_the_task_dies(
    case: GroupCase, turns: list[tuple[int, bool]], data: st.DataObject, executor: str | None
) -> None:
    """Whatever comes and goes between deaths, every query gives what it gives alone of the tuples that it sees."""
    life = GroupLife(case, list(case.queries[:1]), {}, executor)
    waiting = list(case.queries[1:])
    begins, sees = {case.queries[0].name: 0}, {case.queries[0].name: case.queries[0]}
    ends: dict[str, int] = {}
    got: dict[str, list[dict[str, Any]]] = {query.name: [] for query in case.queries}
    for size, dies in turns:
        life.turn(size, got)
        for query in list(waiting):
            if data.draw(st.booleans()):
                waiting.remove(query)
                seen = life.engine.add(query, from_now=data.draw(st.booleans()))
                life.queries[query.name], life.since[query.name] = query, seen
                begins[query.name], sees[query.name] = life.engine.cut, seeing(query, seen)
        for name in life.engine.names:
            if data.draw(st.integers(0, 3)) == 0:
                life.engine.drop(name)
                del life.queries[name]
                life.since.pop(name, None)
                ends[name] = life.engine.cut
        if dies:
            life = life.heir(executor)
            assert set(life.engine.names) == set(life.queries)
    life.turn(0, got, last=True)
    for query in case.queries:
        expected = []
        if query.name in begins:
            rows = oracle.results(sees[query.name], case.given(query))
            end = ends.get(query.name, 2**63)
            expected = [row for row in rows if begins[query.name] <= row["_ts"] < end]
        assert canonical(got[query.name]) == canonical(expected)
        times = [row["_ts"] for row in got[query.name]]
        assert times == sorted(times)


COUNTED = """
CREATE STREAM a (k BIGINT, ts TIMESTAMP) WITH (topic = 'a', timestamp = 'ts');
CREATE STREAM b (k BIGINT, ts TIMESTAMP) WITH (topic = 'b', timestamp = 'ts');
INSERT INTO counts SELECT COUNT(*) AS n FROM {} EMIT EVERY 10 MILLISECONDS;
"""
BOTH = "a A [RANGE 8 MILLISECONDS], b B [RANGE 5 MILLISECONDS]"


@pytest.mark.parametrize(
    ("sources", "a", "b", "needed"),
    [
        # Alive at 10, for the last time.
        (BOTH, [2, 15, 40], [10, 15, 40], {"a": 2, "b": 5}),
        (BOTH.replace("b B", "a B"), [2, 10, 15, 40], [], {"a": 2}),
        # Nothing is joined with it: only the count still needs it.
        ("a A [RANGE 8 MILLISECONDS]", [2, 15, 40], [], {"a": 2}),
        ("a A [UNBOUNDED]", [0, 15, 40], [], {"a": 0}),
    ],
)
def test_what_was_alive_when_aggregates_were_emitted_last_is_read_again(
    sources: str, a: list[int], b: list[int], needed: dict[str, int]
) -> None:
    """A heir that missed it would emit its group as if it had just come into being."""
    (query,) = parse_program(COUNTED.format(sources)).queries
    rows = {name: [[{"k": 1, "ts": ts} for ts in times]] for name, times in (("a", a), ("b", b)) if times}
    case = GroupCase((query,), rows, [1], 1)
    life = GroupLife(case, [query], {}, None)
    got: dict[str, list[dict[str, Any]]] = {"counts": []}
    while life.engine.cut < 15:
        life.turn(1, got)
    assert {name: life.engine.horizon(name) for name in rows} == needed
    life = life.heir(None)
    life.turn(0, got, last=True)
    assert canonical(got["counts"]) == canonical(oracle.results(query, rows))
