"""What a decoder reads of each record: `Wanted` columns, and arrays with what is wanted of their elements."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.codecs.decoded import Value
from schemas.query import Array, Path, Stream, Table, Type


@dataclass(frozen=True, slots=True)
class Wanted:
    """A column to read.

    Attributes:
        name: of the column, for messages.
        default: the value where the record's schema does not have the path.
    """

    name: str
    path: Path
    type: Type
    default: Value = None


@dataclass(frozen=True, slots=True)
class WantedArray:
    """An array to read.

    Attributes:
        name: of the array, for messages.
        path: where it is in the record.
        rows: whether its elements are records.
        elements: the columns to read of each element; without `rows` one, whose path is empty.
    """

    name: str
    path: Path
    rows: bool
    elements: tuple[Wanted, ...]


def wanted_of(stream: Stream) -> tuple[Wanted, ...]:
    """What is read of each record of a stream, beside the arrays that are unnested."""
    return tuple(Wanted(one.name, one.place, one.type) for one in stream.of_records().fields)


def wanted_arrays(stream: Stream) -> tuple[WantedArray, ...]:
    """The arrays of a stream that are unnested."""
    return tuple(map(_wanted_array, stream.unnested))


def _wanted_array(array: Array) -> WantedArray:
    elements = [Wanted(one.name, one.path, one.type) for one in array.fields_within(())]
    return WantedArray(array.name, array.place, array.rows, tuple(elements))


def element_table(array: Array, within: Path = ()) -> Table:
    """The elements of an array as the rows of a table.

    Args:
        within: where an element is in its row.
    """
    return Table("", array.fields_within(within), "")
