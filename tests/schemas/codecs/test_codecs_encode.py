"""Encoding results: records read back to the same values, keys are in order, records can be sliced."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codecs.encode import check_output_names, encode_results, encode_tuples, key_paths
from schemas.codecs.results import JsonKeys, ResultRecords
from schemas.columns import Batch, Column
from schemas.errors import UsageError
from schemas.language.program import parse_program
from schemas.members import members_of
from schemas.query import ColumnRef as Ref
from schemas.query import Output, Query, Type
from tests.profiles import examples

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


@examples(300)
@given(tables(), st.sampled_from([None, "cleanup"]))
def test_records_read_back(case: tuple[list[int], dict[str, tuple[Type, list[object]]]], phase: str | None) -> None:
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


def test_upserts_have_keys() -> None:
    """The keys are JSON objects, with the group's names in the SELECT list; `{}` where all results are one group."""
    text = "CREATE STREAM a (k BIGINT, s STRING); SELECT {} FROM a [ROWS 1] {} EMIT EVERY 1 SECOND"
    query = parse_program(text.format("a.s AS name, COUNT(*) AS n", "GROUP BY a.s, a.k % 2")).queries[0]
    paths = key_paths(query)
    assert paths == (("name",), ("a.k % 2",))
    keys = (Column.from_values(["ä", None], Type.STRING), Column.from_values([1, -1], Type.BIGINT))
    batch = Batch(np.array([5, 6]), {"n": Column.from_values([1, 2], Type.BIGINT)}, keys)
    found = ResultRecords(keys=JsonKeys(members_of(paths))).encode(batch)
    assert found.data == b'{"n":1,"_ts":5}\n{"n":2,"_ts":6}\n'
    assert found.keys is not None
    assert found.keys.data == '{"name":"ä","a.k % 2":1}\n{"name":null,"a.k % 2":-1}\n'.encode()
    assert [found.keys.data[b : e - 1] for b, e in pairwise(found.keys.offsets.tolist())] == found.keys.data.split(
        b"\n"
    )[:-1]
    whole = parse_program(text.format("COUNT(*) AS n", "")).queries[0]
    assert key_paths(whole) == ()
    of_all = ResultRecords(keys=JsonKeys(())).encode(Batch(batch.ts, batch.columns)).keys
    assert of_all is not None
    assert (of_all.data, of_all.offsets.tolist()) == (b"{}\n{}\n", [0, 3, 6])


def test_the_values_of_a_key_have_different_names() -> None:
    """Columns with a dot in their name have it without their alias: two were one, and no worker could begin."""
    declared = 'CREATE STREAM a (k BIGINT, "x.y" BIGINT, "B.x.y" BIGINT);'
    grouped = 'FROM a A [ROWS 1], a B [ROWS 1] GROUP BY A."x.y", B."x.y", B."B.x.y" EMIT EVERY 1 SECOND'
    (query,) = parse_program(f"{declared} SELECT COUNT(*) AS n {grouped}").queries
    assert key_paths(query) == (("x.y",), ("B.x.y",), ("B.B.x.y",))
    grouped = grouped.replace("BY", "BY A.k,")
    (query,) = parse_program(f'{declared} SELECT A.k AS "x.y", COUNT(*) AS n {grouped}').queries
    found = key_paths(query)
    assert found is not None
    assert found[:2] == (("x", "y"), ("x.y",))
    members_of(found)


def test_a_join_has_no_keys() -> None:
    query = parse_program("CREATE STREAM a (k BIGINT); SELECT * FROM a [ROWS 1]").queries[0]
    assert key_paths(query) is None
    assert encode_results(Batch(np.array([5]), {"n": Column.from_values([1], Type.BIGINT)})).keys is None
