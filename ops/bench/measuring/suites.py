"""The figures of one paper: prints them, and writes them as JSON, as a page and as charts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich import box
from rich.console import Console
from rich.table import Table

from ops.bench.measuring.charts import draw, missing
from ops.bench.measuring.figures import Figure, Panel
from ops.bench.measuring.measure import Progress, Spread
from ops.bench.measuring.report import machine, number

S = TypeVar("S")

SPREADS_SHOWN = 3
"""Tables of more curves than this show medians only; the stored JSON has all."""


@dataclass(slots=True)
class Suite:
    """The figures of one paper.

    Attributes:
        settings: sizes, seeds and runs.
        skipped: what was left out, and why.
    """

    name: str
    paper: str
    settings: Mapping[str, object]
    figures: list[Figure] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    machine: dict[str, str] = field(default_factory=lambda: machine())

    def show(self, console: Console) -> None:
        """Print the header, then each figure's tables."""
        console.print(f"[bold]weir bench {self.name}[/bold]: {self.paper}", highlight=False)
        for name, value in {**self.machine, **{k: str(v) for k, v in self.settings.items()}}.items():
            console.print(f"  {name}: {value}", highlight=False)
        for figure in self.figures:
            console.print(f"\n[bold]{figure.title}[/bold]\n{figure.how}", highlight=False)
            for panel in figure.panels:
                console.print(_points(panel))
            if figure.table:
                console.print(_lines(figure))
            if figure.claims:
                console.print(_claims(figure))
            if figure.differs:
                console.print(f"Differs: {figure.differs}", highlight=False)
        for reason in self.skipped:
            console.print(f"not measured: {reason}", highlight=False)

    def write(self, folder: Path) -> list[Path]:
        """Write `<suite>.json`, `<suite>.md` and, where matplotlib is installed, a PNG per figure; returns the
        files."""
        folder.mkdir(parents=True, exist_ok=True)
        drawn = [figure for figure in self.figures if figure.panels and not missing()]
        charts = [draw(figure, folder / f"{figure.name}.png") for figure in drawn]
        if missing():
            self.skipped.append(f"charts ({missing()})")
        as_json, as_text = folder / f"{self.name}.json", folder / f"{self.name}.md"
        as_json.write_text(self.to_json())
        as_text.write_text(self.to_markdown())
        return [*charts, as_json, as_text]

    def to_json(self) -> str:
        """The suite as JSON, for storing."""
        return json.dumps(asdict(self), indent=1) + "\n"

    def to_markdown(self) -> str:
        """Header and figures as a page; the charts lie in the same folder."""
        lines = [f"# weir bench {self.name}", "", f"{self.paper}.", ""]
        lines += [f"- {name}: {value}" for name, value in {**self.machine, **self.settings}.items()]
        lines += [f"- not measured: {reason}" for reason in self.skipped]
        for figure in self.figures:
            lines += ["", f"## {figure.title}", "", figure.how, ""]
            if figure.panels and not missing():
                lines += [f"![{figure.title}]({figure.name}.png)", ""]
            if figure.table:
                heading, *rest = figure.table
                lines += ["| " + " | ".join(heading) + " |", "| --- " * len(heading) + "|"]
                lines += ["| " + " | ".join(line) + " |" for line in rest]
                lines.append("")
            if figure.claims:
                lines += ["| | paper | median | min - max | |", "| --- | --- | --- | --- | --- |"]
                lines += [
                    f"| {c.what} | {c.paper} | {number(c.measured.median)} {c.unit} | {_range(c.measured)} | "
                    f"{_mark(c.met)} |"
                    for c in figure.claims
                ]
                lines.append("")
            for panel in figure.panels:
                names = [series.name for series in panel.series]
                lines += [f"{panel.title} ({panel.y})", "", f"| {panel.x} | " + " | ".join(names) + " |"]
                lines.append("| --- " * (len(names) + 1) + "|")
                lines += [f"| {number(x)} | " + " | ".join(cells) + " |" for x, cells in _rows(panel)]
                lines.append("")
            if figure.differs:
                lines += [f"**Differs.** {figure.differs}", ""]
        return "\n".join(lines).rstrip() + "\n"


@dataclass(frozen=True, slots=True)
class PaperBench(Generic[S]):
    """How a paper's figures are drawn: all, or one by its number, at one of three sizes.

    Attributes:
        quick, default, full: settings with `runs` and `seed`; the full ones are the paper's.
    """

    quick: S
    default: S
    full: S
    draw: Callable[[S, Progress, int | None], Suite]

    def run(self, size: str, runs: int | None, seed: int, figure: int | None, progress: Progress) -> Suite:
        """Draw the figures.

        Args:
            size: `quick`, `default` or `full`.
            runs: None for the number that the size has.
        """
        settings: Any = getattr(self, size)
        return self.draw(replace(settings, runs=runs or settings.runs, seed=seed), progress, figure)


def _points(panel: Panel) -> Table:
    table = Table(title=f"{panel.title} ({panel.y})", title_justify="left", box=box.SIMPLE, pad_edge=False)
    table.add_column(panel.x, justify="right")
    for series in panel.series:
        table.add_column(series.name, justify="right")
    for x, cells in _rows(panel):
        table.add_row(number(x), *cells)
    return table


def _rows(panel: Panel) -> list[tuple[float, list[str]]]:
    """The printed points: the median, and the spread where there were several runs and the table has room."""
    xs = sorted({x for series in panel.series for x in series.x})
    step = -(-len(xs) // panel.rows)
    values = [dict(zip(series.x, series.y, strict=True)) for series in panel.series]
    spreads = len(values) <= SPREADS_SHOWN
    return [(x, [_cell(by_x.get(x), spreads) for by_x in values]) for x in xs[::step]]


def _cell(spread: Spread | None, spreads: bool) -> str:
    if spread is None:
        return ""
    return number(spread.median) + (f" ({_range(spread)})" if spreads and spread.low < spread.high else "")


def _range(spread: Spread) -> str:
    return f"{number(spread.low)} - {number(spread.high)}"


def _mark(met: bool | None) -> str:
    return {None: "", True: "met", False: "MISSED"}[met]


def _lines(figure: Figure) -> Table:
    heading, *rest = figure.table
    table = Table(box=box.SIMPLE, pad_edge=False)
    for number_, name in enumerate(heading):
        table.add_column(name, justify="right" if number_ else "left")
    for line in rest:
        table.add_row(*line)
    return table


def _claims(figure: Figure) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("", overflow="fold")
    table.add_column("paper", overflow="fold")
    for name in ("median", "min", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("unit")
    table.add_column("", no_wrap=True)
    for claim in figure.claims:
        s = claim.measured
        mark = {None: "", True: "[green]met[/green]", False: "[red]MISSED[/red]"}[claim.met]
        table.add_row(claim.what, claim.paper, number(s.median), number(s.low), number(s.high), claim.unit, mark)
    return table
