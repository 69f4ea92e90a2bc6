"""Who makes the changes that the autopilot decides about: the interface `Changes`, and `EngineChanges` for one engine.

In a worker the control log makes them (`services.program.leader`): all tasks of a query must change at the same time.
"""

from __future__ import annotations

from typing import Protocol

from operators.engine.engine import Engine
from operators.migration.advise import Goal
from operators.migration.strategies import AUTO
from operators.plan.plan import Plan


class Changes(Protocol):
    """Makes changes of plans."""

    @property
    def busy(self) -> bool:
        """Whether a change has been asked for that the engine does not know yet."""
        ...

    def ask(self, plan: Plan, strategy: str, goal: Goal) -> str:
        """Ask for a change as soon as possible.

        Args:
            strategy: what has been found to cost least.

        Returns:
            a name of this change.
        """
        ...


class EngineChanges:
    """Asks an engine itself. It chooses the strategy again at the cut, by newer statistics."""

    busy = False

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def ask(self, plan: Plan, strategy: str, goal: Goal) -> str:
        """See `Changes`."""
        self._engine.migrate(plan, AUTO, self._engine.cut, goal)
        return str(len(self._engine.migrations))
