"""An autopilot that changes plans again and again, to any plan: results must not depend on what it decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from operators.autopilot import autopilot as deciding
from operators.autopilot import rule, survey
from operators.autopilot.autopilot import Autopilot, Limits
from operators.autopilot.evidence import Evidence
from operators.autopilot.rule import Terms
from operators.autopilot.search import same_tree
from operators.engine.engine import Engine
from operators.migration.advise import Goal, Preference
from operators.plan.plan import Plan
from schemas.columns import Batch


def hasty(prefer: Preference = "work") -> Limits:
    """Limits under which every change pays, whatever it costs."""
    return Limits(Goal(prefer, silence_s=1e9, extra_share=1e9), Terms(0.0, 1e9))


def observed(engine: Engine, autopilot: Autopilot) -> None:
    """Let the autopilot look after every advance of an engine."""
    advance = engine.advance

    def advanced(cut: int | None = None) -> Batch:
        found = advance(cut)
        autopilot.observe()
        return found

    engine.advance = advanced  # type: ignore[method-assign]


@contextmanager
def always_another(best: Callable[[Plan], Plan]) -> Iterator[None]:
    """Let every other plan be better beyond doubt, and `best` say which is the best beside the running one."""

    differs = False

    def found(evidence: Evidence, running: Plan) -> Plan:
        nonlocal differs
        plan = best(running)
        differs = not same_tree(plan, running)
        return plan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(survey, "cheapest_plan", found)
        patch.setattr(deciding, "best_for_all", lambda known, running: known[0].best)
        for module in (deciding, rule):
            patch.setattr(module, "is_better", lambda prices, terms: differs)
        yield
