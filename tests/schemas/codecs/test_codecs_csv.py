"""CSV decoding: the compiled pass compared with the definition, quoting, and refused headers."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.codecs.csv_codec import CsvDecoder, end_of_records
from schemas.codecs.decoded import RecordError, check_event_time
from schemas.errors import DataError
from schemas.query import Field, Stream, Type
from tests.profiles import examples
from tests.schemas.codecs.decoding import bits, tuples

STREAM = Stream(
    "S",
    (
        Field("i", Type.BIGINT),
        Field("d", Type.DOUBLE),
        Field("s", Type.STRING),
        Field("b", Type.BOOLEAN),
        Field("at", Type.TIMESTAMP),
    ),
    "s",
    timestamp="at",
)
HEADER = b"at,i,extra,d,s,b"
DECODER = CsvDecoder.with_header(STREAM, HEADER + b"\r\n", "t.csv")


FIELD = st.one_of(
    st.sampled_from(
        ["", "1", "-7", "1.5", "0.1", "-0", "-0.0", "true", "false", "x", '""', '"a,b"', '"a""b"', '"1"']
    ),
    st.sampled_from(
        ["2024-01-01T00:00:00Z", '"2024-01-01"', " 1", "01", "1e5", "nan", "TRUE", "9223372036854775808"]
    ),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.text('ab",0 \r\n\xe4', max_size=5),
    st.text("ab,0 \r\n\xe4", max_size=5).map(lambda s: f'"{s}"'),
)
LINE = st.one_of(
    st.tuples(st.integers(-1, 9).map(str), *[FIELD] * 5).map(",".join),
    st.tuples(
        st.integers(0, 9).map(str),
        st.integers(-(2**63), 2**63 - 1).map(str),
        FIELD,
        st.floats(allow_nan=False, allow_infinity=False).map(repr),
        st.text("ab,0 \r\n\xe4", max_size=5).map(lambda s: f'"{s}"'),
        st.sampled_from(["true", "false", ""]),
    ).map(",".join),
    st.lists(FIELD, max_size=8).map(",".join),
)


@examples(800)
@given(
    st.lists(LINE, max_size=5),
    st.sampled_from(["\n", "\r\n"]),
    st.one_of(st.none(), st.tuples(st.integers(0, 200), st.binary(max_size=2))),
)
@example(['1,2,,3.5,"x",true'], "\n", (9, b"\xff"))
@example(['1,2,,3.5,"x'], "\n", None)
@example(['1,2,,3.5,"x"y,true', "1,2"], "\n", None)
def test_compiled_pass_equals_the_definition(
    lines: list[str], end: str, change: tuple[int, bytes] | None
) -> None:
    block = "".join(line + end for line in lines).encode()
    if change is not None:
        block = block[: change[0]] + change[1] + block[change[0] + 1 :]
    decoded = DECODER.decode_lines(block)
    assert decoded.starts is not None
    starts = decoded.starts.tolist()
    if block:
        assert starts[0] == 0
        assert starts[-1] in (len(block), len(block) + 1)
    rows, values, dead = [], [], []
    for row in range(decoded.records):
        raw = block[starts[row] : starts[row + 1]].removesuffix(b"\n").removesuffix(b"\r")
        if not raw:
            continue
        try:
            record = DECODER.rules.values(raw)
            ts = record[-1]
            check_event_time("at", ts if isinstance(ts, int) else None)
            rows.append(row)
            values.append([bits(v) for v in record])
        except RecordError as error:
            dead.append((row, str(error), raw))
    assert decoded.rows.tolist() == rows
    assert tuples(decoded) == values
    assert [(d.row, d.reason, d.raw) for d in decoded.dead] == dead


VALUES = CsvDecoder(STREAM)


@examples(800)
@given(
    st.lists(st.tuples(LINE, st.sampled_from(["", "", "\n", "\r\n", "\n\n", "\r"])).map("".join), max_size=6),
    st.one_of(st.none(), st.tuples(st.integers(0, 40), st.binary(max_size=2))),
)
@example(["1,2.5,s,true,7", "", "1,2.5,s,true,8"], None)
@example(['1,2.5,"s,true,7', '1,2.5,s",true,8', "1,2.5,s,true,9"], None)
@example(['1,2.5,"s', 'x",true,7\n1,2.5,s,true,8'], None)
@example(['1,2.5,"s\n",true,7', "1,2.5,s\n,true,8", '1,2.5,x"y,true,9'], None)
@example(["1,2.5,s,true,7\n", "1,2.5,s,true,8\n1,2.5,s,true,9", "1,2.5,s,true,9\r\n"], None)
def test_each_value_is_one_record(lines: list[str], change: tuple[int, bytes] | None) -> None:
    """Whatever a value has in it, those beside it are what they are."""
    raws = [line.encode() for line in lines]
    if change is not None and raws:
        raws[-1] = raws[-1][: change[0]] + change[1] + raws[-1][change[0] + 1 :]
    decoded = VALUES.decode_values(raws)
    rows, values, dead = [], [], []
    for row, raw in enumerate(raws):
        try:
            record = raw.removesuffix(b"\n").removesuffix(b"\r")
            if not record:
                raise RecordError("the record is empty, expected CSV")
            found = VALUES.rules.values(record)
            ts = found[-1]
            check_event_time("at", ts if isinstance(ts, int) else None)
            rows.append(row)
            values.append([bits(v) for v in found])
        except RecordError as error:
            dead.append((row, str(error), raw))
    assert decoded.rows.tolist() == rows
    assert tuples(decoded) == values
    assert [(d.row, d.reason, d.raw) for d in decoded.dead] == dead


def test_a_value_is_one_line() -> None:
    decoded = VALUES.decode_values([b"1,2.5,a\nb,true,7", b'1,2.5,"a\nb",true,7'])
    assert [(d.row, d.reason) for d in decoded.dead] == [(0, "field 3 has a line break outside quotes")]
    assert tuples(decoded) == [[1, bits(2.5), "a\nb", True, 7]]


def test_values_have_the_declared_columns_in_their_order() -> None:
    decoded = VALUES.decode_values([b"1,2.5,x,true,7", None, b"1,2.5,x,true", b'-1,,"a\n""b""",,2024-01-01\r\n'])
    assert tuples(decoded) == [[1, bits(2.5), "x", True, 7], [-1, None, 'a\n"b"', None, 1_704_067_200_000]]
    assert [(d.row, d.reason) for d in decoded.dead] == [
        (1, "the record is empty, expected CSV"),
        (2, "the record has 4 fields, expected 5"),
    ]


TEXT = st.text('ab",\n \xe4"', max_size=6)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-(2**63), 2**63 - 1), TEXT, TEXT), max_size=6))
def test_reads_what_the_csv_module_writes(rows: list[tuple[int, int, str, str]]) -> None:
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL)
    writer.writerows([at, i, extra, "0.5", s, "true"] for at, i, extra, s in rows)
    decoded = DECODER.decode_lines(out.getvalue().encode())
    assert decoded.dead == []
    assert tuples(decoded) == [[i, bits(0.5), s, True, at] for at, i, _, s in rows]


@given(st.lists(LINE, max_size=4), st.integers(0, 80))
def test_blocks_are_cut_between_records(lines: list[str], at: int) -> None:
    """Wherever a block ends, its whole records and the rest add up to the file."""
    whole = "".join(line + "\n" for line in lines).encode()
    cut = end_of_records(whole[:at])
    head, rest = DECODER.decode_lines(whole[:cut]), DECODER.decode_lines(whole[cut:])
    decoded = DECODER.decode_lines(whole)
    assert tuples(head) + tuples(rest) == tuples(decoded)
    assert [d.raw for d in head.dead + rest.dead] == [d.raw for d in decoded.dead]


def test_undeclared_columns_never_make_a_record_a_dead_letter() -> None:
    """One byte of Latin-1 in an undeclared column once made its record a dead letter."""
    decoded = DECODER.decode_lines(b"1,7,\xff,,,\n2,8,1e999,,,\n")
    assert decoded.dead == []
    assert decoded.batch.columns["i"].to_values() == [7, 8]


def test_null_and_the_empty_string() -> None:
    decoded = DECODER.decode_lines(b'1,,,,,\n2,,,,"",\n\n3,7,x,1e3,y,false')
    assert decoded.dead == []
    assert decoded.rows.tolist() == [0, 1, 3]
    assert decoded.batch.columns["s"].to_values() == [None, "", "y"]
    assert decoded.batch.columns["i"].to_values() == [None, None, 7]
    assert decoded.batch.columns["d"].to_values() == [None, None, 1000.0]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"1,1.0,,,,", "field 'i' is 1.0, BIGINT accepts an integer"),
        (b"1, 1,,,,", "field 'i' is ' 1', BIGINT"),
        (b"1,0x1F,,,,", "field 'i' is '0x1F', BIGINT"),
        (b"1,01,,,,", "field 'i' is '01', BIGINT"),
        (b"1,,,nan,,", "field 'd' is 'nan', DOUBLE accepts a finite number"),
        (b"1,,,1e999,,", "field 'd' is inf, DOUBLE accepts a finite number"),
        (b"1,,,inf,,", "field 'd' is 'inf', DOUBLE"),
        (b"1,,,,,1", "field 'b' is '1', BOOLEAN accepts true or false"),
        (b"1,,,,,True", "field 'b' is 'True', BOOLEAN"),
        (b'1,"",,,,', "field 'i' is '', BIGINT"),
        (b",,,,,", "timestamp field 'at' is missing or null"),
        (b"soon,,,,,", "field 'at': 'soon' is not of the form"),
        (b"4102444800000,,,,,", "timestamp field 'at' is 4102444800000, accepted"),
        (b"1,2", "the record has 2 fields, expected 6"),
        (b"1,,,,,,", "the record has 7 fields, expected 6"),
        (b'1,,,,"a"b,', "field 5 has text after its closing quote"),
        (b"1,,,,\xff,", "field 's' is b'\\xff', which is not valid UTF-8"),
    ],
)
def test_refused_records_say_why(line: bytes, reason: str) -> None:
    decoded = DECODER.decode_lines(b"1,,,,,\n" + line + b"\n2,,,,,\n")
    assert decoded.rows.tolist() == [0, 2]
    (dead,) = decoded.dead
    assert reason in dead.reason
    assert (dead.row, dead.raw) == (1, line)


def test_carriage_return_before_the_line_end_is_not_content() -> None:
    decoder = CsvDecoder.with_header(STREAM, b"at,i,b,d,s", "t.csv")
    decoded = decoder.decode_lines(b'1,,,,\r\n2,,,,a\r\n3,,,,"b"\r\n4,,,,\r\r\n')
    assert decoded.dead == []
    assert decoded.batch.columns["s"].to_values() == [None, "a", "b", "\r"]


def test_unclosed_quote_swallows_the_rest_as_one_dead_letter() -> None:
    decoded = DECODER.decode_lines(b'1,,,,"a,\n2,,,,,\n3,,,,,')
    assert len(decoded.batch) == 0
    assert decoded.dead[0].reason == "field 5 has no closing quote"


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"at,i,d,s", "declares column 'b', which the header does not have"),
        (b"at,i,d,s,B", "which the header does not have (it has: 'at, i, d, s, B')"),
        (b"at,i,d,s,b,i", "the header has column 'i' 2 times, expected once"),
        (b'at,"i', "t.csv: the header cannot be read"),
    ],
)
def test_refused_headers(header: bytes, message: str) -> None:
    with pytest.raises(DataError) as caught:
        CsvDecoder.with_header(STREAM, header, "t.csv")
    assert message in str(caught.value)


def test_misspelt_column_is_suggested() -> None:
    stream = Stream("T", (Field("celsius", Type.DOUBLE),), "t")
    with pytest.raises(DataError, match="did you mean 'celcius'"):
        CsvDecoder.with_header(stream, b"celcius", "t.csv")
