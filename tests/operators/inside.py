"""What tests of executors and of feedback see of an engine's inside. No other test looks at the fields behind it."""

from __future__ import annotations

from typing import Any, TypeVar

from operators.engine.engine import Engine
from operators.feedback.stems import StemFeedback
from operators.feedback.tree import TreeFeedback
from operators.state.sources import Sources

E = TypeVar("E")


def executor_of(engine: Engine) -> Any:
    """What runs the plan now: an executor, or the migration between two."""
    return engine._executor


def executor_as(engine: Engine, kind: type[E]) -> E:
    """The executor, which must be of a kind."""
    found = executor_of(engine)
    assert isinstance(found, kind), type(found)
    return found


def feedback_of(engine: Engine) -> StemFeedback | TreeFeedback | None:
    """The feedback of the executor; None without."""
    return engine._feedback  # type: ignore[return-value]


def sources_of(engine: Engine) -> Sources:
    """The stores of source tuples."""
    return engine._sources
