"""Encoding results: what is written reads back to the same values, keys in order, records sliceable."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codecs.encode import check_output_names, encode_results, encode_tuples
from schemas.columns import Batch, Column
from schemas.errors import UsageError
from schemas.query import Column as Ref
from schemas.query import Output, Query, Type

VALUES = {
    Type.BIGINT: st.integers(-(2**63), 2**63 - 1),
    Type.TIMESTAMP: st.integers(-(2**63), 2**63 - 1),
    Type.DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
    Type.STRING: st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    Type.BOOLEAN: st.booleans(),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[int], dict[str, tuple[Type, list[object]]]]:
    count = draw(st.integers(0, 5))
    name = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)
    name = name.filter(lambda text: text not in ("_ts", "_phase"))  # `check_output_names` refuses them
    names = draw(st.lists(name, min_size=1, max_size=5, unique=True))
    table = {}
    for name in names:
        type = draw(st.sampled_from(list(Type)))
        values = st.one_of(st.none(), VALUES[type])
        table[name] = (type, draw(st.lists(values, min_size=count, max_size=count)))
    return draw(st.lists(st.integers(0, 2**42), min_size=count, max_size=count)), table


@settings(max_examples=300, deadline=None)
@given(tables(), st.sampled_from([None, "cleanup"]))
def test_records_read_back(
    case: tuple[list[int], dict[str, tuple[Type, list[object]]]], phase: str | None
) -> None:
    ts, table = case
    columns = {name: Column.from_values(values, type) for name, (type, values) in table.items()}
    encoded = encode_results(Batch(np.array(ts, np.int64), columns), phase)
    assert len(encoded.offsets) == len(ts) + 1
    for row in range(len(ts)):
        start, stop = encoded.offsets[row], encoded.offsets[row + 1]
        assert encoded.data[stop - 1 : stop] == b"\n"
        pairs = json.loads(encoded.data[start : stop - 1], object_pairs_hook=list)
        expected = [(name, values[row]) for name, (_, values) in table.items()] + [("_ts", ts[row])]
        if phase is not None:
            expected.append(("_phase", phase))
        assert [(k, repr(v)) for k, v in pairs] == [(k, repr(v)) for k, v in expected]
    assert encoded.offsets[-1] == len(encoded.data)


def test_doubles_have_their_shortest_form() -> None:
    values = [0.1, 1e300, 5e-324, -0.0, 1e16, 100.0, 2**53 + 0.0]
    batch = Batch(np.zeros(len(values), np.int64), {"x": Column.from_values(values, Type.DOUBLE)})
    lines = encode_tuples(batch).data.decode().split()
    assert [float(line[5:-1]) for line in lines] == values
    assert all(len(line[5:-1]) <= len(repr(value)) + 1 for line, value in zip(lines, values, strict=True))


def test_slices_of_a_batch_are_encoded_alone() -> None:
    columns = {
        "s": Column.from_values(["a", None, "ccc", "d"], Type.STRING),
        "b": Column.from_values([True, None, False, True], Type.BOOLEAN),
    }
    batch = Batch(np.arange(4), columns).slice(1, 3)
    assert encode_results(batch).data == b'{"s":null,"b":null,"_ts":1}\n{"s":"ccc","b":false,"_ts":2}\n'


@pytest.mark.parametrize("name", ["_ts", "_phase"])
def test_reserved_output_names(name: str) -> None:
    query = Query("q", None, (), (), (Output(name, Ref("A", "x", Type.BIGINT)),))
    with pytest.raises(UsageError, match=f"output '{name}' is a key that Weir adds"):
        check_output_names(query)
