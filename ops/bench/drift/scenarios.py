"""The scenarios of `weir bench drift`: queries, and events whose rates, selectivities and skew change.

A predicate between two streams is an edge, and each edge has a column of its own in both streams. Its *fan-out* is how
many partners a tuple of one stream finds on average in the window of the other. All events follow from the seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import combinations

import numpy as np

from operators.kernels.hashing import F64
from schemas.columns import I64, Batch, Column
from schemas.language.program import parse_program
from schemas.query import Query, Type

Edge = tuple[int, int]

APART = 200
"""In the scenario of correlated predicates, one of so many tuples of the common stream may find partners by an edge."""


@dataclass(frozen=True, slots=True)
class Phase:
    """The data of a stretch of time.

    Attributes:
        rates: events per second, by stream.
        fan_outs: by edge.
        zipf: the exponent of the distribution of values; 0 for a uniform one.
        offset: which values are frequent where they are skewed.
        apart: by edge, by what share of the values those frequent in its second stream are apart from those in its
            first; empty where they are the same.
        correlation: of the first two edges at their common stream: 1 if its tuples that may find partners by one edge
            are those that may by the other; 0 if independent. Fan-outs are the same.
    """

    rates: tuple[float, ...]
    fan_outs: tuple[float, ...]
    zipf: float = 0.0
    offset: int = 0
    apart: tuple[float, ...] = ()
    correlation: float = 0.0


@dataclass(frozen=True, slots=True)
class Turns:
    """Phases that take turns.

    Attributes:
        phases: in the order of their turns.
        count: how many turns of equal length a run has.
    """

    phases: tuple[Phase, ...]
    count: int

    def __call__(self, at: float) -> Phase:
        """Return the phase at a share of the run."""
        return self.phases[min(int(at * self.count), self.count - 1) % len(self.phases)]


@dataclass(frozen=True, slots=True)
class Ramp:
    """Fan-outs that change from those of one phase to those of another, by the same factor in the same time."""

    first: Phase
    last: Phase

    def __call__(self, at: float) -> Phase:
        """Return the phase at a share of the run."""
        pairs = zip(self.first.fan_outs, self.last.fan_outs, strict=True)
        return replace(self.first, fan_outs=tuple(float(a ** (1 - at) * b**at) for a, b in pairs))


@dataclass(frozen=True, slots=True)
class Scenario:
    """A query and how its data change.

    Attributes:
        shape: `chain`, `star`, `cycle` or `clique`.
        at: the phase at a time, given as a share of the run.
        adversary: phase 0 and 1 take turns: the next begins when the plan has been changed.
    """

    name: str
    says: str
    shape: str
    streams: int
    at: Turns | Ramp
    adversary: bool = False
    edges: tuple[Edge, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "edges", edges_of(self.shape, self.streams))

    @property
    def names(self) -> tuple[str, ...]:
        """The streams' names, which are their aliases."""
        return tuple("ABCDEFGH"[: self.streams])

    def query(self, window_ms: int) -> Query:
        """Return the query."""
        return parse_program(self.program(window_ms, {name: name for name in self.names})).queries[0]

    def program(self, window_ms: int, topics: Mapping[str, str], sink: str = "") -> str:
        """Return the query as text, from topics, by stream, and to one if it is given."""
        lines = []
        for number, name in enumerate(self.names):
            columns = "".join(f", e{n} BIGINT" for n, edge in enumerate(self.edges) if number in edge)
            lines.append(
                f"CREATE STREAM {name} (ts TIMESTAMP{columns}) WITH (topic = '{topics[name]}', timestamp = 'ts');"
            )
        equal = [f"{self.names[a]}.e{n} = {self.names[b]}.e{n}" for n, (a, b) in enumerate(self.edges)]
        if sink:
            lines.append(f"INSERT INTO '{sink}'")
        lines.append("SELECT " + ", ".join(f"{name}.ts AS {name.lower()}" for name in self.names))
        lines.append(f"FROM {', '.join(self.names)} WINDOW RANGE {window_ms} MILLISECONDS")
        lines.append("WHERE " + " AND ".join(equal) + ";")
        return "\n".join(lines) + "\n"

    def events(self, phase: Phase, begin_ms: int, length_ms: int, window_ms: int, seed: int) -> dict[str, Batch]:
        """Make the events of a stretch, ascending by ts, by stream."""
        found = {}
        for number, name in enumerate(self.names):
            rng = np.random.default_rng((seed, begin_ms, number))
            count = max(1, round(phase.rates[number] * length_ms / 1000))
            ts = begin_ms + (np.arange(count, dtype=np.int64) * length_ms) // count
            columns = {"ts": Column(Type.TIMESTAMP, ts)}
            reach = rng.random(count)
            for n, edge in enumerate(self.edges):
                if number in edge:
                    values = self._values(phase, n, window_ms)
                    columns[f"e{n}"] = Column(Type.BIGINT, self._drawn(phase, n, number, values, reach, rng))
            found[name] = Batch(ts, columns)
        return found

    def _values(self, phase: Phase, edge: int, window_ms: int) -> int:
        """Return how many values an edge has, so that a tuple of its faster stream finds fan-out partners."""
        slower = min(phase.rates[number] for number in self.edges[edge])
        return max(2, round(slower * window_ms / 1000 / phase.fan_outs[edge]))

    def _drawn(self, phase: Phase, edge: int, number: int, values: int, reach: F64, rng: np.random.Generator) -> I64:
        """Draw the values of an edge's column in one of its streams."""
        count = len(reach)
        if phase.zipf:
            rank = np.searchsorted(zipf_distribution(values, phase.zipf), rng.random(count))
            second = number == self.edges[edge][1]
            apart = round(phase.apart[edge] * values) if phase.apart and second else 0
            drawn = (np.minimum(rank, values - 1) + phase.offset + apart) % values
        else:
            drawn = rng.integers(0, values, count)
        drawn = drawn.astype(np.int64)
        if self.name != "correlation" or edge > 1:
            return drawn
        # Of the common stream few tuples are within reach of each edge's partners, which are many for those.
        common = set(self.edges[0]) & set(self.edges[1])
        if number not in common:
            return drawn // APART * APART
        near = reach < 1 / APART
        if edge == 1:
            near = np.where(rng.random(count) < phase.correlation, near, rng.random(count) < 1 / APART)
        return drawn // APART * APART + ~near


@lru_cache(maxsize=4)
def zipf_distribution(values: int, exponent: float) -> F64:
    """Return (values,) the probability of each value or a more frequent one, by Zipf's law."""
    weights = 1.0 / np.arange(1, values + 1) ** exponent
    return np.asarray(np.cumsum(weights) / weights.sum())


def edges_of(shape: str, streams: int) -> tuple[Edge, ...]:
    """Return the pairs of streams that a predicate relates."""
    match shape:
        case "star":
            return tuple((0, n) for n in range(1, streams))
        case "chain":
            return tuple((n, n + 1) for n in range(streams - 1))
        case "cycle":
            return (*((n, n + 1) for n in range(streams - 1)), (0, streams - 1))
        case _:
            return tuple(combinations(range(streams), 2))


def scenarios(rate: float, phases: int) -> list[Scenario]:
    """Return all scenarios.

    Args:
        rate: events per second and stream, where nothing else is said.
        phases: how many phases recur.
    """
    even = (rate,) * 4
    star, steep = (0.02, 1.0, 60.0), (0.0025, 1.0, 400.0)

    # The number of values stays when the rates swap.
    slow, fast, rare = rate / 100, rate * 4, (0.1, 1.0, 10.0)
    half = (rate / 2,) * 4
    wide = (0.05, 0.2, 0.5, 1.0, 1.0, 2.0, 8.0)
    calm, burst = (Phase((rate, rate * times, rate, rate), (0.2, 1.0, 2.0)) for times in (1, 8))
    apart = [tuple(0.0 if edge == same else 0.5 for edge in range(3)) for same in range(3)]

    def swapping(rates: tuple[float, ...], fan_outs: tuple[float, ...], count: int = phases) -> Turns:
        return Turns((Phase(rates, fan_outs), Phase(rates, fan_outs[::-1])), count)

    changes: dict[str, tuple[str, str, int, Turns | Ramp]] = {
        "stationary": ("nothing changes", "star", 4, Turns((Phase(even, star),), 1)),
        "abrupt": ("selectivities swap once", "star", 4, swapping(even, star, 2)),
        "recurring": ("selectivities swap again and again", "star", 4, swapping(even, star)),
        "ramp": (
            "selectivities change slowly over the whole run",
            "star",
            4,
            Ramp(Phase(even, steep), Phase(even, steep[::-1])),
        ),
        "rates": (
            "the rates of two streams swap",
            "star",
            4,
            Turns((Phase((rate, slow, rate, fast), rare), Phase((rate, fast, rate, slow), rare[::-1])), phases),
        ),
        "cycle": ("selectivities of a cycle swap", "cycle", 4, swapping(even, (0.05, 60.0, 0.05, 60.0))),
        "chain": (
            "selectivities of a chain of six swap",
            "chain",
            6,
            swapping((rate,) * 6, (0.05, 0.2, 1.0, 4.0, 10.0)),
        ),
        "clique": (
            "selectivities of a clique swap",
            "clique",
            4,
            swapping(half, (0.05, 12.0, 12.0, 12.0, 12.0, 120.0)),
        ),
        "correlation": (
            "two predicates become correlated; no single selectivity changes",
            "star",
            4,
            Turns((Phase(even, (0.4, 0.4, 0.5)), Phase(even, (0.4, 0.4, 0.5), correlation=1.0)), 2),
        ),
        "skew": (
            "the frequent keys wander",
            "star",
            4,
            Turns(tuple(Phase(even, (0.0005, 0.002, 0.005), zipf=0.8, offset=37 * n) for n in range(phases)), phases),
        ),
        "bursts": (
            "a stream is eight times as fast for a fifth of the time",
            "star",
            4,
            Turns((calm, calm, calm, burst, calm), 20),
        ),
        "adversary": (
            "selectivities swap at once, and again whenever a change has been made",
            "star",
            4,
            swapping(even, star, 2),
        ),
        "three": ("selectivities of a chain of three swap", "chain", 3, swapping((rate,) * 3, (0.02, 100.0))),
        "eight": ("selectivities of a star of eight swap", "star", 8, swapping((rate,) * 8, wide)),
        "frequent": (
            "in turn one stream has the frequent keys of the common one (Zipf, 1.2)",
            "star",
            4,
            Turns(tuple(Phase(half, (1.0,) * 3, zipf=1.2, apart=one) for one in apart), phases),
        ),
    }
    return [Scenario(name, *told, adversary=name == "adversary") for name, told in changes.items()]
