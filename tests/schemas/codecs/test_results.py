"""Keys of results: their text, and the hash by which Kafka's producers choose a partition."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codecs.encode import Encoded
from schemas.codecs.kernels.murmur import key_hashes
from schemas.codecs.results import JsonKeys, JsonValues, ResultRecords, TextKeys
from schemas.columns import Batch, Column
from schemas.members import flat_members, members_of
from schemas.query import Type
from tests.profiles import examples


def keys_of(found: Encoded) -> list[bytes | None]:
    raw = [found.data[begin : end - 1] for begin, end in pairwise(found.offsets.tolist())]
    missing = [False] * len(raw) if found.missing is None else found.missing.tolist()
    return [None if gone else key for key, gone in zip(raw, missing, strict=True)]


def batch_of(**columns: Column) -> Batch:
    return Batch(np.arange(len(next(iter(columns.values())))), columns)


@pytest.mark.parametrize(
    ("type", "values", "texts"),
    [
        (Type.BIGINT, [0, -(2**63), None, 42], [b"0", b"-9223372036854775808", None, b"42"]),
        (Type.STRING, ["a", "", None, "ä\n"], [b"a", b"", None, "ä\n".encode()]),
        (Type.BOOLEAN, [True, False, None], [b"true", b"false", None]),
        (Type.TIMESTAMP, [1_700_000_000_000, None], [b"1700000000000", None]),
        (Type.STRING, [], []),
        (Type.STRING, [None], [None]),
    ],
)
def test_one_column_as_text(type: Type, values: list[Any], texts: list[bytes | None]) -> None:
    column = Column.from_values(values, type)
    assert keys_of(TextKeys().encode([column], len(values))) == texts
    for begin in range(len(values)):
        assert keys_of(TextKeys().encode([column.slice(begin, len(values))], len(values) - begin)) == texts[begin:]


def test_columns_as_an_object() -> None:
    columns = [Column.from_values([1, None], Type.BIGINT), Column.from_values(["x", "y"], Type.STRING)]
    found = JsonKeys(flat_members(["a", "b.c"])).encode(columns, 2)
    assert keys_of(found) == [b'{"a":1,"b.c":"x"}', b'{"a":null,"b.c":"y"}']
    found = JsonKeys(members_of([("a",), ("b", "c")])).encode(columns, 2)
    assert keys_of(found) == [b'{"a":1,"b":{"c":"x"}}', b'{"a":null,"b":{"c":"y"}}']


def test_a_result_has_the_columns_of_its_key() -> None:
    batch = batch_of(v=Column.from_values([1.5, 2.5], Type.DOUBLE), k=Column.from_values([7, None], Type.BIGINT))
    encoder = ResultRecords(keys=TextKeys(), key=("k",))
    found = encoder.encode(batch, "cleanup")
    assert found.data.splitlines()[1] == b'{"v":2.5,"k":null,"_ts":1,"_phase":"cleanup"}'
    assert found.keys is not None
    assert keys_of(found.keys) == [b"7", None]
    assert found.hashes is not None
    assert found.hashes[0] == hash_of(b"7")
    assert not encoder.upserts
    assert ResultRecords().encode(batch).hashes is None
    assert ResultRecords(keys=JsonKeys(())).upserts


def test_a_result_has_headers() -> None:
    """Not where the text is null."""
    texts = ["ä\n", None, "", "x"]
    columns = {name: Column.from_values(values, Type.STRING) for name, values in (("h", texts), ("i", texts[::-1]))}
    batch = batch_of(k=Column.from_values([1, 2, 3, 4], Type.BIGINT), **columns)
    encoder = ResultRecords(JsonValues(flat_members(["k"])), TextKeys(), ("k",), (("trace-id", "h"), ("span", "i")))
    found = encoder.encode(batch.slice(1, 4))
    assert found.data.splitlines()[0] == b'{"k":2,"_ts":1}'
    assert [name for name, _ in found.headers] == ["trace-id", "span"]
    assert [keys_of(header) for _, header in found.headers] == [[None, b"", b"x"], [b"", None, "ä\n".encode()]]
    assert found.keys is not None
    assert keys_of(found.keys) == [b"2", b"3", b"4"]
    assert encoder.encode(batch, "cleanup").headers
    assert ResultRecords().encode(batch).headers == ()


def hash_of(key: bytes) -> int:
    """Murmur2 as Kafka's `Utils` has it, in the words of its Java."""
    m, h = 0x5BD1E995, 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for i in range(0, whole, 4):
        k = int.from_bytes(key[i : i + 4], "little") * m & 0xFFFFFFFF
        k = (k ^ k >> 24) * m & 0xFFFFFFFF
        h = h * m & 0xFFFFFFFF ^ k
    if rest := key[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & 0xFFFFFFFF
    h = (h ^ h >> 13) * m & 0xFFFFFFFF
    return (h ^ h >> 15) & 0x7FFFFFFF


def hashes_of(keys: list[bytes]) -> list[int]:
    offsets = np.cumsum([0, *(len(key) + 1 for key in keys)]).astype(np.int64)
    found = np.zeros(len(keys), np.int64)
    key_hashes(np.frombuffer(b"".join(key + b"\n" for key in keys), np.uint8), offsets, found)
    return found.tolist()


def test_hashes_are_those_of_kafka() -> None:
    """The values of Kafka's own test, `UtilsTest.testMurmur2`."""
    known = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    expected = [value & 0x7FFFFFFF for value in known.values()]
    assert hashes_of(list(known)) == expected
    assert [hash_of(key) for key in known] == expected


@given(st.lists(st.binary(max_size=20), max_size=10))
@examples(200)
def test_hashes_of_any_keys(keys: list[bytes]) -> None:
    assert hashes_of(keys) == [hash_of(key) for key in keys]
