"""A group that dies at any point is rebuilt from the log and the records of its queries, and continues exactly."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.groups.engine import GroupEngine
from operators.groups.sharing import APART
from schemas.language.program import parse_program
from tests.feeding import to_rows
from tests.group_cases import GroupCase, group_cases
from tests.operators.group_lives import GroupLife
from tests.operators.stays import Stays
from tests.profiles import PROPERTY

TURNS = st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=6)


class GroupIncarnations:
    """Incarnations of a group's task, while queries are added and dropped."""

    def __init__(self, case: GroupCase, executor: str | None) -> None:
        self.stays = Stays(case)
        self.results: dict[str, list[dict[str, Any]]] = {query.name: [] for query in case.queries}
        self._now = GroupLife(case, self.stays.running.values(), {}, executor=executor)
        self._executor = executor

    @property
    def engine(self) -> GroupEngine:
        """Of the present incarnation."""
        return self._now.engine

    def turn(self, size: int, *, last: bool = False) -> None:
        """See `GroupLife.turn`."""
        for name, found in self._now.turn(size, last=last).items():
            self.results[name] += to_rows(found)

    def die(self) -> None:
        """The next incarnation takes over."""
        dead, stays = self._now, self.stays
        self._now = GroupLife(dead.case, stays.running.values(), stays.since, executor=self._executor)
        self._now.read_again(dead.at, dead.points(), dead.engine.cut, dead.repeats)


@PROPERTY
@given(group_cases(most_rows=14, tables=False), TURNS, st.data(), st.sampled_from([None, APART]))
def test_queries_come_and_go_and_the_task_dies(
    case: GroupCase, turns: list[tuple[int, bool]], data: st.DataObject, executor: str | None
) -> None:
    """Whatever is added or dropped between deaths, every query finds what it finds alone with the tuples that it
    sees."""
    task = GroupIncarnations(case, executor)
    for size, dies in turns:
        task.turn(size)
        task.stays.change(task.engine, data)
        if dies:
            task.die()
            assert set(task.engine.names) == set(task.stays.running)
    task.turn(0, last=True)
    task.stays.judge(task.results)


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
    """An incarnation without these tuples would emit their group as if it had just come into being."""
    (query,) = parse_program(COUNTED.format(sources)).queries
    rows = {name: [[{"k": 1, "ts": ts} for ts in times]] for name, times in (("a", a), ("b", b)) if times}
    case = GroupCase((query,), rows, [1], 1)
    task = GroupIncarnations(case, None)
    while task.engine.cut < 15:
        task.turn(1)
    assert {name: task.engine.horizon(name) for name in rows} == needed
    task.die()
    task.turn(0, last=True)
    task.stays.judge(task.results)
