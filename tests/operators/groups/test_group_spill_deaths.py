"""A group within a memory budget dies at any moment, and its next incarnation continues from the input and the spill
log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from operators.data.watermark import END
from operators.groups.engine import EndedQuery
from operators.groups.sharing import JUGGLER
from operators.spill.spilling import MemoryBudget
from schemas.columns import Batch
from schemas.groups import seeing
from schemas.messages.spills import SpillEvent, decode_events, encode_events
from schemas.query import Query
from tests import oracle
from tests.feeding import canonical, to_rows
from tests.group_cases import GroupCase, group_cases
from tests.operators.group_lives import GroupLife
from tests.operators.groups.test_group_spill import BUDGETS, SIZES, cramped
from tests.operators.spill.memory_blocks import MemoryBlocks
from tests.profiles import PROPERTY

TURNS = st.lists(
    st.tuples(st.integers(1, 5), st.sampled_from(["go on", "die", "die uncommitted"])), min_size=1, max_size=8
)
"""Per turn the number of records of each partition that are consumed, and what happens then."""


@dataclass(frozen=True)
class Commit:
    """What this transaction and those before it have written.

    Attributes:
        at: consumed of each partition.
        points: where the next incarnation starts reading, and the clock there.
        since, begins, ends: of queries, as far as they are known.
        log: spill events that a recovery needs.
        repeats: positions of repeats, by stream.
        on_time: results in time.
        late: the other results.
    """

    queries: dict[str, Query]
    cut: int = 0
    at: dict[tuple[str, int], int] = field(default_factory=dict)
    points: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    since: dict[str, dict[str, int]] = field(default_factory=dict)
    begins: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    log: tuple[SpillEvent, ...] = ()
    repeats: dict[str, list[int]] = field(default_factory=dict)
    on_time: tuple[tuple[str, dict[str, Any]], ...] = ()
    late: tuple[tuple[str, dict[str, Any]], ...] = ()


class GroupIncarnation:
    """One incarnation of a group's task, which begins at a commit.

    Attributes:
        engine: its cut is that of the commit.
    """

    def __init__(self, case: GroupCase, limit: int, commit: Commit) -> None:
        self.now = commit
        self._task = GroupLife(
            case,
            commit.queries.values(),
            commit.since,
            began=commit.begins,
            ended=self._ended(case, commit),
            executor=JUGGLER,
            budget=MemoryBudget(limit, "bottom-up"),
            blocks=MemoryBlocks(),
        )
        self.engine = self._task.engine
        self.engine.play_spills(commit.log, commit.cut)
        self._task.read_again(commit.at, commit.points, commit.cut, commit.repeats)
        assert not any(len(batch) for batches in self.engine.cleaned().values() for batch in batches)
        self.found: list[tuple[str, dict[str, Any]]] = []

    def _ended(self, case: GroupCase, commit: Commit) -> list[EndedQuery]:
        """Queries that have ended and may have pending results."""
        settled = commit.log[-1].settled if commit.log else END
        return [
            EndedQuery(query, commit.since.get(query.name, {}), commit.begins[query.name], commit.ends[query.name])
            for query in case.queries
            if commit.ends.get(query.name, 0) > settled
        ]

    def turn(self, size: int, *, last: bool = False) -> None:
        """See `GroupLife.turn`."""
        for name, batch in self._task.turn(size, last=last).items():
            self.found += named(name, [batch])

    def begin(self, query: Query, *, from_now: bool) -> None:
        """Add a query."""
        seen = self.engine.add(query, from_now=from_now)
        self.now = replace(
            self.now,
            queries=self.now.queries | {query.name: query},
            since=self.now.since | {query.name: seen},
            begins=self.now.begins | {query.name: self.engine.cut},
        )

    def end(self, name: str) -> None:
        """Drop a query."""
        self.engine.drop(name)
        queries = {other: query for other, query in self.now.queries.items() if other != name}
        self.now = replace(self.now, queries=queries, ends=self.now.ends | {name: self.engine.cut})

    def commit(self) -> Commit:
        """Write everything that has happened."""
        late = [row for name, batches in self.engine.cleaned().items() for row in named(name, batches)]
        written = decode_events(encode_events(self.engine.spill_events(), 1, ""), 1, "the log").events
        log = (*self.now.log, *written)
        while log and log[0].at <= self.engine.spills_needed_from():
            log = log[1:]
        self.now = replace(
            self.now,
            cut=self.engine.cut,
            at=dict(self._task.at),
            points=self._task.points(),
            log=log,
            repeats={name: list(places) for name, places in self._task.repeats.items()},
            on_time=(*self.now.on_time, *self.found),
            late=(*self.now.late, *late),
        )
        self.found = []
        return self.now


def named(name: str, batches: Iterable[Batch]) -> list[tuple[str, dict[str, Any]]]:
    """Results with their query's name."""
    return [(name, row) for batch in batches for row in to_rows(batch)]


@PROPERTY
@given(
    group_cases(aggregates=False, least_rows=8, most_rows=16, least_aliases=2, tables=False),
    BUDGETS,
    SIZES,
    TURNS,
    st.data(),
)
def test_a_successor_finds_the_pending_results_of_the_dead(
    case: GroupCase, limit: int, sizes: tuple[int, int], turns: list[tuple[int, str]], data: st.DataObject
) -> None:
    """Through deaths, before a commit and after, while queries are added and dropped and cleanup runs a few steps at a
    time."""
    with cramped(sizes):
        _through_deaths(case, limit, turns, data)


def _through_deaths(case: GroupCase, limit: int, turns: list[tuple[int, str]], data: st.DataObject) -> None:
    first = case.queries[0]
    committed = Commit({first.name: first}, begins={first.name: 0})
    task = GroupIncarnation(case, limit, committed)
    for size, then in turns:
        task.turn(size)
        for query in case.queries[1:]:
            if query.name not in task.now.begins and data.draw(st.booleans()):
                task.begin(query, from_now=data.draw(st.booleans()))
        for name in task.engine.names:
            if data.draw(st.integers(0, 5)) == 0:
                task.end(name)
        for _ in range(data.draw(st.integers(0, 3))):
            task.engine.clean(1)
        if then != "die uncommitted":
            committed = task.commit()
        if then != "go on":
            task = GroupIncarnation(case, data.draw(BUDGETS), committed)
            assert set(task.engine.names) == set(committed.queries)
    task.turn(0, last=True)
    task.engine.clean()
    committed = task.commit()
    for query in case.queries:
        expected = []
        if query.name in committed.begins:
            rows = oracle.results(seeing(query, committed.since.get(query.name, {})), case.given(query))
            end = committed.ends.get(query.name, 2**63)
            expected = [row for row in rows if committed.begins[query.name] <= row["_ts"] < end]
        own = [row for name, row in committed.on_time if name == query.name]
        late = [row for name, row in committed.late if name == query.name]
        assert canonical(own + late) == canonical(expected)
        times = [row["_ts"] for row in own]
        assert times == sorted(times)
