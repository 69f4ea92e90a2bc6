"""The streams and queries of Juggler's experiments (thesis, chapter 5), and groups of any number of queries like them.

The thesis shows its queries (Fig. 5.8, 5.13 to 5.15) and says that the rates and values of its data are invented. Here
each stream has a tuple per `STEP_MS`, and every column is uniform over a range around the constants that the queries
compare it with, so each of their predicates refuses some tuples and accepts others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import cycle

import numpy as np

from schemas.columns import I64, Batch, Column
from schemas.language.program import parse_program
from schemas.query import Query, Type

STEP_MS = 200
"""Time between two tuples of a stream."""

Range = tuple[int, int]

STREAMS: Mapping[str, Mapping[str, Range]] = {
    "B": {"pressure": (60, 160), "temp": (85, 135)},
    "T": {"fluct": (50, 250), "degree": (85, 135), "incr": (60, 130)},
    "H": {"beatrate": (100, 130), "vib": (60, 130)},
    "K": {"fluid": (60, 160)},
}
"""Blood, temperature, heart, kidney: the thesis' running example. Columns, with the first and last of their values."""

REORDERING = (
    "SELECT B.pressure AS p, H.vib AS v, T.fluct AS f FROM B, H, T "
    "WINDOW B.ts <= T.ts AND H.ts <= T.ts MAXWINDOW 20 SECONDS "
    "WHERE B.pressure < 90 AND H.beatrate > 115 AND B.pressure <= H.vib AND B.ts <= H.ts AND T.fluct < 200 "
    "AND B.temp <= T.degree AND H.vib <= T.fluct"
)
"""Fig. 5.8."""

FOUR_WAY = (
    "SELECT B.pressure AS p, T.incr AS i, H.vib AS v, K.fluid AS f FROM B, T, H, K "
    "WINDOW B.ts <= T.ts MAXWINDOW 6 SECONDS "
    "WHERE B.temp > H.vib AND B.pressure > T.fluct AND T.incr = H.vib AND H.beatrate > 115 AND K.fluid <= B.pressure"
)
"""Four inputs, as in 5.2.1, whose query the thesis does not show: Query 1 of its running example, extended by K."""

_TWO_WAY = "SELECT B.ts AS b, H.ts AS h, B.pressure AS p, H.vib AS v FROM B, H"

OVERLAPS: Mapping[int, tuple[tuple[str, str], ...]] = {
    25: (
        ("B.ts > H.ts", "B.pressure < 90 AND B.pressure > H.vib"),
        (
            "B.ts <= H.ts",
            "B.pressure < 115 AND H.beatrate > 115 AND B.pressure <= H.vib * 2 AND B.pressure < H.beatrate",
        ),
        (
            "B.ts <= H.ts",
            "B.pressure < 116 AND H.beatrate >= 115 AND H.vib > 80 AND B.pressure <= H.vib * 3 "
            "AND B.pressure > H.beatrate AND B.temp > H.beatrate",
        ),
        (
            "B.ts > H.ts",
            "B.pressure < 117 AND H.beatrate < 115 AND H.vib < 80 AND B.temp > 90 AND B.pressure <= H.vib * 4 "
            "AND B.pressure = H.beatrate AND B.temp >= H.beatrate AND B.temp > H.vib",
        ),
        (
            "B.ts >= H.ts",
            "B.pressure < 118 AND H.beatrate = 115 AND H.vib = 100 AND B.temp = 98 AND B.pressure > H.vib "
            "AND B.pressure >= H.beatrate AND B.temp < H.beatrate AND B.temp >= H.vib",
        ),
    ),
    50: (
        ("B.ts >= H.ts", "B.pressure < 110 AND B.pressure <= H.vib"),
        ("B.ts >= H.ts", "B.pressure > 113 AND H.beatrate > 110 AND B.pressure >= H.vib AND B.pressure > H.beatrate"),
        (
            "B.ts >= H.ts",
            "B.pressure > 115 AND H.beatrate >= 110 AND H.vib > 80 AND B.pressure >= H.vib * 2 "
            "AND B.pressure < H.beatrate AND B.temp > H.beatrate",
        ),
        (
            "B.ts >= H.ts",
            "B.pressure > 117 AND H.beatrate < 110 AND H.vib < 80 AND B.temp > 90 AND B.pressure >= H.vib * 3 "
            "AND B.pressure = H.beatrate AND B.temp >= H.beatrate AND B.temp >= H.vib",
        ),
        (
            "B.ts >= H.ts",
            "B.pressure > 120 AND H.beatrate = 115 AND H.vib = 100 AND B.temp = 98 AND B.pressure >= H.vib * 4 "
            "AND B.pressure >= H.beatrate AND B.temp < H.beatrate AND B.temp <= H.vib",
        ),
    ),
    75: (
        ("B.ts <= H.ts", "B.pressure < 110 AND B.pressure <= H.vib"),
        ("B.ts <= H.ts", "B.pressure < 113 AND H.beatrate > 115 AND B.pressure <= H.vib AND B.temp > H.beatrate"),
        (
            "B.ts <= H.ts",
            "B.pressure < 115 AND H.beatrate > 117 AND H.vib > 80 AND B.pressure <= H.vib * 2 "
            "AND B.temp > H.beatrate * 2 AND B.pressure < H.beatrate",
        ),
        (
            "B.ts <= H.ts",
            "B.pressure < 117 AND H.beatrate > 120 AND H.vib < 80 AND B.temp > 90 AND B.pressure <= H.vib * 3 "
            "AND B.temp > H.beatrate * 3 AND B.pressure = H.beatrate AND B.temp >= H.vib",
        ),
        (
            "B.ts <= H.ts",
            "B.pressure < 120 AND H.beatrate > 125 AND H.vib = 100 AND B.temp = 98 AND B.pressure <= H.vib * 4 "
            "AND B.temp > H.beatrate * 4 AND B.pressure >= H.beatrate AND B.temp = H.vib",
        ),
    ),
}  # fmt: skip
"""Fig. 5.13 to 5.15: the overlap in percent, then each query's WINDOW and WHERE."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the data with its own ranges and rates.

    Attributes:
        ranges: values by column, where they differ from those of the group.
        rates: tuples by stream, in multiples of one per `STEP_MS`, where it is another number.
    """

    ranges: Mapping[str, Range] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """Queries over some of the streams, and events for them.

    Attributes:
        columns: the columns and their ranges, of each stream that is read.
        selects: each query from its SELECT on.
        phases: of equal length, one after the other.
    """

    name: str
    columns: Mapping[str, Mapping[str, Range]]
    selects: tuple[str, ...]
    phases: tuple[Phase, ...] = (Phase(),)

    def sql(self) -> str:
        """The program: queries are named `q` and their number."""
        lines = [
            f"CREATE STREAM {stream} (ts TIMESTAMP, {', '.join(f'{name} BIGINT' for name in columns)}) "
            f"WITH (topic = '{stream}', timestamp = 'ts');"
            for stream, columns in self.columns.items()
        ]
        lines += [f"INSERT INTO 'q{number}' {select};" for number, select in enumerate(self.selects, start=1)]
        return "\n".join(lines) + "\n"

    def queries(self) -> tuple[Query, ...]:
        """The bound queries."""
        return parse_program(self.sql()).queries

    def batches(self, steps: int, seed: int) -> dict[str, Batch]:
        """The events of `steps` * `STEP_MS`, the streams one after another in every step."""
        found = {}
        for place, (stream, columns) in enumerate(self.columns.items()):
            rng = np.random.default_rng((seed, *stream.encode()))
            times: list[I64] = []
            values: dict[str, list[I64]] = {name: [] for name in columns}
            for number, phase in enumerate(self.phases):
                first, last = (steps * n // len(self.phases) * STEP_MS for n in (number, number + 1))
                count = round((last - first) / STEP_MS * phase.rates.get(stream, 1.0))
                times.append(first + np.arange(count, dtype=np.int64) * (last - first) // count + place)
                for name, usual in columns.items():
                    low, high = phase.ranges.get(f"{stream}.{name}", usual)
                    values[name].append(rng.integers(low, high + 1, count, dtype=np.int64))
            ts = np.concatenate(times)
            made = {name: Column(Type.BIGINT, np.concatenate(parts)) for name, parts in values.items()}
            found[stream] = Batch(ts, {"ts": Column(Type.TIMESTAMP, ts), **made})
        return found


def _reading(names: str) -> dict[str, Mapping[str, Range]]:
    return {name: STREAMS[name] for name in names}


def four_way() -> Group:
    """The workload of 5.2.1: one query over four streams."""
    return Group("four-way", _reading("BTHK"), (FOUR_WAY,))


def reordering() -> Group:
    """The workload of 5.2.2: one query, whose predicate types can be evaluated in any order."""
    return Group("reordering", _reading("BHT"), (REORDERING,))


MANY = {"B": 4.0, "H": 1.0, "T": 2.0}
"""Every T finds 400 tuples, 20 seconds, of B, all before it: the window predicates refuse nothing that it meets."""

SELDOM = {"B": 4.0, "H": 2.0, "T": 0.02}
"""The input is mostly B and H, which must come before each other and before a T: the window predicates refuse nearly
all pairs."""

ALL_PASS = {"B.pressure": (60, 89), "H.beatrate": (116, 130), "T.fluct": (150, 199)}
"""No attribute predicate refuses anything."""

DRIFT = (
    Phase(
        {"B.pressure": (88, 107), "H.beatrate": (97, 116), "T.fluct": (198, 217), "H.vib": (110, 130),
         "T.degree": (140, 150)},
        MANY,
    ),
    Phase({**ALL_PASS, "H.vib": (20, 63), "T.degree": (84, 86)}, MANY),
    Phase({**ALL_PASS, "H.vib": (110, 130), "T.degree": (84, 86)}, SELDOM),
)  # fmt: skip
"""In each phase one type of predicates refuses nearly all candidates, and the other types refuse next to nothing.

Attributes: one in ten to twenty of B, H and T satisfies the attribute predicates, and those satisfy every join
predicate. Joins: every tuple satisfies the attribute predicates, and of the B that a T meets, one in fifty has a
temperature below its degree. Windows: every B would join every H by its values, and no stored tuple may be after it;
the few T find few B, so that the number of results stays small next to the work before them. So an order that does not
begin with the attributes loses the first phase, an order that finds candidates by time the second, and an order that
finds them
by value the third: no fixed order is good in all three.
"""


def drifting() -> Group:
    """The same query while the data drifts."""
    return Group("drifting", _reading("BHT"), (REORDERING,), DRIFT)


def overlapping(percent: int) -> Group:
    """The workload of 5.2.3: five queries of which so many percent of the predicates can be grouped."""
    selects = tuple(
        f"{_TWO_WAY} WINDOW {window} MAXWINDOW 20 SECONDS WHERE {where}" for window, where in OVERLAPS[percent]
    )
    return Group(f"overlap {percent} %", _reading("BH"), selects)


WIDE = {
    "B": {"patient": (1, 40), **{f"b{n}": (0, 999) for n in range(12)}},
    "H": {"patient": (1, 40), **{f"h{n}": (0, 999) for n in range(12)}},
}
"""Two streams of many columns, so that the predicates of many queries can be over different columns."""


WATCHED: Mapping[str, tuple[int, int]] = {
    "few rooms watched": (1_000, 8),
    "many rooms, few at a time": (20_000, 20_000),
    "most rooms watched": (200, 200),
}
"""Rooms in which patients' hearts are measured, and rooms that report a temperature."""


def watched(rooms: int, of_temperature: int, queries: int, seed: int) -> Group:
    """Queries that join a patient's readings of blood and heart with the temperature of the room in which the heart was
    measured. The matches of a heart among the blood readings are useless where its room has no temperature."""
    rng = np.random.default_rng((seed, rooms, queries))
    columns: dict[str, Mapping[str, Range]] = {
        "B": {"patient": (1, 40), "pressure": (0, 999)},
        "H": {"patient": (1, 40), "room": (1, rooms), "vib": (0, 999)},
        "T": {"room": (1, of_temperature), "degree": (0, 999)},
    }
    selects = [
        f"SELECT B.ts AS b, H.ts AS h, T.ts AS t, B.patient AS patient FROM B, H, T MAXWINDOW 100 SECONDS "
        f"WHERE B.patient = H.patient AND H.room = T.room AND B.pressure > {rng.integers(300, 900)} "
        f"AND H.vib < {rng.integers(100, 700)} AND T.degree > H.vib + {rng.integers(0, 400)}"
        for _ in range(queries)
    ]
    phase = Phase(rates={"B": 4.0, "H": 4.0})
    return Group(f"{queries} queries, {of_temperature} of {rooms} rooms", columns, tuple(selects), (phase,))


def many(queries: int, overlap: float, seed: int) -> Group:
    """Any number of queries that watch the same patients, each for its own limits.

    Every query asks for one patient's two readings, and has two attribute and two join predicates. A share `overlap` of
    them is over the same columns as everybody's, the others are over randomly picked columns. Limits, factors and
    addends are each query's own.
    """
    rng = np.random.default_rng((seed, queries, round(overlap * 100)))

    def picked() -> Iterator[tuple[str, str]]:
        for shared in cycle((("b0", "h0"), ("b1", "h1"))):
            other = f"b{rng.integers(2, 12)}", f"h{rng.integers(2, 12)}"
            yield shared if rng.random() < overlap else other

    columns = picked()
    selects = []
    for _ in range(queries):
        (b, _), (_, h), (x, y), (v, w) = (next(columns) for _ in range(4))
        low, high = rng.integers(700, 900), rng.integers(100, 300)
        factor, addend = rng.integers(1, 4), rng.integers(-200, 200)
        selects.append(
            f"SELECT B.ts AS b, H.ts AS h, B.patient AS patient FROM B, H WINDOW B.ts <= H.ts "
            f"MAXWINDOW {rng.integers(5, 21)} SECONDS WHERE B.patient = H.patient AND B.{b} > {low} AND H.{h} < {high} "
            f"AND B.{x} > {factor} * H.{y} + {addend} AND B.{v} <= H.{w} + {rng.integers(0, 400)}"
        )
    return Group(f"{queries} queries, overlap {overlap:.0%}", WIDE, tuple(selects))
