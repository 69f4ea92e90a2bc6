"""Checks that a trial's verdict sees errors, and that its fast computation of expected results agrees with the
oracle."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from schemas.language.program import parse_program
from tests import oracle
from tests.faults.workload import canonical
from tests.torture import trial
from tests.torture.data import closing, records
from tests.torture.expected import Content, Truth, changes, combinations, stays
from tests.torture.report import table
from tests.torture.scenario import Scenario, draw
from tests.torture.verdict import wrong_rejected_records, wrong_results
from tests.worker_harness import Record

pytestmark = pytest.mark.unmeasured


def small(seed: int, kind: str) -> Scenario:
    """A scenario of few tuples."""
    drawn = draw(seed, only=kind)
    return dataclasses.replace(drawn, seconds=1.5, rate=20, keys=4, big=0)


def truth(scenario: Scenario) -> Truth:
    """The truth of an undisturbed log."""
    known = [*records(scenario), *closing(scenario)]
    log: dict[tuple[str, int], list[tuple[int, Content]]] = {}
    for record in known:
        entries = log.setdefault((f"s{record.alias.lower()}", record.partition), [])
        entries.append((len(entries), (record.key, record.value)))
    return Truth(scenario, "t", known, log)


def some_seeds(kind: str) -> list[int]:
    """A few seeds, of which one draws a query that looks tuples up, and one an array."""
    drawn = {seed: draw(seed, only=kind) for seed in range(3, 60)}
    chosen = [next(seed for seed in drawn if getattr(drawn[seed], wanted)) for wanted in ("table", "unnests")]
    return list(dict.fromkeys([0, 1, 2, *chosen]))


@pytest.mark.parametrize(
    ("kind", "seed"),
    [(kind, seed) for kind in ("join", "partitioned", "rows", "aggregate", "except") for seed in some_seeds(kind)],
)
def test_expected_results_are_the_oracles(kind: str, seed: int) -> None:
    scenario = small(seed, kind)
    found = truth(scenario)
    (query,) = parse_program(scenario.text("t")).queries
    everything = oracle.results(query, found.rows)
    assert canonical(found.results(scenario.text("t"), "t.q", {})) == canonical(everything)
    streams = oracle.in_order(query, found.rows)
    if query.subtracted:
        assert changes(query, streams) == everything
    else:
        assert combinations(query, streams) == oracle.combinations(query, streams)
    late = [row for rows in oracle.late(query, found.rows).values() for row in rows]
    assert len(found.expected.late) == sum(row.get("items._ordinal", 1) == 1 for row in late)
    assert len(found.expected.dead) == sum(record.row is None for record in records(scenario))


def results(*rows: tuple[int, int]) -> list[Record]:
    """Results of (number, timestamp) in one partition."""
    values = [json.dumps({"n": n, "_ts": ts}).encode() for n, ts in rows]
    return [Record(value, None, {}, 0, offset) for offset, value in enumerate(values)]


WANTED = canonical([{"n": 1, "_ts": 10}, {"n": 2, "_ts": 20}, {"n": 2, "_ts": 20}])


@pytest.mark.parametrize(
    ("found", "kinds", "lenient_kinds"),
    [
        (results((1, 10), (2, 20), (2, 20)), [], []),
        (results((2, 20), (1, 10), (2, 20)), ["order"], []),
        (results((1, 10), (2, 20)), ["missing"], ["missing"]),
        (results((1, 10), (1, 10), (2, 20), (2, 20)), ["extra"], []),
        (results((1, 10), (2, 20), (2, 20), (3, 30)), ["extra"], ["extra"]),
        (results((1, 10), (2, 20), (3, 30)), ["missing", "extra"], ["missing", "extra"]),
        ([], ["missing"], ["missing"]),
    ],
)
def test_results(found: list[Record], kinds: list[str], lenient_kinds: list[str]) -> None:
    assert [wrong.kind for wrong in wrong_results(WANTED, found, lenient=False)] == kinds
    assert [wrong.kind for wrong in wrong_results(WANTED, found, lenient=True)] == lenient_kinds


def test_results_of_a_cleanup_come_when_they_come() -> None:
    value = json.dumps({"n": 1, "_ts": 10, "_phase": "cleanup"}).encode()
    found = [*results((2, 20), (2, 20)), Record(value, None, {}, 0, 2)]
    assert wrong_results(WANTED, found, lenient=False) == []


def test_rejected_records() -> None:
    """A rejected record is late or a dead letter, has its reason and its bytes, and appears once."""

    def rejected(offset: int, value: bytes = b"x", reason: str = "late") -> Record:
        headers = {"stream": "sa", "topic": "t.A", "partition": "0", "offset": str(offset), "reason": reason}
        return Record(value, None, headers, 0, offset)

    wanted = {("sa", 0, 1): (b"x", "^late$"), ("sa", 0, 2): (b"x", "^late$")}

    def errors(*records: Record, lenient: bool = False) -> int:
        return len(wrong_rejected_records("late", wanted, records, lenient))

    assert errors(rejected(1), rejected(2)) == 0
    assert errors(rejected(1)) == 1
    assert errors(rejected(1), rejected(2), rejected(2)) == 1
    assert errors(rejected(1), rejected(2), rejected(2), lenient=True) == 0
    assert errors(rejected(1), rejected(2), rejected(3)) == 1
    assert errors(rejected(1), rejected(2, b"y")) == 1
    assert errors(rejected(1), rejected(2, reason="no JSON")) == 1


def test_what_a_group_says_of_its_queries() -> None:
    """The newest record of each registration counts; a query that is left out, or sees too little, is an error."""

    def said(id_: str, **more: object) -> bytes:
        return json.dumps({"task": 0, "name": f"q{id_}", "id": id_, "text": "SELECT", **more}).encode()

    begun, ended = said("1", began=5, since={"A": 5}), said("1", began=5, ended=9, since={"A": 5})
    found, wrong = stays([begun, said("2", began=7), ended])
    assert not wrong
    assert Counter((stay.sink, stay.began, stay.ended) for stay in found) == Counter([("q1", 5, 9), ("q2", 7, None)])
    assert stays([said("1", error="too many")])[1]
    assert stays([said("1", began=5, since={"A": 6})])[1]


def test_table() -> None:
    """A table of outcomes names every violation with its evidence."""
    outcome = {
        "seed": 7,
        "kind": "join",
        "brokers": 1,
        "seconds": 20.0,
        "expected": 10,
        "faults": ["broker-kill"],
        "silences": [["broker-kill", 4.0]],
        "violations": [{"kind": "missing", "text": "1 of 10"}],
        "notes": [],
        "evidence": "/somewhere/7-join",
    }
    text = table([outcome, {**outcome, "violations": [], "silences": [["broker-kill", 6.0]]}])
    assert "| broker-kill | 2 | 6.0 s | 6.0 s | 6.0 s |" in text
    assert "| join | 2 | 1 |" in text
    assert "seed 7 join x1: missing" in text
    assert "/somewhere/7-join" in text


def test_a_silence_ends_with_the_last_progress() -> None:
    """Not when the trial sees that all is done, for which it reads all input; nor does the wait before closing."""
    entries = [(1, "node-kill begins"), (10, "pause begins"), (20, "healing"), (25, "closing"), (80, "caught up")]
    watch = SimpleNamespace(moves=[102.0, 104.0, 109.5, 112.0, 119.0, 126.0])
    log = [{"at": float(at), "what": what} for at, what in entries]
    outcome = SimpleNamespace(faults=[], silences=[])
    trial._silences(cast(Any, SimpleNamespace(began=100.0, log=log, watch=watch)), cast(Any, outcome))
    assert outcome.silences == [("node-kill", 5.5), ("pause", 7.0)]
