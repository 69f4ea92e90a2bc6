"""Shows a query in a terminal, for `weir top`."""

from __future__ import annotations

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
from services.ui.watch.live import Snapshot

STYLES = {Tone.WELL: "bold green", Tone.HELD: "bold yellow", Tone.ILL: "bold red"}


def screen(query: Query, snapshot: Snapshot, expected: Statistics) -> RenderableType:
    """Return what the terminal shows at one moment.

    Args:
        expected: the statistics that expectations are computed from.
    """
    head = snapshot.headline
    parts: list[RenderableType] = [Text(head.text, style=STYLES[head.tone])]
    if snapshot.problem:
        parts.append(Text(snapshot.problem, style="red"))
    for analysis in analyses(query, snapshot.observations, expected):
        parts += [Text(""), *(Text(line) for line in analysis.lines()[: -len(analysis.observations)])]
    tasks = Table(box=None, pad_edge=False)
    for name in ("task", "state", "up to", "core", "state size", "waiting", "says"):
        tasks.add_column(name, justify="left" if name in ("state", "says") else "right")
    sizes = {one.task: one.latest.state_bytes for one in snapshot.observations}
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
    return Group(*parts, Text(""), tasks)
