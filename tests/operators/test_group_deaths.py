"""A group that dies at any point is rebuilt from the log and what was noted of its queries, and goes on exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.groups.parts import APART, group_engine
from schemas.groups import streams_of
from schemas.language import parse_program
from tests.feeding import partitions_of, to_batch, to_rows
from tests.group_cases import GroupCase, group_cases
from tests.operators.profiles import PROPERTY
from tests.operators.stays import Stays

TURNS = st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=6)


class GroupLife:
    """One life of a group's task: an engine and how far each partition has been consumed."""

    def __init__(self, case: GroupCase, stays: Stays, executor: str | None) -> None:
        self.case = case
        self.streams = {stream.name: stream for stream in streams_of(case.queries)}
        self.stays = stays
        self.engine = group_engine(
            list(stays.running.values()),
            executor=executor,
            streams=list(self.streams.values()),
            partitions=partitions_of(case.rows),
            since=stays.since,
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
        born = GroupLife(self.case, self.stays, executor)
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
    life = GroupLife(case, Stays(case), executor)
    got: dict[str, list[dict[str, Any]]] = {query.name: [] for query in case.queries}
    for size, dies in turns:
        life.turn(size, got)
        life.stays.change(life.engine, data)
        if dies:
            life = life.heir(executor)
            assert set(life.engine.names) == set(life.stays.running)
    life.turn(0, got, last=True)
    life.stays.judge(got)


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
    life = GroupLife(case, Stays(case), None)
    got: dict[str, list[dict[str, Any]]] = {"counts": []}
    while life.engine.cut < 15:
        life.turn(1, got)
    assert {name: life.engine.horizon(name) for name in rows} == needed
    life = life.heir(None)
    life.turn(0, got, last=True)
    life.stays.judge(got)
