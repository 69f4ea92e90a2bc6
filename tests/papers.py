"""Checks and reads the figures that `weir bench` draws of a paper."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from ops.bench.measuring.charts import missing
from ops.bench.measuring.figures import Figure
from ops.bench.measuring.suites import Suite


def drawn(suite: Suite, folder: Path) -> str:
    """The printed tables of a suite, after checking that its files are complete."""
    files = suite.write(folder)
    names = {path.name for path in files}
    assert {f"{suite.name}.json", f"{suite.name}.md"} <= names
    for figure in suite.figures:
        if not figure.panels:
            assert len(figure.table) > 1
        elif missing():
            assert any("matplotlib" in reason for reason in suite.skipped)
        else:
            assert (folder / f"{figure.name}.png").read_bytes().startswith(b"\x89PNG")
        for panel in figure.panels:
            assert all(len(series.x) == len(series.y) > 0 for series in panel.series), (figure.name, panel.title)
    stored = json.loads((folder / f"{suite.name}.json").read_text())
    assert [f["name"] for f in stored["figures"]] == [f.name for f in suite.figures]
    out = io.StringIO()
    suite.show(Console(file=out, width=200))
    return out.getvalue()


def medians(figure: Figure, panel: int, name: str) -> list[float]:
    """A curve's medians."""
    return [spread.median for spread in figure.series(panel, name).y]
