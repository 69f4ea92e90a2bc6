"""Which values most living tuples have in the columns by which they are joined."""

from __future__ import annotations

import numpy as np
import pytest

from operators.engine.engine import Engine
from schemas.columns import Batch, Column
from schemas.language.program import parse_program
from schemas.query import Type

QUERY = """
CREATE STREAM l (k BIGINT, s STRING, at TIMESTAMP) WITH (topic = 'l', format = 'json', timestamp = 'at');
CREATE STREAM r (k BIGINT, s STRING, at TIMESTAMP) WITH (topic = 'r', format = 'json', timestamp = 'at');
SELECT L.k AS k FROM l L [RANGE 1 SECOND], r R [RANGE 1 SECOND] WHERE L.k = R.k AND L.s = R.s AND L.at > R.at;
"""


def engine_with(keys: list[int | None], words: list[str | None]) -> Engine:
    engine = Engine(parse_program(QUERY).queries[0])
    ts = np.arange(len(keys), dtype=np.int64)
    columns = {
        "k": Column.from_values(keys, Type.BIGINT),
        "s": Column.from_values(words, Type.STRING),
        "at": Column(Type.TIMESTAMP, ts),
    }
    for name in ("l", "r"):
        engine.push(name, 0, Batch(ts, columns))
    engine.advance(len(keys))
    return engine


def test_values_with_far_more_than_an_even_share_are_named() -> None:
    keys: list[int | None] = [7 if n % 2 else n for n in range(800)]
    words: list[str | None] = [f"w{n % 10}" for n in range(800)]
    found = engine_with(keys, words).statistics(hot=True).hot_keys
    assert found is not None
    assert [(key.alias, key.column, key.value) for key in found] == [("L", "k", "7"), ("R", "k", "7")]
    assert [key.share for key in found] == pytest.approx([0.5, 0.5], abs=0.01)


def test_even_keys_and_columns_without_an_equality_have_none() -> None:
    engine = engine_with(list(range(500)), ["w"] * 250 + [None] * 250)
    assert engine.statistics(hot=True).hot_keys == ()
    assert engine.statistics().hot_keys is None, "not looked for"


def test_a_small_share_is_not_pointed_out() -> None:
    engine = engine_with([n % 12 if n % 20 == 0 else 100 + n for n in range(2000)], ["w"] * 2000)
    assert engine.statistics(hot=True).hot_keys == ()


def test_tuples_that_have_left_the_window_do_not_count() -> None:
    engine = engine_with([7] * 100 + list(range(100, 300)), ["w"] * 300)
    engine.advance(1200)
    found = engine.statistics(hot=True).hot_keys
    assert found == ()
