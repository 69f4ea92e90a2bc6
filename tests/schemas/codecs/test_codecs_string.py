"""Whole records as strings."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from schemas.codecs.string_codec import StringDecoder
from schemas.query import Field, Stream, Type

DECODER = StringDecoder(Stream("S", (Field("line", Type.STRING),), "s", "string"))


@given(st.lists(st.one_of(st.none(), st.text(max_size=8).map(str.encode), st.binary(max_size=6)), max_size=8))
def test_what_is_utf8_is_a_string_and_all_else_is_dead(values: list[bytes | None]) -> None:
    """A character that is cut in two between records is none."""
    decoded = DECODER.decode_values(values, np.arange(5, 5 + len(values), dtype=np.int64))
    texts: dict[int, str] = {}
    for row, value in enumerate(values):
        try:
            if value is not None:
                texts[row] = value.decode()
        except UnicodeDecodeError:
            pass
    assert decoded.rows.tolist() == list(texts)
    assert decoded.batch.columns["line"].to_values() == list(texts.values())
    assert decoded.batch.ts.tolist() == [5 + row for row in texts]
    assert [(dead.row, dead.raw) for dead in decoded.dead] == [
        (row, value or b"") for row, value in enumerate(values) if row not in texts
    ]


def test_reasons() -> None:
    decoded = DECODER.decode_values([None, b"\xff", b""], np.array([1, 1, -1], np.int64))
    assert [dead.reason.partition(",")[0] for dead in decoded.dead] == [
        "the record is empty",
        "the record b'\\xff' is not UTF-8 (invalid start byte at byte 1)",
        "record timestamp is -1",
    ]
