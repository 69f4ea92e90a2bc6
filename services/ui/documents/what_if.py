"""Compares the plan that a query runs with other plans, by what its tasks have measured: `what_if`, a pure function.

`services.ui.serve` makes a `WhatIf`, which answers when somebody asks. Prices are those by which the autopilot decides
(`operators.autopilot.autopilot`): of all tasks together, the fixed costs of calls included. The plans are the running
one, the one that the autopilot would choose, and the cheapest one for each choice of the last join. The cheapest of all
is the best one. For a query of several tasks it may be better than the one that the autopilot would choose.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from operators.autopilot.autopilot import best_for_all, priced
from operators.autopilot.evidence import together
from operators.autopilot.rule import Terms, is_better
from operators.autopilot.search import PlanPrices, cheapest_by_last_join, same_tree
from operators.autopilot.sizes import sizes_of
from operators.autopilot.survey import Surveyed
from operators.migration.advise import advise
from operators.plan.plan import Join, Plan, parse_plan, postorder
from schemas.messages.control import Measured
from schemas.query import Query
from services.control.surveys import read_survey
from services.process.settings import EXECUTOR
from services.ui.watch.live import LiveQuery

OTHERS = 6
"""So many plans are shown beside the running one and the best one."""

MOST_NUMBERS = 60
"""Whether the saving exceeds the error is computed from at most so many measured numbers: each takes over 1 ms."""

SAME = 1e-9
"""Prices that differ by less than this share differ by rounding."""

ONE_PLAN = "A join of two inputs has one plan: there is nothing to compare."

UNMEASURED = (
    "No task has measured the data lately: run the workers with --adapt advise or --adapt on, without --placement "
    "per-operator, and wait until a quarter of the longest window has passed."
)

Document = dict[str, Any]


def what_if(
    query: Query,
    surveys: Sequence[Surveyed],
    running: Plan,
    arguments: Sequence[str] = ("QUERY",),
    former: Plan | None = None,
) -> Document:
    """Return the comparison, as values that JSON can encode.

    Args:
        surveys: what each task has measured last.
        former: the plan that ran before this one; None if it is not known.
        arguments: of `weir migrate`, beside the plan.

    Returns:
        `note`: why there is nothing to compare, and what to do; empty if there is something.
        `at`: the event time (ms) of the earliest measurement.
        `tasks`: how many tasks have measured.
        `plans`: the cheapest first. Each has its text (`plan`); whether it is the running one, the one before, the best
        one, and one that was asked for (`running`, `former`, `best`, `asked`); the seconds of one core that it takes
        per second of event time (`cores`), also divided by those of the running plan (`relative`); and the tuples that
        each join is expected to make per second (`joins`).
        `change`: how to change to the best plan (`plan`, `command`), and what comes of it; None if that runs. `saving`
        is a share of the work; `certain` is whether it exceeds the error, None where that would take too long. The cost
        of the change is there with its `strategy`, which is None if it is not known.
    """
    if note := _why_nothing(query, surveys):
        return _nothing(note)
    plans = [running]
    candidates = cheapest_by_last_join(together([one.evidence for one in surveys]), running, OTHERS + 2)
    for plan in (*([former] if former else []), best_for_all(surveys, running), *candidates):
        if not any(same_tree(plan, known) for known in plans):
            plans.append(plan)
    rows = _rows(surveys, plans)
    best = int(np.argmin([row["cores"] for row in rows]))
    if rows[0]["cores"] <= rows[best]["cores"] * (1 + SAME):
        best = 0
    rows[best]["best"] = True
    for row, plan in zip(rows, plans, strict=True):
        row["former"] = former is not None and plan is not running and same_tree(plan, former)
    change = None
    if best != 0:
        change = _change(query, surveys, running, plans[best], arguments) | {"saving": 1 - rows[best]["relative"]}
    shown = sorted(rows, key=_shown_first)[: OTHERS + sum(map(_is_marked, rows))]
    return {
        "note": "",
        "at": min(one.at for one in surveys),
        "tasks": len(surveys),
        "plans": sorted(shown, key=_cores),
        "change": change,
    }


def with_plan(found: Document, surveys: Sequence[Surveyed], running: Plan, asked: Plan) -> Document:
    """Return what `what_if` has found, with one more plan. If that makes the same sub-plans as one of the others, the
    other one is marked."""
    if found["note"]:
        return found
    query = surveys[0].evidence.query
    rows = [dict(row) for row in found["plans"]]
    known = next((row for row in rows if same_tree(asked, parse_plan(row["plan"], query))), None)
    if known is None:
        known = _rows(surveys, [running, asked])[1]
        rows.append(known)
    known["asked"] = True
    return {**found, "plans": sorted(rows, key=_cores)}


class WhatIf:
    """Compares the plans of a query that runs. Methods may be called from any thread.

    Args:
        arguments: see `what_if`.
    """

    def __init__(self, query: Query, live: LiveQuery, arguments: Sequence[str]) -> None:
        self._query = query
        self._live = live
        self._arguments = arguments
        self._lock = threading.Lock()
        self._known: tuple[list[Measured], Plan, Plan | None] | None = None
        self._surveys: list[Surveyed] = []
        self._found: Document = {}

    def answer(self, given: Mapping[str, str]) -> Document:
        """Return what `what_if` finds now, with the plan that is given as `plan`, if one is. Until something new has
        been measured, or the plan has changed, it is not computed again.

        Raises:
            QueryError: what is given is no plan of the query.
        """
        asked = parse_plan(given["plan"], self._query) if "plan" in given else None
        measured = self._live.measured()
        running = self._running() if measured else None
        if running is None:
            return _nothing(_why_nothing(self._query, ()))
        former = self._former(running)
        with self._lock:
            if self._known != (measured, running, former):
                read = (read_survey(message, self._query) for message in measured)
                self._surveys = [one for one in read if one is not None]
                self._found = what_if(self._query, self._surveys, running, self._arguments, former)
                self._known = measured, running, former
            found, surveys = self._found, self._surveys
        return found if asked is None else with_plan(found, surveys, running, asked)

    def _running(self) -> Plan | None:
        """Return the plan of the tasks, the newest one while it changes; None if no task reports."""
        observed = self._live.snapshot().observations
        newest = max(observed, key=lambda one: one.plan_version, default=None)
        return None if newest is None else parse_plan(newest.latest.plan, self._query)


    def _former(self, running: Plan) -> Plan | None:
        """Return the plan before the running one; None unless the autopilot has changed it."""
        made = [one for one in self._live.snapshot().decisions.values() if one["made"]]
        if not made or made[-1]["to_plan"] != str(running):
            return None
        return parse_plan(made[-1]["from_plan"], self._query)


def _why_nothing(query: Query, surveys: Sequence[Surveyed]) -> str:
    """Return why there is nothing to compare; empty if there is something."""
    if len(query.sources) < 3:
        return ONE_PLAN
    return "" if surveys else UNMEASURED


def _nothing(note: str) -> Document:
    return {"note": note, "at": None, "tasks": 0, "plans": [], "change": None}


def _rows(surveys: Sequence[Surveyed], plans: Sequence[Plan]) -> list[Document]:
    """Return the rows of some plans, of which the first one runs."""
    prices, aliases = PlanPrices(plans), plans[0].aliases
    costs = np.sum([prices.of(one.evidence) + one.calls_s for one in surveys], axis=0).tolist()
    joins = [[node for node in postorder(plan) if isinstance(node, Join)] for plan in plans]
    members = np.array([[alias in node.aliases for alias in aliases] for of_plan in joins for node in of_plan])
    rates = iter(np.sum([sizes_of(one.evidence, members, aliases).rate for one in surveys], axis=0).tolist())
    return [
        {
            "plan": str(plan),
            "running": plan is plans[0],
            "former": False,
            "best": False,
            "asked": False,
            "cores": cost,
            "relative": cost / costs[0],
            "joins": [{"join": str(node), "per_s": next(rates)} for node in of_plan],
        }
        for plan, cost, of_plan in zip(plans, costs, joins, strict=True)
    ]


def _change(query: Query, surveys: Sequence[Surveyed], running: Plan, best: Plan, arguments: Sequence[str]) -> Document:
    """Return how to change to the best plan, and what comes of it, but for the saving."""
    change: Document = {
        "plan": str(best),
        "certain": _is_certain(surveys, running, best),
        "command": shlex.join(["weir", "migrate", *arguments, "--plan", str(best)]),
        "strategy": None,
    }
    # Those from before the last change of the plan do not know its states.
    statistics = [one.statistics for one in surveys if one.statistics and one.statistics.plan == str(running)]
    if len(statistics) == len(surveys):
        load = max(float(PlanPrices([running]).of(one.evidence)[0]) + one.calls_s for one in surveys)
        advice = advise(query, running, best, statistics, executor=EXECUTOR, load=load)
        change |= {
            "strategy": advice.strategy,
            "reason": advice.reason,
            "silence_s": advice.predicted.silence_s,
            "work_s": advice.predicted.work_s,
        }
    return change


def _is_certain(surveys: Sequence[Surveyed], running: Plan, best: Plan) -> bool | None:
    """Return whether the best plan is better beyond doubt; None where that would take too long to find out."""
    known = [one.evidence for one in surveys]
    if sum(len(one.arrivals) + len(one.pairs) + len(one.joint) for one in known) > MOST_NUMBERS:
        return None
    terms = Terms()
    return is_better(priced(surveys, running, best, running, terms), terms)


def _cores(row: Document) -> float:
    return float(row["cores"])


def _is_marked(row: Document) -> bool:
    return bool(row["running"] or row["former"] or row["best"])


def _shown_first(row: Document) -> tuple[bool, float]:
    return not _is_marked(row), _cores(row)
