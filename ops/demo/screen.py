"""The demonstration's output: a live table on a terminal, plain lines in a pipe."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

SHOWN_RESULTS = 10
_TITLES = ("at", "visibility, rain, gusts", "a flight, min late", "another")
_QUESTION = (
    "Which flights left the same airport more than an hour late, two of them within an hour of each other "
    "and of bad weather there?"
)


@dataclass(frozen=True, slots=True)
class Moment:
    """A snapshot of the replay at one instant."""

    now_ms: int
    share: float
    sent: int
    sent_per_s: float
    results: int
    results_per_s: float
    behind: int
    latest: Sequence[bytes]


class Screen:
    """A context manager: inside it, `phase` and `show` replace what the terminal shows."""

    def __init__(self, console: Console, notes: Sequence[tuple[str, str]] = ()) -> None:
        """Args: `notes`, (what, where) pairs shown under the table."""
        self._console = console
        self.notes = list(notes)
        self._live = (
            Live(console=console, refresh_per_second=8, transient=True) if console.is_terminal else None
        )
        self._last = ""
        self._began = time.monotonic()

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def phase(self, text: str) -> None:
        """Show what is being done; once, in a pipe."""
        if self._live is not None:
            seconds = time.monotonic() - self._began
            self._live.update(Text(f"{text} ... {seconds:.0f} s", style="dim"))
        elif text != self._last:
            self._console.print(text, highlight=False, soft_wrap=True)
        self._last = text

    def show(self, moment: Moment) -> None:
        """Update the live table. A pipe gets the first results only."""
        if self._live is not None:
            self._live.update(self._table(moment))
        elif moment.latest and self._last != "results":
            self._last = "results"
            for line in list(moment.latest)[:3]:
                self._console.print(line.decode(), highlight=False, markup=False, soft_wrap=True)

    def _table(self, moment: Moment) -> Group:
        counts = Text.assemble(
            (f"{_day(moment.now_ms)}  ", "bold"),
            f"{moment.sent:,} records in ({moment.sent_per_s:,.0f}/s)  ",
            (f"{moment.results:,} results out ({moment.results_per_s:,.0f}/s)  ", "green"),
            (f"{moment.behind:,} behind", "dim"),
        )
        table = Table(expand=True, border_style="dim")
        for title in _TITLES:
            table.add_column(title, no_wrap=True)
        for line in moment.latest[-SHOWN_RESULTS:]:
            table.add_row(*_cells(json.loads(line)))
        for _ in range(SHOWN_RESULTS - len(moment.latest)):
            table.add_row()
        notes = Table.grid(padding=(0, 2))
        if not moment.results:
            notes.add_row(
                Text("no result yet", style="dim"), "a first start compiles kernels for some seconds"
            )
        for what, where in self.notes:
            notes.add_row(Text(what, style="dim"), where)
        bar = ProgressBar(total=1.0, completed=moment.share)
        return Group(Text(_QUESTION, style="italic"), counts, bar, table, notes)


def _cells(result: dict[str, Any]) -> list[str]:
    def flight(which: str) -> str:
        code = f"{result[f'{which}_carrier']} {result[f'{which}_flight']}"
        return f"{code} {result[f'{which}_destination']} +{result[f'{which}_delay_minutes']}"

    gust = "" if result["gust_mph"] is None else f", {result['gust_mph']:.0f} mph"
    seen = datetime.fromtimestamp(result["observed"] / 1000, UTC).strftime("%d %b %H:%M")
    weather = f"{seen}, {result['visibility_miles']:g} mi, {result['rain_inches']:g} in{gust}"
    return [result["airport"], weather, flight("first"), flight("second")]


def _day(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%a %d %b %Y")
