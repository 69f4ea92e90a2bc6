"""A query as its tasks would publish it: a real engine, whose statistics a `LiveQuery` takes."""

from __future__ import annotations

from typing import Any

from operators.engine.engine import Engine
from operators.plan.plan import parse_plan
from schemas.messages.control import Decision, TaskHealth, TaskStatistics
from services.process.security import KafkaClients
from services.ui.live import LiveQuery
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
        self.live = LiveQuery(KafkaClients("localhost:1"), "group", self.query.name, lambda: self.now_ms)
        self._second = 0

    def second(self, *, tasks: set[int] | None = None, health: dict[int, dict[str, Any]] | None = None) -> None:
        """Let a second pass: the tasks read events and report."""
        for number, engine in enumerate(self.engines):
            if tasks is not None and number not in tasks:
                continue
            for name, batch in events(self._second, EVEN).items():
                engine.push(name, 0, batch)
            engine.advance()
            self.report(number)
            status = {"task": number, "state": "running", "cut": engine.cut, "waits_for": "", "problem": ""}
            more = (health or {}).get(number, {})
            silent = more.pop("silent", [])
            self.live.take(
                TaskHealth(
                    query=self.query.name,
                    task=number,
                    worker=f"worker-{number}",
                    sent_ms=self.now_ms,
                    status=status | more,
                    silent=silent,
                )
            )
        self._second += 1
        self.now_ms += 1000

    def report(self, number: int, *, life: str = "a", **document: object) -> None:
        """Publish a task's statistics, with other values for some."""
        seconds = (self.now_ms - BEGIN_MS) / 1000
        self.live.take(
            TaskStatistics(
                query=self.query.name,
                task=number,
                tasks=len(self.engines),
                life=life,
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
