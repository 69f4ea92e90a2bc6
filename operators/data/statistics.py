"""What an engine knows about itself, as frozen values: for `--stats`, metrics, `explain --analyze` and every decision.

Everything is a number, a name or a tuple of those, so that a task can publish it as it is: `document` makes
what JSON can hold, `from_document` reads it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import msgspec

from schemas.errors import DataError


@dataclass(frozen=True, slots=True)
class OperatorStatistics:
    """One operator: counters since it began, sizes now. Pairs are per side, left then right.

    Attributes:
        name: its sub-plan, or for half joins `covered -> alias`.
        kind: `hash` or `nested-loop` for joins; other operators name their own.
        inputs: tuples taken in.
        comparisons, candidates, results: predicate evaluations; pairs that the key or the terms let through; what
            passed every predicate.
        aliases: what its states cover; empty where a side keeps nothing.
        living_tuples: entries that a tuple to come can meet; from a sample where the state keeps dead ones too.
        state_groups: partition groups that have entries.
        complete: whether the states hold all that they should (JISC, definition 1).
        completed_keys, total_keys: join keys completed on demand, of how many; 0 of 0 in a complete state, and where
            the keys have not been counted yet.
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
        input_tuples, selected_tuples: taken in, and those that passed its selections.
        living_tuples: selected ones in its window now.
        per_second: selected tuples per second of event time, lately where the window says, else since the start.
    """

    alias: str
    stream: str
    input_tuples: int
    selected_tuples: int
    living_tuples: int
    per_second: float


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """What the predicates over one set of aliases keep, measured on a sample of the living tuples.

    Attributes:
        aliases: in FROM order.
        key_share: share of the combinations that agree in all equalities between single aliases; 1 without any.
        share: share that passes every predicate.
        equality: number of the class of equalities that this is one of (`operators.plan.equalities`), of which a join
            asks for one; -1 for all other predicates over the aliases.
    """

    aliases: tuple[str, ...]
    key_share: float
    share: float
    equality: int = -1


MESSAGES = ("suspend", "resume", "mark", "unmark")
"""What feedback says (JIT 4.2)."""


@dataclass(frozen=True, slots=True)
class EdgeStatistics:
    """What one consumer has told the producers of one of its inputs (JIT 3), since feedback began, over all plans.

    Attributes:
        consumer, producer: their sub-plans.
        watching: whether it gives feedback now; it does while that pays.
        suspend, resume, mark, unmark: messages, one per signature of sub-tuples.
        demanded: results that the producer made; `late` of them when they turned out to be demanded after all.
        suppressed: results that the producer did not make, as estimated from what it makes of a tuple.
        kept_back: source tuples kept back now; `returned` and `forgotten` of those before were brought back, or can
            never be demanded.
        checked: signatures computed and looked up, and state entries looked at: what it costs to tell.
        saved_bytes: of the states of the results that were not made, estimated.
        detecting_s: seconds spent finding what is not demanded and looking tuples up in blacklists, by the engine's
            clock.
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
    """What was expected of a migration whose strategy was chosen (`operators.migration.cost.Prediction`)."""

    silence_s: float
    comparisons: float
    extra_tuples: float
    duration_ms: float


@dataclass(frozen=True, slots=True)
class MigrationStatistics:
    """One migration that was asked for: where it stands and what it has cost so far.

    Attributes:
        asked: the strategy asked for; `strategy` is the one that runs, `auto` until it has been chosen.
        began_at, finished_at: event times, None until then.
        comparisons: beyond what the new plan would have done.
        done, total: how far it is; tuples, keys or states as `unit` says. 0 of 0 while that is unknown.
        predicted, reason: where `auto` was asked for, what was expected and why this strategy was chosen.
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


@dataclass(frozen=True, slots=True)
class SpillStatistics:
    """What left memory for want of it, and what is owed (`operators.spill`).

    Attributes:
        used_bytes: of memory, by states and source tuples now.
        spills: times that the budget was exceeded; `spilled_groups`, tuples and bytes (compressed) that left then.
        on_disk_tuples: now.
        owed: pairs of tuples that have not been compared yet, at most: results are missing while it is not 0.
        cleanups: of groups; `cleanup_results` came of them, late.
        cleanup_s, longest_spill_s: by the engine's clock; `longest_cleanup_s` of cleanups between slices.
    """

    strategy: str
    budget_bytes: int
    used_bytes: int = 0
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


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """A whole query: counters since the start, sizes now and at their peak (after each slice of an epoch).

    Attributes:
        comparisons, intermediate_results: of all plans so far, and of the migrations between them.
        state_tuples: entries of join states; `state_bytes` adds the source stores and aggregates.
        plan, executor: what runs now.
        cut: everything with a smaller ts has been processed.
        span_ms: event time between the first and the last tuple processed.
        slices: pieces that the input was processed in.
        busy_s: seconds spent processing, by the engine's clock.
        links: measured only where they were asked for.
        migrations: those asked for, in the order of their cuts.
        feedback: between the operators of the plan that runs, where it is on.
        spill: where there is a memory budget.
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
    migrations: tuple[MigrationStatistics, ...] = ()
    feedback: tuple[EdgeStatistics, ...] = ()
    spill: SpillStatistics | None = None

    def document(self) -> dict[str, Any]:
        """As JSON can hold it; tuples become lists."""
        return asdict(self)

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> EngineStatistics:
        """What `document` made, from here or from another version: unknown keys are passed over.

        Raises:
            DataError: a key is missing or has another type; the message names it.
        """
        try:
            return msgspec.convert(dict(document), EngineStatistics)
        except msgspec.ValidationError as error:
            raise DataError(f"no engine statistics: {error}") from None


def added(former: tuple[EdgeStatistics, ...], edges: tuple[EdgeStatistics, ...]) -> tuple[EdgeStatistics, ...]:
    """Edges of plans that were left and those of the one that runs; equal ones are counted together."""
    found = {(edge.consumer, edge.producer): replace(edge, watching=False, kept_back=0) for edge in former}
    for edge in edges:
        before = found.get((edge.consumer, edge.producer))
        if before is not None:
            counted = (f.name for f in fields(edge) if f.name not in ("consumer", "producer", "watching"))
            edge = replace(edge, **{name: getattr(edge, name) + getattr(before, name) for name in counted})
        found[edge.consumer, edge.producer] = edge
    return tuple(found.values())
