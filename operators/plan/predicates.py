"""Places each predicate of a query in a plan, and chooses the form in which it is evaluated.

`join_condition` does that for one join. A conjunct over one alias is a selection, applied before anything is stored.
Every other conjunct acts at the lowest join that covers its aliases, in the cheapest form that keeps its meaning:

- **key**: an equality between an expression over the left side and one over the right side becomes part of the hash
  key.
- **term**: an order comparison of the same shape is compared inside the nested-loop kernel. Equalities of whole numbers
  are terms too where hash joins are switched off, as in papers that compare nested loops.
- **residual**: any other predicate is evaluated vectorised over the candidate pairs.

`A.x - B.x < 5` over whole numbers is rearranged so that each side has one column (`A.x <= B.x + 4`, saturating). The
rearranged form accepts everything that the original accepts. The original is evaluated on the remaining pairs, since
its overflow rule (NULL) may differ. Doubles are never rearranged: rounding would change the answer.

Equalities that follow from others act too (`operators.plan.equalities`). So no plan of a query that joins by one shared
key has a cross product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from operators.data.evaluate import Resolve, evaluate
from operators.data.keys import is_exact
from operators.plan.equalities import EqualityClass
from schemas.columns import Column
from schemas.query import Arithmetic, ColumnRef, Compare, Expr, Literal, Negate, Query, Type, aliases_of, type_of

_MIRROR = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<=", "<>": "<>"}
_INTEGER = frozenset({Type.BIGINT, Type.TIMESTAMP})
_MAX, _MIN = 2**63 - 1, -(2**63)
_NO_CLASSES: Mapping[Expr, EqualityClass] = {}


@dataclass(frozen=True, slots=True)
class Operand:
    """One side of a key or term: `sign * expr + addend`, saturating at int64 unless it is `expr` alone."""

    expr: Expr
    sign: int = 1
    addend: int = 0

    def values(self, resolve: Resolve, n: int) -> Column:
        """Compute the (n,) values; null where the expression is null."""
        column = evaluate(self.expr, resolve, n)
        if self.sign == 1 and self.addend == 0:
            return column
        values, addend = column.values.astype(np.int64), self.addend
        if self.sign < 0:
            # -v = ~v + 1, and ~v is always an int64: saturating only once keeps the sum exact.
            values, addend = ~values, addend + 1
        if addend > 0:
            values = np.where(values > _MAX - addend, _MAX, values + addend)
        elif addend < 0:
            values = np.where(values < _MIN - addend, _MIN, values + addend)
        return Column(column.type, values, column.valid)


@dataclass(frozen=True, slots=True)
class Term:
    """`left op right`, left over the join's left aliases and right over its right ones."""

    left: Operand
    op: str
    right: Operand

    def operand(self, side: int) -> Operand:
        """Return the operand of side 0 (left) or 1 (right)."""
        return self.right if side else self.left


@dataclass(frozen=True, slots=True)
class JoinCondition:
    """The predicates of one join.

    Attributes:
        keys: equalities that make the hash key; empty for a nested-loop join.
        int_terms: comparisons of whole numbers for the nested-loop kernel; empty for a hash join.
        float_terms: comparisons of doubles for the nested-loop kernel; empty for a hash join.
        residual: predicates evaluated on candidate pairs, in original form.
        predicates: every predicate placed here, as written, for `weir explain`. An equality that only follows from
            predicates placed elsewhere is listed itself.
    """

    keys: tuple[Term, ...]
    int_terms: tuple[Term, ...]
    float_terms: tuple[Term, ...]
    residual: tuple[Expr, ...]
    predicates: tuple[Expr, ...]


def conjuncts(query: Query) -> tuple[Expr, ...]:
    """Return the conjuncts of WHERE, and those of EXCEPT ... ON that read the subtracted stream, in text order."""
    on = tuple(p for part in query.subtracted for p in part.on if part.alias in aliases_of(p))
    return query.predicates + on


def left_conditions(query: Query, alias: str) -> tuple[Expr, ...]:
    """Return the conjuncts of EXCEPT `alias` ON that do not read `alias`.

    A left tuple for which one of them is not true has no match in `alias`.
    """
    return tuple(p for part in query.subtracted if part.alias == alias for p in part.on if alias not in aliases_of(p))


def selections(query: Query, alias: str) -> tuple[Expr, ...]:
    """Return the conjuncts over this alias alone, in text order."""
    return tuple(p for p in conjuncts(query) if aliases_of(p) == {alias})


def constants(query: Query) -> tuple[Expr, ...]:
    """Return the conjuncts without any column: each is true for all tuples or for none."""
    return tuple(p for p in query.predicates if not aliases_of(p))


def join_condition(
    predicates: Sequence[Expr],
    left: Sequence[str],
    right: Sequence[str],
    classes: Mapping[Expr, EqualityClass] = _NO_CLASSES,
    *,
    hashed: bool = True,
) -> JoinCondition:
    """Place those predicates whose lowest covering join has these sides.

    Args:
        predicates: the conjuncts of the query.
        left: the aliases of the left side.
        right: the aliases of the right side.
        classes: the class of each equality that belongs to one (`operators.plan.equalities`). Each class with operands
            on both sides then contributes one equality here instead of those written. Only for a join of a tree or of
            a chain of joins, when the joins below use the classes too.
        hashed: False for nested loops: there are no keys, equalities of whole numbers are terms, other equalities are
            residual.
    """
    left_set, right_set = frozenset(left), frozenset(right)
    here: list[Expr] = []
    shown: list[Expr] = []
    seen: set[EqualityClass] = set()
    for p in predicates:
        equality_class = classes.get(p)
        if equality_class is None:
            if _spans(p, left_set, right_set):
                here.append(p)
                shown.append(p)
        elif equality_class not in seen:
            seen.add(equality_class)
            equality = equality_class.between(left_set, right_set)
            if equality is not None:
                here.append(equality)
                written = [q for q, ends in equality_class.predicates.items() if ends & left_set and ends & right_set]
                shown += written or [equality]
    keys: list[Term] = []
    terms: list[Term] = []
    residual: list[Expr] = []
    from_keys: list[Expr] = []
    exact = True
    for predicate in here:
        found = _separate(predicate, left_set, right_set)
        if found is None:
            residual.append(predicate)
            continue
        term, moved = found
        if term.op == "=" and not hashed:
            if not {type_of(term.left.expr), type_of(term.right.expr)} <= _INTEGER:
                residual.append(predicate)
                continue
            terms.append(term)
        elif term.op == "=":
            keys.append(term)
            from_keys.append(predicate)
            exact = exact and not moved
        else:
            terms.append(term)
        if moved:
            residual.append(predicate)
    if keys:
        types = [(type_of(k.left.expr), type_of(k.right.expr)) for k in keys]
        proved = exact and is_exact(types)
        left_over = [p for p in here if p not in from_keys] if proved else here
        return JoinCondition(tuple(keys), (), (), tuple(left_over), tuple(shown))
    ints = tuple(t for t in terms if type_of(t.left.expr) in _INTEGER)
    floats = tuple(t for t in terms if type_of(t.left.expr) is Type.DOUBLE)
    return JoinCondition((), ints, floats, tuple(residual), tuple(shown))


def _spans(predicate: Expr, left: frozenset[str], right: frozenset[str]) -> bool:
    """Return whether the join of these sides is the lowest that covers the predicate's aliases."""
    used = aliases_of(predicate)
    return bool(used) and used <= left | right and not used <= left and not used <= right


def _separate(predicate: Expr, left: frozenset[str], right: frozenset[str]) -> tuple[Term, bool] | None:
    """Return the predicate as a term between the sides, and whether it was rearranged; None where it is no term."""
    if not isinstance(predicate, Compare) or predicate.op == "<>":
        return None
    a, b = aliases_of(predicate.left), aliases_of(predicate.right)
    kinds = {type_of(predicate.left), type_of(predicate.right)}
    comparable = predicate.op == "=" or kinds <= _INTEGER or kinds == {Type.DOUBLE}
    if a and b and comparable:
        if a <= left and b <= right:
            return Term(Operand(predicate.left), predicate.op, Operand(predicate.right)), False
        if a <= right and b <= left:
            return Term(Operand(predicate.right), _MIRROR[predicate.op], Operand(predicate.left)), False
    if not kinds <= _INTEGER:
        return None
    return _move(predicate, left, right)


def _move(predicate: Compare, left: frozenset[str], right: frozenset[str]) -> tuple[Term, bool] | None:
    """Rearrange to `l op sign * r + addend`, for one whole-number column per side with factors +-1; else None."""
    linear = _linear(Arithmetic("-", predicate.left, predicate.right, Type.BIGINT))
    if linear is None:
        return None
    factors, constant = linear
    factors = {column: factor for column, factor in factors.items() if factor}
    ls = [c for c in factors if c.alias in left]
    rs = [c for c in factors if c.alias in right]
    if len(ls) != 1 or len(rs) != 1 or abs(factors[ls[0]]) != 1 or abs(factors[rs[0]]) != 1:
        return None
    # fl * l + fr * r + constant op 0; divided by fl = +-1 this is l op' -(fl * fr) * r - fl * constant.
    fl, fr = factors[ls[0]], factors[rs[0]]
    op = predicate.op if fl > 0 else _MIRROR[predicate.op]
    addend = -fl * constant
    if op == "<":
        op, addend = "<=", addend - 1
    elif op == ">":
        op, addend = ">=", addend + 1
    if not -(2**62) < addend < 2**62:
        return None
    return Term(Operand(ls[0]), op, Operand(rs[0], -fl * fr, addend)), True


def _linear(expr: Expr) -> tuple[dict[ColumnRef, int], int] | None:
    """Return a whole-number expression as factors per column and a constant; None when it is not linear."""
    match expr:
        case ColumnRef() if expr.type in _INTEGER:
            return {expr: 1}, 0
        case Literal(value=int() as value) if not isinstance(value, bool):
            return {}, value
        case Negate():
            inner = _linear(expr.operand)
            return None if inner is None else ({c: -f for c, f in inner[0].items()}, -inner[1])
        case Arithmetic(op="+" | "-" | "*"):
            a, b = _linear(expr.left), _linear(expr.right)
            if a is None or b is None:
                return None
            if expr.op == "*":
                if a[0] and b[0]:
                    return None
                factors, scale = (a[0], b[1]) if a[0] else (b[0], a[1])
                return {c: f * scale for c, f in factors.items()}, a[1] * b[1]
            sign = 1 if expr.op == "+" else -1
            merged = dict(a[0])
            for column, factor in b[0].items():
                merged[column] = merged.get(column, 0) + sign * factor
            return merged, a[1] + sign * b[1]
        case _:
            return None
