"""Columns and Arrow: `numbers_of` returns what Array.to_numpy returns, 0 for null, without loading pandas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from schemas.columns import numbers_of

ROOT = Path(__file__).resolve().parents[2]
VALUES: dict[str, list[Any]] = {
    "int64": [3, -(2**63), 2**63 - 1, 0] * 5,
    "double": [0.5, -0.0, 1e300, float("inf")] * 5,
    "uint64": [2**64 - 1, 0, 7, 1] * 5,
    "int32": [1, -1, 2**31 - 1, 0] * 5,
    "bool": [True, False, False, True, True] * 4,
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize(("begin", "end"), [(0, 20), (3, 17), (9, 10), (5, 5), (0, 0)])
def test_numbers_are_those_that_arrow_gives(kind: str, begin: int, end: int) -> None:
    array = pa.array(VALUES[kind], pa.type_for_alias(kind))[begin:end]
    found, given = numbers_of(array), array.to_numpy(zero_copy_only=False)
    assert found.dtype == given.dtype
    assert found.tobytes() == given.tobytes()
    # Numba compiles again for a writable array after a read-only one.
    assert found.flags.writeable == (kind == "bool")
    assert found.flags.c_contiguous


@pytest.mark.parametrize("kind", VALUES)
def test_what_is_null_is_zero(kind: str) -> None:
    """Arrow keeps the computed value under a null."""
    whole = pa.array(VALUES[kind], pa.type_for_alias(kind))
    known = pa.array([i % 3 > 0 for i in range(20)])
    hidden = pa.Array.from_buffers(whole.type, 20, [known.buffers()[1], whole.buffers()[1]])[2:19]
    found = numbers_of(hidden)
    assert found.tolist() == [value or 0 for value in hidden.to_pylist()]
    assert found.flags.writeable == (kind == "bool")
    assert numbers_of(hidden.is_valid()).tolist() == known.to_pylist()[2:19]
    assert numbers_of(pa.nulls(2, whole.type)).tolist() == [0, 0]
    assert numbers_of(pa.nulls(2, whole.type)).dtype == found.dtype


def test_records_are_read_without_pandas() -> None:
    """A worker stood still while pandas was loaded, when the first double that is hard to round arrived."""
    script = """
import sys
from schemas.codecs.blocks import decode_block, encode_block
from schemas.codecs.json_codec import JsonDecoder
from schemas.language.program import parse_program
from services.formats.decoders import Decoders
from services.kafka.records import RecordBatch
text = "CREATE STREAM a (d DOUBLE, s STRING, b BOOLEAN, at TIMESTAMP) WITH (topic = 'a', timestamp = 'at');"
(stream,) = parse_program(text + " SELECT * FROM a A WINDOW RANGE 1 SECOND").streams
lines = b'{"d": 0.1234567890123456789, "s": "x", "b": true, "at": 5}\\n{"s": null, "at": 6}\\n'
batch = JsonDecoder(stream).decode_lines(lines).batch
assert decode_block(encode_block("a", 0, batch), "here").batch.columns["d"].to_values() == [0.1234567890123456789, None]
text = "CREATE STREAM b (k BIGINT KEY, h STRING FROM '_headers.h', v BIGINT); SELECT * FROM b [ROWS 1]"
class Record:
    key, value, headers, offset, timestamp = None, b"{}", [], 0, 5
found = Decoders().records_of(parse_program(text).streams[0]).decode(RecordBatch("b", 0, 0, 1, 0, [Record()], 2))
assert found.batch.columns["k"].to_values() == found.batch.columns["h"].to_values() == [None]
sys.exit("pandas.core" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=120)
