"""Prints a plan for `weir explain`: operators with predicates, keys and expected sizes, sources with windows.

The entry is `explain`; `analyze` prints trees with other notes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from operators.plan.choose import CostModel, Estimate, Statistics, declared_statistics
from operators.plan.equalities import equality_classes
from operators.plan.plan import Join, Leaf, Plan
from operators.plan.predicates import (
    JoinCondition,
    Operand,
    conjuncts,
    constants,
    join_condition,
    left_conditions,
    selections,
)
from schemas.durations import format_duration
from schemas.expression_text import aggregate_text, text_of
from schemas.query import Aggregation, Compare, Lookup, Query, Source, Stream


class PlanNotes(Protocol):
    """The figures printed for each operator and source, beside the text of the query."""

    def size(self, plan: Plan) -> str:
        """Return the text for the end of the operator's or source's line."""
        ...

    def details(self, plan: Plan) -> list[str]:
        """Return further lines."""
        ...

    def above(self) -> str:
        """Return the text for the end of the line of the aggregate operator above the joins."""
        ...


class Expected:
    """Notes with the sizes expected by the cost model."""

    def __init__(self, query: Query, sizes: Mapping[frozenset[str], Estimate]) -> None:
        self._query = query
        self._sizes = sizes

    def size(self, plan: Plan) -> str:
        """Return tuples per second of output and tuples alive; for a table its rows."""
        estimate = self._sizes[frozenset(plan.aliases)]
        if isinstance(plan, Leaf) and self._query.source(plan.alias).is_static:
            return f"~{count(estimate.alive)} rows"
        return f"~{count(estimate.rate)}/s, ~{count(estimate.alive)} alive"

    def details(self, plan: Plan) -> list[str]:
        """Return no further lines."""
        return []

    def above(self) -> str:
        """Return no expectation."""
        return ""


def explain(query: Query, plan: Plan, statistics: Statistics | None = None) -> str:
    """Print the plan as an indented tree, one operator per line with its details below it.

    Sizes are expectations under `statistics` (declared ones when None): output tuples per second of event time, and
    tuples alive at one time.
    """
    stats = statistics or declared_statistics(query)
    model = CostModel(query, stats)
    sizes = model.estimates(plan)
    lines = [*heading(query, str(plan)), "", *tree(query, plan, Expected(query, sizes))]
    basis = "sampled" if stats.sampled else "declared" if stats.rates or stats.distinct else "assumed"
    whole = sizes[frozenset(plan.aliases)]
    lines += [
        "",
        f"expected cost {count(whole.cost)} tuples entered, probed and built per second of event time"
        f" ({basis} statistics)",
    ]
    return "\n".join(lines)


def heading(query: Query, plan: str) -> list[str]:
    """Return the lines about the query as a whole."""
    lines = [f"query  {query.name}" + (f"  ->  topic {query.sink}" if query.sink else ""), f"plan   {plan}"]
    return lines + [f"always {text_of(predicate)}" for predicate in constants(query)]


def aggregation_lines(aggregation: Aggregation) -> list[str]:
    """Return lines with the period of emission, the group keys and the aggregates."""
    lines = [f"aggregate every {format_duration(aggregation.every_ms)}"]
    lines += [f"by    {text_of(expr)}" for expr in aggregation.group_by]
    return lines + [f"value {aggregate_text(aggregate)}" for aggregate in aggregation.aggregates]


def tree(query: Query, plan: Plan, notes: PlanNotes) -> list[str]:
    """Return the plan, one operator per line with its details below it; above the joins the aggregate operator."""
    if query.aggregation is None:
        return _tree(query, plan, notes, "", "", _bar(plan))
    above = aggregation_lines(query.aggregation)
    lines = [f"{above[0]}{notes.above()}", *(f"│  {line}" for line in above[1:])]
    return lines + _tree(query, plan, notes, "└─ ", "   ", _bar(plan))


def _tree(query: Query, plan: Plan, notes: PlanNotes, first: str, rest: str, bar: str) -> list[str]:
    size = notes.size(plan)
    if isinstance(plan, Leaf):
        source = query.source(plan.alias)
        name = source.stream.name
        shown = name if name == plan.alias else f"{name} {plan.alias}"
        head = f"table {shown}" if source.is_static else f"source {shown} {source.window}"
        lines = [f"{first}{head}  {size}"]
        lines += [f"{rest}  {line}" for line in _deduplication(source)]
        lines += [f"{rest}  {looks_up(lookup)}" for lookup in query.lookups if lookup.of == plan.alias]
        lines += [f"{rest}  where {text_of(p)}" for p in selections(query, plan.alias)]
        return lines + [f"{rest}  {line}" for line in notes.details(plan)]
    kind, conditions = described(query, plan)
    lines = [f"{first}{kind} {plan}  {size}"]
    lines += [f"{rest}{bar}  {line}" for line in (*conditions, *notes.details(plan))]
    lines += _tree(query, plan.left, notes, rest + "├─ ", rest + "│  ", _bar(plan.left))
    lines += _tree(query, plan.right, notes, rest + "└─ ", rest + "   ", _bar(plan.right))
    return lines


def looks_up(lookup: Lookup) -> str:
    """Say in which table tuples are looked up, and by what."""
    keys = zip(lookup.table.primary_key, lookup.key, strict=True)
    by = ", ".join(f"{lookup.alias}.{name} = {text_of(expr)}" for name, expr in keys)
    return f"look up {lookup.table.name} as of {lookup.of}._ts: {by}"


def _deduplication(source: Source) -> list[str]:
    """Return a line if repeats are dropped from the source's stream."""
    stream = source.stream
    if not isinstance(stream, Stream) or not stream.deduplicate:
        return []
    return [f"first {', '.join(stream.deduplicate)} within {format_duration(stream.deduplicate_within_ms)}"]


def described(query: Query, plan: Join) -> tuple[str, list[str]]:
    """Return the kind of operator that a join is, and a line for each predicate that it evaluates."""
    classes = {} if query.subtracted else equality_classes(query.predicates)
    condition = join_condition(conjuncts(query), plan.left.aliases, plan.right.aliases, classes)
    kind = _kind(condition, "difference" if query.subtracted else "join")
    lines = _placed(condition)
    if query.subtracted:
        lines = [f"if    {text_of(p)}" for p in left_conditions(query, plan.right.aliases[0])] + lines
    return kind, lines


def _bar(plan: Plan) -> str:
    return "│" if isinstance(plan, Join) else ""


def _kind(condition: JoinCondition, operator: str) -> str:
    if condition.keys:
        return f"hash {operator}"
    return f"nested-loop {operator}" if condition.predicates else f"cross {operator}"


def _placed(condition: JoinCondition) -> list[str]:
    """Return a line per predicate with its form: hash key, nested-loop term, or check of the candidates."""
    lines = [f"key   {text_of(k.left.expr)} = {_side(k.right)}" for k in condition.keys]
    for term in (*condition.int_terms, *condition.float_terms):
        lines.append(f"loop  {text_of(term.left.expr)} {term.op} {_side(term.right)}")
    plain = {(k.left, k.right) for k in condition.keys}
    for predicate in condition.residual:
        if isinstance(predicate, Compare) and predicate.op == "=":
            sides = Operand(predicate.left), Operand(predicate.right)
            if sides in plain or sides[::-1] in plain:
                continue  # the key itself, compared again because hashes of strings can collide
        lines.append(f"check {text_of(predicate)}")
    return lines


def _side(operand: Operand) -> str:
    text = text_of(operand.expr)
    text = f"-{text}" if operand.sign < 0 else text
    if operand.addend:
        text += f" {'+' if operand.addend > 0 else '-'} {abs(operand.addend)}"
    return text


def count(value: float) -> str:
    """Format a number in three digits, with a unit prefix."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * limit:  # else three digits would round it up to 1e+03 of the unit below
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"
