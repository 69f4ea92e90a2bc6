"""Blocks: any batch survives a round trip; any changed bit is noticed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codecs.blocks import decode_block, encode_block
from schemas.columns import Batch, Column
from schemas.errors import NewerFormatError, StateError
from schemas.query import Type

VALUES = {
    Type.BIGINT: st.integers(-(2**63), 2**63 - 1),
    Type.DOUBLE: st.floats(allow_nan=False),
    Type.STRING: st.text(max_size=12),
    Type.BOOLEAN: st.booleans(),
    Type.TIMESTAMP: st.integers(0, 2**42),
}
ROWS = st.lists(st.tuples(st.integers(0, 2**42), *(st.one_of(st.none(), VALUES[t]) for t in VALUES)), max_size=40)


def batch_of(rows: list[tuple[object, ...]]) -> Batch:
    """A batch with one column of each type."""
    columns = {t.value: Column.from_values([row[i + 1] for row in rows], t) for i, t in enumerate(VALUES)}
    return Batch(np.array([row[0] for row in rows], np.int64), columns)


@given(ROWS, st.integers(0, 2**40), st.data())
def test_round_trip(rows: list[tuple[object, ...]], first: int, data: st.DataObject) -> None:
    whole = batch_of(rows)
    begin = data.draw(st.integers(0, len(rows)))
    batch = whole.slice(begin, data.draw(st.integers(begin, len(rows))))
    found = decode_block(encode_block("s", first, batch), "here")
    assert (found.stream, found.first_row, list(found.batch.columns)) == ("s", first, list(batch.columns))
    assert found.batch.ts.tolist() == batch.ts.tolist()
    for name, column in batch.columns.items():
        assert found.batch.columns[name].type is column.type
        assert found.batch.columns[name].to_values() == column.to_values()


def test_a_column_may_have_any_name() -> None:
    batch = Batch(np.array([1], np.int64), {"_ts": Column.from_values([7], Type.BIGINT)})
    assert decode_block(encode_block("s", 0, batch), "x").batch.columns["_ts"].to_values() == [7]


@given(st.data())
def test_damage_is_noticed(data: st.DataObject) -> None:
    raw = bytearray(encode_block("s", 3, batch_of([(1, 2, 3.0, "x", True, 4), (5, None, None, None, None, None)])))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((StateError, NewerFormatError), match="block at table 3"):
        decode_block(bytes(raw), "table 3")


@pytest.mark.parametrize("length", [0, 1, 8, 9, 20, -1])
def test_a_cut_block_is_noticed(length: int) -> None:
    raw = encode_block("s", 3, batch_of([(1, 2, 3.0, "x", True, 4)]))
    with pytest.raises(StateError, match="block at table 3"):
        decode_block(raw[:length], "table 3")
