"""Fits columns of results to the fields of a schema that Weir has not made: conversions, and values without a place.

A value that a field cannot have makes its result a dead letter: a NULL where the field takes none, a number out of the
field's range, a text that is no symbol of its enum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.columns import Column, Mask, numbers_of
from schemas.query import Type

_LEAST: Final = -(2**63)
_MOST: Final = 2**63 - 1
_SHOWN: Final = 60
"""A reason shows so many characters of a value."""

Convert = Callable[[Column], tuple[Column, Mask]]
"""Returns a column as a field has it, and (n,) bool: which values the field can have, of those that are not null."""


class MisfitError(Exception):
    """Some results have values that their schema has no place for.

    Attributes:
        reasons: why, by row.
    """

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__(f"{len(reasons)} results do not fit their schema")
        self.reasons = reasons


@dataclass(frozen=True, slots=True)
class Fit:
    """How a column becomes a field.

    Attributes:
        field: its name, with those of the records around it.
        convert: converts the column.
        nullable: whether the field may be null, or absent.
    """

    field: str
    convert: Convert
    nullable: bool


def fitted(given: Iterable[tuple[Fit, Column]]) -> list[Column]:
    """Return columns as their fields have them.

    Raises:
        MisfitError: fields have no place for values in some rows.
    """
    found: list[Column] = []
    reasons: dict[int, str] = {}
    for fit, column in given:
        made, fits = fit.convert(column)
        there = column.mask()
        bad = np.flatnonzero((there & ~fits) if fit.nullable else ~(there & fits))
        for row, value in zip(bad.tolist(), column.take(bad).to_values() if len(bad) else (), strict=True):
            text = "null" if value is None else f"{value!r:.{_SHOWN}}"
            reasons.setdefault(row, f"field {fit.field!r} of the results' schema cannot have {text}")
        found.append(made)
    if reasons:
        raise MisfitError(reasons)
    return found


def as_it_is(column: Column) -> tuple[Column, Mask]:
    """Any value fits."""
    return column, np.ones(len(column), np.bool_)


def whole(least: int = _LEAST, most: int = _MOST) -> Convert:
    """Whole numbers in a range."""

    def convert(column: Column) -> tuple[Column, Mask]:
        numbers = column.values.astype(np.int64, copy=False)
        return column, (numbers >= least) & (numbers <= most)

    return convert


def times(per_ms: int) -> Convert:
    """Times as numbers of a unit, of which a millisecond has so many."""

    def convert(column: Column) -> tuple[Column, Mask]:
        ms = column.values.astype(np.int64, copy=False)
        fits = (ms >= -(_MOST // per_ms)) & (ms <= _MOST // per_ms)
        return Column(Type.BIGINT, np.where(fits, ms, 0) * per_ms, column.valid), fits

    return convert


def symbols(numbers: Mapping[str, int]) -> Convert:
    """Texts as the numbers of an enum, which has at least one."""
    known, by_place = pa.array(list(numbers), pa.large_string()), np.array(list(numbers.values()), np.int64)

    def convert(column: Column) -> tuple[Column, Mask]:
        places = pc.index_in(column.to_arrow(), value_set=known)
        return Column(Type.BIGINT, by_place[numbers_of(places)], column.valid), numbers_of(places.is_valid())

    return convert
