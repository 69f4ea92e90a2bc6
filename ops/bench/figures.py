"""A paper's figure drawn again: its curves, the paper's numbers beside ours, and where the shapes differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich import box
from rich.console import Console
from rich.table import Table

from ops.bench.charts import draw, missing
from ops.bench.measure import Progress, Spread
from ops.bench.report import Limit, machine, number

Points = dict[str, dict[float, list[float]]]
"""Curves by name: the runs' values by x."""

S = TypeVar("S")

SPREADS_SHOWN = 3
"""Tables of more curves than this show medians only; the stored JSON has all."""


@dataclass(frozen=True, slots=True)
class Series:
    """A curve: one measured figure per x."""

    name: str
    x: tuple[float, ...]
    y: tuple[Spread, ...]

    @staticmethod
    def of(name: str, points: Mapping[float, Sequence[float]]) -> Series:
        """From the runs' values by x."""
        xs = sorted(points)
        return Series(name, tuple(xs), tuple(Spread.of(list(points[x])) for x in xs))


def curves(points: Points, names: Sequence[str]) -> tuple[Series, ...]:
    """The named ones of several curves."""
    return tuple(Series.of(name, points[name]) for name in names)


def over(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Run by run, so that a ratio is of one run's data."""
    return [a / max(b, 1e-9) for a, b in zip(above, below, strict=True)]


@dataclass(frozen=True, slots=True)
class Panel:
    """One coordinate system.

    Attributes:
        log: whether the y axis is logarithmic.
        rows: about how many x values the printed table has; the chart has all.
    """

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    log: bool = False
    rows: int = 12


@dataclass(frozen=True, slots=True)
class Claim:
    """What the paper says of the figure, and what was measured here; `limit` where more or less is better."""

    what: str
    paper: str
    measured: Spread
    unit: str = ""
    limit: Limit | None = None

    @property
    def met(self) -> bool | None:
        """Whether the measured median is as good as the paper's; None where that is not asked."""
        return None if self.limit is None else self.limit.met(self.measured.median)


@dataclass(slots=True)
class Figure:
    """One figure.

    Attributes:
        name: of the files, as `jisc-07`.
        how: what is timed or counted, over which data, in sentences.
        table: lines of text, the first of which is the heading; where there is more to say than curves can.
        differs: how the shape differs from the paper's and why; empty where it does not.
    """

    name: str
    title: str
    how: str
    panels: list[Panel] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    table: list[tuple[str, ...]] = field(default_factory=list)
    differs: str = ""

    def claim(
        self,
        what: str,
        paper: str,
        values: Sequence[float],
        unit: str = "",
        *,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> None:
        """Add what the paper says beside the values of our runs."""
        limit = None
        if at_least is not None:
            limit = Limit(at_least)
        elif at_most is not None:
            limit = Limit(at_most, at_least=False)
        self.claims.append(Claim(what, paper, Spread.of(list(values)), unit, limit))

    def series(self, panel: int, name: str) -> Series:
        """One of its curves."""
        return next(series for series in self.panels[panel].series if series.name == name)


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
        """Write `<suite>.json`, `<suite>.md` and, where matplotlib is installed, a PNG per figure; the files."""
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
        """Everything, for storing."""
        return json.dumps(asdict(self), indent=1) + "\n"

    def to_markdown(self) -> str:
        """Header and figures as a page; the charts lie beside it."""
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
        """Draw.

        Args:
            size: `quick`, `default` or `full`.
            runs: None for as many as the size has.
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
    """The printed points: median, and the spread where there were several runs and there is room."""
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
