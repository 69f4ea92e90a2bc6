"""A group within a memory budget dies at any moment, and an heir goes on from the input and the log of what left."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from operators.data.watermark import END
from operators.groups.engine import Gone
from operators.groups.sharing import JUGGLER
from operators.spill.spilling import Budget
from schemas.columns import Batch
from schemas.groups import seeing
from schemas.messages.spills import SpillEvent, decode_events, encode_events
from schemas.query import Query
from tests import oracle
from tests.feeding import canonical, to_rows
from tests.group_cases import GroupCase, group_cases
from tests.operators.group_lives import GroupLife
from tests.operators.groups.test_group_spill import BUDGETS, SIZES, cramped
from tests.operators.profiles import PROPERTY
from tests.operators.spill.memory_blocks import MemoryBlocks

TURNS = st.lists(
    st.tuples(st.integers(1, 5), st.sampled_from(["go on", "die", "die uncommitted"])), min_size=1, max_size=8
)
"""Per turn how much of each partition is consumed, and what happens then."""


@dataclass(frozen=True)
class Commit:
    """What a transaction has written, or those before it.

    Attributes:
        at: consumed of each partition; points: where an heir reads on from, and the clock there.
        since, begins, ends: of queries, as far as they are known.
        log: events of spilled state that a recovery needs.
        got: results in time; late: the others.
    """

    queries: dict[str, Query]
    cut: int = 0
    at: dict[tuple[str, int], int] = field(default_factory=dict)
    points: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    since: dict[str, dict[str, int]] = field(default_factory=dict)
    begins: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    log: tuple[SpillEvent, ...] = ()
    got: tuple[tuple[str, dict[str, Any]], ...] = ()
    late: tuple[tuple[str, dict[str, Any]], ...] = ()


class Life:
    """One life of a group's task, which begins at a commit.

    Attributes:
        engine: stands where the commit was made.
    """

    def __init__(self, case: GroupCase, limit: int, commit: Commit) -> None:
        self.now = commit
        self._task = GroupLife(
            case,
            commit.queries.values(),
            commit.since,
            began=commit.begins,
            gone=self._gone(case, commit),
            executor=JUGGLER,
            budget=Budget(limit, "bottom-up"),
            blocks=MemoryBlocks(),
        )
        self.engine = self._task.engine
        self.engine.play_spills(commit.log, commit.cut)
        self._task.read_again(commit.at, commit.points, commit.cut)
        assert not any(len(batch) for batches in self.engine.cleaned().values() for batch in batches)
        self.found: list[tuple[str, dict[str, Any]]] = []

    def _gone(self, case: GroupCase, commit: Commit) -> list[Gone]:
        """Who has ended and may be owed something."""
        settled = commit.log[-1].settled if commit.log else END
        return [
            Gone(query, commit.since.get(query.name, {}), commit.begins[query.name], commit.ends[query.name])
            for query in case.queries
            if commit.ends.get(query.name, 0) > settled
        ]

    def turn(self, size: int, *, last: bool = False) -> None:
        """See `GroupLife.turn`."""
        for name, batch in self._task.turn(size, last=last).items():
            self.found += named(name, [batch])

    def begin(self, query: Query, *, from_now: bool) -> None:
        """One more query."""
        seen = self.engine.add(query, from_now=from_now)
        self.now = replace(
            self.now,
            queries=self.now.queries | {query.name: query},
            since=self.now.since | {query.name: seen},
            begins=self.now.begins | {query.name: self.engine.cut},
        )

    def end(self, name: str) -> None:
        """One less."""
        self.engine.drop(name)
        queries = {other: query for other, query in self.now.queries.items() if other != name}
        self.now = replace(self.now, queries=queries, ends=self.now.ends | {name: self.engine.cut})

    def commit(self) -> Commit:
        """All that has happened is written."""
        late = [one for name, batches in self.engine.cleaned().items() for one in named(name, batches)]
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
            got=(*self.now.got, *self.found),
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
def test_an_heir_owes_what_the_dead_owed(
    case: GroupCase, limit: int, sizes: tuple[int, int], turns: list[tuple[int, str]], data: st.DataObject
) -> None:
    """Through deaths, before a commit and after, while queries come and go and debts are paid a little at a time."""
    with cramped(sizes):
        _through_deaths(case, limit, turns, data)


def _through_deaths(case: GroupCase, limit: int, turns: list[tuple[int, str]], data: st.DataObject) -> None:
    first = case.queries[0]
    committed = Commit({first.name: first}, begins={first.name: 0})
    life = Life(case, limit, committed)
    for size, then in turns:
        life.turn(size)
        for query in case.queries[1:]:
            if query.name not in life.now.begins and data.draw(st.booleans()):
                life.begin(query, from_now=data.draw(st.booleans()))
        for name in life.engine.names:
            if data.draw(st.integers(0, 5)) == 0:
                life.end(name)
        for _ in range(data.draw(st.integers(0, 3))):
            life.engine.clean(1)
        if then != "die uncommitted":
            committed = life.commit()
        if then != "go on":
            life = Life(case, data.draw(BUDGETS), committed)
            assert set(life.engine.names) == set(committed.queries)
    life.turn(0, last=True)
    life.engine.clean()
    committed = life.commit()
    for query in case.queries:
        expected = []
        if query.name in committed.begins:
            rows = oracle.results(seeing(query, committed.since.get(query.name, {})), case.given(query))
            end = committed.ends.get(query.name, 2**63)
            expected = [row for row in rows if committed.begins[query.name] <= row["_ts"] < end]
        own = [row for name, row in committed.got if name == query.name]
        late = [row for name, row in committed.late if name == query.name]
        assert canonical(own + late) == canonical(expected)
        times = [row["_ts"] for row in own]
        assert times == sorted(times)
