"""`weir explain` of several queries: their shared operator, and the plans of the standalone queries."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.query import Query


def explain_queries(queries: Sequence[Query]) -> str:
    """What `weir run` makes of them."""
    from operators.explain.explain import explain
    from operators.groups.explain import explain_group
    from operators.groups.sharing import sharing
    from operators.plan.choose import choose_plan, declared_statistics
    from schemas.groups import query_group

    shared = sharing(queries, None)
    pieces = [explain_group(query_group(shared))] if shared else []
    for query in queries:
        if query not in shared:
            statistics = declared_statistics(query)
            pieces.append(explain(query, choose_plan(query, statistics), statistics))
    return "\n\n".join(pieces)
