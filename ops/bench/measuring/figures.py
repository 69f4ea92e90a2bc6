"""A paper's figure redrawn: its curves, and the paper's numbers next to ours. Plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ops.bench.measuring.measure import Spread
from ops.bench.measuring.report import Limit

Points = dict[str, dict[float, list[float]]]
"""Curves by name: the values of all runs by x."""


@dataclass(frozen=True, slots=True)
class Series:
    """A curve: one measured figure per x."""

    name: str
    x: tuple[float, ...]
    y: tuple[Spread, ...]

    @staticmethod
    def of(name: str, points: Mapping[float, Sequence[float]]) -> Series:
        """Make a curve from the runs' values by x."""
        xs = sorted(points)
        return Series(name, tuple(xs), tuple(Spread.of(list(points[x])) for x in xs))


def curves(points: Points, names: Sequence[str]) -> tuple[Series, ...]:
    """Those curves that are named."""
    return tuple(Series.of(name, points[name]) for name in names)


def over(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """The ratios run by run, so that each ratio is of one run's data."""
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
    """What the paper says about the figure, and what was measured here; `limit` where one direction is better."""

    what: str
    paper: str
    measured: Spread
    unit: str = ""
    limit: Limit | None = None

    @property
    def met(self) -> bool | None:
        """Whether the measured median is as good as the paper's; None where the claim has no limit."""
        return None if self.limit is None else self.limit.met(self.measured.median)


@dataclass(slots=True)
class Figure:
    """One figure.

    Attributes:
        name: the files' name, such as `jisc-07`.
        how: what is timed or counted, over which data, in sentences.
        table: lines of text, the first of which is the heading, for figures that curves cannot show.
        differs: how the shape differs from the paper's and why; empty where it does not.
        stacked: whether the chart has the panels one below the other, as those over time.
    """

    name: str
    title: str
    how: str
    panels: list[Panel] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    table: list[tuple[str, ...]] = field(default_factory=list)
    differs: str = ""
    stacked: bool = False

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
        """Add what the paper says next to the values of our runs."""
        limit = None
        if at_least is not None:
            limit = Limit(at_least)
        elif at_most is not None:
            limit = Limit(at_most, at_least=False)
        self.claims.append(Claim(what, paper, Spread.of(list(values)), unit, limit))

    def series(self, panel: int, name: str) -> Series:
        """One of the figure's curves."""
        return next(series for series in self.panels[panel].series if series.name == name)
