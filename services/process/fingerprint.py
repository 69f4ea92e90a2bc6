"""A query's identity across restarts: what must stay the same for its committed state to mean the same.

Streams, windows, predicates, partitioning, the order of sources, what is aggregated and what is subtracted count;
the SELECT list of a join, the sink and how the text is laid out do not. Of tables the columns count, not where their
rows are; what these are is told apart by `services.files.tables`.
"""

from __future__ import annotations

import hashlib

from schemas.query import Query


def fingerprint(query: Query) -> str:
    """16 hex digits over the bound query, which is frozen and whose `repr` is a function of its value."""
    declared = [
        (s.name, s.topic, s.format, s.timestamp, s.disorder_ms, [(f.name, str(f.type)) for f in s.fields])
        for s in query.streams()
    ]
    sources = [(s.alias, s.stream.name, s.window.kind, s.window.size) for s in query.sources]
    said = repr((declared, sources, query.predicates, query.partition_by))
    if query.aggregation is not None or query.subtracted:
        said += repr((query.aggregation, query.subtracted))
    if query.tables():
        said += repr([(t.name, [(f.name, str(f.type)) for f in t.fields]) for t in query.tables()])
    return hashlib.sha256(said.encode()).hexdigest()[:16]
