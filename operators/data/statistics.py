"""The statistics of an engine as frozen values, for `--stats`, metrics, `explain --analyze` and every decision.

The entry is `EngineStatistics`. Every field is a number, a name or a tuple of those, so that a task can publish it
unchanged: `EngineStatistics.document` makes a JSON document, `from_document` reads it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import msgspec

from schemas.errors import DataError

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class OperatorStatistics:
    """One operator: counters since it started, sizes now. A pair has one value per side, left then right.

    Attributes:
        name: its sub-plan, or for a half join `covered -> alias`.
        kind: `hash` or `nested-loop` for joins; other operators have kinds of their own.
        input_tuples: tuples taken in on both sides.
        comparisons: predicate evaluations.
        candidates: pairs that passed the key or the terms.
        results: pairs that passed every predicate.
        state_tuples: entries of the states, dead ones included.
        state_bytes: memory of the states.
        complete: whether each state has all entries that it should have (JISC, definition 1).
        inputs: tuples taken in per side.
        aliases: the aliases that each state covers; empty where a side keeps no state.
        living_tuples: entries that a future tuple can meet; estimated from a sample where the state keeps dead
            entries too.
        state_groups: partition groups that have entries.
        completed_keys: join keys completed on demand.
        total_keys: join keys to complete; 0 in a complete state, and while the keys have not been counted.
        track: `old` or `new` while two plans run, else empty.
    """

    name: str
    kind: str
    input_tuples: int
    comparisons: int
    candidates: int
    results: int
    state_tuples: tuple[int, int]
    state_bytes: tuple[int, int]
    complete: tuple[bool, bool]
    inputs: tuple[int, int] = (0, 0)
    aliases: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    living_tuples: tuple[int, int] = (0, 0)
    state_groups: tuple[int, int] = (0, 0)
    completed_keys: tuple[int, int] = (0, 0)
    total_keys: tuple[int, int] = (0, 0)
    track: str = ""


@dataclass(frozen=True, slots=True)
class SourceStatistics:
    """One source of the query.

    Attributes:
        input_tuples: tuples taken in.
        selected_tuples: those of them that passed its selections.
        living_tuples: selected tuples in its window now.
        per_second: selected tuples per second of event time: over the last window once a RANGE window has been filled,
            before that since the start.
    """

    alias: str
    stream: str
    input_tuples: int
    selected_tuples: int
    living_tuples: int
    per_second: float


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """The selectivity of the predicates over one set of aliases, measured on a sample of the living tuples.

    Attributes:
        aliases: in FROM order.
        key_share: share of the combinations that agree in all equalities between single aliases; 1 without any.
        share: share of the combinations that pass every predicate.
        equality: number of the equality class that the predicates belong to (`operators.plan.equalities`), of which a
            join needs one equality; -1 for all other predicates over the aliases.
    """

    aliases: tuple[str, ...]
    key_share: float
    share: float
    equality: int = -1


@dataclass(frozen=True, slots=True)
class HotKey:
    """A value that many tuples of a source have in a column by which they are joined (`operators.engine.hot_keys`).

    Attributes:
        value: as text.
        share: of the source's living tuples.
    """

    alias: str
    column: str
    value: str
    share: float


MESSAGES = ("suspend", "resume", "mark", "unmark")
"""The kinds of feedback messages (JIT 4.2)."""


@dataclass(frozen=True, slots=True)
class EdgeStatistics:
    """Feedback of one consumer to the producers of one of its inputs (JIT 3), since feedback began, over all plans.

    Attributes:
        consumer: the consumer's sub-plan.
        producer: the producer's sub-plan.
        watching: whether the consumer gives feedback now; it does so while feedback pays off.
        suspend: messages sent, one per signature of sub-tuples; so are `resume`, `mark` and `unmark`.
        demanded: results that the producer made.
        late: those of them that the producer made late, when they turned out to be demanded after all.
        suppressed: results that the producer did not make, estimated from how many it makes per tuple.
        kept_back: source tuples kept back now.
        returned: source tuples that were kept back and have been brought back.
        forgotten: source tuples that were kept back and can never be demanded.
        checked: signatures computed and looked up, plus state entries examined: the cost of detection.
        saved_bytes: estimated state size of the results that were not made.
        detecting_s: seconds spent detecting tuples that are not demanded and looking tuples up in blacklists, by the
            engine's clock.
    """

    consumer: str
    producer: str
    watching: bool
    suspend: int = 0
    resume: int = 0
    mark: int = 0
    unmark: int = 0
    demanded: int = 0
    late: int = 0
    suppressed: int = 0
    kept_back: int = 0
    returned: int = 0
    forgotten: int = 0
    checked: int = 0
    saved_bytes: int = 0
    detecting_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PredictedStatistics:
    """The predicted cost of a migration whose strategy was chosen (`operators.migration.cost.Prediction`)."""

    silence_s: float
    comparisons: float
    extra_tuples: float
    duration_ms: float


@dataclass(frozen=True, slots=True)
class MigrationStatistics:
    """One requested migration: its progress and its cost so far.

    Attributes:
        strategy: the strategy that runs; `auto` until one has been chosen.
        asked: the requested strategy.
        from_plan: the plan before it.
        to_plan: the plan after it.
        cut: the event time at which it was to begin.
        began_at: event time, None until then.
        finished_at: event time, None until then.
        comparisons: predicate evaluations beyond those of the new plan.
        done: progress in units of `unit`, such as ms, keys or states.
        total: the value of `done` at the end; 0 while that is unknown.
        predicted: the predicted cost, where `auto` was requested.
        reason: why the strategy was chosen, where `auto` was requested.
    """

    strategy: str
    asked: str
    from_plan: str | None
    to_plan: str
    cut: int
    began_at: int | None
    finished_at: int | None
    longest_silence_s: float
    comparisons: int
    extra_tuples: int
    peak_extra_tuples: int
    completed_keys: int
    done: int = 0
    total: int = 0
    unit: str = ""
    predicted: PredictedStatistics | None = None
    reason: str = ""


FILES = "files"
"""The strategy of an engine that keeps state beyond its budget in mapped files (`operators.kernels.pages`)."""


@dataclass(frozen=True, slots=True)
class SpillStatistics:
    """State that was spilled to disk to keep the memory budget, and the results pending for it (`operators.spill`).

    Attributes:
        strategy: chooses what to spill; FILES where nothing is spilled, since results must not come late.
        used_bytes: memory taken by states and source tuples now, and by what cannot be spilled.
        fixed_bytes: the part of it that cannot be spilled or be in a file: tables in topics, and what is remembered of
            deduplicated streams. Where nothing is spilled, the rows of tables may be in files, so they are not in it.
        file_bytes: bytes of states and source tuples in mapped files now; more of the budget makes them fewer.
        spills: how often the budget was exceeded.
        spilled_groups: partition groups spilled; so for `spilled_tuples` and `spilled_bytes` (compressed).
        on_disk_tuples: tuples on disk now.
        owed: upper bound of the pairs of tuples that have not been compared yet. Results are missing while it is not 0.
        cleanups: cleanups of partition groups.
        cleanup_results: late results that cleanups produced.
        cleanup_s: seconds spent in cleanups, by the engine's clock.
        longest_spill_s: seconds of the longest spill.
        longest_cleanup_s: seconds of the longest cleanup between slices.
    """

    strategy: str
    budget_bytes: int
    used_bytes: int = 0
    file_bytes: int = 0
    spills: int = 0
    spilled_groups: int = 0
    spilled_tuples: int = 0
    spilled_bytes: int = 0
    on_disk_tuples: int = 0
    owed: int = 0
    cleanups: int = 0
    cleanup_results: int = 0
    cleanup_s: float = 0.0
    longest_spill_s: float = 0.0
    longest_cleanup_s: float = 0.0
    fixed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """A whole query: counters since the start, sizes now and at their peak (taken after each slice of an epoch).

    Attributes:
        late: late input tuples.
        comparisons: predicate evaluations of all plans so far, and of the migrations between them.
        intermediate_results: likewise.
        state_tuples: entries of join states.
        state_bytes: memory of join states, source stores and aggregates.
        pending_tuples: tuples taken in that wait for the watermark.
        plan: the plan that runs now.
        executor: the executor that runs now.
        cut: everything with a smaller ts has been processed.
        span_ms: event time between the first and the last tuple processed.
        slices: number of slices processed.
        busy_s: seconds spent processing, by the engine's clock.
        links: measured only on request.
        hot_keys: None unless they were looked for.
        migrations: the requested migrations, in the order of their cuts.
        feedback: between the operators of all plans so far; empty where feedback is off.
        spill: None without a memory budget.
        deduplicated: tuples dropped as repeats of others.
    """

    input_tuples: int
    results: int
    late: int
    comparisons: int
    intermediate_results: int
    state_tuples: int
    state_bytes: int
    peak_state_tuples: int
    peak_state_bytes: int
    pending_tuples: int
    operators: tuple[OperatorStatistics, ...]
    plan: str = ""
    executor: str = ""
    cut: int = 0
    span_ms: int = 0
    slices: int = 0
    busy_s: float = 0.0
    sources: tuple[SourceStatistics, ...] = ()
    links: tuple[LinkStatistics, ...] = ()
    hot_keys: tuple[HotKey, ...] | None = None
    migrations: tuple[MigrationStatistics, ...] = ()
    feedback: tuple[EdgeStatistics, ...] = ()
    spill: SpillStatistics | None = None
    deduplicated: int = 0

    def document(self) -> dict[str, Any]:
        """Return the statistics as dictionaries and tuples that JSON can encode."""
        return dict(msgspec.to_builtins(self))

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> EngineStatistics:
        """Read what `document` made, in this or another version of the software; unknown keys are ignored.

        Raises:
            DataError: a key is missing or has another type; the message names it.
        """
        return read_document(document, EngineStatistics)


def read_document(document: Mapping[str, Any], kind: type[S]) -> S:
    """Read the document of some statistics; unknown keys are ignored.

    Raises:
        DataError: a key is missing or has another type; the message names it.
    """
    try:
        return msgspec.convert(dict(document), kind)
    except msgspec.ValidationError as error:
        raise DataError(f"no {kind.__name__}: {error}") from None


def merged_edges(former: tuple[EdgeStatistics, ...], edges: tuple[EdgeStatistics, ...]) -> tuple[EdgeStatistics, ...]:
    """Combine the edges of former plans with those of the plan that runs. Edges with equal ends are added up."""
    found = {(edge.consumer, edge.producer): replace(edge, watching=False, kept_back=0) for edge in former}
    for edge in edges:
        before = found.get((edge.consumer, edge.producer))
        if before is not None:
            counted = (f.name for f in fields(edge) if f.name not in ("consumer", "producer", "watching"))
            edge = replace(edge, **{name: getattr(edge, name) + getattr(before, name) for name in counted})
        found[edge.consumer, edge.producer] = edge
    return tuple(found.values())
