"""A task's spilled state through deaths, without Kafka: what a commit holds is all that a successor has."""

from __future__ import annotations

import math
import random
import resource
import time
from collections import Counter
from pathlib import Path

import numpy as np
import orjson
import pytest

from operators.engine.engine import Engine
from operators.plan.plan import parse_plan
from operators.spill.spilling import Budget
from schemas.codecs.encode import Encoded, encode_results
from schemas.columns import Batch
from schemas.language.program import parse_program
from schemas.messages.spills import decode_events
from schemas.query import Query
from services.delivery.epoch_output import BlockRecord
from services.spill.block_store import SpillError
from services.spill.spill_log import Logged, SpillLog
from services.task.result_output import late_records
from services.task.spill import MOST_REST_S, TaskSpill
from tests import oracle
from tests.feeding import to_batch
from tests.worker_harness import Row, canonical, in_time, unmarked

QUERY = """
CREATE STREAM a (k BIGINT, v BIGINT, at TIMESTAMP) WITH (topic = 'a', timestamp = 'at');
CREATE STREAM b (k BIGINT, v BIGINT, at TIMESTAMP) WITH (topic = 'b', timestamp = 'at');
CREATE STREAM c (k BIGINT, v BIGINT, at TIMESTAMP) WITH (topic = 'c', timestamp = 'at');
INSERT INTO 'out' SELECT A.v AS a, B.v AS b, C.v AS c FROM a A [RANGE 60 MILLISECONDS], b B [RANGE 40 MILLISECONDS],
c C [RANGE 80 MILLISECONDS] WHERE A.k = B.k AND B.k = C.k
"""
(JOINED,) = parse_program(QUERY).queries
(COUNTED,) = parse_program(QUERY.replace("[RANGE 40 MILLISECONDS]", "[ROWS 10]")).queries
PLANS = [parse_plan(text, JOINED) for text in ("((A B) C)", "((B C) A)", "((A C) B)")]
LANE = ("weir-out.spills", 0)
END = 1_000


class Lives:
    """One task's lives over a log of input, and what they have committed.

    Attributes:
        out: results.
    """

    def __init__(self, query: Query, rng: random.Random, folder: Path) -> None:
        self.query = query
        self.rows = {
            name: [{"k": rng.randrange(6), "v": 1000 * n + at, "at": at} for at in range(n, END, 4)]
            for n, name in enumerate("abc")
        }
        self.out: list[Row] = []
        self.hanging: list[TaskSpill] = []
        self._rng = rng
        self._folder = folder
        self._records: list[BlockRecord] = []
        self._span = (0, 0)
        self._cut = 0
        self._committed: dict[str, int] = {}
        self._points: dict[str, tuple[int, int]] = {}
        self.begin(Budget(2_000, "bottom-up", groups=4))

    def begin(self, budget: Budget) -> None:
        """A life begins, at the last commit."""
        known: list[Logged] = []
        for record in self._records:
            number = int(record.key or b"")
            if self._span[0] <= number < self._span[1]:
                said = decode_events(record.value, budget.groups, "log")
                known.append(Logged(number, said.events, said.plan, number))
        self.spill = TaskSpill(budget, self._folder, SpillLog(LANE, budget.groups, known, self._span[1]))
        assert self.spill.blocks.keys() == [], "what the dead have left is of no use"
        own = self._rng.choice(PLANS)
        plan = self.spill.plan(self.query, own)
        self.engine = Engine(self.query, plan=plan, budget=self.spill.budget, blocks=self.spill.blocks)
        self.spill.attach(self.engine, self._cut, self._late, lambda: str(self.engine.plan))
        if self.spill.own is not None:
            self.engine.migrate(self.spill.own, "moving-state", self._cut)
        self._taken: dict[str, int] = {}
        for name in self.rows:
            offset, max_ts = self._points.get(name, (0, -1))
            if max_ts >= 0:
                self.engine.set_clock(name, 0, max_ts)
            self._push(name, offset, self._committed.get(name, 0))
        if self._cut:
            self.engine.advance(self._cut)
            assert self.engine.plan == own

    def _push(self, name: str, begin: int, end: int) -> None:
        stream = next(stream for stream in self.query.streams() if stream.name == name)
        if end > begin:
            batch = to_batch(stream, self.rows[name][begin:end])
            self.engine.push(name, 0, batch, np.arange(begin, end))
        self._taken[name] = end

    def _take(self, until: int) -> None:
        for name, rows in self.rows.items():
            end = self._taken[name]
            while end < len(rows) and rows[end]["at"] <= until:
                end += 1
            self._push(name, self._taken[name], end)

    def epoch(self, until: int, *, commit: bool) -> None:
        """Process what has come before an event time, and commit it, or die before that is done."""
        self._take(until)
        self._deliver(self.engine.advance(), commit=commit)

    def finish(self) -> None:
        """There is no more input, and time to find what is owed."""
        self._take(END)
        for name in self.rows:
            self.engine.close(name, 0)
        results = self.engine.advance()
        self.engine.clean()
        self._deliver(results, commit=True)

    def _deliver(self, results: Batch, *, commit: bool) -> None:
        self.spill.advanced()
        late, records = self.spill.commit()
        if not commit:
            return
        for piece in (encode_results(results), *(piece for _, piece in late)):
            self.out += [orjson.loads(line) for line in piece.data.splitlines()]
        self._records += records
        self._span, self._cut, self._committed = self.spill.span, self.engine.cut, dict(self._taken)
        for name in self.rows:
            point = self.engine.replay_point(name, 0, self.engine.horizon(name))
            self._points[name] = (point.offset, point.max_ts)

    def _late(self) -> list[tuple[str, Encoded]]:
        return [("out", piece) for batch in self.engine.cleaned() for piece in late_records(batch)]

    def clean(self) -> None:
        """The task has some time."""
        self.spill.clean(math.inf)

    def owed(self) -> int:
        """Pairs of tuples that have not been compared."""
        spill = self.engine.statistics().spill
        assert spill is not None
        return spill.owed

    def die(self) -> None:
        """Nothing is left but what was committed; and blocks, which are worth nothing. It may hang instead, with its
        blocks open, and end when others have begun."""
        if self._rng.random() < 0.5:
            self.hanging.append(self.spill)
        else:
            self.spill.blocks.close()
        while len(self.hanging) > 2:
            self.hanging.pop(0).close()

    def expected(self) -> Counter[str]:
        return canonical(oracle.results(self.query, self.rows))


@pytest.mark.parametrize(("seed", "query"), [(0, JOINED), (1, COUNTED)])
def test_commits_hold_all_that_a_successor_needs(seed: int, query: Query, tmp_path: Path) -> None:
    """Deaths after commits and before them, with debts paid in between or not."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    lives = Lives(query, rng, tmp_path / "spilled")
    until = 0
    while until < END:
        until += rng.randrange(5, 40)
        commit = rng.random() < 0.7
        lives.epoch(until, commit=commit)
        if rng.random() < 0.3:
            lives.clean()
        if not commit or rng.random() < 0.3:
            lives.die()
            lives.begin(Budget(2_000, "bottom-up", groups=4))
    lives.finish()
    assert canonical(unmarked(lives.out)) == lives.expected()
    assert not all(map(in_time, lives.out))
    times = [row["_ts"] for row in lives.out if in_time(row)]
    assert times == sorted(times)
    assert lives.spill.span[0] > 10, "events are forgotten"
    for spill in (lives.spill, *lives.hanging):
        assert spill.blocks.path.exists()
        spill.close()
        assert not spill.blocks.path.exists()


def test_a_folder_that_cannot_be_used_leaves_nothing(tmp_path: Path) -> None:
    """A full disk is tried again and again."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limit[1]))
    try:
        with pytest.raises(SpillError):
            TaskSpill(Budget(2_000, "bottom-up"), tmp_path / "spilled", SpillLog(LANE, 4, [], 0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert not any((tmp_path / "spilled").iterdir())


def test_a_cleanup_that_took_long_does_not_put_the_next_one_off(tmp_path: Path) -> None:
    """A bite that took 20 s on a busy machine, or since kernels were compiled, put off the next for 100 s."""
    lives = Lives(JOINED, random.Random(3), tmp_path / "spilled")
    for until in range(40, END, 40):
        lives.epoch(until, commit=True)
    began = time.monotonic()
    owed = [lives.owed()]
    for now in (began - 20.0, began, began + MOST_REST_S + 1.0):
        lives.spill.clean(now)
        owed.append(lives.owed())
    assert owed[0] > owed[1], "a bite"
    assert owed[1] == owed[2], "a rest"
    assert owed[2] > owed[3], "and the next bite"
    lives.spill.close()


def test_who_has_nothing_else_to_do_pays_all_that_is_owed(tmp_path: Path) -> None:
    """However long each bite takes, and though the watermark moves no more; then it asks only now and then. Before, a
    task without input paid in a fifth of its time, and rested for up to 5 s: 33 s for what is a few seconds' work."""
    lives = Lives(JOINED, random.Random(3), tmp_path / "spilled")
    for until in range(40, END, 40):
        lives.epoch(until, commit=True)
    assert lives.owed() > 0
    began = time.monotonic()
    bites = 0
    while lives.spill.pay(began - 20.0):
        bites += 1
        assert lives.spill.advanced(), "a bite is committed"
        lives.spill.commit()
    assert bites > 1
    assert lives.owed() == 0
    assert not lives.spill.pay(time.monotonic()), "nothing was owed a moment ago"
    lives.spill.close()
