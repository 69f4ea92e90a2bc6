"""Shows records that name a schema of a registry, in Avro or JSON, as JSON, for the page."""

from __future__ import annotations

import orjson

from schemas.avro.columns import columns_of
from schemas.avro.rules import AvroRules
from schemas.codecs.decoded import RecordError
from schemas.codecs.wanted import Wanted
from schemas.errors import DataError
from services.formats.registry_access import RegistryAccess
from services.formats.schema_kinds import AVRO
from services.formats.schema_registry import SchemaRegistry, SchemaUnavailable

PATIENCE_S = 1.0
"""How long a page waits for a schema that is asked for first."""

_FRAME = 5
"""Bytes of the frame: a zero and the schema's number."""


class AvroText:
    """Shows the results of a query, whose schemas are in a registry."""

    def __init__(self, url: str, access: RegistryAccess) -> None:
        self._registry = SchemaRegistry(url, access, AVRO, PATIENCE_S)
        self._known: dict[int, tuple[list[str], AvroRules]] = {}

    def __call__(self, raw: bytes) -> bytes:
        """A record as JSON; as it is if it cannot be read, or not yet."""
        if raw[:1] != b"\0" or len(raw) < _FRAME:
            return raw
        if raw[_FRAME : _FRAME + 1] == b"{":
            try:
                return orjson.dumps(orjson.loads(raw[_FRAME:]))
            except orjson.JSONDecodeError:
                pass  # Avro that begins like JSON
        try:
            names, rules = self._rules(int.from_bytes(raw[1:_FRAME], "big"))
            return orjson.dumps(dict(zip(names, rules.values(raw[_FRAME:]), strict=True)))
        except (RecordError, DataError, SchemaUnavailable):
            return raw

    def _rules(self, number: int) -> tuple[list[str], AvroRules]:
        if number not in self._known:
            schema = self._registry.schema(number)
            columns = columns_of(schema)
            wanted = [Wanted(column.name, column.place, column.type) for column in columns]
            self._known[number] = [column.name for column in columns], AvroRules(schema, wanted)
        return self._known[number]
