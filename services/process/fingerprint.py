"""`fingerprint`: a query's identity across restarts. Committed state is valid only for a query of the same fingerprint.

It depends on streams, windows, predicates, partitioning, the order of sources, the aggregation and the subtracted
queries. It does not depend on the SELECT list of a join, the sink and the layout of the text. Of tables only the
columns count, not where the rows are stored; `services.files.tables` identifies their contents.
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
    identity = repr((declared, sources, query.predicates, query.partition_by))
    if query.aggregation is not None or query.subtracted:
        identity += repr((query.aggregation, query.subtracted))
    if query.tables():
        identity += repr([(t.name, [(f.name, str(f.type)) for f in t.fields]) for t in query.tables()])
    return hashlib.sha256(identity.encode()).hexdigest()[:16]
