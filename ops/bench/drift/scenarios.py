"""The scenarios of `weir bench drift`: queries, and events whose rates, selectivities and skew change.

A predicate between two streams is an edge, and each edge has a column of its own in both streams. Its *fan-out* is how
many partners a tuple of one stream finds on average in the window of the other. All events follow from the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
class Scenario:
    """A query and how its data change.

    Attributes:
        shape: `chain`, `star`, `cycle` or `clique`.
        at: the phase at a time, given as a share of the run.
        phases: how many stretches of equal length have a best plan of their own.
        adversary: phase 0 and 1 take turns: the next begins when the plan has been changed.
    """

    name: str
    says: str
    shape: str
    streams: int
    at: Callable[[float], Phase]
    phases: int = 1
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
    star, turned = (0.02, 1.0, 40.0), (40.0, 1.0, 0.02)

    def alternating(one: Phase, other: Phase, count: int) -> Callable[[float], Phase]:
        return lambda at: (one, other)[min(int(at * count), count - 1) % 2]

    def ramp(at: float) -> Phase:
        mixed = [float(np.exp((1 - at) * np.log(a) + at * np.log(b))) for a, b in zip(star, turned, strict=True)]
        return Phase(even, tuple(mixed))

    def bursts(at: float) -> Phase:
        fast = int(at * 20) % 5 == 3
        return Phase((rate, rate * (8 if fast else 1), rate, rate), (0.2, 1.0, 2.0))

    def wandering(at: float) -> Phase:
        return Phase(even, (0.0005, 0.002, 0.005), zipf=0.8, offset=37 * int(at * phases))

    def frequent(at: float) -> Phase:
        same = min(int(at * phases), phases - 1) % 3
        return Phase(few, (1.0,) * 3, zipf=1.2, apart=tuple(0.0 if edge == same else 0.5 for edge in range(3)))

    # The number of values stays when the rates swap.
    slow, fast, rare = rate / 40, rate * 4, (0.125, 1.0, 5.0)
    few = (rate / 4,) * 4
    wide = (0.05, 0.2, 0.5, 1.0, 1.0, 2.0, 4.0)
    rising, opposite = (0.05, 0.2, 1.0, 4.0, 8.0), (0.2, 8.0, 8.0, 8.0, 8.0, 40.0)
    steady = Phase(even, star)
    return [
        Scenario("stationary", "nothing changes", "star", 4, lambda at: steady),
        Scenario("abrupt", "selectivities swap once", "star", 4, alternating(steady, Phase(even, turned), 2), phases=2),
        Scenario(
            "recurring",
            "selectivities swap again and again",
            "star",
            4,
            alternating(steady, Phase(even, turned), phases),
            phases,
        ),
        Scenario("ramp", "selectivities change slowly over the whole run", "star", 4, ramp, phases),
        Scenario(
            "rates",
            "the rates of two streams swap",
            "star",
            4,
            alternating(Phase((rate, slow, rate, fast), rare), Phase((rate, fast, rate, slow), rare[::-1]), phases),
            phases,
        ),
        Scenario(
            "cycle",
            "selectivities of a cycle swap",
            "cycle",
            4,
            alternating(Phase(even, (0.2, 8.0, 0.2, 8.0)), Phase(even, (8.0, 0.2, 8.0, 0.2)), phases),
            phases,
        ),
        Scenario(
            "chain",
            "selectivities of a chain of six swap",
            "chain",
            6,
            alternating(Phase((rate,) * 6, rising), Phase((rate,) * 6, rising[::-1]), phases),
            phases,
        ),
        Scenario(
            "clique",
            "selectivities of a clique swap",
            "clique",
            4,
            alternating(Phase(few, opposite), Phase(few, opposite[::-1]), phases),
            phases,
        ),
        Scenario(
            "correlation",
            "two predicates become correlated; no single selectivity changes",
            "star",
            4,
            alternating(Phase(even, (0.4, 0.4, 0.5)), Phase(even, (0.4, 0.4, 0.5), correlation=1.0), 2),
            phases=2,
        ),
        Scenario("skew", "the frequent keys wander", "star", 4, wandering, phases),
        Scenario("bursts", "a stream is eight times as fast for a fifth of the time", "star", 4, bursts, phases),
        Scenario(
            "adversary",
            "selectivities swap at once, and again whenever a change has been made",
            "star",
            4,
            alternating(steady, Phase(even, turned), 2),
            adversary=True,
        ),
        Scenario(
            "three",
            "selectivities of a chain of three swap",
            "chain",
            3,
            alternating(Phase((rate,) * 3, (0.1, 20.0)), Phase((rate,) * 3, (20.0, 0.1)), phases),
            phases,
        ),
        Scenario(
            "eight",
            "selectivities of a star of eight swap",
            "star",
            8,
            alternating(Phase((rate,) * 8, wide), Phase((rate,) * 8, wide[::-1]), phases),
            phases,
        ),
        Scenario(
            "frequent",
            "in turn one stream has the frequent keys of the common one (Zipf, 1.2)",
            "star",
            4,
            frequent,
            phases,
        ),
    ]
