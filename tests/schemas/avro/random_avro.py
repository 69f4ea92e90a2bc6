"""Random Avro schemas and values, written as the specification says, in any of the forms that it allows."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

Schema = Any

NUMBERS = ("int", "long", "float", "double", "boolean", "string", "bytes", "null")
LOGICAL = (
    {"type": "int", "logicalType": "date"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "timestamp-nanos"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 3},
    {"type": "long", "logicalType": "something else"},
)
TEXTS = ("", "a", "zwölf", "x" * 70, "日本", "2026-01-31T12:00:00Z", "\U0001f600")
WHOLE = (0, 1, -1, 63, 64, -65, 1 << 31, -(1 << 31), 1_700_000_000_000, (1 << 63) - 1, -(1 << 63))


class RandomAvro:
    """Makes schemas, values and their bytes."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self._names = 0

    def record(self, depth: int = 0) -> Schema:
        """A record with a few fields."""
        self._names += 1
        name = f"R{self._names}"
        count = self.rng.randint(0 if depth else 1, 6)
        fields = [{"name": f"f{i}", "type": self.schema(depth + 1)} for i in range(count)]
        return {"type": "record", "name": name, "fields": fields}

    def schema(self, depth: int) -> Schema:
        """Any type, simpler the deeper it is."""
        rng = self.rng
        match rng.randrange(12 if depth < 4 else 7):
            case 0 | 1 | 2:
                return rng.choice(NUMBERS)
            case 3:
                return rng.choice(LOGICAL)
            case 4:
                self._names += 1
                symbols = [f"S{i}" for i in range(rng.randint(1, 4))]
                return {"type": "enum", "name": f"E{self._names}", "symbols": symbols}
            case 5:
                self._names += 1
                return {"type": "fixed", "name": f"F{self._names}", "size": rng.randint(0, 9)}
            case 6:
                self._names += 1
                size = rng.randint(1, 9)
                about = {"logicalType": "decimal", "precision": 12, "scale": rng.randint(0, 5)}
                return {"type": "fixed", "name": f"F{self._names}", "size": size} | about
            case 7:
                return {"type": "array", "items": self.schema(depth + 1)}
            case 8:
                return {"type": "map", "values": self.schema(depth + 1)}
            case 9:
                return self.record(depth + 1)
            case 10:
                return ["null", self._one(depth)] if rng.random() < 0.7 else [self._one(depth), "null"]
        return [self._one(depth) for _ in range(rng.randint(1, 4))]

    def _one(self, depth: int) -> Schema:
        """A type that may stand in a union."""
        while isinstance(found := self.schema(depth + 1), list):
            pass
        return found

    def value(self, schema: Schema) -> Any:
        """A value; that of a union is the pair of branch and value."""
        rng = self.rng
        if isinstance(schema, list):
            branch = rng.randrange(len(schema))
            return branch, self.value(schema[branch])
        kind = schema if isinstance(schema, str) else schema["type"]
        match kind:
            case "null":
                return None
            case "boolean":
                return rng.random() < 0.5
            case "int":
                return rng.choice([n for n in WHOLE if -(1 << 31) <= n < 1 << 31])
            case "long":
                return rng.choice(WHOLE) if rng.random() < 0.5 else rng.randrange(1 << 42)
            case "float":
                return struct.unpack("<f", struct.pack("<f", rng.choice([0.0, -2.5, 1e30, rng.random()])))[0]
            case "double":
                return rng.choice([0.0, -0.0, 1e300, rng.random(), float("nan"), float("inf")][: rng.choice([4, 4, 6])])
            case "string":
                return rng.choice(TEXTS)
            case "bytes":
                return rng.choice([b"", b"\x07", b"\xff\x00", b"abc", rng.randbytes(rng.randint(1, 10))])
            case "fixed":
                return rng.randbytes(schema["size"])
            case "enum":
                return rng.choice(schema["symbols"])
            case "array":
                return [self.value(schema["items"]) for _ in range(rng.choice([0, 1, 2, 5]))]
            case "map":
                return {rng.choice("abcde"): self.value(schema["values"]) for _ in range(rng.choice([0, 1, 3]))}
        return {field["name"]: self.value(field["type"]) for field in schema["fields"]}

    def written(self, schema: Schema, value: Any) -> bytes:
        """The bytes of a value."""
        if isinstance(schema, list):
            branch, inside = value
            return long(branch) + self.written(schema[branch], inside)
        kind = schema if isinstance(schema, str) else schema["type"]
        match kind:
            case "null":
                return b""
            case "boolean":
                return b"\1" if value else b"\0"
            case "int" | "long":
                return long(value)
            case "float":
                return struct.pack("<f", value)
            case "double":
                return struct.pack("<d", value)
            case "string":
                return long(len(value.encode())) + value.encode()
            case "bytes":
                return long(len(value)) + value
            case "fixed":
                return bytes(value)
            case "enum":
                return long(schema["symbols"].index(value))
            case "array":
                return self._blocks([self.written(schema["items"], one) for one in value])
            case "map":
                values = schema["values"]
                return self._blocks([self.written("string", k) + self.written(values, v) for k, v in value.items()])
        return b"".join(self.written(field["type"], value[field["name"]]) for field in schema["fields"])

    def _blocks(self, items: list[bytes]) -> bytes:
        found = b""
        while items:
            count = self.rng.randint(1, len(items))
            block, items = items[:count], items[count:]
            sized = self.rng.random() < 0.5
            found += (long(-count) + long(sum(map(len, block))) if sized else long(count)) + b"".join(block)
        return found + b"\0"


def long(value: int) -> bytes:
    """A number as Avro writes it."""
    word = (value << 1) ^ (value >> 63)
    found = bytearray()
    while word > 0x7F:
        found.append(word & 0x7F | 0x80)
        word >>= 7
    found.append(word)
    return bytes(found)


def plain(schema: Schema, value: Any) -> Any:
    """The value without the branches of unions, as other readers return it."""
    if isinstance(schema, list):
        branch, inside = value
        return plain(schema[branch], inside)
    if isinstance(schema, dict):
        if schema["type"] == "record":
            return {field["name"]: plain(field["type"], value[field["name"]]) for field in schema["fields"]}
        if schema["type"] == "array":
            return [plain(schema["items"], one) for one in value]
        if schema["type"] == "map":
            return {key: plain(schema["values"], one) for key, one in value.items()}
    return value


def without_logical(schema: Schema) -> Schema:
    """The schema as readers take it that know no logical types."""
    if isinstance(schema, list):
        return [without_logical(one) for one in schema]
    if isinstance(schema, dict):
        return {key: without_logical(value) for key, value in schema.items() if key != "logicalType"}
    return schema
