"""The thesis' running example: Figures 3.3 and 3.10-3.13, and chapter 4 with the tuples of Fig. 3.16.

Where the thesis contradicts itself the test says so and takes what its queries say (Fig. 3.3):

- `T.fluct * 2 = 103` is 51.5; the thesis writes 52.5 (Fig. 3.10, 3.2.1).
- Fig. 3.12 has `B.ts < H.ts` for Query 2, whose text says `<=`.
- Fig. 3.13 and 3.2.1 give Query 2 the predicate `B.temp > H.vib`, which its text does not have.
- `2 * T.fluct` is called more covering than `T.fluct` since its factor is higher. For negative values it is the other
  way round, so here each factor is searched by itself, the higher one first.
- Of stream B Fig. 3.16, 4.3 and 4.4 show three different tables; here it is that of Fig. 3.16.
- T's tuple of ts 1 comes when B's of ts 8 are there. Here tuples are processed in the order of their ts, so it meets
  what is not later, and the others meet it; the results are the same.
- Section 4.1.1 says of Query 3 what is true of Query 2: the predicate `B.ts > T.ts` is Query 2's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from operators.juggler.operator import ORDERS
from operators.juggler.predicates.lists import ATTRIBUTE, JOIN, TYPES, WINDOW
from operators.juggler.routing.tuples_in_flight import PREDICATES, TuplesInFlight
from schemas.groups import query_group
from schemas.language.program import parse_program
from tests.operators.juggler.groups import Rows, Runner

PROGRAM = """
CREATE STREAM blood (ts TIMESTAMP, pressure DOUBLE, temp DOUBLE) WITH (topic = 'blood', timestamp = 'ts');
CREATE STREAM heart (ts TIMESTAMP, beatrate DOUBLE, vib DOUBLE) WITH (topic = 'heart', timestamp = 'ts');
CREATE STREAM kidney (ts TIMESTAMP, fluid DOUBLE) WITH (topic = 'kidney', timestamp = 'ts');
CREATE STREAM temperature (ts TIMESTAMP, fluct DOUBLE, degree DOUBLE, incr DOUBLE)
  WITH (topic = 'temperature', timestamp = 'ts');

INSERT INTO 'query1' SELECT H.beatrate FROM blood B, heart H, kidney K, temperature T
WHERE H.beatrate = 52 AND B.temp > H.vib AND B.pressure > T.fluct
WINDOW T.ts > B.ts MAXWINDOW 4 SECONDS;

INSERT INTO 'query2' SELECT B.pressure FROM blood B, temperature T, heart H
WHERE T.fluct < 0.5 * B.pressure AND T.fluct * 2 = 103
WINDOW B.ts > T.ts AND B.ts <= H.ts MAXWINDOW 6 SECONDS;

INSERT INTO 'query3' SELECT T.ts, H.ts AS heart_ts, H.vib FROM temperature T, heart H
WHERE T.fluct = 103 AND T.incr = H.vib
WINDOW T.ts > H.ts MAXWINDOW 5 SECONDS;
"""

NAMES = {
    "blood": ("ts", "pressure", "temp"),
    "heart": ("ts", "beatrate", "vib"),
    "kidney": ("ts", "fluid"),
    "temperature": ("ts", "fluct", "degree", "incr"),
}
FIGURE_3_16 = {
    "heart": [(0, 6, 98), (1, 1, 90), (2, 7, 98), (3, 2, 98), (4, 8, 89)],
    "kidney": [(1, 150), (2, 100), (3, 150), (5, 150), (6, 75)],
    "blood": [(1, 150, 101), (2, 97, 101), (4, 35, 101), (5, 100, 101), (8, 150, 101)],
    "temperature": [(1, 103, 101, 98)],
}


def rows() -> Rows:
    """The tuples of Fig. 3.16 and the one of chapter 4, their seconds as milliseconds."""

    def row(stream: str, values: tuple[int, ...]) -> dict[str, Any]:
        return dict(zip(NAMES[stream], (values[0] * 1000, *map(float, values[1:])), strict=True))

    return {stream: [row(stream, values) for values in tuples] for stream, tuples in FIGURE_3_16.items()}


@pytest.fixture
def runner() -> Runner:
    """The operator BTHK in the order WAJ, with the thesis' encoding."""
    return Runner(query_group(parse_program(PROGRAM).queries), rows(), "WAJ", PREDICATES)


def lists(runner: Runner, kind: str) -> list[list[str]]:
    """Fig. 3.10-3.12: the predicates of each list of a type."""
    return [[str(entry.form) for entry in one.entries] for one in runner.juggler.lists.of(kind)]


def bits(runner: Runner, words: np.ndarray, kind: str) -> list[str]:
    """A set of predicates as the thesis draws it: for each list of a type its bits."""

    def bit(place: int) -> str:
        return str(int(words[place >> 6]) >> (place & 63) & 1)

    return ["".join(bit(entry.bit) for entry in one.entries) for one in runner.juggler.lists.of(kind)]


def test_predicate_lists(runner: Runner) -> None:
    """Similar predicates are in one list, however they were written (3.2.1)."""
    assert lists(runner, ATTRIBUTE) == [["H.beatrate = 52"], ["T.fluct = 51.5", "T.fluct = 103"]]
    assert lists(runner, JOIN) == [
        ["B.temp > H.vib"],
        ["B.pressure > 2 * T.fluct", "B.pressure > T.fluct"],
        ["T.incr = H.vib"],
    ]
    assert lists(runner, WINDOW) == [
        ["T._ts >= B._ts + 1"],
        ["B._ts >= T._ts + 1"],
        ["B._ts <= H._ts"],
        ["T._ts >= H._ts + 1"],
    ]


def test_query_encoding_dependencies(runner: Runner) -> None:
    """Fig. 3.13, in which the list of T.fluct has 103 first."""
    shown = [[bits(runner, qed, kind) for kind in TYPES] for qed in runner.juggler.lists.dependencies]
    assert shown[0] == [["1", "00"], ["1", "01", "0"], ["1", "0", "0", "0"]]
    assert shown[1] == [["0", "10"], ["0", "10", "0"], ["0", "1", "1", "0"]]
    assert shown[2] == [["0", "01"], ["0", "00", "1"], ["0", "0", "0", "1"]]


class Steps:
    """A joined tuple that passes the types one at a time (Fig. 4.4-4.11)."""

    def __init__(self, runner: Runner, inputs: tuple[str, str], rows: tuple[int, int]) -> None:
        self.runner = runner
        self.evaluator = runner.juggler._evaluator
        none = np.zeros((1, self.evaluator.predicate_words), np.uint64)
        ids = np.array(rows, np.int64)[:, np.newaxis]
        alive = np.array([[7]], np.uint64)
        self.in_flight = TuplesInFlight(inputs, ids, np.zeros(1, np.int64), alive, none, none.copy())

    def evaluate(self, kind: str) -> None:
        """Evaluate those lists of a type that read no other streams."""
        own = [one for one in self.runner.juggler.lists.of(kind) if one.inputs <= set(self.in_flight.inputs)]
        self.evaluator.evaluate(self.in_flight, own)

    def relevant(self, kind: str) -> list[str]:
        return bits(self.runner, self.in_flight.relevant[0], kind)

    def satisfied(self, kind: str) -> list[str]:
        return bits(self.runner, self.in_flight.satisfied[0], kind)

    @property
    def queries(self) -> list[int]:
        """The query list, by the thesis' numbers."""
        return [q + 1 for q in range(3) if int(self.in_flight.alive[0, 0]) >> q & 1]


def test_temperature_with_heart(runner: Runner) -> None:
    """TH: T (1, 103, 101, 98) with H (0, 6, 98), in the order WAJ."""
    runner.to(9000)
    pair = Steps(runner, ("T", "H"), (0, 0))
    pair.evaluate(WINDOW)
    assert pair.relevant(WINDOW) == ["0", "0", "0", "1"]  # Fig. 4.4
    assert pair.satisfied(WINDOW) == ["0", "0", "0", "1"]
    assert pair.queries == [1, 2, 3]  # Fig. 4.5
    pair.evaluate(ATTRIBUTE)
    assert pair.relevant(ATTRIBUTE) == ["1", "11"]  # Fig. 4.6
    assert pair.satisfied(ATTRIBUTE) == ["0", "01"]  # Fig. 4.8
    assert pair.queries == [3]  # Fig. 4.9
    pair.evaluate(JOIN)
    assert pair.relevant(JOIN) == ["0", "00", "1"]  # Fig. 4.10
    assert pair.satisfied(JOIN) == ["0", "00", "1"]  # Fig. 4.11
    assert pair.queries == [3]


def test_temperature_with_blood(runner: Runner) -> None:
    """TB: T (1, 103, 101, 98) with B (2, 97, 101). Query 3 does not read B; here it never uses this visit."""
    runner.to(9000)
    pair = Steps(runner, ("T", "B"), (0, 1))
    pair.evaluate(WINDOW)
    assert pair.relevant(WINDOW) == ["1", "1", "0", "0"]  # Fig. 4.4
    assert pair.satisfied(WINDOW) == ["0", "1", "0", "0"]
    assert pair.queries == [2, 3]
    pair.evaluate(ATTRIBUTE)
    # Query 3's predicate is relevant here too: what drops it in the thesis is that TB has a stream too many.
    assert pair.relevant(ATTRIBUTE) == ["0", "11"]
    assert pair.satisfied(ATTRIBUTE) == ["0", "01"]
    assert pair.queries == [3]


@pytest.mark.parametrize("order", ORDERS)
def test_output(order: str, runner: Runner) -> None:
    """Section 4.4: one tuple leaves, for Query 3."""
    runner = Runner(runner.group, runner.rows, order, PREDICATES)
    runner.to(9000)
    assert runner.found == {
        "query1": [],
        "query2": [],
        "query3": [{"T.ts": 1000, "heart_ts": 0, "H.vib": 98.0, "_ts": 1000}],
    }
