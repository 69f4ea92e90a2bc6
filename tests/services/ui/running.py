"""A query, or a group, as its tasks would publish it: a real engine, whose statistics a `LiveQuery` takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from operators.engine.engine import Engine
from operators.groups.sharing import group_engine
from operators.plan.plan import parse_plan
from schemas.columns import Batch, Column
from schemas.language.program import parse_program
from schemas.messages.control import Decision, GroupTaskStatistics, TaskHealth, TaskStatistics
from schemas.query import Query, Type
from services.ui.watch.live import LiveQuery
from tests.operators.autopilot.test_autopilot import EVEN, events, star

BEGIN_MS = 1_795_953_600_000
"""2026-11-29T12:00:00Z."""

BUSY = 0.25
"""The share of a core that each engine takes."""


class Running:
    """One query in some tasks; each task has an engine of its own.

    Attributes:
        now_ms: the wall clock that the `LiveQuery` sees.
    """

    def __init__(self, tasks: int = 1) -> None:
        self.engines: list[Engine] = [star() for _ in range(tasks)]
        self.query = self.engines[0].query
        self.now_ms = BEGIN_MS
        self.live = LiveQuery(self.query.name, lambda: self.now_ms)
        self._second = 0

    def second(
        self,
        *,
        tasks: set[int] | None = None,
        health: dict[int, dict[str, Any]] | None = None,
        silent: bool = False,
    ) -> None:
        """Let a second pass: the tasks read events, unless the input is silent, and report."""
        for number, engine in enumerate(self.engines):
            if tasks is not None and number not in tasks:
                continue
            if not silent:
                for name, batch in events(self._second, EVEN).items():
                    engine.push(name, 0, batch)
                engine.advance()
            self.report(number)
            status = {"task": number, "state": "running", "cut": engine.cut, "waits_for": "", "problem": ""}
            more = (health or {}).get(number, {})
            partitions = more.pop("silent", [])
            self.live.take(
                TaskHealth(
                    query=self.query.name,
                    task=number,
                    worker=f"worker-{number}",
                    sent_ms=self.now_ms,
                    status=status | more,
                    silent=partitions,
                )
            )
        self._second += 1
        self.now_ms += 1000

    def report(self, number: int, *, incarnation: str = "a", **document: object) -> None:
        """Publish a task's statistics, with other values for some."""
        seconds = (self.now_ms - BEGIN_MS) / 1000
        self.live.take(
            TaskStatistics(
                query=self.query.name,
                task=number,
                tasks=len(self.engines),
                incarnation=incarnation,
                sent_ms=self.now_ms,
                seconds=seconds,
                plan_version=0,
                engine=self.engines[number].statistics().document() | {"busy_s": BUSY * seconds} | document,
            )
        )

    def migrate(self, plan: str, strategy: str = "jisc") -> None:
        """Change the plan of all tasks."""
        for engine in self.engines:
            engine.migrate(parse_plan(plan, engine.query), strategy, engine.cut)

    def decide(self, number: int, reason: str, *, made: bool = True) -> None:
        """Publish a decision about the plan."""
        effect = {"saving": 0.9, "cost": 0.01, "silence": 0.004}
        plans = {"from_plan": "(((A B) C) D)", "to_plan": "(((A D) C) B)", "strategy": "jisc"}
        adaptation = {"at": 5000, "made": made, "reason": reason, "evidence": {}, "predicted": effect, "measured": None}
        self.live.take(
            Decision(
                query=self.query.name,
                number=number,
                adaptation=adaptation | plans | {"change": "x"},
                account={},
                first_plan="(((A B) C) D)",
            )
        )


GROUP = """
CREATE STREAM l (k BIGINT, at TIMESTAMP) WITH (topic = 'l', format = 'json', timestamp = 'at');
CREATE STREAM r (k BIGINT, at TIMESTAMP) WITH (topic = 'r', format = 'json', timestamp = 'at');
INSERT INTO 'near' SELECT L.k AS k FROM l L [RANGE 1 SECOND], r R [RANGE 1 SECOND] WHERE L.k = R.k;
INSERT INTO 'wide' SELECT L.k AS k FROM l L [RANGE 2 SECONDS], r R [RANGE 2 SECONDS] WHERE L.k = R.k;
INSERT INTO 'lone' SELECT L.k AS k FROM l L [RANGE 1 SECOND] EXCEPT r R [RANGE 1 SECOND] ON L.k = R.k;
INSERT INTO 'last' SELECT L.k AS k FROM l L [RANGE 3 SECONDS], r R [RANGE 3 SECONDS] WHERE L.k = R.k AND L.k > 3;
"""


class RunningGroup:
    """A group of queries in one task: `near` and `wide` share an operator, `lone` runs alone.

    Attributes:
        registered: the queries of the registry, by name.
        now_ms: the wall clock that the `LiveQuery` sees.
    """

    def __init__(self) -> None:
        self.all: dict[str, Query] = {query.name: query for query in parse_program(GROUP).queries}
        self.registered = {name: self.all[name] for name in ("near", "wide", "lone")}
        self.engine = group_engine(list(self.registered.values()), feedback=False)
        self.now_ms = BEGIN_MS
        self.live = LiveQuery("g", lambda: self.now_ms)
        self._second = 0

    def second(self) -> None:
        """Let a second pass: the task reads events and reports."""
        ts = self._second * 1000 + np.arange(100, dtype=np.int64) * 10
        for name in ("l", "r"):
            key, at = Column(Type.BIGINT, ts % 7), Column(Type.TIMESTAMP, ts)
            self.engine.push(name, 0, Batch(ts, {"k": key, "at": at}))
        self.engine.advance()
        self.live.take(
            GroupTaskStatistics(
                query="g",
                task=0,
                tasks=1,
                incarnation="a",
                sent_ms=self.now_ms,
                seconds=(self.now_ms - BEGIN_MS) / 1000,
                engine=self.engine.statistics().document(),
            )
        )
        status = {"task": 0, "state": "running", "cut": self.engine.cut, "waits_for": "", "problem": ""}
        self.live.take(TaskHealth(query="g", task=0, worker="w", sent_ms=self.now_ms, status=status))
        self._second += 1
        self.now_ms += 1000

    def add(self, name: str) -> None:
        """Register a query, and let the task begin it."""
        self.registered[name] = self.all[name]
        self.engine.add(self.all[name])

    def drop(self, name: str) -> None:
        """Drop a query."""
        del self.registered[name]
        self.engine.drop(name)
