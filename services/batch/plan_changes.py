"""Parses the plan changes of `weir run --migrate`: `TS:PLAN:STRATEGY`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from operators.join.executor import JUGGLER
from operators.migration.advise import Goal
from operators.migration.strategies import AUTO, STRATEGIES, check_strategy
from operators.plan.plan import Plan, parse_plan
from schemas.errors import UsageError
from schemas.query import Query
from schemas.timestamps import parse_event_time

_FORM = re.compile(r"\s*(?P<ts>[^(]*?)\s*:\s*(?P<plan>\(.*\))\s*:\s*(?P<strategy>[^:()]*?)\s*", re.DOTALL)
_BEGIN = re.compile(r"[^()]*:\s*\(")


@dataclass(frozen=True, slots=True)
class PlanChange:
    """Change to `plan` at event time `cut` (ms) by `strategy`; `auto` chooses the strategy that suits `goal` best."""

    cut: int
    plan: Plan
    strategy: str
    goal: Goal = field(default_factory=Goal)


def whole_changes(given: Sequence[str]) -> list[str]:
    """Plan changes as they were written: the blanks of a plan have split those in a variable."""
    found: list[str] = []
    for one in given:
        is_open = bool(found) and _FORM.fullmatch(found[-1]) is None and found[-1].count("(") > found[-1].count(")")
        if is_open and _BEGIN.match(one) is None:
            found[-1] += f" {one}"
        else:
            found.append(one)
    return found


def parse_plan_change(text: str, query: Query, executor: str, goal: Goal | None = None) -> PlanChange:
    """Parse a plan change of a query that the given executor runs.

    Raises:
        UsageError: the text has another form, or the strategy does not suit the query or executor.
        QueryError: the plan is wrong.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise UsageError(
            f"--migrate {text!r}: expected TS:PLAN:STRATEGY, such as '2026-01-31T12:00:00Z:((A B) C):jisc', with TS in "
            f"milliseconds or ISO 8601 and one of the strategies {', '.join((AUTO, *STRATEGIES))}"
        )
    try:
        cut = parse_event_time(found["ts"])
    except ValueError as error:
        raise UsageError(f"--migrate: {error}") from None
    try:
        check_strategy(found["strategy"], executor, query)
    except UsageError as error:
        raise UsageError(f"--migrate: {error}") from None
    plan = parse_plan(found["plan"], query, multiway=executor == JUGGLER)
    return PlanChange(cut, plan, found["strategy"], goal or Goal())
