"""Tells the compiled pass over JSON which keys lead to columns (`schemas.codecs.kernels.json_records`).

The keys form a tree: those of the record, and those of each object on the way to a column. A column that is declared
without FROM has one key, of the record. What the pass cannot follow is left to the rules: a place in an array, and a
value that is read for two columns. A name that has an escape wherever JSON is written has no key here: the pass leaves
every record with an escaped key to the rules, and in any other the column is NULL.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from schemas.codecs.kernels.json_records import LEFT_TO_RULES, MAX_NESTED, NOTHING
from schemas.columns import I64
from schemas.query import Path

_ESCAPED = re.compile(r'["\\\x00-\x1f]')


@dataclass(slots=True)
class _Key:
    object: int
    name: str
    column: int = NOTHING
    inside: int = NOTHING


@dataclass(frozen=True, slots=True, eq=False)
class JsonKeys:
    """The keys of a stream's records that lead to columns. The record itself is object 0.

    Attributes:
        names, starts: the name of key k is names[starts[k]:starts[k + 1]], UTF-8.
        objects: (keys,) int64, the object that has the key.
        columns: (keys,) int64, the column that the value is, or NOTHING, or LEFT_TO_RULES.
        inside: (keys,) int64, the object that the value is, or NOTHING.
    """

    names: npt.NDArray[np.uint8]
    starts: I64
    objects: I64
    columns: I64
    inside: I64

    def arrays(self) -> tuple[npt.NDArray[np.uint8], I64, I64, I64, I64]:
        """The arrays in the order in which the pass takes them."""
        return self.names, self.starts, self.objects, self.columns, self.inside


def keys_of(places: Sequence[Path]) -> JsonKeys:
    """Return the keys that lead to some columns.

    Args:
        places: of each column.
    """
    keys: dict[tuple[int, str], _Key] = {}
    objects = 1
    for column, place in enumerate(places):
        within = 0
        for depth, step in enumerate(place):
            assert isinstance(step, str)
            if _ESCAPED.search(step):
                break
            key = keys.setdefault((within, step), _Key(within, step))
            if depth == len(place) - 1:
                key.column = column if (key.column, key.inside) == (NOTHING, NOTHING) else LEFT_TO_RULES
                break
            if key.column != NOTHING or isinstance(place[depth + 1], int) or depth + 1 >= MAX_NESTED:
                key.column = LEFT_TO_RULES
                break
            if key.inside == NOTHING:
                key.inside = objects
                objects += 1
            within = key.inside
    found = list(keys.values())
    names = [key.name.encode() for key in found]
    return JsonKeys(
        np.frombuffer(b"".join(names), np.uint8),
        np.cumsum([0, *map(len, names)], dtype=np.int64),
        np.array([key.object for key in found], np.int64),
        np.array([key.column for key in found], np.int64),
        np.array([key.inside for key in found], np.int64),
    )
