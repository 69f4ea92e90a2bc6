"""Makes the program by which the compiled pass reads records of one schema (`schemas.codecs.kernels.avro_records`).

The program follows the schema from the first byte of a record to the last: what is wanted is read into its slot, and
all else is skipped. Of two equal keys of a map the last counts. What the pass cannot read is left to the rules: a type
that contains itself, a column whose type does not fit, a value that only Python converts.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schemas.avro.rules import ElementKind, element_kinds, has_path
from schemas.avro.schema import Avro, is_recursive
from schemas.codecs.kernels import avro_records as codes
from schemas.codecs.wanted import Wanted, WantedArray
from schemas.columns import I64
from schemas.query import Path, Type

MAX_INSTRUCTIONS = 100_000

_DAY_MS = 86_400_000
_PER_MS = {"micros": 1_000, "nanos": 1_000_000}


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """How to read the records of a schema.

    Attributes:
        instructions: (n, 4) int64.
        texts: symbols, keys and defaults, by number.
        text_defaults: slot and number of its text, for columns of type STRING that the schema does not have.
    """

    instructions: I64
    texts: tuple[bytes, ...]
    text_defaults: tuple[tuple[int, int], ...]


def program_of(schema: Avro, wanted: Sequence[Wanted], arrays: Sequence[WantedArray] = ()) -> Program:
    """Return the program that reads some columns of the records of a schema, and finds the elements of some arrays."""
    if is_recursive(schema):
        return Program(np.array([[codes.STOP, 0, 0, 0]], np.int64), (), ())
    try:
        return _written(schema, wanted, arrays)
    except _TooLong:
        return Program(np.array([[codes.STOP, 0, 0, 0]], np.int64), (), ())


class _TooLong(Exception):
    """A schema whose types are used so often that its program would be huge: it is left to the rules."""


def program_of_elements(kind: ElementKind, array: WantedArray) -> Program:
    """Return the program that reads the elements of a kind, each as a record of its own."""
    if array.rows and not kind.has_records_only:
        return Program(np.array([[codes.STOP, 0, 0, 0]], np.int64), (), ())
    return program_of(kind.items, array.elements)


def _written(schema: Avro, wanted: Sequence[Wanted], arrays: Sequence[WantedArray]) -> Program:
    writer = _Writer(element_kinds(schema, arrays))
    slots: list[_Slot] = [(slot, one.type, one.path) for slot, one in enumerate(wanted) if has_path(schema, one.path)]
    for slot, _, _ in slots:
        writer.add(codes.NULL, slot)  # where a union, an array or a map turns out not to have it
    slots += [(number, None, one.path) for number, one in enumerate(arrays) if has_path(schema, one.path)]
    writer.value(schema, slots, 0)
    defaults: list[tuple[int, int]] = []
    for slot, one in enumerate(wanted):
        if one.default is None or has_path(schema, one.path):
            continue
        if isinstance(one.default, str):
            defaults.append((slot, writer.text(one.default.encode())))
        elif isinstance(one.default, float):
            writer.add(codes.DEFAULT, slot, struct.unpack("<q", struct.pack("<d", one.default))[0])
        else:
            writer.add(codes.DEFAULT, slot, int(one.default))
    writer.add(codes.END)
    return Program(np.array(writer.rows, np.int64), tuple(writer.texts), tuple(defaults))


_Slot = tuple[int, Type | None, Path]
"""What is wanted of a value: slot, type, and path from there on. Without a type it is an array, and the slot its
number."""

_Slots = Sequence[_Slot]


class _Writer:
    def __init__(self, kinds: Sequence[ElementKind]) -> None:
        self.rows: list[list[int]] = []
        self.texts: list[bytes] = []
        self._kinds = kinds

    def add(self, code: int, a: int = 0, b: int = 0, c: int = 0) -> int:
        """Append an instruction; return its place."""
        if len(self.rows) >= MAX_INSTRUCTIONS:
            raise _TooLong
        self.rows.append([code, a, b, c])
        return len(self.rows) - 1

    def text(self, text: bytes) -> int:
        """Return the number of a text."""
        self.texts.append(text)
        return len(self.texts) - 1

    def value(self, type: Avro, slots: _Slots, depth: int) -> None:
        """Append what reads a value of a type."""
        match type.kind:
            case "record":
                self._end_of_path(slots)
                for field in type.fields:
                    inside = [(s, t, path[1:]) for s, t, path in slots if path and path[0] == field.name]
                    self.value(field.type, inside, depth)
            case "union":
                self._union(type, slots, depth)
            case "array" | "map":
                self._items(type, slots, depth)
            case "null":
                self._nothing(slots)
            case _:
                self._leaf(type, slots)

    def _nothing(self, slots: _Slots) -> None:
        """Append what forgets what is wanted: it is not there."""
        for slot, wanted, _ in slots:
            if wanted is not None:
                self.add(codes.NULL, slot)
                continue
            own = [number for number, kind in enumerate(self._kinds) if kind.array == slot]
            if own:
                self.add(codes.NO_ITEMS, own[0], own[-1] + 1)

    def _end_of_path(self, slots: _Slots) -> None:
        """A record, array or map is no value of a column."""
        if any(not path for _, _, path in slots):
            self.add(codes.STOP)

    def _union(self, type: Avro, slots: _Slots, depth: int) -> None:
        branch = self.add(codes.BRANCH, len(type.types))
        for _ in type.types:
            self.add(codes.JUMP)
        leaving = []
        for i, one in enumerate(type.types):
            self.rows[branch + 1 + i][1] = len(self.rows)
            self._nothing([found for found in slots if not has_path(one, found[2])])
            self.value(one, [found for found in slots if has_path(one, found[2])], depth)
            leaving.append(self.add(codes.JUMP))
        for place in leaving:
            self.rows[place][1] = len(self.rows)

    def _items(self, type: Avro, slots: _Slots, depth: int) -> None:
        unnested = [
            number
            for number, kind in enumerate(self._kinds)
            for slot, wanted, path in slots
            if (wanted, path, slot) == (None, (), kind.array) and kind.items is type.types[0]
        ]
        self._end_of_path([found for found in slots if not unnested or found[1] is not None])
        slots = [found for found in slots if found[2]]
        if depth >= codes.MAX_DEPTH:
            self.add(codes.STOP)
            return
        self.add(codes.BEGIN)
        begin = self.add(codes.NEXT)
        for kind in unnested:
            self.add(codes.ITEM, kind)
        is_map = type.kind == "map"
        steps = list(dict.fromkeys(path[0] for _, _, path in slots))
        if is_map and len(steps) > 1:
            self.add(codes.STOP)  # a key is read once; for several, the rules are asked
        for step in steps[:1] if is_map else steps:
            otherwise = self.add(
                codes.IF_KEY if is_map else codes.IF_ITEM, self.text(str(step).encode()) if is_map else int(step)
            )
            inside = [(s, t, path[1:]) for s, t, path in slots if path[0] == step]
            self._nothing(inside if is_map else ())  # of what an equal key before it has left
            self.value(type.types[0], inside, depth + 1)
            self._next_item(unnested, begin)
            self.rows[otherwise][2] = len(self.rows)
        if is_map and not steps:
            self.add(codes.SKIP_BYTES)
        self.value(type.types[0], (), depth + 1)
        self._next_item(unnested, begin)
        self.rows[begin][1] = len(self.rows)

    def _next_item(self, unnested: Sequence[int], begin: int) -> None:
        for kind in unnested:
            self.add(codes.ITEM_END, kind)
        self.add(codes.JUMP, begin)

    def _leaf(self, type: Avro, slots: _Slots) -> None:
        if not slots:
            self._skip(type)
        elif len(slots) > 1:
            self.add(codes.STOP)  # two columns of one value: rare
        else:
            ((slot, wanted, _),) = slots
            self._read(type, slot, wanted)

    def _skip(self, type: Avro) -> None:
        match type.kind:
            case "boolean":
                self.add(codes.SKIP_FIXED, 1)
            case "int" | "long":
                self.add(codes.SKIP_LONG)
            case "float":
                self.add(codes.SKIP_FIXED, 4)
            case "double":
                self.add(codes.SKIP_FIXED, 8)
            case "fixed":
                self.add(codes.SKIP_FIXED, type.size)
            case "enum":
                branch = self.add(codes.BRANCH, len(type.symbols))
                for _ in type.symbols:
                    self.add(codes.JUMP, branch + 1 + len(type.symbols))
            case _:
                self.add(codes.SKIP_BYTES)

    def _read(self, type: Avro, slot: int, wanted: Type | None) -> None:
        """Append what reads a value into a slot, as `rules` converts it."""
        unit = type.logical.rpartition("-")[2]
        match type.kind, wanted:
            case (("bytes" | "fixed"), Type.DOUBLE) if type.logical == "decimal":
                self.add(codes.DECIMAL, slot, type.scale, type.size if type.kind == "fixed" else -1)
            case _ if type.logical == "decimal":
                self.add(codes.STOP)
            case (("int" | "long"), Type.BIGINT):
                self.add(codes.LONG, slot, codes.INT if type.kind == "int" else 0)
            case (("int" | "long"), Type.DOUBLE):
                self.add(codes.LONG_AS_DOUBLE, slot, codes.INT if type.kind == "int" else 0)
            case "long", Type.TIMESTAMP:
                self.add(codes.SCALED_LONG, slot, _PER_MS[unit], 1) if unit in _PER_MS else self.add(codes.LONG, slot)
            case "int", Type.TIMESTAMP if type.logical == "date":
                self.add(codes.SCALED_LONG, slot, 1, _DAY_MS)
            case "float", Type.DOUBLE:
                self.add(codes.FLOAT, slot)
            case "double", Type.DOUBLE:
                self.add(codes.DOUBLE, slot)
            case "boolean", Type.BOOLEAN:
                self.add(codes.BOOLEAN, slot)
            case (("string" | "bytes"), Type.STRING):
                self.add(codes.STRING, slot)
            case "string", Type.TIMESTAMP:
                self.add(codes.TIME_TEXT, slot)
            case "enum", Type.STRING:
                self.add(codes.SYMBOL, slot, len(self.texts), len(type.symbols))
                self.texts += [symbol.encode() for symbol in type.symbols]
            case _:
                self.add(codes.STOP)
