"""Shows a query, or a group of queries, in a terminal, for `weir top`: `query_screen` and `group_screen`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from operators.explain.analyze import analyses
from operators.explain.explain import count
from operators.plan.choose import Statistics
from schemas.query import Query
from schemas.sizes import format_size
from schemas.timestamps import format_progress
from services.ui.watch.headline import Tone
from services.ui.watch.live import GroupObservation, Snapshot

STYLES = {Tone.WELL: "bold green", Tone.HELD: "bold yellow", Tone.ILL: "bold red"}


def query_screen(query: Query, snapshot: Snapshot, expected: Statistics) -> RenderableType:
    """Return what the terminal shows of a query at one moment.

    Args:
        expected: the statistics that expectations are computed from.
    """
    parts: list[RenderableType] = []
    for analysis in analyses(query, snapshot.observations, expected):
        parts += [Text(""), *(Text(line) for line in analysis.lines()[: -len(analysis.observations)])]
    return _screen(snapshot, parts)


def group_screen(snapshot: Snapshot) -> RenderableType:
    """Return what the terminal shows of a group at one moment: its queries with their results."""
    queries = _table(("query", "executor", "results", "results/s"), ("query", "executor"))
    for name, (executor, results, per_s) in sorted(_results(snapshot.group).items()):
        queries.add_row(name, executor, count(results), "-" if per_s is None else count(per_s))
    return _screen(snapshot, [Text(""), queries])


def _results(observations: Sequence[GroupObservation]) -> dict[str, tuple[str, int, float | None]]:
    """Return of each query its executor, its results and how many more there are per second, over all tasks."""
    found: dict[str, tuple[str, int, float | None]] = {}
    for one in observations:
        before = {} if one.before is None else {query.name: query.results for query in one.before.queries}
        for query in one.latest.queries:
            _, results, per_s = found.get(query.name, ("", 0, None))
            if query.name in before and one.apart_s > 0:
                per_s = (per_s or 0.0) + max(query.results - before[query.name], 0) / one.apart_s
            executor = f"{query.executor}, shared" if query.shared else query.executor
            found[query.name] = executor, results + query.results, per_s
    return found


def _screen(snapshot: Snapshot, middle: Sequence[RenderableType]) -> RenderableType:
    """Return the headline, something about the query, and the tasks."""
    head = snapshot.headline
    parts: list[RenderableType] = [Text(head.text, style=STYLES[head.tone])]
    if head.advice:
        parts.append(Text(head.advice))
    if snapshot.problem:
        parts.append(Text(snapshot.problem, style="red"))
    tasks = _table(("task", "state", "up to", "core", "state size", "waiting", "says"), ("state", "says"))
    sizes = {one.task: one.latest.state_bytes for one in (*snapshot.observations, *snapshot.group)}
    for view in snapshot.views:
        tasks.add_row(
            str(view.number),
            view.state or "-",
            format_progress(view.cut),
            "-" if view.busy is None else f"{view.busy:.0%}",
            format_size(sizes.get(view.number, 0)),
            count(view.pending),
            Text(view.problem or view.waits_for),
        )
    return Group(*parts, *middle, Text(""), tasks)


def _table(names: Sequence[str], words: Sequence[str]) -> Table:
    made = Table(box=None, pad_edge=False)
    for name in names:
        made.add_column(name, justify="left" if name in words else "right")
    return made
