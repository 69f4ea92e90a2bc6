"""Prints a plan: each operator with its predicates, keys and expected sizes; each source with its window."""

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
from schemas.expression_text import aggregate_text, text_of
from schemas.query import Aggregation, Compare, Query, duration_text


class Notes(Protocol):
    """What is said of each operator and source beside what the query says."""

    def size(self, plan: Plan) -> str:
        """At the end of its line."""
        ...

    def details(self, plan: Plan) -> list[str]:
        """On lines of their own."""
        ...

    def above(self) -> str:
        """At the end of the line of what aggregates the joins' results."""
        ...


class Expected:
    """Sizes by the cost model."""

    def __init__(self, query: Query, sizes: Mapping[frozenset[str], Estimate]) -> None:
        self._query = query
        self._sizes = sizes

    def size(self, plan: Plan) -> str:
        """Tuples per second that come out, and tuples alive; of a table its rows."""
        estimate = self._sizes[frozenset(plan.aliases)]
        if isinstance(plan, Leaf) and self._query.source(plan.alias).is_table:
            return f"~{count(estimate.alive)} rows"
        return f"~{count(estimate.rate)}/s, ~{count(estimate.alive)} alive"

    def details(self, plan: Plan) -> list[str]:
        """Nothing more."""
        return []

    def above(self) -> str:
        """No expectation."""
        return ""


def explain(query: Query, plan: Plan, statistics: Statistics | None = None) -> str:
    """The plan as an indented tree, one operator per line with its details below it.

    Sizes are expectations under `statistics` (declared ones when None): tuples per second of event time
    that come out, and tuples alive at a time.
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
    """What holds for the query as a whole."""
    lines = [f"query  {query.name}" + (f"  ->  topic {query.sink}" if query.sink else ""), f"plan   {plan}"]
    return lines + [f"always {text_of(predicate)}" for predicate in constants(query)]


def aggregation_lines(aggregation: Aggregation) -> list[str]:
    """When aggregates are emitted, by what they are grouped, and what they are."""
    lines = [f"aggregate every {duration_text(aggregation.every_ms)}"]
    lines += [f"by    {text_of(expr)}" for expr in aggregation.group_by]
    return lines + [f"value {aggregate_text(aggregate)}" for aggregate in aggregation.aggregates]


def tree(query: Query, plan: Plan, notes: Notes) -> list[str]:
    """The plan, one operator per line with its details below it; above the joins what aggregates their results."""
    if query.aggregation is None:
        return _tree(query, plan, notes, "", "", _bar(plan))
    above = aggregation_lines(query.aggregation)
    lines = [f"{above[0]}{notes.above()}", *(f"│  {line}" for line in above[1:])]
    return lines + _tree(query, plan, notes, "└─ ", "   ", _bar(plan))


def _tree(query: Query, plan: Plan, notes: Notes, first: str, rest: str, bar: str) -> list[str]:
    size = notes.size(plan)
    if isinstance(plan, Leaf):
        source = query.source(plan.alias)
        name = source.stream.name
        shown = name if name == plan.alias else f"{name} {plan.alias}"
        said = f"table {shown}" if source.is_table else f"source {shown} {source.window}"
        lines = [f"{first}{said}  {size}"]
        lines += [f"{rest}  where {text_of(p)}" for p in selections(query, plan.alias)]
        return lines + [f"{rest}  {line}" for line in notes.details(plan)]
    classes = {} if query.subtracted else equality_classes(query.predicates)
    condition = join_condition(conjuncts(query), plan.left.aliases, plan.right.aliases, classes)
    lines = [f"{first}{_kind(condition, 'difference' if query.subtracted else 'join')} {plan}  {size}"]
    if query.subtracted:
        conditions = left_conditions(query, plan.right.aliases[0])
        lines += [f"{rest}{bar}  if    {text_of(p)}" for p in conditions]
    lines += [f"{rest}{bar}  {line}" for line in _placed(condition)]
    lines += [f"{rest}{bar}  {line}" for line in notes.details(plan)]
    lines += _tree(query, plan.left, notes, rest + "├─ ", rest + "│  ", _bar(plan.left))
    lines += _tree(query, plan.right, notes, rest + "└─ ", rest + "   ", _bar(plan.right))
    return lines


def _bar(plan: Plan) -> str:
    return "│" if isinstance(plan, Join) else ""


def _kind(condition: JoinCondition, operator: str) -> str:
    if condition.keys:
        return f"hash {operator}"
    return f"nested-loop {operator}" if condition.predicates else f"cross {operator}"


def _placed(condition: JoinCondition) -> list[str]:
    """How each predicate acts: the hash key, a nested-loop term, or a check of the candidates."""
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
    """A number in three digits."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * limit:  # else three digits would round it up to 1e+03 of the unit below
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"
