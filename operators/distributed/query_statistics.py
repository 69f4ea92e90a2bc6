"""Translates the statistics of one operator's engine into those of the whole query, so that the operators' add up.

`services.worker.operator_tasks` calls it. The statistics of each operator list all joins of the plan and all sources,
with zeros where another operator has the counts; `operators.explain.analyze` sums them. A source's arrivals are counted
where its topic is read, and its living tuples where it is joined.
"""

from __future__ import annotations

from dataclasses import replace

from operators.data.statistics import EngineStatistics, OperatorStatistics, SourceStatistics
from operators.distributed.operator import DistributedOperator
from operators.plan.equalities import equality_classes
from operators.plan.plan import Join, Plan, postorder
from operators.plan.predicates import join_condition
from schemas.query import Query, Stream


def as_query_statistics(
    found: EngineStatistics, operator: DistributedOperator, query: Query, plan: Plan
) -> EngineStatistics:
    """Return the statistics of a task of `operator`, a part of `plan`, as those of a task of the query."""
    own = found.operators[0] if isinstance(operator.plan, Join) and found.operators else None
    last = not operator.outputs
    # A set difference is one operator, and a query that is one operator keeps its columns' names.
    whole = own is not None and (bool(query.subtracted) or not operator.columns)
    return replace(
        found,
        plan=str(plan),
        operators=found.operators if whole else tuple(_joins(own, operator, query, plan)),
        sources=tuple(_source(found, operator, query, plan, source.alias) for source in query.sources),
        results=found.results if last else 0,
        intermediate_results=0 if last else found.results,
        links=(),
    )


def _joins(
    own: OperatorStatistics | None, operator: DistributedOperator, query: Query, plan: Plan
) -> list[OperatorStatistics]:
    classes = equality_classes(query.predicates)
    found: list[OperatorStatistics] = []
    for node in postorder(plan):
        if not isinstance(node, Join):
            continue
        name, aliases = str(node), (node.left.aliases, node.right.aliases)
        if own is not None and name == operator.name:
            found.append(replace(own, name=name, aliases=aliases))
            continue
        keys = join_condition(query.predicates, *aliases, classes).keys
        kind = "hash" if keys else "nested-loop"
        found.append(OperatorStatistics(name, kind, 0, 0, 0, 0, (0, 0), (0, 0), (True, True), aliases=aliases))
    return found


def _source(
    found: EngineStatistics, operator: DistributedOperator, query: Query, plan: Plan, alias: str
) -> SourceStatistics:
    """Return the task's statistics of a source: all of them if it reads the source directly, the arrivals if it is an
    intake, and the living tuples if it reads from an intake."""
    stream = query.source(alias).stream
    nothing = SourceStatistics(alias, stream.name, 0, 0, 0, 0.0)
    if not isinstance(stream, Stream):
        return nothing
    here = {source.alias: source for source in found.sources}
    if operator.is_intake:
        one = here.get(stream.name)
        return nothing if one is None else replace(nothing, input_tuples=one.input_tuples)
    one = here.get(alias)
    if one is None:
        return nothing
    direct = any(given.edge is None and given.stream.name == stream.name for given in operator.streams)
    return replace(one, stream=stream.name, input_tuples=one.input_tuples if direct else 0)
