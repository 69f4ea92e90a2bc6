"""Makes the document that the page draws: the plan with its figures, tasks, plan changes and decisions (`picture`).

It has numbers, not texts, wherever the page can format them, and is small enough to send every second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from operators.explain.analyze import FAR_OFF, Analysis, OperatorFigures, analyses
from operators.explain.explain import aggregation_lines, described
from operators.plan.choose import Statistics
from operators.plan.plan import Join, Leaf, Plan, parse_plan
from operators.plan.predicates import selections
from schemas.expression_text import text_of
from schemas.query import Query
from services.ui.live import Snapshot

DECISIONS = 30
"""The page shows so many of the latest decisions."""

Document = dict[str, Any]


def picture(query: Query, snapshot: Snapshot, expected: Statistics) -> Document:
    """Return what the page shows of a query at one moment, as values that JSON can encode.

    Args:
        expected: the statistics that expectations are computed from.
    """
    found = analyses(query, snapshot.observations, expected)
    head = snapshot.headline
    migrations = [m for one in snapshot.observations[:1] for m in one.latest.migrations]
    return {
        "query": query.name,
        "text": query.text,
        "sink": query.sink,
        "now": snapshot.now_ms,
        "headline": {"tone": head.tone, "reached": head.reached, "held": head.held},
        "problem": snapshot.problem,
        "aggregate": [] if query.aggregation is None else aggregation_lines(query.aggregation),
        "plans": [plan for one in found for plan in _plans(query, one)],
        "tasks": _tasks(snapshot),
        "migrations": [
            {
                "from": m.from_plan,
                "to": m.to_plan,
                "strategy": m.strategy,
                "began": m.began_at,
                "finished": m.finished_at,
                "silence_s": m.longest_silence_s,
                "done": m.done,
                "total": m.total,
                "unit": m.unit,
                "reason": m.reason,
            }
            for m in migrations
        ],
        "decisions": [
            {"number": number, **one} for number, one in list(snapshot.decisions.items())[: -DECISIONS - 1 : -1]
        ],
    }


def _plans(query: Query, analysis: Analysis) -> Iterable[Document]:
    """Yield the plan of some tasks, and the one that they are leaving, if that still runs."""
    tasks = [one.task for one in analysis.observations]
    tracks = {figures.total.track for figures in analysis.operators}
    yield _plan(query, analysis, analysis.plan, "new") | {"tasks": tasks, "leaving": False}
    going = (m for m in analysis.observations[0].latest.migrations if m.began_at is not None and m.finished_at is None)
    old = next((m.from_plan for m in going), None)
    if old is not None and "old" in tracks:
        yield _plan(query, analysis, parse_plan(old, query), "old") | {"tasks": tasks, "leaving": True}


def _plan(query: Query, analysis: Analysis, plan: Plan, track: str) -> Document:
    figures = {f.total.name: f for f in analysis.operators if f.total.track in (track, "")}
    busy = sum(one.gained(lambda s: s.busy_s) / one.apart_s for one in analysis.observations if one.apart_s > 0)
    work = {name: sum(f.inputs_per_s) + f.results_per_s for name, f in figures.items()}
    cores = busy / max(sum(work.values()), 1e-9)
    nodes = [_node(query, analysis, node, figures, work, cores) for node in _nodes(plan)]
    return {"text": str(plan), "executor": analysis.observations[0].latest.executor, "nodes": nodes}


def _nodes(plan: Plan) -> Iterable[Plan]:
    """Yield a plan and its sub-plans, each before its inputs."""
    yield plan
    if isinstance(plan, Join):
        yield from _nodes(plan.left)
        yield from _nodes(plan.right)


def _node(
    query: Query,
    analysis: Analysis,
    plan: Plan,
    figures: Mapping[str, OperatorFigures],
    work: Mapping[str, float],
    cores: float,
) -> Document:
    aliases = frozenset(plan.aliases)
    estimate = analysis.expected.get(aliases)
    node: Document = {
        "id": str(plan),
        "alive": analysis.living.get(aliases),
        "expected_per_s": None if estimate is None else estimate.rate,
        "off": None,
    }
    if isinstance(plan, Leaf):
        source = query.source(plan.alias)
        seen = next((one for one in analysis.sources if one.alias == plan.alias), None)
        selected = 1.0 if seen is None or not seen.input_tuples else seen.selected_tuples / seen.input_tuples
        node |= {
            "kind": "table" if source.is_table else "source",
            "stream": source.stream.name,
            "window": "" if source.is_table else str(source.window),
            "conditions": [text_of(p) for p in selections(query, plan.alias)],
            "per_s": analysis.sources_per_s.get(plan.alias, 0.0) * selected,
            "tuples": 0 if seen is None else seen.input_tuples,
        }
        return node
    kind, conditions = described(query, plan)
    one = figures.get(str(plan))
    node |= {"kind": kind, "conditions": conditions, "left": str(plan.left), "right": str(plan.right), "per_s": None}
    if one is not None:
        total = one.total
        node |= {
            "per_s": one.results_per_s,
            "inputs_per_s": one.inputs_per_s,
            "selectivity": one.selectivity,
            "cores": work[str(plan)] * cores,
            "results": total.results,
            "state_tuples": total.state_tuples,
            "state_bytes": total.state_bytes,
            "complete": total.complete,
            "keys": [total.completed_keys, total.total_keys],
        }
        if estimate is not None:
            node["off"] = _off(one.results_per_s, estimate.rate)
    return node


def _off(found: float, expected: float) -> float | None:
    """Return by what factor an expectation is wrong, where it is more than FAR_OFF."""
    if found <= 0 or expected <= 0:
        return None
    return found / expected if not 1 / FAR_OFF <= found / expected <= FAR_OFF else None


def _tasks(snapshot: Snapshot) -> list[Document]:
    observed = {one.task: one for one in snapshot.observations}
    found = []
    for view in snapshot.views:
        one = observed.get(view.number)
        latest = None if one is None else one.latest
        found.append(
            {
                "task": view.number,
                "worker": snapshot.workers.get(view.number, ""),
                "state": view.state,
                "cut": view.cut,
                "reported": view.reported_ms,
                "waits_for": view.waits_for,
                "problem": view.problem,
                "busy": view.busy,
                "pending": view.pending,
                "owed": view.owed,
                "inputs_per_s": None if one is None or one.apart_s <= 0 else one.gained(_inputs) / one.apart_s,
                "results": 0 if latest is None else latest.results,
                "late": 0 if latest is None else latest.late,
                "state_tuples": 0 if latest is None else latest.state_tuples,
                "state_bytes": 0 if latest is None else latest.state_bytes,
                "memory": None
                if latest is None or latest.spill is None
                else [latest.spill.used_bytes, latest.spill.budget_bytes],
            }
        )
    return found


def _inputs(statistics: Any) -> float:
    return float(statistics.input_tuples)
