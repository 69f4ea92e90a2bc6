"""Makes the document that the page draws: the plan with its figures, tasks, plan changes and decisions (`picture`).

It has numbers, not texts, wherever the page can format them, and is small enough to send every second. `drawn` is the
part of it that a page without a running query has, too (`one_file`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from operators.explain.analyze import FAR_OFF, Analysis, Observation, OperatorFigures, analyses
from operators.explain.explain import aggregation_lines, described, looks_up
from operators.plan.choose import Statistics
from operators.plan.plan import Join, Leaf, Plan, parse_plan, postorder
from operators.plan.predicates import selections
from schemas.expression_text import text_of
from schemas.query import Query, Stream
from services.ui.watch.joins import completed, feedback
from services.ui.watch.live import GroupObservation, Snapshot

DECISIONS = 30
"""The page shows so many of the latest decisions."""

Document = dict[str, Any]


class NodeWords:
    """The conditions of the nodes of a query's plans, each made once: a page needs them every second."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._known: dict[str, tuple[str, list[str]]] = {}
        self._selected: dict[str, list[str]] = {}

    def selected(self, alias: str) -> list[str]:
        """Return the conditions of a source alone."""
        found = self._selected.get(alias)
        if found is None:
            found = self._selected[alias] = [text_of(predicate) for predicate in selections(self._query, alias)]
        return found

    def join(self, join: Join, name: str) -> tuple[str, list[str]]:
        """Return the kind of a join, whose name is `str(join)`, and its conditions."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = described(self._query, join)
        return found


def picture(query: Query, snapshot: Snapshot, expected: Statistics, words: NodeWords | None = None) -> Document:
    """Return what the page shows of a query at one moment, as values that JSON can encode.

    Args:
        expected: the statistics that expectations are computed from.
        words: of earlier moments.
    """
    found = drawn(query, analyses(query, snapshot.observations, expected), snapshot.decisions, words)
    silent = _silent(snapshot)
    for node in (node for plan in found["plans"] for node in plan["nodes"] if "stream" in node):
        stream = query.source(node["id"]).stream
        node["silent"] = silent.get(stream.topic, []) if isinstance(stream, Stream) else []
    return head_and_tasks(snapshot) | found


def _silent(snapshot: Snapshot) -> dict[str, list[tuple[int, float]]]:
    """Return the partitions for which results wait, by topic, and for how many seconds each has been silent."""
    found: dict[str, dict[int, float]] = {}
    for topic, partition, seconds in (one for view in snapshot.views for one in view.silent):
        of_topic = found.setdefault(topic, {})
        of_topic[partition] = max(seconds, of_topic.get(partition, 0.0))
    return {topic: sorted(partitions.items()) for topic, partitions in found.items()}


def head_and_tasks(snapshot: Snapshot) -> Document:
    """Return the headline and the tasks of a query or of a group."""
    head = snapshot.headline
    return {
        "now": snapshot.now_ms,
        "headline": {"tone": head.tone, "reached": head.reached, "held": head.held, "advice": head.advice},
        "problem": snapshot.problem,
        "tasks": _tasks(snapshot),
    }


def drawn(
    query: Query, found: Sequence[Analysis], decisions: Mapping[int, Document], words: NodeWords | None = None
) -> Document:
    """Return the query, its plans, plan changes and decisions.

    Args:
        found: per plan; one without observations has expected figures only.
        decisions: changes of plans that were weighed, by number.
        words: as in `picture`.
    """
    words = words or NodeWords(query)
    migrations = [m for analysis in found[:1] for one in analysis.observations[:1] for m in one.latest.migrations]
    return {
        "query": query.name,
        "text": query.text,
        "sink": query.sink,
        "aggregate": [] if query.aggregation is None else aggregation_lines(query.aggregation),
        "plans": [plan for one in found for plan in _plans(query, one, words)],
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
        "decisions": [{"number": number, **one} for number, one in list(decisions.items())[: -DECISIONS - 1 : -1]],
    }


def _plans(query: Query, analysis: Analysis, words: NodeWords) -> Iterable[Document]:
    """Yield the plan of some tasks, and the one that they are leaving, if that still runs."""
    tasks = [one.task for one in analysis.observations]
    tracks = {figures.total.track for figures in analysis.operators}
    yield _plan(query, analysis, analysis.plan, "new", words) | {"tasks": tasks, "leaving": False}
    migrations = [m for one in analysis.observations[:1] for m in one.latest.migrations]
    old = next((m.from_plan for m in migrations if m.began_at is not None and m.finished_at is None), None)
    if old is not None and "old" in tracks:
        yield _plan(query, analysis, parse_plan(old, query), "old", words) | {"tasks": tasks, "leaving": True}


def _plan(query: Query, analysis: Analysis, plan: Plan, track: str, words: NodeWords) -> Document:
    figures = {f.total.name: f for f in analysis.operators if f.total.track in (track, "")}
    busy = sum(one.gained(lambda s: s.busy_s) / one.apart_s for one in analysis.observations if one.apart_s > 0)
    if analysis.finished:
        busy = 1.0  # a run over files keeps a core busy
    work = {name: sum(f.inputs_per_s) + f.results_per_s for name, f in figures.items()}
    cores = busy / max(sum(work.values()), 1e-9)
    named = list(_named(plan))
    text, names = named[0][0], {id(node): name for name, node in named}
    edges = feedback(analysis.observations, list(names.values()))
    nodes = []
    for name, node in named:
        one = figures.get(name)
        if isinstance(node, Leaf):
            shown = _leaf(query, analysis, node) | {"conditions": words.selected(node.alias)}
        else:
            kind, conditions = words.join(node, name)
            inputs = {"left": names[id(node.left)], "right": names[id(node.right)]}
            shown = {"kind": kind, "conditions": conditions, "per_s": None} | inputs
        if one is not None:
            shown |= _operator(one, work[name] * cores) | _states(analysis, text, one)
        nodes.append({"id": name, "feedback": edges.get(name, [])} | shown | _expected(analysis, node, one))
    executor = next((one.latest.executor for one in analysis.observations), "")
    return {"text": text, "executor": executor, "nodes": nodes}


def _named(plan: Plan) -> Iterable[tuple[str, Plan]]:
    """Yield a plan and its sub-plans, each before its inputs, with its name, `str(plan)`."""
    names: dict[int, str] = {}
    for node in postorder(plan):
        if isinstance(node, Join):
            names[id(node)] = f"({names[id(node.left)]} {names[id(node.right)]})"
        else:
            names[id(node)] = node.alias
    left = [plan]
    while left:
        node = left.pop()
        yield names[id(node)], node
        if isinstance(node, Join):
            left += [node.right, node.left]


def _leaf(query: Query, analysis: Analysis, leaf: Leaf) -> Document:
    """Return what is known of a source or table."""
    source = query.source(leaf.alias)
    seen = next((one for one in analysis.sources if one.alias == leaf.alias), None)
    selected = 1.0 if seen is None or not seen.input_tuples else seen.selected_tuples / seen.input_tuples
    return {
        "kind": "table" if source.is_static else "source",
        "stream": source.stream.name,
        "window": "" if source.is_static else str(source.window),
        "lookups": [
            {"table": one.table.name, "alias": one.alias, "by": looks_up(one)}
            for one in query.lookups
            if one.of == leaf.alias
        ],
        "hot_keys": _hot_keys(analysis.observations, leaf.alias),
        "per_s": None if seen is None else analysis.sources_per_s.get(leaf.alias, 0.0) * selected,
        "tuples": None if seen is None else seen.input_tuples,
    }


def _operator(one: OperatorFigures, cores: float) -> Document:
    """Return the figures of a join."""
    total = one.total
    return {
        "per_s": one.results_per_s,
        "inputs_per_s": one.inputs_per_s,
        "selectivity": one.selectivity,
        "cores": cores,
        "results": total.results,
        "state_tuples": total.state_tuples,
        "state_bytes": total.state_bytes,
        "keys": [total.completed_keys, total.total_keys],
    }


def _expected(analysis: Analysis, plan: Plan, one: OperatorFigures | None) -> Document:
    """Return what is expected of a node, how many of its tuples are alive, and how far it is off."""
    aliases = frozenset(plan.aliases)
    estimate = analysis.expected.get(aliases)
    return {
        "alive": analysis.living.get(aliases),
        "expected_per_s": None if estimate is None else estimate.rate,
        "expected_alive": None if estimate is None else estimate.alive,
        "off": None if estimate is None or one is None else _off(one.results_per_s, estimate.rate),
    }


def _states(analysis: Analysis, plan: str, one: OperatorFigures) -> Document:
    """Return what is known of the states of a join of a plan."""
    total, taken_per_s = one.total, sum(one.inputs_per_s)
    averages = [analysis.living.get(frozenset(aliases)) for aliases in total.aliases]
    return {
        "living": averages if analysis.finished else total.living_tuples,
        "groups": total.state_groups,
        "completed": completed(total, analysis.observations, plan),
        "per_tuple": one.results_per_s / taken_per_s if taken_per_s > 0 else None,
    }


def _hot_keys(observations: Sequence[Observation], alias: str) -> list[Document]:
    """Return the hot keys of a source over all tasks, those of most tuples first."""
    living: dict[int, int] = {}
    found: dict[tuple[str, str], float] = {}
    for one in observations:
        living[one.task] = next((s.living_tuples for s in one.latest.sources if s.alias == alias), 0)
        for key in one.latest.hot_keys or ():
            if key.alias == alias:
                name = key.column, key.value
                found[name] = found.get(name, 0.0) + key.share * living[one.task]
    total = max(sum(living.values()), 1)
    shares = sorted(((tuples / total, *name) for name, tuples in found.items()), reverse=True)
    return [{"column": column, "value": value, "share": share} for share, column, value in shares]


def _off(found: float, expected: float) -> float | None:
    """Return by what factor an expectation is wrong, where it is more than FAR_OFF."""
    if found <= 0 or expected <= 0:
        return None
    return found / expected if not 1 / FAR_OFF <= found / expected <= FAR_OFF else None


def _tasks(snapshot: Snapshot) -> list[Document]:
    known: list[Observation | GroupObservation] = [*snapshot.observations, *snapshot.group]
    observed = {one.task: one for one in known}
    shares = _input_shares(snapshot)
    found = []
    for view in snapshot.views:
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
                "dead_letters": view.dead_letters,
                "input_share": shares.get(view.number),
            }
            | counted(observed.get(view.number))
        )
    return found


def _input_shares(snapshot: Snapshot) -> dict[int, tuple[float, float]]:
    """Return the share of the input that each task has read lately, and an even share, among tasks with equal work."""
    alike: dict[str, list[int]] = {}
    for task, part in snapshot.parts.items():
        if task in snapshot.read_per_s:
            alike.setdefault(part, []).append(task)
    found: dict[int, tuple[float, float]] = {}
    for tasks in alike.values():
        total = sum(snapshot.read_per_s[task] for task in tasks)
        if len(tasks) > 1 and total > 0:
            found |= {task: (snapshot.read_per_s[task] / total, 1 / len(tasks)) for task in tasks}
    return found


def counted(one: Observation | GroupObservation | None) -> Document:
    """Return the figures that a task has reported; None and zeros where it has reported none yet."""
    latest = None if one is None else one.latest
    return {
        "inputs_per_s": None if one is None else _inputs_per_s(one),
        "results": 0 if latest is None else latest.results,
        "late": 0 if latest is None else latest.late,
        "state_tuples": 0 if latest is None else latest.state_tuples,
        "state_bytes": 0 if latest is None else latest.state_bytes,
        "memory": None
        if latest is None or latest.spill is None
        else [latest.spill.used_bytes, latest.spill.budget_bytes],
        "disk": None
        if latest is None or latest.spill is None
        else [latest.spill.on_disk_tuples, latest.spill.spilled_groups, latest.spill.file_bytes],
    }


def _inputs_per_s(one: Observation | GroupObservation) -> float | None:
    if one.apart_s <= 0:
        return None
    before = 0 if one.before is None else one.before.input_tuples
    return max(one.latest.input_tuples - before, 0) / one.apart_s
