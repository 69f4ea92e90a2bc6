"""The statistics file of `weir run --stats`, and the summary of migrations for the terminal.

`services.batch.file_run` fills them. The file has the same keys for every executor and strategy; the counters come from
the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from operators.autopilot.autopilot import Autopilot
from operators.data.statistics import MESSAGES, EdgeStatistics, EngineStatistics, SpillStatistics
from operators.data.watermark import END
from operators.engine.engine import Engine
from operators.groups.statistics import GroupStatistics
from operators.migration.advise import seconds
from operators.migration.cost import Prediction
from operators.migration.schedule import MigrationRecord
from schemas.timestamps import format_iso


@dataclass(slots=True)
class RunStatistics:
    """Counters of a run, filled during the run.

    Attributes:
        dead_letters: how many records could not be decoded.
        seconds: duration of the run.
        dead_by_stream: the same as `dead_letters`, per stream.
        timeline: one entry per advance of the engine (one or several epochs): the event time (ms) that it reached, the
            results and comparisons that it added, and the size of the state after it. Empty without `--stats`.
        latest: largest event time (ms) of all tuples; None while there are none.
    """

    dead_letters: int = 0
    seconds: float = 0.0
    dead_by_stream: dict[str, int] = field(default_factory=dict)
    timeline: list[dict[str, int]] = field(default_factory=list)
    latest: int | None = None
    _results: int = 0
    _comparisons: int = 0
    _input_tuples: int = 0

    def advanced(self, event_time: int, engine: EngineStatistics | GroupStatistics) -> None:
        """Add a timeline entry: everything before `event_time` has been processed. Nothing before the first tuple."""
        if not engine.input_tuples:
            return
        self.timeline.append(
            {
                "event_time": event_time,
                "results": engine.results - self._results,
                "state_tuples": engine.state_tuples,
                "state_bytes": engine.state_bytes,
                "comparisons": engine.comparisons - self._comparisons,
                "input_tuples": engine.input_tuples - self._input_tuples,
            }
        )
        self._results = engine.results
        self._comparisons = engine.comparisons
        self._input_tuples = engine.input_tuples


def stats_json(run: RunStatistics, task: Engine, engine: EngineStatistics, autopilot: Autopilot | None = None) -> bytes:
    """The statistics file: one JSON object, always with all keys. `plan` is the last plan.

    Args:
        engine: the statistics of `task`, with those of a later cleanup where there was one.
        autopilot: what adapted the plan; None where nothing did.
    """
    document: dict[str, Any] = {
        **_counts(run, engine),
        "plan": str(task.plan),
        "executor": task.executor,
        "operators": [
            {
                "name": operator.name,
                "kind": operator.kind,
                "input_tuples": operator.input_tuples,
                "comparisons": operator.comparisons,
                "results": operator.results,
            }
            for operator in engine.operators
        ],
        "migrations": [
            {
                "strategy": record.strategy,
                "asked": record.asked,
                "from_plan": None if record.from_plan is None else str(record.from_plan),
                "to_plan": str(record.plan),
                "cut": record.cut,
                "began_at": record.began_at,
                "finished_at": None if record.finished_at == END else record.finished_at,
                "longest_silence_s": round(record.longest_silence_s, 6),
                "comparisons": record.comparisons,
                "peak_extra_tuples": record.counters.peak_extra_tuples,
                "completed_keys": record.counters.completed_keys,
                "note": _idle(record, run.latest) or None,
                **_prediction(record),
            }
            for record in task.migrations
        ],
        "adaptations": [] if autopilot is None else [one.document() for one in autopilot.adaptations],
        "feedback": _feedback(engine.feedback),
        "spill": _spill(engine.spill),
        "timeline": run.timeline,
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def group_stats_json(run: RunStatistics, engine: GroupStatistics) -> bytes:
    """The statistics file of several queries: the same keys for all together, and an entry per query in `queries`.

    Queries that share an operator share its counters: `parts` has an entry per operator, with the names of its queries.
    """
    document: dict[str, Any] = {
        **_counts(run, engine),
        "plan": None,
        "executor": ", ".join(dict.fromkeys(query.executor for query in engine.queries)),
        "queries": [
            {
                "name": query.name,
                "results": query.results,
                "executor": query.executor,
                "plan": query.plan or None,
                "shared": query.shared,
            }
            for query in engine.queries
        ],
        "parts": [
            {
                "queries": [query.name for query in part.queries],
                "comparisons": part.comparisons,
                "intermediate_results": part.intermediate_results,
                "peak_state_tuples": part.peak_state_tuples,
                "peak_state_bytes": part.peak_state_bytes,
                "busy_s": round(part.busy_s, 6),
                "spill": _spill(part.spill),
                "feedback": _feedback(part.feedback),
            }
            for part in engine.runners
        ],
        "migrations": [],
        "adaptations": [],
        "feedback": _feedback(engine.feedback),
        "spill": _spill(None),
        "timeline": run.timeline,
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _counts(run: RunStatistics, engine: EngineStatistics | GroupStatistics) -> dict[str, Any]:
    """The keys with which both files begin."""
    return {
        "input_tuples": engine.input_tuples,
        "results": engine.results,
        "late": engine.late,
        "deduplicated": engine.deduplicated,
        "dead_letters": run.dead_letters,
        "dead_letters_by_stream": run.dead_by_stream,
        "comparisons": engine.comparisons,
        "intermediate_results": engine.intermediate_results,
        "peak_state_tuples": engine.peak_state_tuples,
        "peak_state_bytes": engine.peak_state_bytes,
        "seconds": round(run.seconds, 6),
    }


def _feedback(edges: Sequence[EdgeStatistics]) -> dict[str, Any]:
    """Feedback messages and suppressed results, in total and per edge; zeros without feedback."""
    return {
        **{name: sum(getattr(edge, name) for edge in edges) for name in MESSAGES},
        "suppressed_results": sum(edge.suppressed for edge in edges),
        "detecting_s": round(sum(edge.detecting_s for edge in edges), 6),
        "edges": [asdict(edge) for edge in edges],
    }


def _spill(spill: SpillStatistics | None) -> dict[str, Any]:
    """Spilled state and pending results; zeros without a budget."""
    document = asdict(spill or SpillStatistics("", 0))
    return {**document, "cleanup_seconds": round(document.pop("cleanup_s"), 6)}


def _prediction(record: MigrationRecord) -> dict[str, Any]:
    """The prediction for a strategy that `auto` chose; null if the user chose the strategy."""
    if record.advice is None:
        return {"predicted": None, "reason": None, "considered": []}
    considered = [asdict(prediction) for prediction in record.advice.predictions]
    return {"predicted": asdict(record.advice.predicted), "reason": record.advice.reason, "considered": considered}


def idle_migrations(run: RunStatistics, task: Engine) -> list[str]:
    """For people: the reason for every migration that changed nothing."""
    return [note for record in task.migrations if (note := _idle(record, run.latest))]


def _idle(record: MigrationRecord, latest: int | None) -> str:
    """Why a migration changed nothing; empty when it did."""
    change = f"the change to plan {record.plan} at {format_iso(record.cut)}"
    if latest is None:
        return f"{change} never came: there are no tuples"
    if record.began_at is None or record.began_at > latest:
        return f"{change} never came: the last tuple is of {format_iso(latest)}"
    if str(record.from_plan) == str(record.plan):
        return f"{change} changed nothing: that plan was running already"
    return ""


def outcome_lines(task: Engine) -> list[str]:
    """For people: the cost of every migration and, if `auto` chose its strategy, the reason and the prediction."""
    lines: list[str] = []
    for record in task.migrations:
        if record.began_at is None:
            continue
        lines.append(f"{record.from_plan} -> {record.plan} at {record.began_at} by {record.strategy}")
        if record.advice is not None:
            lines += [f"  {line}" for line in record.advice.lines()]
            lines.append(f"  predicted {_figures(*_of_prediction(record.advice.predicted))}")
        until = None if record.finished_at in (None, END) else (record.finished_at or 0) - record.began_at
        extra = record.counters.peak_extra_tuples
        lines.append(f"  measured  {_figures(record.longest_silence_s, record.comparisons, extra, until)}")
    return lines


def decision_lines(autopilot: Autopilot | None) -> list[str]:
    """For people: every decision about the plan that was made or nearly made, with its event time."""
    return [] if autopilot is None else [f"{format_iso(one.at)} {one.line()}" for one in autopilot.adaptations]


def _of_prediction(prediction: Prediction) -> tuple[float, float, float, float]:
    return prediction.silence_s, prediction.comparisons, prediction.extra_tuples, prediction.duration_ms


def _figures(silence_s: float, comparisons: float, extra_tuples: float, duration_ms: float | None) -> str:
    over = "not over" if duration_ms is None else f"over after {seconds(duration_ms / 1000)}"
    return f"{seconds(silence_s)} of silence, {comparisons:,.0f} comparisons, {extra_tuples:,.0f} extra tuples, {over}"
