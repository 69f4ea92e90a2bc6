"""The records of a scenario, in the order and at the times at which they are produced."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from tests.faults.workload import BAD
from tests.torture.scenario import TABLE, Scenario

BASE = 1_700_000_000_000
"""Event time of the first record, in ms."""

FAR_MS = 7_200_000
"""How far after the last record the closing tuples lie: more than any window and disorder."""

CHANGES_PER_S = 20
"""How often a row of the table changes."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """One record: `row` is its content if it is a tuple or a version of a row, else `bad` is the kind of error in it.
    Only versions have keys, and timestamps of their own."""

    due_s: float
    alias: str
    partition: int
    value: bytes | None
    row: Row | None
    bad: str = ""
    key: bytes | None = None


def records(scenario: Scenario) -> list[Record]:
    """All records but the closing tuples, by the time at which each is due."""
    rng, items = random.Random(f"data {scenario.seed}"), random.Random(f"items {scenario.seed}")
    found: list[Record] = []
    steps = int(scenario.seconds * scenario.rate)
    kinds = sorted(BAD)
    big = {rng.randrange(steps): rng.choice(scenario.aliases) for _ in range(scenario.big)}
    for step in range(steps):
        for alias in scenario.aliases:
            due_s = (step + rng.random()) / scenario.rate
            row = _row(rng, scenario, step, due_s)
            if scenario.unnests and alias == "A":
                row["items"] = [{"w": items.choice([None, step, 7])} for _ in range(items.choice([0, 1, 1, 2, 3]))]
            said = {name: value for name, value in row.items() if value is not None or rng.random() < 0.5}
            if big.get(step) == alias:
                said["undeclared"] = "ä" * (scenario.big_bytes // 2)
            value = json.dumps(said, ensure_ascii=False).encode()
            found.append(Record(due_s, alias, _partition(rng, scenario, row), value, row))
            if rng.random() < scenario.bad:
                kind = rng.choice(kinds)
                found.append(Record(due_s, alias, rng.randrange(scenario.partitions), BAD[kind][0], None, kind))
    if scenario.table:
        found += _versions(random.Random(f"table {scenario.seed}"), scenario)
    return sorted(found, key=lambda record: record.due_s)


def _versions(rng: random.Random, scenario: Scenario) -> list[Record]:
    """The table's records: first all rows, then changes. A row ends once at most, so that each record is another."""
    changes = int(scenario.seconds * CHANGES_PER_S)
    times = [(0.0, k) for k in range(scenario.keys)]
    times += [((n + rng.random()) / CHANGES_PER_S, rng.randrange(scenario.keys)) for n in range(changes)]
    ended: set[int] = set()
    found = []
    for n, (due_s, k) in enumerate(times):
        at = _time(rng, scenario, due_s)
        if n >= scenario.keys and k not in ended and rng.random() < 0.2:
            ended.add(k)
            found.append(_version({"n": n, "k": k, "at": at, "_op": "-"}, scenario, due_s))
        else:
            found.append(_version({"n": n, "k": k, "w": rng.randrange(100), "at": at}, scenario, due_s))
    return found


def _version(row: Row, scenario: Scenario, due_s: float, partition: int | None = None) -> Record:
    """A record of the table. The end of a row is a record without a value."""
    value = json.dumps({name: row[name] for name in ("n", "w", "at")}).encode() if "w" in row else None
    to = row["k"] % scenario.partitions if partition is None else partition
    return Record(due_s, TABLE, to, value, row, key=str(row["k"]).encode())


def closing(scenario: Scenario) -> list[Record]:
    """A tuple without a key in every partition, far ahead, so that the watermark passes all other tuples; and a row of
    the table that no tuple finds."""
    at = BASE + int(scenario.seconds * 1000) + FAR_MS
    row = {"n": -1, "k": None, "v": None, "x": None, "s": None, "at": at}
    if scenario.unnests:
        row["items"] = [{"w": None}]
    value = json.dumps({name: given for name, given in row.items() if given is not None}).encode()
    return [
        Record(scenario.seconds, alias, partition, value, row)
        for alias in scenario.aliases
        for partition in range(scenario.count(alias))
    ] + [
        _version({"n": -1, "k": -1, "w": 0, "at": at}, scenario, scenario.seconds, partition)
        for partition in range(scenario.partitions * scenario.table)
    ]


def _row(rng: random.Random, scenario: Scenario, step: int, due_s: float) -> Row:
    at = _time(rng, scenario, due_s)
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
    return row | {"at": at}


def _time(rng: random.Random, scenario: Scenario, due_s: float) -> int:
    behind = rng.choice([0, 0, 0, scenario.disorder_ms // 2, scenario.disorder_ms - 1])
    if rng.random() < scenario.late:
        behind = scenario.disorder_ms + rng.randint(1, 3 * scenario.disorder_ms)
    return BASE + int(due_s * 1000) - behind


def _partition(rng: random.Random, scenario: Scenario, row: Row) -> int:
    """The partition of a row: by key where the query has PARTITION BY."""
    return (row["k"] or 0) % scenario.partitions if scenario.partition_by else rng.randrange(scenario.partitions)
