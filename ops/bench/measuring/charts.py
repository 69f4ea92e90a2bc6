"""Draws figures as PNG, with matplotlib (in the `bench` extra)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ops.bench.measuring.figures import Figure

PANEL_INCHES = (6.0, 4.2)
LOW_PANEL_INCHES = (9.0, 2.4)
"""Of panels that are stacked."""

MARKERS = "osv^Dxp*"
"""One marker per curve, so that curves can be distinguished without colours."""

MANY_POINTS = 40
"""A curve of this many points or more has no markers."""


def missing() -> str:
    """The reason why charts cannot be drawn; empty where they can."""
    if importlib.util.find_spec("matplotlib") is None:
        return "matplotlib is not installed: pip install 'weir-streams[bench]'"
    return ""


def draw(figure: Figure, path: Path) -> Path:
    """Draw a figure's panels, side by side or stacked; returns the file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    width, height = LOW_PANEL_INCHES if figure.stacked else PANEL_INCHES
    rows, columns = (len(figure.panels), 1) if figure.stacked else (1, max(1, len(figure.panels)))
    canvas = Canvas(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(canvas)
    canvas.suptitle(figure.title, fontsize=11)
    for place, panel in enumerate(figure.panels, start=1):
        axes = canvas.add_subplot(rows, columns, place)
        for k, series in enumerate(panel.series):
            marker = MARKERS[k % len(MARKERS)] if len(series.x) < MANY_POINTS else None
            middle = [spread.median for spread in series.y]
            axes.plot(series.x, middle, marker=marker, markersize=4, linewidth=1.3, label=series.name)
            axes.fill_between(series.x, [s.low for s in series.y], [s.high for s in series.y], alpha=0.2)
        if panel.log and any(spread.median > 0 for series in panel.series for spread in series.y):
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(panel.x)
        axes.set_ylabel(panel.y)
        axes.set_title(panel.title, fontsize=10)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    canvas.savefig(path, dpi=110)
    return path
