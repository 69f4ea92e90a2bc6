"""Tuples that are looked up in tables whose rows change: which version they get, by eye."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from operators.engine import lookups
from operators.engine.engine import Engine
from operators.engine.lookups import NONE, VersionedTable
from schemas.columns import Batch, Column
from schemas.language.program import parse_program
from schemas.query import GONE, Query, Type
from tests.feeding import to_batch, to_rows
from tests.operators.tiny import COLUMNS, rows, run

DECLARED = f"""
CREATE STREAM a ({COLUMNS}) WITH (timestamp = 'ts');
CREATE STREAM b ({COLUMNS}) WITH (timestamp = 'ts');
CREATE TABLE t ({COLUMNS.replace("k BIGINT", "k BIGINT PRIMARY KEY")})
  WITH (topic = 't', timestamp = 'ts', disorder = '2 MILLISECONDS');
"""


def query(select: str) -> Query:
    return parse_program(DECLARED + select.replace(" ms]", " MILLISECONDS]")).queries[0]


JOINED = query("SELECT A.v, T.v, T._ts FROM a A [RANGE 9 ms] JOIN t FOR SYSTEM_TIME AS OF A._ts AS T ON T.k = A.k")
KEPT = query("SELECT A.v, T.v FROM a A [RANGE 9 ms] LEFT JOIN t FOR SYSTEM_TIME AS OF A._ts AS T ON T.k = A.k")


def inputs(**given: str) -> dict[str, list[list[dict[str, Any]]]]:
    """Like `tiny.inputs`; in a table `-` behind a version ends the row."""
    found = {}
    for name, text in given.items():
        versions = text.split("|")
        found[name] = [rows("|".join(one.rstrip(" -") for one in versions))]
        for row, one in zip(found[name][0], versions, strict=True):
            if one.rstrip().endswith(" -"):
                row["_op"] = "-"
    return found


def found(query: Query, **given: str) -> list[list[Any]]:
    """The values of the results, which are the oracle's, however the input is cut into epochs."""
    results, _ = run(query, inputs(**given))
    for push, epoch_ms in ((3, 1), (1, 4), (100, 100)):
        assert run(query, inputs(**given), push=push, epoch_ms=epoch_ms)[0] == results
    return [[value for name, value in row.items() if name != "_ts"] for row in results]


def test_a_version_holds_from_its_ts_until_the_next() -> None:
    """t  3 ........ 6 ........
    a  2  3     5  6     9"""
    given = {"t": "3 k=1 v=30 | 6 k=1 v=60", "a": "2 k=1 v=2 | 3 k=1 v=3 | 5 k=1 v=5 | 6 k=1 v=6 | 9 k=1 v=9"}
    assert found(JOINED, **given) == [[3, 30, 3], [5, 30, 3], [6, 60, 6], [9, 60, 6]]
    assert found(KEPT, **given)[0] == [2, None]


def test_rows_are_told_apart_by_their_key() -> None:
    given = {"t": "1 k=1 v=10 | 1 k=2 v=20 | 4 k=2 v=21", "a": "2 k=2 | 3 k=1 | 4 k=3 | 5 k=2 | 6"}
    assert [row[1] for row in found(JOINED, **given)] == [20, 10, 21]
    assert [row[1] for row in found(KEPT, **given)] == [20, 10, None, 21, None]


def test_a_tombstone_ends_a_row_and_a_later_version_begins_it_again() -> None:
    given = {"t": "1 k=1 v=1 | 4 k=1 - | 6 k=1 v=6", "a": "3 k=1 | 4 k=1 | 5 k=1 | 6 k=1"}
    assert [row[1] for row in found(KEPT, **given)] == [1, None, None, 6]


def test_of_versions_with_one_ts_the_last_holds() -> None:
    given = {"t": "4 k=1 v=1 | 4 k=1 v=2 | 4 k=2 v=3 | 4 k=2 -", "a": "4 k=1 | 4 k=2 | 5 k=1"}
    assert [row[1] for row in found(KEPT, **given)] == [2, None, 2]


def test_versions_within_the_disorder_are_put_in_order() -> None:
    given = {"t": "6 k=1 v=6 | 4 k=1 v=4 | 9 k=2 v=9", "a": "4 k=1 | 5 k=1 | 6 k=1 | 7 k=1"}
    assert [row[1] for row in found(JOINED, **given)] == [4, 4, 6, 6]


def test_a_late_version_holds_from_the_watermark_on() -> None:
    """When 3 arrives the watermark is 10 - 2: the version holds from 8 on, and is reported as late."""
    given = {"t": "5 k=1 v=5 | 10 k=2 | 3 k=1 v=3", "a": "3 k=1 | 7 k=1 | 8 k=1 | 9 k=1"}
    assert found(KEPT, **given) == [[None, None], [None, 5], [None, 3], [None, 3]]
    _, engine = run(KEPT, inputs(**given))
    assert engine.statistics().late == 1


def test_changes_of_a_database_hold_in_the_order_of_the_log() -> None:
    """Debezium gives the rows of its snapshot a later time than changes that it found while it began, which come behind
    them: by time alone, a row stayed as it was in the snapshot until its next change."""
    of_database = replace(JOINED.lookups[0].table, format="debezium-json", disorder_ms=0)
    kept = replace(KEPT, lookups=(replace(KEPT.lookups[0], table=of_database),))
    versions = "6 k=1 v=6 | 6 k=2 v=6 | 3 k=1 v=3 | 4 k=2 - | 5 k=1 v=5 | 9 k=3"
    given = {"t": versions, "a": "4 k=1 | 6 k=1 | 7 k=2 | 8 k=1"}
    assert found(kept, **given) == [[None, None], [None, 5], [None, None], [None, 5]]
    _, engine = run(kept, inputs(**given))
    assert engine.statistics().late == 0


def test_a_version_that_an_idle_partition_brings_late_holds_from_the_cut_on() -> None:
    engine = Engine(KEPT, partitions={"a": [0], "t": [0]})
    a, t = KEPT.streams()
    engine.set_idle("t", 0, True)
    engine.push("a", 0, to_batch(a, rows("4 k=1 v=1 | 9 k=1 v=2")))
    assert [row["T.v"] for row in to_rows(engine.advance())] == [None]
    versions = rows("5 k=1 v=5 | 6 k=1 v=6 | 9 k=2 | 12 k=2")
    late, overtaken = engine.push("t", 0, to_batch(t, versions))
    assert late.tolist() == overtaken.tolist() == [True, True, False, False]
    engine.close("a", 0)
    assert [row["T.v"] for row in to_rows(engine.advance())] == [6]


def test_a_table_holds_the_watermark_back() -> None:
    engine = Engine(JOINED, partitions={"a": [0], "t": [0]})
    a, t = JOINED.streams()
    engine.push("a", 0, to_batch(a, rows("4 k=1 v=1 | 9 k=1 v=2")))
    assert engine.watermark() == -1
    engine.push("t", 0, to_batch(t, rows("3 k=1 v=3 | 7 k=1 v=7")))
    assert engine.watermark() == 5
    assert [row["T.v"] for row in to_rows(engine.advance())] == [3]


def test_what_is_looked_up_joins_like_any_column() -> None:
    joined = query(
        "SELECT A.v, B.v FROM a A [RANGE 9 ms], t FOR SYSTEM_TIME AS OF A._ts AS T, b B [RANGE 9 ms] "
        "WHERE T.k = A.k AND T.v = B.k AND B.v > T.d"
    )
    versions, b = "1 k=1 v=7 d=1 | 5 k=1 v=8 d=1", "3 k=7 v=5 | 4 k=7 v=0 | 7 k=8 v=2"
    assert found(joined, t=versions, a="2 k=1 v=1 | 6 k=1 v=2", b=b) == [[1, 5], [2, 2]]


def test_a_second_table_is_read_by_what_the_first_has() -> None:
    chained = query(
        "SELECT A.v, U.v FROM a A [RANGE 9 ms], t FOR SYSTEM_TIME AS OF A._ts AS T, "
        "t FOR SYSTEM_TIME AS OF A._ts AS U WHERE T.k = A.k AND U.k = T.v"
    )
    assert found(chained, t="1 k=1 v=2 | 1 k=2 v=3 | 4 k=2 v=4", a="2 k=1 v=1 | 5 k=1 v=2") == [[1, 3], [2, 4]]


def test_aggregates_over_what_is_looked_up() -> None:
    summed = query(
        "SELECT T.s AS s, SUM(T.v) AS sum FROM a A [RANGE 4 ms] JOIN t FOR SYSTEM_TIME AS OF A._ts AS T ON T.k = A.k "
        "GROUP BY T.s EMIT EVERY 5 MILLISECONDS"
    )
    got, _ = run(summed, inputs(t="1 k=1 v=2 s=x | 4 k=1 v=3 s=x", a="2 k=1 | 4 k=1 | 5 k=1"))
    assert [row["sum"] for row in got] == [8, None]


def test_a_read_of_old_versions_again_keeps_their_times() -> None:
    """In a replay nothing is overtaken: all versions were in time, or late, before."""
    engine = Engine(KEPT, partitions={"a": [0], "t": [0]})
    a, t = KEPT.streams()
    engine._intake.cut = 8
    late, overtaken = engine.push("t", 0, to_batch(t, rows("6 k=1 v=6 | 5 k=1 v=5 | 20 k=2")), floor=0)
    assert not late.any()
    assert not overtaken.any()
    engine.push("a", 0, to_batch(a, rows("9 k=1 v=9 | 20")))
    assert [row["T.v"] for row in to_rows(engine.advance())] == [6]
    assert engine.horizon("t") == 0


def test_a_read_of_a_long_table_again_takes_no_memory_for_what_is_superseded() -> None:
    """Behind a snapshot's cut nothing is processed; versions hold as they are read, up to what may be preceded."""
    engine = Engine(KEPT, partitions={"a": [0], "t": [0]})
    a, t = KEPT.streams()
    engine.restore(1000, [])
    for begin in range(0, 1200, 100):
        engine.push(
            "t", 0, to_batch(t, rows("|".join(f"{begin + n} k={n % 7} v={begin + n}" for n in range(100)))), floor=0
        )
        engine.take_versions()
        assert engine.pending_tuples <= max(100, begin - 800)
    engine.push("a", 0, to_batch(a, rows("1001 k=0 | 1100 k=5 | 1198 k=1")))
    assert [row["T.v"] for row in to_rows(engine.advance())] == [1000, 1096]


def test_a_version_of_the_future_does_not_move_silent_streams() -> None:
    engine = Engine(KEPT, partitions={"a": [0], "t": [0]})
    a, t = KEPT.streams()
    engine.push("a", 0, to_batch(a, rows("10 k=1 v=1")))
    engine.push("t", 0, to_batch(t, rows("5 k=1 v=5 | 86400000 k=1 v=6")))
    for name in ("a", "t"):
        engine.set_idle(name, 0, True)
    engine.advance()
    assert not engine.push("a", 0, to_batch(a, rows("20 k=1 v=2"))).late.any()
    engine.close("a", 0)
    assert [row["T.v"] for row in to_rows(engine.advance(100))] == [5, 5]


@pytest.mark.parametrize("sweeps", [False, True])
def test_the_state_is_a_version_per_row(sweeps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that are only asked for, and rows that have ended, take nothing."""
    monkeypatch.setattr(lookups, "SWEEP_FROM", 0 if sweeps else 1 << 20)
    table = next(one.table for one in JOINED.lookups)
    kept = VersionedTable(table, ["k", "s"])
    rng, known = np.random.default_rng(1), dict[int, str]()
    for epoch in range(200):
        n = int(rng.integers(0, 20))
        keys, gone = rng.integers(0, 30, n), rng.random(n) < 0.3
        texts = [f"{epoch}.{i}" for i in range(n)]
        kept.begin(_versions(np.full(n, epoch), keys, texts, gone))
        before = dict(known)
        for key, text, ended in zip(keys.tolist(), texts, gone.tolist(), strict=True):
            known.pop(key, None) if ended else known.update({key: text})
        asked = np.concatenate((rng.integers(0, 60, 25), rng.integers(100, 100_000, 25)))
        late = rng.integers(0, 2, 50)
        found = kept.find([Column(Type.BIGINT, asked)], epoch - late)
        wanted = [(before if old else known).get(key) for key, old in zip(asked.tolist(), late.tolist(), strict=True)]
        assert kept.gather("s", found).to_values() == wanted
        assert [row == NONE for row in found.tolist()] == [text is None for text in wanted]
        kept.end()
        assert kept.rows == len(known)
    assert len(kept._keys._texts) == 0
    assert kept._keys.capacity <= 128
    assert (len(kept._store) <= 2 * kept.rows + 20) == sweeps


def _versions(ts: Any, keys: Any, texts: list[str], gone: Any) -> Batch:
    columns = {
        "k": Column(Type.BIGINT, keys.astype(np.int64)),
        "s": Column.from_values(texts, Type.STRING),
        GONE: Column(Type.BOOLEAN, gone),
    }
    return Batch(ts.astype(np.int64), columns)


EXCEPT = query(
    "SELECT A.v, T.v AS w FROM a A [RANGE 9 ms] JOIN t FOR SYSTEM_TIME AS OF A._ts AS T ON T.k = A.k "
    "EXCEPT b B [RANGE 2 ms] ON B.k = A.k AND B.v > T.v"
)
EXCEPT_LOOKED_UP = query(
    "SELECT A.v FROM a A [RANGE 9 ms], t FOR SYSTEM_TIME AS OF B._ts AS T "
    "EXCEPT b B [RANGE 2 ms] ON B.k = A.k AND T.k = B.k AND T.v > A.v"
)


def test_what_is_looked_up_is_compared_with_what_is_subtracted() -> None:
    """v=1 has the version 10 and is left out by B from 6 to 8; v=2 has the version 60, which B does not exceed."""
    given = {"t": "1 k=1 v=10 | 5 k=1 v=60", "a": "3 k=1 v=1 | 5 k=1 v=2 | 5 k=2 v=3", "b": "6 k=1 v=20"}
    assert found(EXCEPT, **given) == [
        [1, 10, "+"],
        [2, 60, "+"],
        [1, 10, "-"],
        [1, 10, "+"],
        [1, 10, "-"],
        [2, 60, "-"],
    ]


def test_what_is_subtracted_is_looked_up_at_its_own_time() -> None:
    """The B of 4 has no row yet; that of 6 has one, and takes A out of the answer from 6 to 8."""
    given = {"t": "5 k=1 v=10", "a": "3 k=1 v=1", "b": "4 k=1 | 6 k=1"}
    assert found(EXCEPT_LOOKED_UP, **given) == [[1, "+"], [1, "-"], [1, "+"], [1, "-"]]
