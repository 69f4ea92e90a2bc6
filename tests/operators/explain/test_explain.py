"""`weir explain` as text: every predicate at its operator and in its form, windows, expected sizes."""

from __future__ import annotations

import pytest

from operators.explain.explain import count, explain
from operators.plan.choose import Statistics
from operators.plan.plan import left_deep, parse_plan
from schemas.language.program import parse_program
from tests.operators.tiny import chain, query

MIXED = query(
    "SELECT A.k FROM a A [RANGE 5000 ms], b B [ROWS 100], c C [UNBOUNDED], d [RANGE 1 ms] "
    "WHERE A.k = B.k AND A.v - B.v < 5 AND B.d < C.d AND C.v + A.v <= 3 AND A.v > 1 AND A.s LIKE 'x%' "
    "AND 1 = 1 AND B.k <> C.v"
)
SHOWN = """\
query  results
plan   (((A B) C) d)
always 1 = 1

cross join (((A B) C) d)  ~2.1G/s, ~2.08M alive
├─ nested-loop join ((A B) C)  ~21.3M/s, ~2.08M alive
│  │  loop  A.v <= -C.v + 3
│  │  loop  B.d < C.d
│  │  check C.v + A.v <= 3
│  │  check B.k <> C.v
│  ├─ hash join (A B)  ~106/s, ~10.4 alive
│  │  │  key   A.k = B.k
│  │  │  check A.v - B.v < 5
│  │  ├─ source a A [RANGE 5 SECONDS]  ~62.5/s, ~312 alive
│  │  │    where A.v > 1
│  │  │    where A.s LIKE 'x%'
│  │  └─ source b B [ROWS 100]  ~1k/s, ~100 alive
│  └─ source c C [UNBOUNDED]  ~1k/s, ~3.6M alive
└─ source d [RANGE 1 MILLISECOND]  ~1k/s, ~1 alive

expected cost 2.4G tuples entered, probed and built per second of event time (assumed statistics)"""

SENSORS = """
CREATE STREAM temperature (mote BIGINT, room STRING, celsius DOUBLE, at TIMESTAMP)
  WITH (topic = 'sensors.temperature', timestamp = 'at', rate = 20, distinct = 'mote:10');
CREATE STREAM humidity (mote BIGINT, percent DOUBLE, at TIMESTAMP)
  WITH (topic = 'sensors.humidity', timestamp = 'at', rate = 10);
INSERT INTO 'alarms'
SELECT T.mote FROM temperature T [RANGE 5 MINUTES], humidity H [RANGE 1 MINUTES]
WHERE T.mote = H.mote AND T.celsius > 40;
"""


def test_all_forms() -> None:
    """Keys, loops, checks, selections, constants, windows of every kind."""
    assert explain(MIXED, parse_plan("(((A B) C) d)", MIXED)) == SHOWN


def test_the_basis_of_the_sizes_is_named() -> None:
    """Declared, sampled or assumed; and the sink."""
    sensors = parse_program(SENSORS).queries[0]
    plan = parse_plan("(T H)", sensors)
    assert (
        explain(sensors, plan)
        == """\
query  alarms  ->  topic alarms
plan   (T H)

hash join (T H)  ~1.8k/s, ~90k alive
│  key   T.mote = H.mote
├─ source temperature T [RANGE 5 MINUTES]  ~5/s, ~1.5k alive
│    where T.celsius > 40
└─ source humidity H [RANGE 1 MINUTE]  ~10/s, ~600 alive

expected cost 1.81k tuples entered, probed and built per second of event time (declared statistics)"""
    )
    assert explain(sensors, plan, Statistics(rates={"T": 1.0}, sampled=True)).endswith("(sampled statistics)")


def test_a_stream_without_repeats() -> None:
    options = "rate = 20, deduplicate = 'mote, room', deduplicate_within = '10 MINUTES'"
    sensors = parse_program(SENSORS.replace("rate = 20", options)).queries[0]
    lines = explain(sensors, parse_plan("(T H)", sensors)).splitlines()
    at = next(number for number, line in enumerate(lines) if "source temperature" in line)
    assert lines[at + 1 : at + 3] == ["│    first mote, room within 10 MINUTES", "│    where T.celsius > 40"]


def test_one_source() -> None:
    """No join at all."""
    one = query("SELECT A.k FROM a A [ROWS 1]")
    assert explain(one, parse_plan("A", one)).splitlines()[3] == "source a A [ROWS 1]  ~1k/s, ~1 alive"


def test_101_streams() -> None:
    """Each sub-plan is sized once: text grows with the plan's own length only."""
    long = chain(101)
    lines = explain(long, left_deep([s.alias for s in long.sources])).splitlines()
    assert len(lines) == 3 + 100 * 2 + 101 + 2


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (0.25, "0.25"),
        (7.8125, "7.81"),
        (999.4, "999"),
        (999.9, "1k"),
        (1000.0, "1k"),
        (999_949.0, "1M"),
        (1.5e6, "1.5M"),
        (999.9e6, "1G"),
        (2e12, "2T"),
    ],
)
def test_counts_are_short(value: float, shown: str) -> None:
    """Three digits. Regression: 999.9 was shown as 1e+03."""
    assert count(value) == shown
