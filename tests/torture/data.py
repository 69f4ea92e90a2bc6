"""The records of a scenario, in the order and at the times at which they are produced."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from tests.faults.workload import BAD
from tests.torture.scenario import Scenario

BASE = 1_700_000_000_000
"""Event time of the first record, in ms."""

FAR_MS = 7_200_000
"""How far after the last record the closing tuples lie: more than any window and disorder."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """One record: `row` is its content if it is a tuple, else `bad` is the kind of error in it."""

    due_s: float
    alias: str
    partition: int
    value: bytes | None
    row: Row | None
    bad: str = ""


def records(scenario: Scenario) -> list[Record]:
    """All records but the closing tuples, by the time at which each is due."""
    rng = random.Random(f"data {scenario.seed}")
    found: list[Record] = []
    steps = int(scenario.seconds * scenario.rate)
    kinds = sorted(BAD)
    big = {rng.randrange(steps): rng.choice(scenario.aliases) for _ in range(scenario.big)}
    for step in range(steps):
        for alias in scenario.aliases:
            due_s = (step + rng.random()) / scenario.rate
            row = _row(rng, scenario, step, due_s)
            said = {name: value for name, value in row.items() if value is not None or rng.random() < 0.5}
            if big.get(step) == alias:
                said["undeclared"] = "ä" * (scenario.big_bytes // 2)
            value = json.dumps(said, ensure_ascii=False).encode()
            found.append(Record(due_s, alias, _partition(rng, scenario, row), value, row))
            if rng.random() < scenario.bad:
                kind = rng.choice(kinds)
                found.append(Record(due_s, alias, rng.randrange(scenario.partitions), BAD[kind][0], None, kind))
    return sorted(found, key=lambda record: record.due_s)


def closing(scenario: Scenario) -> list[Record]:
    """A tuple without a key in every partition, far ahead, so that the watermark passes all other tuples."""
    at = BASE + int(scenario.seconds * 1000) + FAR_MS
    row = {"n": -1, "k": None, "v": None, "x": None, "s": None, "at": at}
    value = json.dumps({"n": -1, "at": at}).encode()
    return [
        Record(scenario.seconds, alias, partition, value, row)
        for alias in scenario.aliases
        for partition in range(scenario.count(alias))
    ]


def _row(rng: random.Random, scenario: Scenario, step: int, due_s: float) -> Row:
    behind = rng.choice([0, 0, 0, scenario.disorder_ms // 2, scenario.disorder_ms - 1])
    if rng.random() < scenario.late:
        behind = scenario.disorder_ms + rng.randint(1, 3 * scenario.disorder_ms)
    row: Row = {
        "n": step,
        "k": rng.randrange(scenario.keys),
        "v": rng.randrange(scenario.keys),
        "x": rng.choice([0.5, 1.0, 49.5, 50.0, 1e300, -2.25]),
        "s": rng.choice(["a", "ab", "b", "wö\n", ""]),
    }
    for name in ("k", "v", "x", "s"):
        if rng.random() < scenario.nulls:
            row[name] = None
    return row | {"at": BASE + int(due_s * 1000) - behind}


def _partition(rng: random.Random, scenario: Scenario, row: Row) -> int:
    """The partition of a row: by key where the query has PARTITION BY."""
    return (row["k"] or 0) % scenario.partitions if scenario.partition_by else rng.randrange(scenario.partitions)
