"""The workloads of JIT's experiments, and engines with and without feedback that run them.

A clique: every pair of N sources has an equality of its own, on a column of each, so a tuple has N - 1 columns; values
are uniform in 1 .. d_max (JIT, section VI). Plans are bushy or left-deep (Table II); with left-deep plans, stream D (C
where there are three) has values in 1 .. 100 d_max. Tuples arrive at random times.

The paper's sources send a tuple a second, and its joins compare all pairs. Hash joins need almost no time for that: the
measurement would show the interpreter between two slices. So there is a `scale`: it multiplies the rate, and d_max
by `scale ** (2 / 3)`. This keeps the chance that a tuple of one source fits some pair of two others,
`(rate * window)**2 / d_max**3`, which determines what is demanded.

The paper's cliques have so many predicates that a result appears once in many years. Beyond the paper there may be
events that all sources report, whose tuples match in every column. Values may be skewed, by Zipf's law over ranks. Or
the data may drift: the set of pairs of sources that match at all changes again and again, and with it what is demanded.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, field
from itertools import combinations
from typing import Protocol
from zlib import crc32

import numpy as np

from operators.data.statistics import EdgeStatistics
from operators.engine.engine import Engine
from operators.plan.plan import Plan, parse_plan
from schemas.columns import I64, Batch, Column
from schemas.errors import InvariantError
from schemas.language.program import parse_program
from schemas.query import Query, Type

TABLE_II = {
    ("bushy", 4): "((A B) (C D))",
    ("bushy", 5): "(((A B) (C D)) E)",
    ("bushy", 6): "(((A B) (C D)) (E F))",
    ("bushy", 7): "(((A B) (C D)) ((E F) G))",
    ("bushy", 8): "(((A B) (C D)) ((E F) (G H)))",
    ("left-deep", 3): "((A B) C)",
    ("left-deep", 4): "(((A B) C) D)",
    ("left-deep", 5): "((((A B) C) D) E)",
    ("left-deep", 6): "(((((A B) C) D) E) F)",
}
"""The plans by shape and number of sources."""

RARE = 100
"""How many times as many values stream D of the left-deep plans has."""

EVENT_EVERY = 200
"""A source reports an event in one tuple of so many. With a scale, events are rarer by the factor by which values are
more: the number of results grows with the power of that factor whose exponent is the number of sources."""

TURNS_PER_WINDOW = 6
"""How often engines that are compared take turns."""

REPEATED_S = 1.0
"""A turn with less processor time is repeated on the same tuples: of milliseconds, some percent are noise."""


class GeneratedQuery(Protocol):
    """A query over generated tuples."""

    @property
    def label(self) -> str:
        """A name for people."""
        ...

    @property
    def window_ms(self) -> int:
        """The window."""
        ...

    def query(self) -> Query:
        """The query."""
        ...

    def plan(self, query: Query) -> Plan:
        """The plan that executes the query."""
        ...

    def batches(self, windows: float, seed: int) -> dict[str, Batch]:
        """The tuples of so many windows by stream, from event time 0 on."""
        ...


@dataclass(frozen=True, slots=True)
class Clique:
    """A row of Table III.

    Attributes:
        minutes, rate, streams, values: w, tuples per second and source, N, d_max.
        scale: see above; 1 in the paper.
        zipf: exponent of Zipf's law; 0 is uniform.
        drift: length in windows of a phase, in which half of the pairs of sources match; 0 for no drift.
        events: kinds of events that all sources report, each time one of them; 0 for no events.
    """

    shape: str = "bushy"
    minutes: float = 20.0
    rate: float = 1.0
    streams: int = 6
    values: int = 200
    scale: float = 1.0
    zipf: float = 0.0
    drift: float = 0.0
    events: int = 0

    @property
    def label(self) -> str:
        """All parameters that differ between workloads."""
        parts = [f"{self.shape}, w {self.minutes:g}, rate {self.rate:g}, N {self.streams}, d_max {self.values}"]
        parts += [f"Zipf {self.zipf:g}"] if self.zipf else []
        parts += [f"drift {self.drift:g}"] if self.drift else []
        parts += [f"{self.events} kinds of happenings"] if self.events else []
        return ", ".join(parts)

    @property
    def names(self) -> tuple[str, ...]:
        """The sources."""
        return tuple("ABCDEFGH"[: self.streams])

    @property
    def window_ms(self) -> int:
        """The window w."""
        return round(self.minutes * 60_000)

    @property
    def rare(self) -> str:
        """The source with many values; none in bushy plans."""
        return "" if self.shape == "bushy" else self.names[min(3, self.streams - 1)]

    def columns(self, name: str) -> list[str]:
        """A source's columns, one per other source."""
        return [f"{one}{other}".lower() for one, other in combinations(self.names, 2) if name in (one, other)]

    def query(self) -> Query:
        """The clique; its results contain the ids of the tuples that they are made of."""
        lines = []
        for name in self.names:
            fields = ", ".join(f"{column} BIGINT" for column in self.columns(name))
            lines.append(f"CREATE STREAM {name} (ts TIMESTAMP, {fields}) WITH (topic = '{name}', timestamp = 'ts');")
        lines.append("SELECT " + ", ".join(f"{name}.ts AS {name.lower()}" for name in self.names))
        lines.append(f"FROM {', '.join(self.names)} WINDOW RANGE {self.window_ms} MILLISECONDS")
        pairs = [(one, other, f"{one}{other}".lower()) for one, other in combinations(self.names, 2)]
        lines.append("WHERE " + " AND ".join(f"{a}.{column} = {b}.{column}" for a, b, column in pairs) + ";")
        return parse_program("\n".join(lines)).queries[0]

    def plan(self, query: Query) -> Plan:
        """Its plan in Table II."""
        return parse_plan(TABLE_II[self.shape, self.streams], query)

    def batches(self, windows: float, seed: int) -> dict[str, Batch]:
        """All tuples of so many windows by source."""
        rng = np.random.default_rng((seed, self.streams))
        until = round(windows * self.window_ms)
        count = round(until / 1000 * self.rate * self.scale)
        values = max(2, round(self.values * self.scale ** (2 / 3)))
        matching = self._matching(until, rng)
        every = round(EVENT_EVERY * self.scale ** (2 / 3))
        seen = rng.integers(-every + 1, 1, len(self.names))
        found = {}
        for name, first in zip(self.names, seen.tolist(), strict=True):
            ts = np.sort(rng.integers(0, until, count))
            turn, place = np.divmod(np.arange(count) - first, every)
            columns = {"ts": Column(Type.TIMESTAMP, ts)}
            for column in self.columns(name):
                drawn = self._draw(rng, values * (RARE if name == self.rare else 1), count)
                if column[0] == name.lower() and self.drift:
                    # While a pair does not match, its first source has values that the other never has.
                    drawn += np.where(matching[column][ts * len(matching[column]) // until], 0, RARE * values)
                if self.events:
                    drawn = np.where(place == 0, 1 + turn % self.events, drawn)
                columns[column] = Column(Type.BIGINT, drawn)
            found[name] = Batch(ts, columns)
        return found

    def _draw(self, rng: np.random.Generator, values: int, count: int) -> I64:
        if self.zipf == 0.0:
            return rng.integers(1, values + 1, count)
        weights = np.arange(1, values + 1) ** -self.zipf
        return 1 + np.searchsorted(np.cumsum(weights) / weights.sum(), rng.random(count))

    def _matching(self, until: int, rng: np.random.Generator) -> dict[str, I64]:
        """For each pair of sources whether it matches, phase by phase."""
        phases = max(1, round(until / (self.drift * self.window_ms))) if self.drift else 1
        return {f"{a}{b}".lower(): rng.integers(0, 2, phases) for a, b in combinations(self.names, 2)}


@dataclass(slots=True)
class Cost:
    """The costs of an engine from the first full window to the end, and the most that it ever stored.

    Attributes:
        seconds: processor time, turn by turn; of repeated turns the least.
        input_tuples: source tuples, and results, since the start.
        checksum: of the results in their order.
        edges: the feedback counters since the start; empty without feedback.
    """

    seconds: list[float] = field(default_factory=list)
    comparisons: int = 0
    intermediate_results: int = 0
    peak_tuples: int = 0
    peak_bytes: int = 0
    input_tuples: int = 0
    results: int = 0
    checksum: int = 0
    edges: tuple[EdgeStatistics, ...] = ()

    @property
    def cpu_s(self) -> float:
        """Processor seconds of all turns."""
        return sum(self.seconds)

    @property
    def messages(self) -> int:
        """Feedback messages."""
        return sum(edge.suspend + edge.resume + edge.mark + edge.unmark for edge in self.edges)

    @property
    def suppressed(self) -> int:
        """Intermediate results that were not made."""
        return sum(edge.suppressed for edge in self.edges)


def compare(
    task: GeneratedQuery, *, hashed: bool, windows: float, seed: int, slices: int, repeats: int = 1
) -> tuple[Cost, Cost]:
    """The costs of REF and JIT: engines that take turns on the same tuples, after one window that fills the states.

    Args:
        windows: how many windows are counted.
        slices: how many pieces of a window are processed one after the other; feedback acts between them.
        repeats: how often the runs are repeated at most, while less than REPEATED_S has passed; the fastest run of each
            turn counts.

    Raises:
        InvariantError: their results differ.
    """
    cut = _Slices(task, 1.0 + windows, seed, slices)
    ends = np.linspace(slices, len(cut.ends), 1 + max(2, round(windows * TURNS_PER_WINDOW))).astype(int).tolist()
    began = time.process_time()
    found = _take_turns(cut, ends, hashed)
    check_equal(*found, f"{task.label}, seed {seed}")
    for _ in range(repeats - 1):
        if time.process_time() - began >= REPEATED_S:
            break
        for cost, again in zip(found, _take_turns(cut, ends, hashed), strict=True):
            cost.seconds = list(map(min, cost.seconds, again.seconds))
    return found


def _take_turns(cut: _Slices, ends: list[int], hashed: bool) -> tuple[Cost, Cost]:
    """Run REF and JIT, turn by turn; the first turn ends with the first window and is not counted."""
    ref, jit = _Run(cut, hashed, feedback=False), _Run(cut, hashed, feedback=True)
    gc.disable()
    try:
        for turn, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
            for one in (ref, jit) if turn % 2 else (jit, ref):
                one.feed(begin, end, counted=turn > 0)
    finally:
        gc.enable()
    return ref.cost(), jit.cost()


def check_equal(ref: Cost, jit: Cost, what: str) -> None:
    """Refuse different results.

    Raises:
        InvariantError: they differ, in number or in content.
    """
    if (ref.results, ref.checksum) != (jit.results, jit.checksum):
        raise InvariantError(f"{what}: {ref.results} results without feedback, and not the same {jit.results} with it")


class _Slices:
    """Tuples cut into slices, shared by several engines.

    Attributes:
        ends: of the slices, in event time.
        parts: per slice its tuples by source.
    """

    def __init__(self, task: GeneratedQuery, windows: float, seed: int, slices: int) -> None:
        self.query = task.query()
        self.plan = task.plan(self.query)
        count = round(windows * slices)
        self.ends = np.linspace(0, round(windows * task.window_ms), count + 1).astype(np.int64)[1:]
        self.parts: list[list[tuple[str, Batch]]] = [[] for _ in self.ends]
        for name, batch in task.batches(windows, seed).items():
            cuts = [0, *np.searchsorted(batch.ts, self.ends).tolist()]
            for part, begin, end in zip(self.parts, cuts, cuts[1:], strict=False):
                if begin < end:
                    part.append((name, batch.slice(begin, end)))


class _Run:
    """An engine that is fed the slices."""

    def __init__(self, cut: _Slices, hashed: bool, *, feedback: bool) -> None:
        self._cut = cut
        self._engine = Engine(cut.query, plan=cut.plan, hashed=hashed, feedback=feedback)
        self._cost = Cost()
        self._before = (0, 0)

    def feed(self, begin: int, end: int, *, counted: bool) -> None:
        """Feed the slices begin .. end; `counted` is False while the first window fills."""
        results = []
        began = time.process_time()
        for at in range(begin, end):
            for name, batch in self._cut.parts[at]:
                self._engine.push(name, 0, batch)
            results.append(self._engine.advance(int(self._cut.ends[at])))
        took = time.process_time() - began
        cost = self._cost
        for batch in results:
            cost.results += len(batch)
            for column in batch.columns.values():
                cost.checksum = crc32(column.values.tobytes(), cost.checksum)
        if counted:
            cost.seconds.append(took)
        else:
            filled = self._engine.statistics()
            self._before = (filled.comparisons, filled.intermediate_results)

    def cost(self) -> Cost:
        """The costs so far."""
        found, cost = self._engine.statistics(), self._cost
        cost.comparisons = found.comparisons - self._before[0]
        cost.intermediate_results = found.intermediate_results - self._before[1]
        cost.peak_tuples, cost.peak_bytes = found.peak_state_tuples, found.peak_state_bytes
        cost.input_tuples, cost.edges = found.input_tuples, found.feedback
        return cost
