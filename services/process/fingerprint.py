"""`fingerprint`: a query's identity across restarts. Committed state is valid only for a query of the same fingerprint.

It depends on streams, windows, predicates, partitioning, the order of sources, the aggregation and the subtracted
queries. It does not depend on the SELECT list of a join, the sink and the layout of the text. Of tables only the
columns count, not where the rows are stored; `services.files.tables` identifies their contents. Nor does it count where
the schemas of records are: they are what the records were written with, wherever they are found.
"""

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass

from schemas.query import VALUE, ColumnRef, Field, Query

CLASS_NAMES = {ColumnRef: "Column"}
"""Names that classes had when the first fingerprints were committed."""


def fingerprint(query: Query) -> str:
    """16 hex digits over the bound query."""
    declared: list[tuple[object, ...]] = [
        (s.name, s.topic, s.format, s.timestamp, s.disorder_ms, [_column(f) for f in s.fields]) for s in query.streams()
    ]
    declared += [(s.name, s.key_format) for s in query.streams() if s.key_format is not None]
    declared += [(s.name, s.deduplicate, s.deduplicate_within_ms) for s in query.streams() if s.deduplicate]
    sources = [(s.alias, s.stream.name, s.window.kind, s.window.size) for s in query.sources]
    identity = _text((declared, sources, query.predicates, query.partition_by))
    if query.aggregation is not None or query.subtracted:
        identity += _text((query.aggregation, query.subtracted))
    if query.tables():
        identity += repr([(t.name, [_column(f) for f in t.fields]) for t in query.tables()])
    if query.lookups:
        read = ((one.alias, one.table.name, one.table.primary_key, one.of, one.key) for one in query.lookups)
        identity += _text(tuple(read))
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def _column(field: Field) -> tuple[object, ...]:
    place: tuple[object, ...] = (field.path,) if field.path else ()
    if field.part != VALUE:
        place = (field.path, field.part)
    return (field.name, str(field.type), *place)


def _text(value: object) -> str:
    """The value's `repr`, but with CLASS_NAMES: a class that is renamed must not change any fingerprint."""
    if isinstance(value, tuple):
        items = [_text(item) for item in value]
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    if is_dataclass(value):
        name = CLASS_NAMES.get(type(value), type(value).__name__)
        return f"{name}({', '.join(f'{field.name}={_text(getattr(value, field.name))}' for field in fields(value))})"
    return repr(value)
