"""Says in one sentence how far a query's results are, and what holds them back: `headline`, a pure function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from operators.data.watermark import END
from schemas.messages.control import COMPUTING, DELIVERING
from schemas.timestamps import format_iso

ABSENT_S = 6.0
"""Tasks report every second. One that has not reported for so long does not run."""

BUSY = 0.9
"""A task that is busy for this share of its time is the limit."""

SLOW_S = 2.0
"""An epoch and its transaction take milliseconds. One that takes longer than this holds results back."""

UNEVEN_S = 10.0
"""Partitions that are behind others are named once results are so far behind."""

FAR_BEHIND_S = 86_400.0
"""Events that are older than this are a replay of old data: how far they are behind the clock tells nothing."""

SILENT_ADVICE = (
    "See what writes to it. If it may be silent, give its stream an idle_timeout: results go on without it then."
)

BUSY_ADVICE = (
    "Give it a core of its own: with several tasks more workers, else PARTITION BY or --placement per-operator."
)


class Tone(StrEnum):
    """How a headline is shown."""

    WELL = "well"
    HELD = "held"
    ILL = "ill"


@dataclass(frozen=True, slots=True)
class TaskView:
    """What is known of one task.

    Attributes:
        cut: event time (ms) up to which its results are out; 0 while it has none.
        reported_ms: when it or its worker reported last, by the wall clock.
        state: as in /healthz: `opening`, `recovering`, `running` or `ended`; empty while its worker has not said.
        problem: why it failed last; empty where it did not.
        waits_for: what it waits for; empty where it does not.
        silent: partitions that delay its results: topic, partition, seconds since the last record.
        busy: the share of a core that it takes; None while unknown.
        pending: tuples that wait for the watermark.
        owed: pairs of tuples, at most, whose results are pending on disk.
        step: what its thread is doing.
        step_s: for how long it has done so without an advance of its results.
        slowest: partitions that the tuples of others wait for: topic and number.
        dead_letters: how many records it has sent to the dead-letter topic; None while unknown.
    """

    number: int
    cut: int = 0
    reported_ms: int = 0
    state: str = ""
    problem: str = ""
    waits_for: str = ""
    silent: Sequence[tuple[str, int, float]] = field(default=())
    busy: float | None = None
    pending: int = 0
    owed: int = 0
    step: str = ""
    step_s: float = 0.0
    slowest: Sequence[tuple[str, int]] = field(default=())
    dead_letters: int | None = None


@dataclass(frozen=True, slots=True)
class Headline:
    """A sentence about a query, in two parts.

    Attributes:
        reached: how far results are.
        held: what holds them back; empty where nothing does.
        advice: what to do about that; empty where the sentence says it.
    """

    tone: Tone
    reached: str
    held: str = ""
    advice: str = ""

    @property
    def text(self) -> str:
        """The whole sentence."""
        return f"{self.reached}, held by {self.held}." if self.held else f"{self.reached}."


class _Held(NamedTuple):
    """The parts of a `Headline` about what holds results back."""

    tone: Tone
    held: str = ""
    advice: str = ""


def headline(tasks: Sequence[TaskView], expected: int, now_ms: int) -> Headline:
    """Return how far the results of a query are, and what holds them back.

    Args:
        tasks: those that have reported lately.
        expected: how many tasks the query has.
        now_ms: the wall clock.
    """
    if not tasks:
        return Headline(Tone.ILL, "No task has reported: no worker runs this query")
    known = {task.number: task for task in tasks}
    absent = [n for n in range(expected) if n not in known or now_ms - known[n].reported_ms > ABSENT_S * 1000]
    if absent:
        silent = duration(now_ms - max(task.reported_ms for task in tasks))
        if len(absent) == expected:
            return Headline(Tone.ILL, f"No task has reported for {silent}: no worker runs this query")
        names = ("task " if len(absent) == 1 else "tasks ") + ", ".join(map(str, absent))
        return Headline(Tone.ILL, _reached(tasks, now_ms), f"{names}, which no worker runs")
    slowest = min(tasks, key=lambda task: task.cut)
    tone, held, advice = _held(slowest, now_ms)
    if not held:
        ill = next((task for task in tasks if task.problem), None)
        tone, held, advice = _Held(Tone.WELL) if ill is None else _held(ill, now_ms)
    return Headline(tone, _reached(tasks, now_ms), held, advice)


def _reached(tasks: Sequence[TaskView], now_ms: int) -> str:
    cut = min(task.cut for task in tasks)
    if cut <= 0:
        return "No result is final yet"
    if cut >= END:
        return "All results are final"
    text, today = format_iso(cut), format_iso(now_ms)
    shown = text[11:19] if text[:10] == today[:10] else f"{text[:10]} {text[11:19]}"
    behind_ms = now_ms - cut
    late = f", {duration(behind_ms)} behind" if 0 <= behind_ms < FAR_BEHIND_S * 1000 else " of event time"
    return f"Final up to {shown}{late}"


def _held(task: TaskView, now_ms: int) -> _Held:
    """Return what `Headline` says of what holds a task back."""
    name = f"task {task.number}"
    if task.problem:
        return _Held(Tone.ILL, f"{name}, which failed: {task.problem}")
    if task.state == "recovering":
        return _Held(Tone.HELD, f"{name}, which recovers" + (f": {task.waits_for}" if task.waits_for else ""))
    if task.state == "opening":
        return _Held(Tone.HELD, f"{name}, which is being opened" + (f": {task.waits_for}" if task.waits_for else ""))
    if task.silent:
        topic, partition, seconds = max(task.silent, key=lambda one: one[2])
        more = f" and {len(task.silent) - 1} more" if len(task.silent) > 1 else ""
        place, length = f"{topic} partition {partition}{more}", duration(seconds * 1000)
        return _Held(Tone.HELD, f"{place}, silent for {length}", SILENT_ADVICE)
    if task.step_s >= SLOW_S and task.step in (DELIVERING, COMPUTING):
        return _Held(Tone.HELD, f"{name}, which has been {task.step} for {duration(task.step_s * 1000)}")
    if task.busy is not None and task.busy >= BUSY:
        text = f"{name}, which takes {task.busy:.0%} of a core: input comes faster than it is processed"
        return _Held(Tone.HELD, text, BUSY_ADVICE)
    if task.owed:
        return _Held(Tone.HELD, f"results on disk: at most {task.owed:,} pairs of tuples wait for cleanup")
    if task.slowest and UNEVEN_S <= (now_ms - task.cut) / 1000 < FAR_BEHIND_S:
        topic, partition = task.slowest[0]
        more = f" and {len(task.slowest) - 1} more" if len(task.slowest) > 1 else ""
        place = f"{topic} partition {partition}{more}"
        return _Held(Tone.HELD, f"{place}, whose events are older than those of other partitions")
    return _Held(Tone.WELL)


def duration(ms: float) -> str:
    """Return a duration for people: `40 ms`, `3.1 s`, `2 min 5 s`, `3 h 12 min`."""
    if ms < 1000:
        return f"{max(ms, 0):.0f} ms"
    if ms < 59_950:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(round(ms / 1000), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
