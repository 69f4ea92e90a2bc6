"""Seeded input for the fault tests: three streams to join, with all kinds of errors in them.

A `Workload` is a list of records in the order in which they are produced: tuples with nulls, exact duplicates,
disorder within and beyond what the streams declare, and records that are no tuples. It ends with closing
tuples far ahead in event time in every partition, so that the watermark passes all others; they join with
nothing. The expected outcome is a function of the list alone: results by the oracle, late tuples by the
oracle's rule, dead letters by the kinds below.
"""

from __future__ import annotations

import functools
import json
import random
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from schemas.language.program import parse_program
from tests import oracle

Row = dict[str, Any]

BASE = 1_700_000_000_000
STEP_MS = 10
DISORDER_MS = 300

FAR_MS = 7_200_000
"""How far ahead the closing tuples are: beyond any window and disorder."""

STREAMS = ("a", "b", "c")

QUERY = f"""
CREATE STREAM a (n BIGINT, k BIGINT, s STRING, x DOUBLE, at TIMESTAMP)
  WITH (topic = '{{a}}', format = 'json', timestamp = 'at', disorder = '{DISORDER_MS} MILLISECONDS');
CREATE STREAM b (n BIGINT, k BIGINT, s STRING, y BIGINT, at TIMESTAMP)
  WITH (topic = '{{b}}', format = 'json', timestamp = 'at', disorder = '{DISORDER_MS} MILLISECONDS');
CREATE STREAM c (n BIGINT, k BIGINT, z BOOLEAN, at TIMESTAMP)
  WITH (topic = '{{c}}', format = 'json', timestamp = 'at', disorder = '{DISORDER_MS} MILLISECONDS');
INSERT INTO '{{sink}}'
SELECT A.n AS a, B.n AS b, C.n AS c, A.k AS k, A.s AS s, A.x AS x, B.y AS y, C.z AS z, B.at AS at
FROM a A [RANGE 600 MILLISECONDS], b B [RANGE 300 MILLISECONDS], c C [RANGE 900 MILLISECONDS]
WHERE A.k = B.k AND B.k = C.k AND A.s = B.s AND A.x > B.y
"""
"""Windows differ, one predicate is not an equality; `n` numbers the tuples, so that duplicates can be distinguished."""

PARTITIONED = QUERY.rstrip() + "\nPARTITION BY A.k, B.k, C.k\n"

PLAIN: Row = {"n": 1, "k": 1, "s": "u", "x": 1.0, "y": 1, "z": True}


def _with(**changes: Any) -> bytes:
    """A record that would be a tuple of every stream except for `changes`."""
    return json.dumps({**PLAIN, "at": BASE, **changes}).encode()


BAD: dict[str, tuple[bytes | None, str]] = {
    "truncated": (b'{"n": 1, "k": 4, "at"', "^broken JSON: "),
    "no JSON": (b"k=1;at=2", "^broken JSON: "),
    "not UTF-8": (b'{"n": 1, "s": "\xff\xfe", "at": 1700000000000}', "^broken JSON: "),
    "two values": (_with() + b" " + _with(), "^broken JSON: "),
    "trailing comma": (b'{"n": 1, "at": 1700000000000,}', "^broken JSON: "),
    "binary": (bytes(range(64)), "^broken JSON: "),
    "deep": (b'{"n": ' + b"[" * 5000 + b"]" * 5000 + b"}", r"^field 'n' is \[\[.*, BIGINT accepts"),
    "array": (b"[1, 2, 1700000000000]", "is not a JSON object$"),
    "text": (b'"at"', "is not a JSON object$"),
    "null": (b"null", "is not a JSON object$"),
    "tombstone": (None, "^the record is empty"),
    "empty": (b"", "^the record is empty"),
    "white": (b" \r\n\t", "^the record is empty"),
    "text for BIGINT": (_with(k="7"), "^field 'k' is '7', BIGINT accepts"),
    "fraction for BIGINT": (_with(n=1.0), "^field 'n' is 1.0, BIGINT accepts"),
    "beyond int64": (_with(k=2**63), f"^field 'k' is {2**63}, BIGINT accepts"),
    "object for BIGINT": (_with(k={"is": 7}), "^field 'k' is .*, BIGINT accepts"),
    "boolean for BIGINT": (_with(n=True), "^field 'n' is true, BIGINT accepts"),
    "time missing": (json.dumps(PLAIN).encode(), "^timestamp field 'at' is missing or null"),
    "time null": (_with(at=None), "^timestamp field 'at' is missing or null"),
    "time negative": (_with(at=-1), "^timestamp field 'at' is -1, accepted are 0 <= ms"),
    "time least": (_with(at=-(2**63)), "^timestamp field 'at' is -9223372036854775808, accepted"),
    "time in year 9999": (
        _with(at="9999-12-31T23:59:59Z"),
        "^timestamp field 'at' is 253402300799000, accept",
    ),
    "time in nanoseconds": (
        _with(at=BASE * 1_000_000),
        "^timestamp field 'at' is 1700000000000000000, accept",
    ),
    "time beyond int64": (_with(at=2**63), f"^field 'at' is {2**63}, TIMESTAMP accepts"),
    "time NaN": (b'{"n": 1, "k": 1, "at": NaN}', "^broken JSON: "),
    "time infinite": (b'{"n": 1, "k": 1, "at": 1e999}', "^field 'at' is 1e999"),
    "time fraction": (_with(at=BASE + 0.5), "^field 'at' is 1700000000000.5, TIMESTAMP accepts"),
    "time no date": (_with(at="2023-02-30T00:00:00Z"), "^field 'at': '2023-02-30T00:00:00Z' is no date"),
    "time boolean": (_with(at=True), "^field 'at' is true, TIMESTAMP accepts"),
}
"""Records that are tuples of no stream: the value, and a pattern for the reason in the dead letter."""


@dataclass(frozen=True)
class Record:
    """One record to produce: `bad` names its kind when it is not a tuple, else `row` is its content."""

    stream: str
    partition: int
    value: bytes | None
    row: Row | None = None
    bad: str | None = None


Place = tuple[str, int, int]
"""Stream, partition, offset."""


@dataclass(frozen=True)
class Expected:
    """The expected outcome of a workload, each record once.

    Attributes:
        results: canonical results with their counts.
        late, dead: the values by stream, partition and offset; for dead letters also the reason's pattern.
    """

    results: Counter[str]
    late: dict[Place, bytes]
    dead: dict[Place, tuple[bytes | None, str]]


class Workload:
    """Records in production order, and the expected outcome."""

    def __init__(self, records: list[Record], partitions: int, text: str = QUERY) -> None:
        self.records = records
        self.partitions = partitions
        (self.query,) = parse_program(text.format(sink="sink", **{name: name for name in STREAMS})).queries

    def rows(self) -> dict[str, list[list[Row]]]:
        """The tuples, for the oracle."""
        rows: dict[str, list[list[Row]]] = {
            stream.name: [[] for _ in range(self.partitions)] for stream in self.query.streams()
        }
        for record in self.records:
            if record.row is not None:
                rows[record.stream][record.partition].append(record.row)
        return rows

    @functools.cached_property
    def expected(self) -> Expected:
        """The outcome that the oracle computes. Takes seconds for thousands of records."""
        late: dict[Place, bytes] = {}
        dead: dict[Place, tuple[bytes | None, str]] = {}
        clock: dict[tuple[str, int], list[Row]] = {}
        places: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
        offsets: Counter[tuple[str, int]] = Counter()
        for record in self.records:
            lane = (record.stream, record.partition)
            offset, offsets[lane] = offsets[lane], offsets[lane] + 1
            if record.row is None:
                assert record.bad is not None
                dead[*lane, offset] = (record.value, BAD[record.bad][1])
            else:
                assert record.value is not None
                clock.setdefault(lane, []).append(record.row)
                places.setdefault(lane, []).append((offset, record.value))
        streams = {stream.name: stream for stream in self.query.streams()}
        for lane, rows in clock.items():
            found = oracle.with_lateness(streams[lane[0]], rows)
            for (offset, value), (_, is_late) in zip(places[lane], found, strict=True):
                if is_late:
                    late[*lane, offset] = value
        return Expected(canonical(oracle.results(self.query, self.rows())), late, dead)


def canonical(rows: list[Row]) -> Counter[str]:
    """A multiset of rows."""
    return Counter(json.dumps(row, sort_keys=True) for row in rows)


@functools.cache
def workload(
    seed: int, steps: int, partitions: int = 1, by_key: bool = False, keys: int = 16, dirty: bool = True
) -> Workload:
    """A random workload; equal arguments return the same object, so that its expectation is computed once.

    Args:
        steps: tuples per stream, STEP_MS apart in event time.
        by_key: whether the partition follows from `k`, as PARTITION BY requires; else it is random.
        dirty: whether it has late tuples and records that are no tuples.
        dirty: with late tuples and records that are no tuples.
    """
    rng = random.Random(seed)
    records: list[Record] = []
    for n in range(steps):
        for stream in STREAMS:
            row = _row(rng, stream, n, keys, dirty)
            partition = (row["k"] or 0) % partitions if by_key else rng.randrange(partitions)
            record = Record(stream, partition, _encoded(rng, row), row)
            records += [record] * (2 if rng.random() < 0.03 else 1)
            if dirty and rng.random() < 0.04:
                kind = rng.choice(list(BAD))
                records.append(Record(stream, rng.randrange(partitions), BAD[kind][0], bad=kind))
    records += closing(partitions, BASE + steps * STEP_MS + FAR_MS)
    text = PARTITIONED if by_key else QUERY
    return Workload(records, partitions, text)


def _row(rng: random.Random, stream: str, n: int, keys: int, dirty: bool) -> Row:
    behind = rng.choice([0, 0, 0, 1, STEP_MS, 5 * STEP_MS, DISORDER_MS - STEP_MS])
    if dirty and rng.random() < 0.03:
        behind = DISORDER_MS + rng.randrange(3 * DISORDER_MS)
    row: Row = {
        "n": n,
        "k": None if rng.random() < 0.05 else rng.randrange(keys),
        "at": BASE + n * STEP_MS - behind,
    }
    match stream:
        case "a":
            row |= {"s": rng.choice(["u", "v", "wö\n", None]), "x": rng.choice([None, 0.5, 2, 1e300, 7.25])}
        case "b":
            row |= {"s": rng.choice(["u", "v", "wö\n"]), "y": rng.choice([-(2**63), 0, 2, None])}
        case "c":
            row |= {"z": rng.choice([True, False, None])}
    return row


def _encoded(rng: random.Random, row: Row) -> bytes:
    """One of the ways to write a row: nulls written or left out, fields in any order, unknown fields added."""
    said = {name: value for name, value in row.items() if value is not None or rng.random() < 0.5}
    items = list(said.items())
    if rng.random() < 0.2:
        items.append(("unknown", [1, {"at": "no"}]))
        rng.shuffle(items)
    return json.dumps(dict(items), ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, None, 1])).encode()


def closing(partitions: int, at: int) -> list[Record]:
    """A tuple without key at `at` for every partition."""
    row: Row = {"n": -1, "k": None, "at": at}
    value = json.dumps(row).encode()
    return [Record(stream, p, value, row) for stream in STREAMS for p in range(partitions)]


def reason_fits(kind_pattern: str, reason: str) -> bool:
    """Whether a dead letter's reason names the error."""
    return re.search(kind_pattern, reason) is not None
