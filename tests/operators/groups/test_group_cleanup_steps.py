"""When and how fast a shared operator settles what it owes: rounds and instalments, by themselves."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from operators.data.tuples import Tuples
from operators.groups import cleanup_steps as rounds
from operators.groups.cleanup import STEP_TUPLES, Queries
from operators.groups.cleanup_steps import DEAD_SHARE, INSTALMENT_TUPLES, MOST_WORK, RATE, Rounds
from operators.groups.spill import GroupSpill
from operators.juggler.state.sources import GroupSources
from schemas.columns import Batch
from schemas.groups import Member, QueryGroup, query_group
from schemas.language.program import parse_program
from tests.feeding import to_batch
from tests.operators.spill.memory_blocks import MemoryBlocks

DECLARED = """
CREATE STREAM a (k BIGINT, ts TIMESTAMP) WITH (topic = 'a', timestamp = 'ts');
CREATE STREAM b (k BIGINT, ts TIMESTAMP) WITH (topic = 'b', timestamp = 'ts');
INSERT INTO pairs SELECT A.ts AS a, B.ts AS b FROM a A [RANGE 1 SECOND], b B [RANGE 1 SECOND] WHERE A.k = B.k;
"""
EACH = 512
"""Tuples of a stream that come in a second: two blocks."""


class Owing:
    """Tuples of two streams that leave second by second, and of every join of them the pair of the last ones.

    Attributes:
        cut: everything before it has come.
        joined: tuples in every join of blocks so far.
    """

    def __init__(self) -> None:
        self.group = query_group(parse_program(DECLARED).queries)
        self.queries = Queries(self.group, {}, {})
        self.sources = GroupSources(self.group)
        self.spill = GroupSpill(1, MemoryBlocks())
        self.rounds = Rounds(self.spill, self._join, self._output)
        self.cut = 0
        self.joined: list[int] = []

    def _join(self, sources: GroupSources, group: QueryGroup, epoch: Mapping[str, Tuples]) -> Mapping[str, Tuples]:
        self.joined.append(sum(map(len, epoch.values())))
        (member,) = group.members
        rows = np.concatenate([epoch[name].rows[:, -1:] for name in member.inputs])
        ts = np.array([max(int(tuples.ts[-1]) for tuples in epoch.values())])
        return {member.name: Tuples(member.inputs, rows, ts, ts)}

    def _output(self, member: Member, found: Tuples, sources: GroupSources) -> Batch:
        return Batch(found.ts, {})

    def come(self, steps: int, *, leave: bool = True, ms: int = 1000) -> None:
        """So many seconds pass, at the end of each all that has come leaves."""
        for begin in range(self.cut, self.cut + ms * steps, ms):
            batches = {}
            for stream in self.group.query.streams():
                rows = [{"k": n, "ts": begin + n * ms // EACH} for n in range(EACH)]
                batches[stream.name] = to_batch(stream, rows)
            self.sources.enter(batches)
            self.cut = self.sources.cut = begin + ms
            if leave:
                assert self.spill.leave(self.sources, self.cut, 10**9)

    def taken(self) -> list[int]:
        """The times of what is given."""
        return [int(ts) for batches in self.rounds.take().values() for batch in batches for ts in batch.ts]

    def go_on(self, tuples: float) -> int:
        """As when so many tuples have come; how many choices of blocks were joined."""
        before = len(self.joined)
        self.rounds.go_on(self.queries, self.sources, self.cut, tuples)  # type: ignore[arg-type]
        return len(self.joined) - before

    def some(self, most: int) -> bool:
        """As when there is nothing else to do."""
        return self.rounds.some(self.queries, self.sources, self.cut, most)


CHOICES = 4
"""To settle a second: its two blocks of either stream, each with what can meet it of the second before; of its own it
has met all in time."""
LOT = 2 * EACH / CHOICES / RATE * (1 + 1e-9)
"""So many tuples pay for one of them."""


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is paid for is done."""
    monkeypatch.setattr(rounds, "MOST_WORK", 1e12)


def begun(seconds: int = 4) -> Owing:
    """It is time to settle, and a first choice was joined on credit."""
    owing = Owing()
    owing.come(seconds)
    assert owing.go_on(1e-6) == 1
    return owing


def test_it_is_time_when_half_of_what_is_on_disk_is_dead() -> None:
    owing = Owing()
    assert owing.go_on(1e9) == 0, "nothing owes anything"
    owing.come(1)
    assert owing.go_on(1e9) == 0
    assert not owing.rounds.going_on
    owing.come(1, leave=False, ms=400)
    assert owing.spill.behind(owing.sources, owing.cut)
    assert owing.spill.dead_tuples(owing.sources, owing.cut) < DEAD_SHARE * owing.spill.on_disk_tuples
    assert owing.go_on(1e9) == 0, "what is owed can wait"
    owing = Owing()
    owing.come(2)
    assert owing.spill.dead_tuples(owing.sources, owing.cut) == DEAD_SHARE * owing.spill.on_disk_tuples
    assert owing.go_on(1e9) == CHOICES
    assert not owing.rounds.going_on
    assert owing.spill.on_disk_tuples == 2 * EACH, "what is dead has left the disk"


def test_who_has_paid_for_one_choice_gets_one() -> None:
    """What is paid adds up, what was joined is paid for, and nothing is left over when it is not time any more."""
    owing = begun(9)
    assert [owing.go_on(LOT) for _ in range(4)] == [1, 1, 1, 1]
    assert [owing.go_on(LOT / 4) for _ in range(8)] == [0, 0, 0, 1, 0, 0, 0, 1]
    assert owing.go_on(3 * LOT) == 3
    assert owing.go_on(1e9) == 8 * CHOICES - 10
    assert not owing.rounds.going_on
    owing.come(2)
    assert owing.go_on(1e-6) == 1


def test_what_comes_waits_for_no_more_than_so_much_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much was paid for; a step that took more is made up for, and what is left comes when there is nothing
    else to do. Before, an epoch that was dear to settle stood still for minutes."""
    owing = begun(9)
    monkeypatch.setattr(rounds, "MOST_WORK", STEP_TUPLES / 1e6)
    steps = [owing.go_on(1e6) for _ in range(20)]
    assert 4 < sum(steps) < 10, "a search and a join both take more than is allowed"
    assert max(steps) == 1
    while owing.some(1):
        pass
    assert len(owing.joined) == 8 * CHOICES


def test_what_is_joined_when_there_is_nothing_else_to_do_is_free() -> None:
    owing = begun()
    assert owing.some(4)
    assert len(owing.joined) == 3, "a search and a join are two steps"
    assert owing.go_on(LOT / 2) == 1
    assert owing.some(100)
    assert len(owing.joined) == 3 * CHOICES
    assert not owing.rounds.going_on
    assert not owing.some(100), "nothing is owed"


def test_rounds_go_up_to_where_tuples_have_left() -> None:
    """One after the other, each with full blocks; what is in memory is left alone."""
    owing = Owing()
    owing.come(4)
    owing.come(1, leave=False)
    owing.go_on(1e-6)
    settled = []
    while owing.rounds.going_on:
        owing.go_on(LOT)
        assert owing.spill.settled is not None
        settled.append(owing.spill.settled.ts)
    assert list(dict.fromkeys(settled)) == [1000, 2000, 3000, 4000]
    idle = Owing()
    idle.come(4)
    idle.come(1, leave=False)
    assert idle.some(100)
    assert idle.spill.settled is not None
    assert idle.spill.settled.ts == 4000


def test_what_a_round_has_found_is_given_at_its_end() -> None:
    """And once: what was given before is told by `settled`."""
    owing = begun()
    for begin in (1000, 2000, 3000):
        assert owing.spill.settled is not None
        while owing.spill.settled.ts == begin:
            assert owing.taken() == []
            assert owing.go_on(LOT) == 1
        given = owing.taken()
        assert given
        assert all(begin <= ts < begin + 1000 for ts in given)


def test_slices_are_so_small_that_an_instalment_is_not_large() -> None:
    owing = Owing()
    assert owing.rounds.slice_tuples == INSTALMENT_TUPLES
    owing.come(2)
    owing.go_on(1e9)
    work = 2 * EACH * INSTALMENT_TUPLES / RATE / owing.rounds.slice_tuples
    steps = 2 * CHOICES * STEP_TUPLES
    assert steps + sum(owing.joined) < work < steps + 4 * sum(owing.joined)
    owing.rounds._work = 1e9
    assert owing.rounds.slice_tuples == max(1, int(INSTALMENT_TUPLES / rounds.MOST_WORK))
    assert MOST_WORK < INSTALMENT_TUPLES
