"""Makes the document that the page draws of a group of queries: streams, operators and what they share, results.

Entries: `group_picture`, whose document has the parts of `picture.picture` that do not depend on a plan; `explained`,
which tells more about one operator when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from operators.explain.explain import explain
from operators.groups.explain import explain_group
from operators.groups.statistics import RunnerStatistics
from operators.plan.choose import declared_statistics
from operators.plan.plan import parse_plan
from schemas.errors import UsageError
from schemas.groups import query_group
from schemas.query import Query
from services.ui.documents.picture import Document, head_and_tasks
from services.ui.watch.live import GroupObservation, Snapshot

Members = Mapping[str, Query]
"""The registered queries of a group, by name."""


def group_picture(name: str, members: Members, snapshot: Snapshot) -> Document:
    """Return what the page shows of a group at one moment, as values that JSON can encode."""
    return head_and_tasks(snapshot) | {
        "query": name,
        "text": "\n\n".join(dict.fromkeys(query.text.strip() for query in members.values())),
        "sink": "",
        "aggregate": [],
        "plans": [],
        "migrations": [],
        "decisions": [],
        "group": _nodes(members, snapshot.group),
    }


def _nodes(members: Members, observations: Sequence[GroupObservation]) -> list[Document]:
    """Return streams and tables, operators, and queries, in this order."""
    together: dict[tuple[str, ...], list[tuple[GroupObservation, RunnerStatistics]]] = {}
    for one in observations:
        for runner in one.latest.runners:
            together.setdefault(tuple(sorted(query.name for query in runner.queries)), []).append((one, runner))
    operators = [
        _operator(f"operator {number}", [members[name] for name in names if name in members], tasks)
        for number, (names, tasks) in enumerate(sorted(together.items()))
    ]
    queries = [
        _query(name, members.get(name), node["id"], tasks)
        for node, (names, tasks) in zip(operators, sorted(together.items()), strict=True)
        for name in names
    ]
    running = {query["name"] for query in queries}
    queries += [_query(name, query, None, []) for name, query in members.items() if name not in running]
    return [*_sources(members.values()), *operators, *queries]


def _sources(queries: Iterable[Query]) -> list[Document]:
    read: dict[str, tuple[str, set[str]]] = {}
    for query in queries:
        for source in query.sources:
            kind = "table" if source.is_static else "source"
            windows = read.setdefault(source.stream.name, (kind, set()))[1]
            if not source.is_static:
                windows.add(str(source.window))
        for lookup in query.lookups:
            read.setdefault(lookup.table.name, ("table", set()))
    return [
        {"id": f"stream {name}", "kind": kind, "name": name, "windows": sorted(windows), "inputs": []}
        for name, (kind, windows) in sorted(read.items())
    ]


def _operator(
    node: str, queries: Sequence[Query], tasks: Sequence[tuple[GroupObservation, RunnerStatistics]]
) -> Document:
    """Return the node of queries that run together, summed over tasks."""
    first = tasks[0][1].queries[0] if tasks[0][1].queries else None
    spills = [runner.spill for _, runner in tasks if runner.spill is not None]
    read = {source.stream.name for query in queries for source in query.sources}
    read |= {lookup.table.name for query in queries for lookup in query.lookups}
    return {
        "id": node,
        "kind": "operator" if first is None else first.executor,
        "shared": first is not None and first.shared,
        "queries": [query.name for query in queries],
        "inputs": [f"stream {name}" for name in sorted(read)],
        "cores": _per_s(tasks, lambda runner: runner.busy_s),
        "comparisons_per_s": _per_s(tasks, lambda runner: float(runner.comparisons)),
        "state_tuples": sum(runner.state_tuples for _, runner in tasks),
        "state_bytes": sum(runner.state_bytes for _, runner in tasks),
        "memory": [sum(s.used_bytes for s in spills), sum(s.budget_bytes for s in spills)] if spills else None,
        "owed": sum(spill.owed for spill in spills),
    }


def _query(
    name: str, query: Query | None, operator: str | None, tasks: Sequence[tuple[GroupObservation, RunnerStatistics]]
) -> Document:
    """Return the node of a query; `operator` is None where it does not run."""

    def results(runner: RunnerStatistics) -> float:
        return float(sum(one.results for one in runner.queries if one.name == name))

    return {
        "id": f"query {name}",
        "kind": "query",
        "name": name,
        "topic": None if query is None else query.sink,
        "inputs": [] if operator is None else [operator],
        "running": operator is not None,
        "per_s": _per_s(tasks, results),
        "results": sum(results(runner) for _, runner in tasks),
    }


def _per_s(tasks: Sequence[tuple[GroupObservation, RunnerStatistics]], value: Any) -> float | None:
    """Return how fast a counter grows, summed over tasks; None while there is nothing to compare with."""
    rates = [
        max(value(runner) - value(before), 0.0) / one.apart_s
        for one, runner in tasks
        if (before := _before(one, runner)) is not None
    ]
    return sum(rates) if rates else None


def _before(one: GroupObservation, runner: RunnerStatistics) -> RunnerStatistics | None:
    """Return the same runner in the task's report before: the one with a query in common."""
    if one.before is None or one.apart_s <= 0:
        return None
    names = {query.name for query in runner.queries}
    return next((r for r in one.before.runners if names & {query.name for query in r.queries}), None)


def explained(name: str, members: Members, snapshot: Snapshot) -> str:
    """Return in words what the queries share that run together with one, or its plan if it runs alone.

    Raises:
        UsageError: no such query runs.
    """
    runners = (runner.queries for one in snapshot.group for runner in one.latest.runners)
    together = next((queries for queries in runners if name in {query.name for query in queries}), ())
    first = next((query for query in together if query.name == name), None)
    query = members.get(name)
    if first is None or query is None:
        raise UsageError(f"no query {name!r} runs in the group")
    if first.shared:
        return explain_group(query_group([members[one.name] for one in together if one.name in members]))
    return explain(query, parse_plan(first.plan, query), declared_statistics(query))
